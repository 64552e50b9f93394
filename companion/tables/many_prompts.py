"""Coupling over many prompts, `data/many_prompts.csv`: a row for each prompt, model and network.

    python -m companion.tables.many_prompts MODEL --folder PROMPTS --novels NOVELS --table data/many_prompts.csv

A run that was stopped resumes. Coupling is measured at the last token of the trained network; trajectories and tokens
of the untrained one as well, and coupling with weights in 4 bits, on fewer
prompts.
"""

import argparse
import sys
from collections.abc import Iterable
from itertools import islice, product, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from companion.tables import texts
from companion.tables.files import predictions_sha256, write_table
from companion.tables.prompt_effects import IN_4_BITS, KEY, READINGS, TABLE, K, many_prompts
from coupling_lib import provenance
from coupling_lib.datasets.parts import shared_part
from coupling_lib.datasets.summaries import pair_couplings
from coupling_lib.inputs.prompts import Prompt, load_prompts
from coupling_lib.inputs.traced import trace
from coupling_lib.jacobian.derivatives import block_jacobians
from coupling_lib.measures import common
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.dynamics import measure_dynamics
from coupling_lib.measures.prompts import ALONE, SUFFIXES, prompt_versions
from coupling_lib.measures.tokens import KINDS, chosen_tokens
from coupling_lib.measures.trajectories import SCORES, measure_trajectories
from coupling_lib.metrics.surrogates import surrogate_vectors
from coupling_lib.metrics.variants import values_of_pairs
from coupling_lib.models.load import load_model
from coupling_lib.models.model import Model
from coupling_lib.progress import in_one_line
from coupling_lib.svd.shared import without_isotropic

VARIANT = "normalized_miscoupling"
TOKENS = 3
"""Positions of a prompt that are compared with each other, in every pair of blocks."""
PASSAGES = 100
"""Passages of each source."""
WITH_TOKENS = 16
"""Number of embedded prompts whose tokens are compared."""
WITH_PRODUCT = 48
"""Number of new questions on which the product of all blocks' linear maps is formed."""
_AT_ONCE = 20
_HEADER = f"""\
Coupling of single prompts (python -m companion.tables.many_prompts), one row per model, network and prompt; in float32,
or with weights in nf4. A prompt longer than the model reads is left out.
set: of the prompt (companion.tables.texts); version: alone, or with a sentence behind it; steps: reasoning steps of a
problem's solution; tokens: its length for this model's tokenizer, what is added to it included.
normalized_miscoupling_k{K}: at the last token, mean over pairs of different blocks (1 minus it is coupling); shared_:
of the Jacobians without their isotropic part; _neighbours: over adjacent blocks.
self, input, output: coupling, 1 - normalized_miscoupling at K = {K}, of the Jacobians of different tokens of a prompt,
mean over all pairs of different blocks and of the last {TOKENS} tokens (the paper's self-coupling, and context coupling
with the second token as input or the last as output); shared_: without the isotropic part; _conjugated: with the left
and right singular vectors of the second Jacobian of each pair turned by one random rotation (metrics.surrogates).
product_lead: cosine of the product of all I + J, applied to the embedding, with the last state, minus that of random
bases (measures.dynamics).
SCORE_STATES: line-shape score, expodistance and equidistance over the states (metrics.trajectory) of the last token.
predictions_sha256: of data/predictions.toml as it was when the row was measured."""


class PlannedPrompt(NamedTuple):
    """A prompt to be measured: its notes, the model's input, and the measurements to make."""

    notes: dict[str, Any]
    given: str | torch.Tensor
    trajectories: bool = False
    tokens: bool = False
    coupling: bool = True
    product: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Key of a prompt among the model's others."""
        return str(self.notes["id"]), str(self.notes["version"])


