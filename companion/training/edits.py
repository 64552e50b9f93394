"""Edits of a trained network: a block is skipped, or two are swapped, replaced, merged or run side by side.

    python -m companion.training.edits MODEL --folder PROMPTS --novels NOVELS --table data/edits.csv

The cost of an edit is measured on held-out passages: the rise of the loss, and the divergence of the next token's
distribution from the unedited model's. Its predictors are measured on other texts. A run that was stopped resumes:
skipped blocks come first, then pairs from near to far, then successive removals.
"""

import argparse
import copy
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

import coupling_lib as cl
from companion.tables import texts
from companion.tables.edits import BEST, KEY, PAIRS, RANDOM, REMOVE, SKIP, TABLE, K, by_block, edits
from companion.tables.files import predictions_sha256, write_table
from companion.training import scores
from companion.training.rivals import of_weights
from coupling_lib import provenance
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.precision import PRECISIONS
from coupling_lib.blocks.record import passed
from coupling_lib.errors import ParameterError, check_whole
from coupling_lib.progress import in_one_line

MOST_REMOVED = 10
"""Number of blocks that are removed one after the other."""
_AT_ONCE, _CANDIDATES, _CALIBRATION = 10, 12, 12

HEADER = f"""\
What edits of trained networks cost (python -m companion.training.edits), one row per model and edit.
edit: {SKIP}: one block is left out; swap: two blocks change places; replace: the later one runs with the weights of the
earlier; merge: both run with the mean of their weights; parallel: both read what the earlier one reads, and both
outputs are added there; {REMOVE}: several blocks are left out, chosen by what `by` says. blocks: which, counted from 1.
loss_rise: nats per token of the last half of held-out passages, minus those of the unedited model; kl: divergence of
the next token's distribution from the unedited model's; _low, _high: 95 % intervals over passages.
What may predict it is measured on {_CALIBRATION} embedded prompts; of a pair it is the mean over both blocks where
nothing else is said. normalized_miscoupling_k{K}, shared_: of the pair both ways, of a block with all others (1 minus
it is coupling), at the last token. influence: 1 minus the mean cosine of what a block reads and what it gives.
state_cosine: mean cosine of what two blocks read. log_singular: mean logarithm of the {K} largest singular values of
the Jacobian. alpha: exponent of the power law of the eigenvalues of W^T W, mean over a block's matrices. distance: by
how many places the later one of a pair comes after the earlier.
precision: of the weights and states of the network that is edited; predictors are measured in float32.
predictions_sha256: of data/predictions.toml as it was when the row was measured."""

Stage = tuple[tuple[BlockCall, nn.Module], ...]
"""Blocks that run at one place of the stack, each with the arguments of a recorded call; several run in parallel."""


class Passages(NamedTuple):
    """Held-out passages, with the unedited model's stages, states and predictions."""

    ids: Tensor
    stages: list[Stage]
    states: list[Tensor]
    head: Any
    log_probs: Tensor


@torch.no_grad()
def read_passages(model: cl.Model, ids: Tensor) -> Passages:
    """Run the unedited model on passages of one length (n, tokens), and keep every state."""
    calls = [passed(model.hf, model.blocks, {model.hf.main_input_name: one[None].to(model.device)}) for one in ids]
    states = [torch.cat([call.input for call in of_block]) for of_block in zip(*calls, strict=True)]
    states.append(torch.cat([of_text[-1].output for of_text in calls]))
    stages = [((call, call.block),) for call in calls[0]]
    head = cl.lens(cl.trace(model, ids[:1])).head
    return Passages(ids, stages, states, head, _log_probs(head, states[-1]))


def _log_probs(head: Any, states: Tensor) -> Tensor:
    """Return the logarithms of the next token's probabilities, for the tokens of the last half."""
    half = states.shape[1] // 2
    return head(states[:, half - 1 : -1].float()).log_softmax(dim=-1)


def edited(stages: Sequence[Stage], edit: str, *places: int) -> list[Stage | None]:
    """Return the stages of an edited network, None for skipped ones; places count from 0."""
    found: list[Stage | None] = list(stages)
    if edit in (SKIP, REMOVE):
        for place in places:
            found[place] = None
        return found
    i, j = sorted(places)
    a, b = stages[i], stages[j]
    if edit == "swap":
        found[i], found[j] = b, a
    elif edit == "replace":
        found[j] = ((b[0][0], a[0][1]),)
    elif edit == "merge":
        both = merged(a[0][1], b[0][1])
        found[i], found[j] = ((a[0][0], both),), ((b[0][0], both),)
    elif edit == "parallel":
        found[i], found[j] = (*a, *b), None
    else:
        raise ParameterError(f"edit is {edit!r}; expected one of {', '.join((SKIP, *PAIRS, REMOVE))}")
    return found


