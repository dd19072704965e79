"""What is absorbed within one instruction: in the steps of a sum that is rounded after each, as a scatter's.

The instruction is computed once more, with its combiner watched: of each step, what it is given and what it gives is
compared with what it would give exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction
from hloexec.core.structs import define
from hloexec.core.values import Array, flat
from hloexec.ops.common import is_inexact
from hloexec.ops.reduction.reducers import UFUNCS, recognise_components, unrecognised
from hloexec.ops.registry import Callee, find_opcode
from hloexec.tools.shadowing.absorption import absorbed
from hloexec.tools.shadowing.computing.widening import SAME, WIDE, Kernels
from hloexec.tools.shadowing.store import wide

_MOST_STEPS = 4096
"""After so many the rest is taken to be like them."""


@define(eq=False)
class Steps:
    """What the steps of an instruction did to one leaf of floats of its result."""

    absorbed: int = 0
    """How many numbers, of those that were combined, changed nothing or lost half of their digits."""
    error_of_absorbed: float = 0.0
    """The sum of the absolute errors of these steps."""
    error: float = 0.0
    """The same of all steps."""

    @property
    def share(self) -> float:
        return self.error_of_absorbed / self.error if self.error > 0 else 0.0


class _EnoughError(Exception):
    """Raised after the last step that is watched."""


def steps_of(
    kernels: Kernels, computation: Computation, instruction: Instruction, operands: Sequence[Any]
) -> list[Steps]:
    """What the steps did to each leaf of floats of an instruction's result; empty if it takes none of its own: if it
    calls no combiner, or rounds what that gives once only."""
    watched: list[_Watched] = []

    def watch(name: str) -> Callee:
        callee = kernels.callee(name, SAME)
        found = _Watched(callee, kernels.callee(name, WIDE), is_stepwise=_is_stepwise(computation, instruction, callee))
        watched.append(found)
        return found

    kernel = kernels.calling(computation, instruction, watch)
    if kernel is None or not watched:
        return []
    try:
        with np.errstate(all="ignore"):
            kernel(*operands)
    except _EnoughError:
        pass
    return watched[-1].leaves


def _is_stepwise(computation: Computation, instruction: Instruction, callee: Callee) -> bool:
    """Whether what an opcode adds up, with a combiner that it knows, is rounded after each step."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.summed is None:
        return False
    shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
    if not all(isinstance(shape, ArrayShape) for shape in shapes):
        return False
    summation = entry.summed(
        attributes=instruction.attributes, shape=instruction.shape, operand_shapes=shapes, computations=(callee,)
    )
    return summation is not None and summation.is_stepwise


class _Watched:
    """A called computation of which each call is compared with what it would give exactly."""

    def __init__(self, callee: Callee, exact: Callee, *, is_stepwise: bool) -> None:
        self._callee = callee
        self._exact = exact
        self._names = recognise_components(callee.computation)
        self.computation = unrecognised(callee.computation) if is_stepwise else callee.computation
        self.leaves: list[Steps] = []
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        if self._calls == _MOST_STEPS:
            raise _EnoughError
        self._calls += 1
        result = self._callee(*arguments)
        results, exact = flat(result), flat(self._exact(*map(wide, arguments)))
        floats = [number for number, value in enumerate(results) if is_inexact(value)]
        self.leaves = self.leaves or [Steps() for _ in floats]
        for steps, number in zip(self.leaves, floats, strict=True):
            terms = list(map(wide, arguments[number :: len(results)]))
            self._note(steps, results[number], exact[number], terms, number)
        return result

    def _note(self, steps: Steps, value: Array, exact: Array, terms: Sequence[Array], number: int) -> None:
        ours = wide(value)
        added = np.where(np.isfinite(ours) & np.isfinite(exact), ours - exact, 0.0)
        sizes = np.abs(added)
        is_sum = self._names is not None and UFUNCS.get(self._names[number]) is np.add
        found = absorbed(ours, terms, added, element_type_of(value.dtype), is_sum=is_sum)
        steps.error += float(sizes.sum())
        if found is not None:
            steps.absorbed += int(np.count_nonzero(found))
            steps.error_of_absorbed += float(sizes[found].sum())
