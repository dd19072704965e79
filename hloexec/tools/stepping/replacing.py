"""Replacing values of a run: which instruction's value can be replaced where the run stands still, and by what."""

from __future__ import annotations

import numpy as np

from hloexec.core.errors import InputError
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.core.values import Value, flat
from hloexec.engine.exec.arguments import value_leaves
from hloexec.engine.inputs import value_of
from hloexec.tools.stepping.kept import Kept
from hloexec.tools.stepping.names import near_name
from hloexec.tools.stepping.stops import Stop
from hloexec.tools.stepping.targets import Targets


def replaceable(name: str, targets: Targets, stop: Stop | None, kept: Kept) -> Instruction:
    """The instruction of a name: the one that the run stands still after, or one that is to run.

    InputError where there is none, it has run or failed, or several of the name are to run.
    """
    here = None if stop is None else stop.instruction
    if stop is None or here is None or name not in (here.name, f"{stop.place.computation.name}/{here.name}"):
        return _to_come(name, targets, stop, kept)
    if stop.error is not None:
        raise InputError(f"%{here.name} has failed; restart, and set one of its operands before it runs")
    return here


def _to_come(name: str, targets: Targets, stop: Stop | None, kept: Kept) -> Instruction:
    computation, _, own = name.rpartition("/")
    found = [(home, each) for home, each in targets.instructions if each.name == own and computation in ("", home.name)]
    if not found:
        known = [each.name for _, each in targets.instructions]
        raise InputError(f"{targets.module.name} has no instruction %{name} that runs{near_name(own, known)}")
    if len(found) > 1:
        homes = ", ".join(f"{home.name}/{own}" for home, _ in found)
        raise InputError(f"there are several instructions %{own}; say which of {homes}")
    ((home, instruction),) = found
    if stop is not None and any(
        level.computation is home and kept.of(level.activation, own, stop.devices[0]) is not None
        for level in stop.levels
    ):
        raise InputError(
            f"%{own} has run, and others may have used its value; restart, break at {own} and set it there"
        )
    return instruction


def value_for(instruction: Instruction, value: object) -> Value:
    """A value of an instruction's shape, a copy; a Python number becomes an array full of it.

    InputError where the value is of another shape or element type.
    """
    what = f"the value for %{instruction.name}"
    shape = instruction.shape
    if isinstance(value, (bool, int, float, complex)) and isinstance(shape, ArrayShape) and shape.rank:
        (scalar,) = value_leaves(value, ArrayShape(shape.element_type, ()), what)
        value = np.broadcast_to(scalar, shape.dimensions)
    leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in value_leaves(value, shape, what)]
    return value_of(shape, lambda number, _: leaves[number])


def require_same_arrays(instruction: Instruction, before: Value, after: Value) -> None:
    """InputError where an array has another size or type than the one that it replaces: extents may be dynamic."""
    for ours, theirs in zip(flat(before), flat(after), strict=True):
        if isinstance(ours, np.ndarray) and (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise InputError(
                f"%{instruction.name} is {ours.dtype}{list(ours.shape)} in this run, but {theirs.dtype}"
                f"{list(theirs.shape)} was given"
            )
