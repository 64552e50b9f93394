"""What the figures of coupling prompt by prompt are drawn from in the tests of all figures."""

import numpy as np
import xarray as xr

from companion.figures import prompts
from coupling_lib.measures.random_bases import Chance
from coupling_lib.metrics.summaries import side_by_side

NAME, K, BLOCKS, NULL = "normalized_miscoupling", 3, 4, Chance(0.95, 9e-6)
VERSIONS = ("alone", "step by step", "control sentence")


def make_prompts(strength: float, seed: int, n_questions: int = 6, n_others: int = 5) -> xr.Dataset:
    """Questions in three versions, shuffled, and prompts of another set without counted steps."""
    rng = np.random.default_rng(seed)
    lines = [(f"q{i}", version, "sums", 2.0 + i % 3) for i in range(n_questions) for version in VERSIONS]
    lines += [(f"s{i}", "alone", "stories", np.nan) for i in range(n_others)]
    lines = [lines[i] for i in np.random.default_rng(9).permutation(len(lines))]
    values = 1 - strength + 0.05 * rng.standard_normal((len(lines), 1, BLOCKS, BLOCKS))
    values[:, :, range(BLOCKS), range(BLOCKS)] = 0
    question, version, dataset, steps = (list(column) for column in zip(*lines, strict=True))
    notes = {
        "id": [f"{q}/{v}" for q, v in zip(question, version, strict=True)],
        "question": question,
        "version": version,
        "dataset": dataset,
        "steps": steps,
        "n_tokens": rng.integers(10, 60, len(lines)),
    }
    return xr.Dataset(
        {NAME: (("prompt", "k", "block_1", "block_2"), values)},
        coords={"k": [K]} | {name: ("prompt", column) for name, column in notes.items()},
        attrs={"control": "It rained.", "control_tokens": 3, "instruction_tokens": 4, "words_as_tokens": 0},
    )


def networks(n):
    names = ["untrained", "trained"] if n == 2 else [f"model {i}" for i in range(n)]
    return side_by_side(**{name: make_prompts((0.05, 0.3, 0.2)[i], seed=i + 1) for i, name in enumerate(names)})


def rated(n: int) -> xr.Dataset:
    """Some of the prompts have a rating of their difficulty."""
    both = networks(n)
    ratings = np.where(np.arange(both.sizes["prompt"]) % 4 > 0, np.linspace(-1, 2, both.sizes["prompt"]) ** 2, np.nan)
    return both.assign_coords(rating=("prompt", ratings))


def of_models(n: int) -> xr.Dataset:
    """Trained models of different depths, the second without the last block."""
    made = {f"organisation/a-model-with-a-name-{i}": make_prompts(0.2, seed=i) for i in range(n)}
    shorter = {name: ds.isel(block_1=slice(3), block_2=slice(3)) for name, ds in list(made.items())[1:2]}
    return prompts.take_models(made | shorter, NAME, K, NULL)


CASES = {
    "draw_versions of models": (prompts.draw_versions, of_models),
    "draw_prompts rated": (prompts.draw_prompts, lambda n: prompts.take_prompts(rated(n), NAME, K, NULL)),
}
