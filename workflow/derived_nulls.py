r"""Nulls of tables that were measured with few draws, derived anew without training again.

    python workflow/derived_nulls.py suite data/suite.csv
    python workflow/derived_nulls.py suite data/regulariser.csv
    python workflow/derived_nulls.py grid data/vit_grid.csv
    python workflow/derived_nulls.py check data/null_errors.csv

The first tables held, as null of every variant, the mean of 20 random draws (10 for vision transformers). The draws had
a fixed seed, so that every row of one width and K met the *same* random frames, and all nulls erred in the same way.
The Jacobians behind the rows are gone, but the frames can be drawn again, and the 51 recorded nulls of a row tell what
its spectrum is like: a *representative* spectrum, $\ln \sigma_i = -a \ln i - b \ln^2 i$ over the measured head and flat
beyond it, is fitted so that these very frames give the recorded nulls. With its exact expectation
(`metrics.expected_null.expected_null`) the luck of the frames can be taken out again:

- `released_diag` and the `basis_*` variants do not depend on the spectrum: their expectation at this width and K;
- `normalized_miscoupling` and `old_off_over_diagonal` hardly do: the expectation for the representative spectrum;
- the mismatches do: recorded + (expectation - mean of the 20 draws), both for the representative spectrum;
- the `vju` variants have the distribution, and so the expectation, of those they are the exchanged form of;
- the raw `miscoupling` follows the largest Jacobian of the model, which a representative spectrum does not know. It
  comes out with an error of up to 1 per cent, which is not good enough: its null columns are left out.

`check` derives nulls for spectra that are known, those of the embedded checkpoints, and writes down how far the derived
nulls are from the exact ones. Of the tables' other widths it takes the same spectra, thinned, as stand-ins: those of
checkpoints that were trained about as long as the suite's models (0.6 million tokens) or less.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.optimize import least_squares
from torch import Tensor

from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.inputs import images
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.random_bases import root_mean_square_spectra
from coupling_lib.metrics.expected_null import expected_null
from coupling_lib.metrics.subspaces import random_frame
from coupling_lib.metrics.variants import VARIANTS, PairProducts, evaluated
from coupling_lib.models.checkpoints import choose_steps
from coupling_lib.models.load import load_model

DIRECT = (
    "normalized_miscoupling",
    "old_off_over_diagonal",
    "released_diag",
    *(f"basis_{s}" for s in ("uu", "vv", "uv", "vu")),
)
SHIFTED = (
    "mismatch",
    "mismatch_trace",
    "released_norm",
    "released_trace",
    "released_norm_k",
    "released_trace_k",
    "old_norm_diagonal",
)
TWINS = {"released_norm_vju": "released_norm", "released_trace_vju": "released_trace"}
LEFT_OUT = "miscoupling"
CYCLIC, MORE = "old_off_over_diagonal", 30_000
"""The variant whose mean is known least well from 3,000 draws, and the draws that it gets instead."""
DRAWS = {"suite": 20, "grid": 10}
"""Random draws behind the recorded nulls."""

_FITTED = tuple(name for name in VARIANTS if name not in (LEFT_OUT, "released_diag") and not name.startswith("basis_"))
NOTE = """\
The _null columns are derived, not retrained (python workflow/derived_nulls.py): recorded means of few
draws, cleared of these draws' luck; remaining errors by variant in data/null_errors.csv. miscoupling has none."""

# Step of the embedded models after 1.3 million tokens; their step 100 is before the suite's end, 0.6 million.
_LAST_STAND_IN = 316

Nulls = dict[tuple[str, int], float]


class Frames(NamedTuple):
    """The random frames that the recorded nulls were drawn with, (draws, d, K) each: U2, V1'V2, V2, V1'U2."""

    U2: Tensor
    V1_V2: Tensor
    V2: Tensor
    V1_U2: Tensor


