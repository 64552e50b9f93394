"""Errors that say what was seen, what was expected and what to do next, in one line.

Every error a user can cause is a `CouplingError`. In a notebook (and so under papermill) it shows as its
one line, without the stack of frames that led there: the frames are the library's, the mistake is not.
"""


class CouplingError(Exception):
    """Base of all errors of this library; its message is one complete line."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for its own rendering under this name before it formats a traceback.
        return [f"{type(self).__name__}: {self}"]


class ParameterError(CouplingError, ValueError):
    """An argument or a notebook parameter has the wrong type or lies out of range."""


class ModelUnavailableError(CouplingError):
    """A model's files cannot be had: unknown name, no network, no permission, no such revision, no memory."""


class UnsupportedModelError(CouplingError):
    """A model's blocks cannot be found, or do not add a residual branch to a stream of one width."""


class PostNormWarning(UserWarning):
    """A model's blocks normalise their stream, so that block minus identity couples trivially, trained or not."""


class UntrustworthyResultError(CouplingError, ArithmeticError):
    """A computed result fails its own check: an all-zero Jacobian, a NaN, a singular triplet with a large residual."""
