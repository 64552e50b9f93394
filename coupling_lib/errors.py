"""Errors with messages of one line: the value found, the value expected, the next step; notebooks show that alone."""

import importlib
import math
from numbers import Integral
from types import ModuleType
from typing import Any


class CouplingError(Exception):
    """Base of all errors of this library; its message is one complete line."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for its own rendering under this name before it formats a traceback.
        return [f"{type(self).__name__}: {self}"]


class ParameterError(CouplingError, ValueError):
    """An argument or a notebook parameter has the wrong type or lies out of range."""


class ModelUnavailableError(CouplingError):
    """A model's files are unavailable: unknown name, no network, no permission, no such revision, no memory."""


class UnsupportedModelError(CouplingError):
    """A model's blocks cannot be found, or do not add a residual branch to a stream of one width."""


class PostNormWarning(UserWarning):
    """A model's blocks normalise their stream, so that block minus identity couples trivially, trained or not."""


class ScaledStreamWarning(UserWarning):
    """A model's blocks multiply their stream by a number, so that block minus identity couples trivially."""


class PrecisionWarning(UserWarning):
    """Much of a quantised model is not stored in the precision that its record names."""


class MissingPackageError(CouplingError, ImportError):
    """A package that an extra of this library installs is missing."""


class UntrustworthyResultError(CouplingError, ArithmeticError):
    """A computed result fails its own check: an all-zero Jacobian, a NaN, a singular triplet with a large residual."""


class VanishingJacobianError(UntrustworthyResultError):
    """A Jacobian is zero, or smaller than the rounding errors of the sums that it was formed from."""


def require(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional package; the error of one line names the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:  # the package is installed, and one of its own imports is not
            raise
        message = f"{what} needs the package {module}, which is not installed; run: pip install 'coupling_lib[{extra}]'"
        raise MissingPackageError(message) from None


def shown(value: Any, most: int = 120) -> str:
    """Return a value's text for a message: its repr, in one line, truncated where it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a number of more digits than Python writes, or an object that cannot describe itself
        text = f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]} ({len(text):,} characters)"


def is_whole(value: Any, least: float = -math.inf) -> bool:
    """Return whether a value is a whole number (numpy's included), and no boolean or float."""
    return isinstance(value, Integral) and not isinstance(value, bool) and bool(value >= least)


def check_whole(name: str, value: Any, least: int, most: int | None = None, why: str = "") -> int:
    """Return a whole number within its bounds as an int, and refuse anything else, naming the argument."""
    if not is_whole(value, least) or (most is not None and value > most):
        bounds = f"from {least}" + ("" if most is None else f" to {most}")
        seen = f"{name} is {shown(value)}; {why and f'{why}, so '}"
        raise ParameterError(f"{seen}it must be a whole number {bounds}")
    return int(value)