@functools.lru_cache(maxsize=16)
def recorded_frames(d: int, k: int, draws: int) -> Frames:
    """Draw the frames of a recorded null again: seed 0, in the order in which they were drawn."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(draws):
        V2, U2 = (random_frame(d, k, generator, torch.float64) for _ in range(2))
        R = torch.linalg.qr(torch.cat([V2, U2], dim=1)).R
        rotated = random_frame(d, len(R), generator, torch.float64) @ R
        found.append((U2, rotated[:, :k], V2, rotated[:, k:]))
    return Frames(*(torch.stack(part) for part in zip(*found, strict=True)))


def replayed(S: Tensor, ks: Sequence[int], draws: int, names: Sequence[str] = tuple(VARIANTS)) -> Nulls:
    """Give what was recorded for spectra S (L, d): the mean over the draws and blocks."""
    k = max(ks)
    frames = recorded_frames(S.shape[-1], k, draws)
    head = S[:, None, None]
    products = PairProducts(
        s=S[:, None, :k],
        ujv=(frames.U2.mT * head) @ frames.V1_V2,
        vju=(frames.V2.mT * head) @ frames.V1_U2,
        uu=frames.U2[None, :, :k].mT,
        vv=frames.V1_V2[None, :, :k],
        uv=frames.V1_U2[None, :, :k].mT,
        vu=frames.V2[None, :, :k].mT,
    )
    found = evaluated([VARIANTS[name] for name in names], products, ks)
    return {(name, k): float(value[i].mean()) for name, value in found.items() for i, k in enumerate(ks)}


def representative(recorded: Nulls, d: int, ks: Sequence[int], draws: int) -> Tensor:
    """Fit the spectrum (1, d) for which the recorded frames give the recorded nulls."""
    keys = [(name, k) for name in _FITTED for k in ks]
    wanted = np.array([recorded[key] for key in keys])

    def spectrum(x: np.ndarray) -> Tensor:
        rank = torch.arange(1, max(ks) + 1, dtype=torch.float64).log()
        head = torch.exp(-abs(x[0]) * rank - abs(x[1]) * rank**2)
        tail = head[-1:] / (1 + np.exp(x[2]))
        return torch.cat([head, tail.expand(d - len(head))])[None]

    def misfit(x: np.ndarray) -> np.ndarray:
        found = replayed(spectrum(x), ks, draws, _FITTED)
        return np.array([found[key] for key in keys]) / wanted - 1

    starts = ([0.3, 0.0, 0.0], [1.0, 0.2, 0.0], [0.5, 0.1, 2.0])
    fits = []
    for start in starts:
        fits.append(least_squares(misfit, start, diff_step=1e-4))
        # Nothing is gained beyond a misfit of about 1e-4, root mean square.
        if fits[-1].cost < 1e-8 * len(keys) / 2:
            break
    return spectrum(min(fits, key=lambda fit: fit.cost).x)


def derived(recorded: Nulls, d: int, ks: Sequence[int], draws: int, more: int = MORE) -> Nulls:
    """Take the luck of the recorded frames out of recorded nulls; the raw mis-coupling is left out."""
    S = representative(recorded, d, ks, draws)
    luck = replayed(S, ks, draws, SHIFTED)
    expected = {key: value for key, (value, _) in exact(S, d, ks, [*DIRECT, *SHIFTED], more).items()}
    new = {(name, k): expected[name, k] for name in DIRECT for k in ks}
    new |= {(name, k): recorded[name, k] + expected[name, k] - luck[name, k] for name in SHIFTED for k in ks}
    return new | {(name, k): new[twin, k] for name, twin in TWINS.items() for k in ks}


def exact(
    S: Tensor, d: int, ks: Sequence[int], names: Sequence[str], more: int = MORE
) -> dict[tuple[str, int], tuple[float, float]]:
    """Give the expectation for known spectra S (L, d), mean over blocks, and its standard error."""
    found = expected_null(S, d, ks, [name for name in names if name != CYCLIC])
    found |= expected_null(S, d, ks, [CYCLIC], more) if CYCLIC in names else {}
    return {
        (name, k): (one.value[i].mean().item(), one.error[i].mean().item())
        for name, one in found.items()
        for i, k in enumerate(ks)
    }


def rewrite(table: Path, kind: str) -> None:
    """Put derived nulls into a table; everything else in it stays as it is, to the letter."""
    text = table.read_text(encoding="utf-8")
    comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    rows = list(csv.reader(io.StringIO(text[len(comment) :])))
    header = rows[0]
    groups = list(_groups(header, kind))
    if not any((LEFT_OUT, label) in columns for columns in groups for label in {label for _, label in columns}):
        raise ParameterError(
            f"{table.name} has no null of {LEFT_OUT!r}, so that its nulls are derived already; "
            "derive them from a table that holds the recorded ones"
        )
    form = "{:.6g}" if kind == "suite" else "{:.5g}"
    for number, row in enumerate(rows[1:], start=1):
        cells = dict(zip(header, row, strict=True))
        d = int(cells["width"])
        for columns in groups:
            k_of = {label: _k(label, cells) for _, label in columns}
            recorded = {(name, k_of[label]): float(cells[column]) for (name, label), column in columns.items()}
            new = derived(recorded, d, sorted(set(k_of.values())), DRAWS[kind])
            for (name, label), column in columns.items():
                if name != LEFT_OUT:
                    row[header.index(column)] = form.format(new[name, k_of[label]])
        print(f"{table.name}: {number} of {len(rows) - 1}", flush=True)
    gone = {header.index(column) for columns in groups for (name, _), column in columns.items() if name == LEFT_OUT}
    if kind == "suite":
        comment += "".join(f"# {line}\n" for line in NOTE.splitlines())
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([cell for at, cell in enumerate(row) if at not in gone] for row in rows)
    paths.write_text(table, comment + buffer.getvalue())


def _groups(header: Sequence[str], kind: str) -> Iterator[dict[tuple[str, str], str]]:
    """Null columns of spectra that belong together, by variant and the label of K."""
    if kind == "suite":
        yield {
            (name, label): f"{name}_k{label}_null"
            for name in VARIANTS
            for label in ("5", "10", "tenth")
            if f"{name}_k{label}_null" in header
        }
        return
    for token in ("class", "patch"):
        found = [column.removesuffix("_null").split(".") for column in header if column.endswith("_null")]
        yield {(name, k[1:]): f"{token}.{k}.{name}_null" for at, k, name in found if at == token}


def _k(label: str, cells: Mapping[str, str]) -> int:
    return int(cells["k_tenth"] if label == "tenth" else label)


def known_spectra() -> dict[str, list[tuple[Tensor, bool]]]:
    """Measure spectra that are known, for each kind of table: (L, d), and whether they stand in for other widths."""
    suite = []
    for name in ("nano-neox", "nano-llama"):
        for step in choose_steps(name):
            depth = measure_depth(load_model(name, revision=f"step{step}"), load_prompts(n=8), ks=(10,))
            suite.append((root_mean_square_spectra(depth), step <= _LAST_STAND_IN))
    grid = []
    for name in ("nano-vit", "nano-vit-sd"):
        for untrained in (False, True):
            model = load_model(name, untrained=untrained)
            pixels = [picture.pixels for picture in images.load_images("digits", model.hf.config, 12, 0)]
            found = (measure_depth(model, pixels, ks=(10,), token=token) for token in (0, -1))
            grid += [(root_mean_square_spectra(depth), False) for depth in found]
    return {"suite": suite, "grid": grid}


def thinned(S: Tensor, d: int, k: int) -> Tensor:
    """Give spectra like those of a narrower model: evenly chosen values of the head, and the tail as it is."""
    head = S[:, torch.linspace(0, min(S.shape[-1], 10) - 1, k).round().long()]
    return torch.cat([head, S[:, -1:].expand(-1, d - k)], dim=-1)


def check() -> pd.DataFrame:
    """Compare derived nulls with exact ones, for spectra that are known."""
    widths = {"suite": {96: (5, 10), 64: (5, 6, 10), 48: (5, 10), 32: (3, 5, 10)}, "grid": {36: (3, 5, 10)}}
    names = [name for name in VARIANTS if name != LEFT_OUT]
    rows = []
    for kind, spectra in known_spectra().items():
        for number, (S, stands_in) in enumerate(spectra, start=1):
            for d, ks in widths[kind].items():
                if d != S.shape[-1] and not stands_in:
                    continue
                one = S if d == S.shape[-1] else thinned(S, d, max(ks))
                # Both from the same draws, so that what differs is the spectrum's doing.
                found = derived(replayed(one, ks, DRAWS[kind]), d, ks, DRAWS[kind], more=3000)
                for (name, k), (true, error) in exact(one, d, ks, names, more=3000).items():
                    error *= (3000 / MORE) ** 0.5 if name == CYCLIC else 1
                    rows.append((kind, name, k, abs(found[name, k] - true) + error))
            print(f"{kind}: {number} of {len(spectra)}", flush=True)
    table = pd.DataFrame(rows, columns=["table", "variant", "k", "error"])
    return table.groupby(["table", "variant", "k"], sort=False)["error"].max().reset_index()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Derive the nulls of a table anew, or check how well that works.")
    parser.add_argument("kind", choices=("suite", "grid", "check"), help="the table's columns, or the check")
    parser.add_argument("table", type=Path, help="the table that is rewritten, or the check's result")
    given = parser.parse_args(arguments)
    if given.kind == "check":
        check().to_csv(given.table, index=False, float_format="%.2g", lineterminator="\n")
    else:
        rewrite(given.table, given.kind)


if __name__ == "__main__":
    main()