def planned_prompts(
    model: Model, folder: Path | None, novels: Path | None, anew: bool = False, more: int = 0
) -> list[PlannedPrompt]:
    """List all prompts, with sets alternating, so that any beginning of the list is a smaller experiment."""
    sets = [*texts.SETS, *([texts.NEW_PROBLEMS] if anew else [])]
    of_sets = [texts.chosen_set(name, folder) for name in sets if folder or name not in texts.BENCHMARKS]
    with_tokens = {prompt.id for prompt in load_prompts(n=WITH_TOKENS)}
    listed = [[_planned(prompt, with_tokens) for prompt in prompts] for prompts in of_sets]
    if folder is not None:
        questions = texts.chosen_set(texts.QUESTIONS, folder)
        versions = [prompt for prompt in prompt_versions(model, questions) if prompt.id.endswith(tuple(SUFFIXES))]
        listed += [[_planned(prompt, with_tokens) for prompt in versions]]
        lengths = [len(model.tokenizer(prompt.text)["input_ids"]) for prompt in questions[:PASSAGES]]
        for source in texts.PASSAGES:
            if source == "novels" and novels is None:
                continue
            cut = texts.passages(model, lengths, source, folder, novels or Path())
            notes = {"set": source, "version": ALONE, "steps": np.nan}
            listed.append(
                [PlannedPrompt(notes | {"id": name}, ids, source == "wikitext2") for name, ids in cut.items()]
            )
        if more:
            planned = [_planned(prompt, with_tokens) for prompt in texts.new_questions(folder, more)]
            listed.append([one._replace(product=at < WITH_PRODUCT) for at, one in enumerate(planned)])
    longest = getattr(model.hf.config, "max_position_embeddings", np.inf)
    return [one for turn in zip_longest(*listed) for one in turn if one is not None and length(model, one) <= longest]


def length(model: Model, planned: PlannedPrompt) -> int:
    """Return the number of tokens of a planned prompt."""
    given = planned.given
    return given.shape[1] if isinstance(given, torch.Tensor) else len(model.tokenizer(given)["input_ids"])


def _planned(prompt: Prompt, with_tokens: Iterable[str]) -> PlannedPrompt:
    added = next((suffix for suffix in SUFFIXES if prompt.id.endswith(suffix)), "")
    notes = {
        "set": texts.EMBEDDED if prompt.dataset.endswith("-style") else prompt.dataset,
        "id": prompt.id.removesuffix(added),
        "version": SUFFIXES.get(added, ALONE),
        "steps": np.nan if prompt.steps is None else prompt.steps,
    }
    embedded = notes["set"] == texts.EMBEDDED
    return PlannedPrompt(notes, prompt.text, embedded, embedded and prompt.id in with_tokens)


def _of_network(network: str, listed: Iterable[PlannedPrompt]) -> list[PlannedPrompt]:
    """Select the measurements of a network: all for the trained one, a part for the others."""
    if network == "untrained":
        return [one._replace(coupling=False) for one in listed if one.trajectories]
    if network == IN_4_BITS:
        of_set = [one for one in listed if one.notes["set"] == texts.EMBEDDED]
        return [one._replace(trajectories=False, tokens=False) for one in of_set]
    return list(listed)


def row(model: Model, network: str, planned: PlannedPrompt) -> dict[str, Any]:
    """Measure one prompt, as a row of the table."""
    found = {"model": model.name, "network": network, **planned.notes, "tokens": length(model, planned)}
    if planned.coupling:
        depth = measure_depth(model, [planned.given], ks=(K,))
        for column, ds in zip(READINGS.values(), (depth, shared_part(depth)), strict=True):
            found[column] = 1 - float(pair_couplings(ds, VARIANT, K).mean())
            found[f"{column}_neighbours"] = float(ds["by_distance"].sel(variant=VARIANT, k=K, distance=1).mean())
    if planned.product:
        ds = measure_dynamics(model, [planned.given])
        lead = ds["end_cosine"].sel(reading="product") - ds["null_cosine"].isel(level=-1)
        found["product_lead"] = float(lead.isel(prompt=0))
    if planned.tokens:
        found |= token_couplings(model, planned.given)
    if planned.trajectories:
        readings = measure_trajectories(model, [planned.given])["readings"].isel(prompt=0)
        for states, score in product(readings["states"].values, SCORES):
            found[f"{score}_{str(states).replace(' ', '_')}"] = float(readings.sel(states=states, reading=score))
    return found


