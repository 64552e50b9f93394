"""Rivals of coupling as predictors of a model's quality: spectra of weights, and the blocks' influence on states.

    python -m companion.training.rivals --suite RUNS --vits RUNS --data CIFAR --table data/rivals.csv

The folders are those in which `suite` and `vit grid cifar10-small` trained. *Alpha* and *alpha-hat* are WeightWatcher's
(Martin, Peng and Mahoney 2021), *influence* is ShortGPT's (Men and others 2024).
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm
from transformers import ViTForImageClassification

import coupling_lib as cl
from companion.tables import photographs, rivals
from companion.tables.correlations import equal_tokens, last_checkpoints
from companion.tables.files import merge, predictions_sha256, unique_keys
from companion.tables.generalization import suite
from companion.training import experiment, vit
from companion.training.suite import SUITE
from coupling_lib import provenance
from coupling_lib.errors import ParameterError
from coupling_lib.inputs import images
from coupling_lib.inputs.labelled_images import read_dataset
from coupling_lib.progress import in_one_line

INPUTS = 12
"""Number of prompts or pictures on which block influence is measured."""
_FEWEST = 20  # fewest values of a fitted tail

HEADER = f"""\
What rivals coupling as a sign of quality (python -m companion.training.rivals), one row per trained model, at its end.
set: {rivals.SUITE} (data/suite.csv) or {rivals.PHOTOGRAPHS} (data/cifar_grid.csv), where its coupling and score stand.
Means over the blocks' weight matrices W: alpha: exponent of the power law that the tail of the eigenvalues of W^T W
follows best; alpha_hat: alpha times the logarithm to 10 of the largest; stable_rank: their sum over the largest.
influence: 1 minus the cosine of what a block reads and what it gives, mean over blocks, tokens and {INPUTS} inputs.
predictions_sha256: of data/predictions.toml as it was when the row was measured."""


def power_law(values: np.ndarray) -> float:
    """Fit the exponent of a power law to the tail of positive values that it fits best (Clauset and others 2009)."""
    x = np.sort(np.asarray(values, dtype=float))
    x = x[x > 1e-10 * x[-1]]
    best, found = np.inf, np.nan
    for start in range(len(x) - _FEWEST + 1):
        tail = x[start:]
        alpha = 1 + len(tail) / np.log(tail / tail[0]).sum()
        apart = np.abs(1 - (tail / tail[0]) ** (1 - alpha) - np.arange(len(tail)) / len(tail)).max()
        if apart < best:
            best, found = apart, alpha
    return float(found)


def of_weights(block: nn.Module) -> dict[str, float]:
    """Return the mean alpha, alpha-hat and stable rank of a block's matrices."""
    found = []
    for weight in block.parameters():
        if weight.ndim == 2:
            values = torch.linalg.svdvals(weight.detach().float()).square().cpu().numpy()
            exponent, largest = power_law(values), float(values.max())
            found.append((exponent, exponent * np.log10(largest), float(values.sum()) / largest))
    return dict(zip(("alpha", "alpha_hat", "stable_rank"), map(float, np.mean(found, axis=0)), strict=True))


def influence(model: cl.Model, inputs: list) -> float:
    """Return 1 minus the cosine of a block's input and output, mean over blocks, tokens and inputs."""
    distances = []
    for one in inputs:
        hidden = functional.normalize(cl.trace(model, one).hidden.double(), dim=-1)
        distances.append(float(1 - (hidden[1:] * hidden[:-1]).sum(-1).mean()))
    return float(np.mean(distances))


def measured(model: cl.Model, inputs: list) -> dict[str, float]:
    """Measure all rivals of one model."""
    blocks = pd.DataFrame([of_weights(block) for block in model.blocks.modules]).mean().to_dict()
    return {**blocks, "influence": influence(model, inputs)}


def language_models(run: Path) -> Iterator[tuple[str, cl.Model, list]]:
    """Iterate over the suite's models that end at equal tokens, with the prompts to measure them on."""
    prompts = cl.load_prompts(n=INPUTS)
    tokenizer = cl.load_model("nano-neox").tokenizer
    for row in equal_tokens(last_checkpoints(suite())).itertuples():
        hf = experiment.weights(SUITE[row.model], _existing(run / row.model), int(row.step))
        yield row.model, cl.wrap_model(hf, tokenizer, name=row.model), prompts


def vision_models(run: Path, data: Path) -> Iterator[tuple[str, cl.Model, list]]:
    """Iterate over the models of the grid on photographs, with the pictures to measure them on."""
    pictures = vit.prepared(vit.RECIPES["cifar10-small"], read_dataset(data)).test[:INPUTS] / 255
    for name in photographs.cells()["model"]:
        hf = ViTForImageClassification.from_pretrained(_existing(run / name / "model"), attn_implementation="eager")
        yield name, cl.wrap_model(hf), list(images.pixels_for(pictures, hf.config).split(1))


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise ParameterError(f"there is no {str(folder)!r}; give the folder in which the models were trained")
    return folder


def measure(given: argparse.Namespace) -> None:
    """Measure every model that has no row yet."""
    models = {rivals.SUITE: language_models(given.suite), rivals.PHOTOGRAPHS: vision_models(given.vits, given.data)}
    key = ["set", "model"]
    stored = unique_keys(given.table, key)
    for name, each in models.items():
        for model, wrapped, inputs in tqdm(each, name, unit="model", disable=None):
            if (name, model) not in stored:
                stamp = {"predictions_sha256": predictions_sha256(), "cpu": provenance.processor()}
                row = {"set": name, "model": model, **measured(wrapped, inputs), **stamp}
                merge(given.table, [row], key, [], HEADER)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, default=Path("runs/suite"), help="the folder of the suite's runs")
    parser.add_argument("--vits", type=Path, default=Path("runs/vit"), help="the folder of the grid's runs")
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10, as for training")
    parser.add_argument("--table", type=Path, default=rivals.TABLE, help="where the rows go")
    given = parser.parse_args()
    if status := in_one_line(lambda: measure(given) or 0, "interrupted"):
        sys.exit(status)


if __name__ == "__main__":
    main()
