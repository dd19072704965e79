"""Failures of optimizations: the run continues without the optimization, and warns.

An optimization changes no result, so its failure costs only time; but it should be reported.
"""

from __future__ import annotations

from hloexec.errors import OptimizationWarning, warn

__all__ = ["warn_of_failure"]


def warn_of_failure(what: str, error: BaseException) -> None:
    """Warn that an optimization has failed; `what` says which, as a clause."""
    warn(
        f"{what} failed ({type(error).__name__}: {error}); the run goes on without this optimization, with the same "
        "result. Please report this with the module: it is a fault of hloexec",
        OptimizationWarning,
    )