def token_couplings(model: Model, given: str | torch.Tensor) -> dict[str, float]:
    """Return coupling across the last tokens of a prompt, mean over all pairs of different blocks and tokens."""
    # `_conjugated` rotates the left and right vectors of the second Jacobian of every pair by one random rotation.
    traced, found, generator = trace(model, given), {}, torch.Generator().manual_seed(0)
    for kind in KINDS:
        anchor = {"self": None, "input": 1, "output": traced.n_tokens - 1}[kind]
        chosen = chosen_tokens(traced, range(model.n_blocks), kind, anchor, TOKENS)
        pairs = [{"self": (at, at), "input": (anchor, at), "output": (at, anchor)}[kind] for at in chosen]
        J = torch.cat([block_jacobians(traced, block, pairs) for block in range(model.n_blocks)])
        block = np.repeat(np.arange(model.n_blocks), len(chosen))
        place = np.tile(np.arange(len(chosen)), model.n_blocks)
        counted = (block[:, None] != block) & (place[:, None] != place)
        for prefix in ("", "shared_"):
            part = without_isotropic(J) if prefix else J
            (U, S, Vh, _), values = common.couple_pairs(part, [K], [VARIANT])
            rotated = surrogate_vectors(U, Vh.mT, "conjugated", generator)
            null = values_of_pairs(part, U, S, Vh.mT, *rotated, [K], [VARIANT])
            for suffix, each in (("", values), ("_conjugated", null)):
                found[f"{prefix}{kind}{suffix}"] = 1 - float(each[VARIANT][0].numpy()[counted].mean())
    return found


def measure(
    model_name: str, folder: Path | None, novels: Path | None, file: Path, anew: bool = False, more: int = 0
) -> None:
    """Measure all prompts of one model that the table lacks, and keep the table up to date."""
    for network in ("trained", "untrained", IN_4_BITS):
        precision = IN_4_BITS if network == IN_4_BITS else "float32"
        model = load_model(model_name, untrained=network == "untrained", precision=precision)
        listed = _of_network(network, planned_prompts(model, folder, novels, anew, more))
        table = many_prompts(file)
        have = set()
        if not table.empty:
            own = table[(table["model"] == model.name) & (table["network"] == network)]
            have = set(zip(own["id"], own["version"], strict=True))
            # Rows of tokens from before the conjugated null was added.
            whole = own.dropna(subset="self_conjugated") if "self_conjugated" in own else own.iloc[:0]
            have -= {one.key for one in listed if one.tokens} - set(zip(whole["id"], whole["version"], strict=True))
        missing = [one for one in listed if one.key not in have]
        print(f"{model.name}, {network}: {len(listed) - len(missing)} of {len(listed)} prompts were measured before")
        rows = (row(model, network, one) for one in missing)
        while taken := list(islice(rows, _AT_ONCE)):
            write(file, taken)
            print(f"{model.name}, {network}: {taken[-1]['id']}", flush=True)


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to the table, each with the digest of the predictions made before."""
    stamp = {"predictions_sha256": predictions_sha256(), "cpu": provenance.processor()}
    table = pd.concat([many_prompts(file), pd.DataFrame([one | stamp for one in rows])], ignore_index=True)
    table = table.drop_duplicates(KEY, keep="last").sort_values(["model", "network", "set", "id", "version"])
    last = list(stamp)
    write_table(file, table[[column for column in table if column not in last] + last], _HEADER)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="alias of data/models.csv, Hugging Face id, or a local folder")
    parser.add_argument("--folder", type=Path, help="holds gsm8k.jsonl and its sisters, and wikitext2/test.txt")
    parser.add_argument("--novels", type=Path, help="a folder of .txt files")
    parser.add_argument("--anew", action="store_true", help="800 new problems as well")
    parser.add_argument("--more", type=int, default=0, help="as many new questions of more.jsonl as well")
    parser.add_argument("--table", type=Path, default=TABLE, help="where the rows go")
    given = parser.parse_args()
    arguments = given.model, given.folder, given.novels, given.table, given.anew, given.more
    if status := in_one_line(lambda: measure(*arguments) or 0, "interrupted"):
        sys.exit(status)


if __name__ == "__main__":
    main()
