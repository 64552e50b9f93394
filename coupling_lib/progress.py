"""Output of long commands on stderr: progress bars, and one line in case of an error."""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from coupling_lib.errors import CouplingError

Step = TypeVar("Step")


def bar(steps: Sequence[Step], model: Any, unit: str) -> Iterable[Step]:
    """Iterate over the steps of a measurement, with a progress bar after 20 s; one step has none."""
    # Notebooks' output for embedded models is compared word for word: their bars show in terminals only (None).
    silent = True if len(steps) == 1 else None if model.source.startswith("embedded:") else False
    how = {"delay": 20, "mininterval": 5, "leave": False}
    return tqdm(steps, desc=f"{model.name}: {unit}s", unit=unit, disable=silent, **how)


def in_one_line(run: Callable[[], str | int], interrupted: str, failed: int = 1) -> int:
    """Run a command and return its status; an error that a user can cause gives one line on stderr and status 1."""
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
