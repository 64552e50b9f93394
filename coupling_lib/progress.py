"""What long commands show on stderr: progress bars, and at last one line where they fail."""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from coupling_lib.errors import CouplingError

Step = TypeVar("Step")


def bar(steps: Sequence[Step], model: Any, unit: str) -> Iterable[Step]:
    """Return the steps of a measurement, with a bar once they take longer than 20 s; one step has none."""
    # What notebooks show of the embedded models is compared word for word: theirs is for terminals alone (None).
    silent = True if len(steps) == 1 else None if model.source.startswith("embedded:") else False
    how = {"delay": 20, "mininterval": 5, "leave": False}
    return tqdm(steps, desc=f"{model.name}: {unit}s", unit=unit, disable=silent, **how)


def in_one_line(run: Callable[[], str | int], interrupted: str, failed: int = 1) -> int:
    """Return the status of a command; what a user can cause ends in one line on stderr and a status that is not 0."""
    # One line, without the place in the code.
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        returned = run()
        return returned if isinstance(returned, int) else print(returned) or 0
    except (CouplingError, OSError) as error:
        where = f"{error.filename or 'the disk'}: {error.strerror or error}" if isinstance(error, OSError) else error
        print(f"error: {where}", file=sys.stderr)
        return failed
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