def merged(first: nn.Module, second: nn.Module) -> nn.Module:
    """Build a block whose weights are the mean of those of two."""
    both = copy.deepcopy(first)
    with torch.no_grad():
        for own, other in zip(both.parameters(), second.parameters(), strict=True):
            own.add_(other).div_(2)
    return both


@torch.no_grad()
def run(reading: Passages, stages: Sequence[Stage | None]) -> Tensor:
    """Return the last states of an edited network, computed from the first edited block on."""
    pairs = zip(stages, reading.stages, strict=True)
    at = next((at for at, (stage, unedited) in enumerate(pairs) if stage is not unedited), len(stages))
    stream = reading.states[at]
    for stage in stages[at:]:
        if stage is not None:
            stream = stream + sum(call.replay(block, stream) - stream for call, block in stage)
    return stream


@torch.no_grad()
def cost(reading: Passages, stages: Sequence[Stage | None]) -> dict[str, float]:
    """Return the cost of an edit: the rise of the loss and the divergence, with intervals over passages."""
    log_probs = _log_probs(reading.head, run(reading, stages))
    targets = reading.ids[:, -log_probs.shape[1] :].to(log_probs.device)
    losses = [
        functional.nll_loss(one.transpose(1, 2), targets, reduction="none").mean(1)
        for one in (log_probs, reading.log_probs)
    ]
    kl = functional.kl_div(log_probs, reading.log_probs, reduction="none", log_target=True).sum(-1).mean(1)
    each = {"loss_rise": losses[0] - losses[1], "kl": kl}
    return scores.with_interval(**{name: values.double().cpu().numpy() for name, values in each.items()})


def predictors(model: cl.Model) -> dict[str, np.ndarray]:
    """Measure the predictors of an edit's cost: matrices over pairs of blocks, and lists over blocks."""
    prompts = cl.load_prompts(n=_CALIBRATION)
    depth = cl.sweep(cl.measure_depth, model, prompts, ks=(K,))
    found = {}
    for name in (f"normalized_miscoupling_k{K}", f"shared_normalized_miscoupling_k{K}"):
        values = depth[name.removesuffix(f"_k{K}")].sel(k=K).transpose("prompt", "block_1", "block_2").values.mean(0)
        found[name] = (values + values.T) / 2
    cosines = []
    for prompt in prompts:
        hidden = functional.normalize(cl.trace(model, prompt).hidden.double(), dim=-1)
        cosines.append(torch.einsum("ind,jnd->ijn", hidden, hidden).mean(-1))
    cosine = torch.stack(cosines).mean(0).cpu().numpy()
    found |= {"influence": 1 - np.diag(cosine, 1), "state_cosine": cosine[:-1, :-1]}
    singular = np.log(depth["singular_values"].transpose("prompt", "block_1", "rank").values[..., :K].astype(float))
    found["log_singular"] = singular.mean((0, 2))
    found["alpha"] = np.array([of_weights(block)["alpha"] for block in model.blocks.modules])
    return found


def predicted(known: dict[str, np.ndarray], places: Sequence[int]) -> dict[str, float]:
    """Return the predictors of one block, or of a pair."""
    if len(places) == 2:
        i, j = places
        found = {name: values[i, j] if values.ndim == 2 else values[[i, j]].mean() for name, values in known.items()}
        return {name: float(value) for name, value in found.items()} | {"distance": abs(j - i)}
    of_block = {name: values[places[0]] for name, values in known.items() if name != "state_cosine"}
    return {name: float(np.delete(of, places[0]).mean() if of.ndim else of) for name, of in of_block.items()}


