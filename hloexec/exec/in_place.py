"""Updates in place: a result may take the buffer of an operand that nothing else holds.

What holds a buffer is not worked out from the plan but counted when the step runs: an array that is referred to by its
slot alone, owns its memory and may be written is nobody else's. Every view of it, every other slot, the caller, a
constant and an observer would each hold a reference. Python counts them exactly; where it does not (an interpreter
other than CPython, or one without the global lock), nothing is overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.exec.plan import Step
from hloexec.exec.split import Split
from hloexec.ops.contractions import MatrixProduct

__all__ = ["UNSHARED_VARIABLE", "InPlace", "bare", "is_held_twice", "is_own", "settle"]


@attrs.frozen(eq=False)
class InPlace:
    """A kernel that is told, by one more argument, whether it may overwrite one of its operands."""

    kernel: Callable[..., Any]
    overwrite: Callable[..., Any]
    place: int = 0
    """Which operand."""
    adds: MatrixProduct | None = None
    """The product of the two others, where the kernel adds it to that operand and does nothing else."""

    def __call__(self, *operands: Any) -> Any:
        *given, is_unshared = operands
        return (self.overwrite if is_unshared else self.kernel)(*given)


def bare(function: Any) -> Any:
    """The kernel of a step's function, which overwrites nothing."""
    return function.kernel if isinstance(function, InPlace) else function


def settle(step: Step) -> None:
    """Let a step whose lifetimes are known overwrite its operand, if that dies there and occurs only once."""
    if not isinstance(step.function, InPlace):
        return
    target = step.operands[step.function.place]
    if target not in step.dead or step.operands.count(target) > 1:
        step.function = step.function.kernel
        return
    fetch = step.fetch

    def fetch_and_tell(slots: list[Any]) -> tuple[Any, ...]:
        # Counted first: the tuple of operands refers to the array, too.
        is_unshared = _is_unshared(slots, target)
        return (*fetch(slots), is_unshared)

    step.fetch = fetch_and_tell


def _is_unshared(slots: Sequence[Any], slot: int) -> bool | tuple[bool, ...]:
    """Whether a slot holds an array whose memory nothing else can see; for a split value by class."""
    if _references(slots, slot) != _UNSHARED:
        return False
    if type(slots[slot]) is Split:
        values = slots[slot].values
        return tuple(_is_unshared(values, number) is True for number in range(len(values)))
    return is_own(slots[slot])


def is_own(value: Any) -> bool:
    """Whether a value is an array that owns its memory and may be written."""
    return type(value) is np.ndarray and bool(value.flags.owndata and value.flags.writeable)


def is_held_twice(slots: Sequence[Any], slot: int) -> bool:
    """Whether a slot and the tuple of a step's operands are all that holds a value."""
    return _references(slots, slot) == _UNSHARED + 1


def _references(slots: Sequence[Any], slot: int) -> int:
    return sys.getrefcount(slots[slot])


def _unshared_references() -> int:
    """What `_references` gives for an array that only its slot refers to; -1 where counts mean nothing."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return _references([np.empty(1)], 0) if sys.implementation.name == "cpython" and has_lock else -1


def _unshared_variable() -> int:
    """The same where a variable takes the place of the slot."""
    array = np.empty(1)
    return -1 if _unshared_references() == -1 else sys.getrefcount(array)


_UNSHARED = _unshared_references()
UNSHARED_VARIABLE = _unshared_variable()
"""What `sys.getrefcount` gives for a variable whose array nothing else refers to; -1 where counts mean nothing."""
