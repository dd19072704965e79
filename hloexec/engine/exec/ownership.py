"""Ownership of arrays: a kernel may overwrite an operand's array if nothing else refers to it.

References to an array are not derived from the plan but counted when the step runs. An array may be overwritten if only
its slot (and the tuple of the step's operands) refers to it, it owns its memory, and it is writable. A view of it,
another slot, the caller, a constant or an observer would hold another reference. CPython counts references exactly; in
other interpreters, or without the global lock, nothing is overwritten.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from hloexec.engine.devices.varying import Varying
from hloexec.ops.resources import is_own


def is_free(slots: Sequence[object], slot: int) -> bool:
    """Whether only a slot and the tuple of a step's operands refer to an array, which owns its memory."""
    return _references(slots, slot) == _UNSHARED + 1 and is_own(slots[slot])


def free_classes(slots: Sequence[object], slot: int) -> tuple[bool, ...]:
    """The same for each class of a value of which devices have several."""
    split = slots[slot]
    # This name refers to it, too.
    if type(split) is not Varying or _references(slots, slot) != _UNSHARED + 2:
        return ()
    values = split.values
    return tuple(_references(values, number) == _UNSHARED and is_own(values[number]) for number in range(len(values)))


def is_held_twice(slots: Sequence[object], slot: int) -> bool:
    """Whether a slot and the tuple of a step's operands are all that holds a value."""
    return _references(slots, slot) == _UNSHARED + 1


def _references(slots: Sequence[object], slot: int) -> int:
    return sys.getrefcount(slots[slot])


def _unshared_references() -> int:
    """What `_references` gives for an array that only its slot refers to; -9 where counts mean nothing."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return _references([np.empty(1)], 0) if sys.implementation.name == "cpython" and has_lock else -9


def _unshared_variable() -> int:
    """The same where a variable takes the place of the slot."""
    array = np.empty(1)
    return -9 if _unshared_references() == -9 else sys.getrefcount(array)


_UNSHARED = _unshared_references()
UNSHARED_VARIABLE = _unshared_variable()
"""What `sys.getrefcount` gives for a variable whose array nothing else refers to; -9 where counts mean nothing."""
