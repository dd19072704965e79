"""What a counterpart is, and what comes of running a module on it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Protocol, Unpack

import attrs

from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Described, Inputs, Value
from hloexec.engine.exec.running import RunOptions
from hloexec.errors import HloError, ResourceError, UnsupportedError


class Outcome(enum.Enum):
    """What came of a run."""

    ANSWERED = "answered"
    REFUSED = "refused"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    MISMATCHED = "mismatched"
    """It gave other than the module's outputs: another number of them, other shapes or element types."""


_RESOURCES = (Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY)


@frozen(eq=False)
class Answer(Described):
    """What came of running a module on a counterpart."""

    outcome: Outcome
    """Whether there is a result, and else why not."""
    result: Value | dict[str, Array] | None = None
    """The result of the device, a tuple of those of all, or arrays by their labels; None where there is none."""
    comparing: Mapping[str, Any] = attrs.Factory(dict)
    """What `compare` is to be told, such as tolerances that were recorded with a result."""
    error: HloError | None = None
    """Why there is no result."""
    compiled: tuple[str, ...] = ()
    """The texts of what a compiler has made of the module, where it was asked for them."""

    @property
    def reason(self) -> str:
        """Why there is no result, in a sentence; empty where there is one."""
        return "" if self.error is None else str(self.error)

    def value(self) -> Any:
        """The result; raises the error where there is none."""
        if self.error is not None:
            raise self.error
        return self.result

    def __str__(self) -> str:
        return self.outcome.value if self.error is None else f"{self.outcome.value}: {self.reason}"

    @classmethod
    def failed(cls, outcome: Outcome, reason: str) -> Answer:
        """One without a result, for a reason."""
        return cls(outcome, error=(ResourceError if outcome in _RESOURCES else UnsupportedError)(reason))

    @classmethod
    def raised(cls, error: HloError) -> Answer:
        """One without a result, where hloexec has raised an error."""
        return cls(Outcome.OUT_OF_MEMORY if isinstance(error, ResourceError) else Outcome.REFUSED, error=error)


class Counterpart(Protocol):
    """What a module's results are compared with."""

    @property
    def name(self) -> str:
        """Its SPEC."""

    def require(self, module: Module, *, is_divided: bool = False) -> None:
        """Raise what keeps results of a module from being compared with it, as far as that shows before a run.

        `is_divided` says that the inputs are whole arrays, divided among the devices.
        """

    def run(self, module: Module, inputs: Inputs, **options: Unpack[RunOptions]) -> Answer:
        """Run a module; `inputs` and `options` are as for `run_devices`. XLA and functions know only of the limits."""
