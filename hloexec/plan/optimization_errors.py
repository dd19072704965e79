"""What happens where an optimization fails: the run goes on without it, and says so.

An optimization changes no result, so a fault in one costs time and nothing else. People should hear of it all the same.
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