def planned_edits(n: int, near: int, orders: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """List edits of single blocks, of pairs, and of several blocks; pairs beyond a distance are only swapped, last."""
    yield from ((SKIP, (place,), "") for place in range(n))
    pairs = sorted(combinations(range(n), 2), key=lambda pair: (pair[1] - pair[0], pair))
    yield from ((edit, pair, "") for pair in pairs if pair[1] - pair[0] <= near for edit in PAIRS)
    sizes = range(1, min(MOST_REMOVED, n - 2) + 1)
    yield from ((REMOVE, (size,), by) for size in sizes for by in ("", BEST))
    for order in range(orders):
        drawn = random.Random(order).sample(range(n), n)
        yield from ((REMOVE, tuple(drawn[:size]), f"{RANDOM} {order}") for size in sizes)
    yield from (("swap", pair, "") for pair in pairs if pair[1] - pair[0] > near)


def rows(
    model: cl.Model, known: dict[str, np.ndarray], ids: Tensor, near: int, orders: int, file: Path
) -> Iterator[dict[str, Any]]:
    """Measure all edits that the table lacks."""
    reading, table = read_passages(model, ids), edits(file)
    own = table[table["model"] == model.name] if len(table) else pd.DataFrame(columns=[*KEY, "loss_rise"])
    have = {tuple(row[name] for name in KEY[1:]): row["loss_rise"] for row in own.to_dict("records")}
    if len(own):
        _check_passages(own, reading, file)
    best: tuple[int, ...] = ()

    def one(edit: str, places: Sequence[int], by: str = "") -> dict[str, Any]:
        named = {"model": model.name, "edit": edit, "blocks": _named(places), "by": by}
        return named | cost(reading, edited(reading.stages, edit, *places))

    for edit, places, by in planned_edits(model.n_blocks, near, orders):
        if edit == REMOVE and by == BEST:
            alone = sorted(range(model.n_blocks), key=lambda place: have[SKIP, _named([place]), ""])
            tried = [one(REMOVE, (*best, place), BEST) for place in alone[:_CANDIDATES] if place not in best]
            chosen = min(tried, key=lambda row: row["loss_rise"])
            best = tuple(int(block) - 1 for block in chosen["blocks"].split())
            yield chosen
        elif edit == REMOVE and not by:
            yield from (one(REMOVE, order[: places[0]], name) for name, order in by_block(known).items())
        elif (edit, _named(places), by) not in have:
            found = one(edit, places, by)
            have[edit, _named(places), by] = found["loss_rise"]
            yield found | (predicted(known, places) if edit != REMOVE else {})


def _check_passages(own: pd.DataFrame, reading: Passages, file: Path) -> None:
    """Measure a row of the table again, and refuse to add rows of other passages to it."""
    row = own.iloc[0]
    found = cost(reading, edited(reading.stages, row["edit"], *(int(block) - 1 for block in row["blocks"].split())))
    # Another processor changes the last digits, in narrow precisions some more.
    if not np.allclose(row[[*found]].astype(float), [*found.values()], rtol=0.02, atol=1e-3, equal_nan=True):
        raise ParameterError(
            f"in {str(file)!r} {row['edit']} {row['blocks']} of {row['model']} raises the loss by "
            f"{row['loss_rise']:.4f}, on these passages by {found['loss_rise']:.4f}; take the passages of before, or "
            "another file as --table"
        )


def _named(places: Sequence[int]) -> str:
    return " ".join(str(place + 1) for place in places)


def measure(model_name: str, ids: Tensor | None, given: argparse.Namespace) -> None:
    """Measure one model, and keep the table up to date."""
    predictions_sha256()  # refuses to measure before predictions are written
    if ids is None:
        check_whole("--passages", given.passages, 1)
        check_whole("--tokens", given.tokens, 2)
    model, table = cl.load_model(model_name), edits(given.table)
    own = table.loc[table["model"] == model.name, "precision"] if len(table) else []
    if other := sorted({*own} - {given.precision}):
        raise ParameterError(
            f"{str(given.table)!r} has edits of {model.name} in {other[0]}, and {given.precision} is asked for; take "
            f"--precision {other[0]}, or another file as --table"
        )
    known = predictors(model)
    if given.precision != "float32":
        model = cl.load_model(model_name, precision=given.precision)
    if ids is None:
        cut = texts.passages(model, [given.tokens] * given.passages, given.source, given.folder, given.novels)
        ids = torch.cat(list(cut.values()))
    found = rows(model, known, ids, given.near, given.orders, given.table)
    while taken := list(islice(found, _AT_ONCE)):
        write(given.table, taken, given.precision)
        print(f"{model.name}: {taken[-1]['edit']} {taken[-1]['blocks']} {taken[-1]['by']}", flush=True)


def write(file: Path, taken: list[dict[str, Any]], precision: str) -> None:
    """Add rows to the table, each with the digest of the predictions made before."""
    stamp = {"precision": precision, "predictions_sha256": predictions_sha256(), "cpu": provenance.processor()}
    table = pd.concat([edits(file), pd.DataFrame([one | stamp for one in taken])], ignore_index=True)
    table = table.drop_duplicates(KEY, keep="last")
    write_table(file, table[[column for column in table if column not in stamp] + list(stamp)], HEADER)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="alias of data/models.csv, Hugging Face id, or a local folder")
    parser.add_argument("--source", default="wikitext2", choices=texts.PASSAGES, help="where passages are cut out")
    parser.add_argument("--folder", type=Path, default=Path(), help="holds wikitext2/test.txt")
    parser.add_argument(
        "--novels", type=Path, default=Path(), help="a folder of .txt files that nothing was trained on"
    )
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of each passage")
    parser.add_argument("--near", type=int, default=4, help="the largest distance of two blocks at which all is tried")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS, help="of the network that is edited")
    parser.add_argument("--orders", type=int, default=200, help="random orders in which blocks are removed")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the rows go")
    given = parser.parse_args()
    if status := in_one_line(lambda: measure(given.model, None, given) or 0, "interrupted"):
        sys.exit(status)


if __name__ == "__main__":
    main()
