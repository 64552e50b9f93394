"""Progress bars of long measurements, on stderr."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

Step = TypeVar("Step")


def bar(steps: Sequence[Step], model: Any, unit: str) -> Iterable[Step]:
    """Return the steps of a measurement, with a bar once they take longer than 20 s; one step has none."""
    # What notebooks show of the embedded models is compared word for word: theirs is for terminals alone (None).
    silent = True if len(steps) == 1 else None if model.source.startswith("embedded:") else False
    how = {"delay": 20, "mininterval": 5, "leave": False}
    return tqdm(steps, desc=f"{model.name}: {unit}s", unit=unit, disable=silent, **how)
