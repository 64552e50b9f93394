"""Models at several steps of their training: the available steps, and the model's quality at each.

Folders of the training recipe store both in `training.json`; Pythia models have revisions, and accuracies in `data/`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from coupling_lib import paths
from coupling_lib.errors import ModelUnavailableError, ParameterError, shown
from coupling_lib.models import registry, sources

PYTHIA = (0, *(2**power for power in range(10)), *range(1000, 143_001, 1000))
"""Training steps at which every Pythia model was saved."""

PYTHIA_SPACED = (0, 16, 64, 256, 1000, 3000, 13_000, 43_000, 143_000)
"""Default steps: about evenly spaced in the logarithm, each with a known accuracy."""


@dataclass(frozen=True)
class Progress:
    """Quality of a model over its training."""

    label: str
    values: dict[int, float]


def known_steps(name: str | Path) -> tuple[int, ...]:
    """Return the training steps at which a model can be loaded, as `revision="stepN"`."""
    folder, entry = sources.find_local(name)
    if sources.training_record(folder):
        return sources.steps_of(folder)
    return PYTHIA if entry is not None and entry.family == "Pythia" else ()


def choose_steps(name: str | Path, steps: str | int = "") -> tuple[int, ...]:
    """Parse a choice of training steps; by default all that the model has, or spaced ones of Pythia."""
    known = known_steps(name)
    if not known and registry.lookup(str(name)) is None and "/" not in str(name):
        sources.locate(name, None)  # a misspelt alias is not a model with one revision
    if steps == "" and not known:
        raise ModelUnavailableError(
            f"{str(name)!r} has one revision, and emergence needs several; take one of "
            f"{', '.join(models_with_steps())}, or pass -p steps 0,1000 if its repository has revisions of that name"
        )
    chosen = (PYTHIA_SPACED if known is PYTHIA else known) if steps == "" else parse_steps(steps)
    if known and (unknown := sorted(set(chosen) - set(known))):
        listed = known if len(known) < 20 else (*known[:12], "...", known[-1])
        folder, _ = sources.find_local(name)
        elsewhere = sources.checkout_hint(folder, f"step{unknown[0]}") if folder else ""
        raise ParameterError(
            f"parameter 'steps' is {shown(steps)}; {str(name)!r} has no step {unknown[0]}; choose from "
            f"{', '.join(map(str, listed))}{elsewhere}"
        )
    return chosen


def parse_steps(steps: str | int) -> tuple[int, ...]:
    """Parse training steps separated by commas."""
    parts = str(steps).split(",") if isinstance(steps, str | int) and not isinstance(steps, bool) else []
    numbers = [int(part) for part in parts if re.fullmatch(r"\s*\d{1,18}\s*", part, flags=re.ASCII)]
    if len(numbers) < max(2, len(parts)) or len(set(numbers)) < len(numbers):
        raise ParameterError(
            f"parameter 'steps' is {shown(steps)}; it must be two or more training steps, separated by commas, or "
            "empty; pass -p steps 0,1000"
        )
    return tuple(sorted(numbers))


def models_with_steps() -> list[str]:
    """Return the models of the registry that can be loaded at several steps."""
    return [entry.alias for entry in registry.entries() if known_steps(entry.alias)]


def progress(name: str | Path) -> Progress:
    """Return the validation losses, or benchmark accuracies, of a model over its training."""
    folder, entry = sources.find_local(name)
    if record := sources.training_record(folder):
        losses = {point["step"]: point["validation_loss"] for point in record.get("checkpoints", [])}
        return Progress("validation loss (nats per token)", losses)
    if entry is None or entry.family != "Pythia":
        return Progress("", {})
    table = pd.read_csv(paths.DATA / "pythia_evals_mean.csv", comment="#", float_precision="round_trip")
    own = table[table["model"] == entry.alias]
    values = dict(zip(own["step"].tolist(), (100 * own["accuracy"]).tolist(), strict=True))
    return Progress("zero-shot accuracy (%, mean of 6 tasks)", values)
