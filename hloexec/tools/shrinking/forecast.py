"""What arrays take that are alive at once, at several sizes: a forecast of what a run takes, which its plan says.

How long a run takes, as far as that can be said without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

from hloexec.analysis.calls import calls_of
from hloexec.core.ir import Computation, Instruction, Module, leaf_shapes
from hloexec.core.structs import define, frozen
from hloexec.ops.costs import contraction_of
from hloexec.ops.registry import Role, role_of
from hloexec.tools.shrinking.dimensions import Dimensions
from hloexec.tools.summary import run_counts

_Array: TypeAlias = tuple[int, tuple[int, ...]]
"""The bytes of an element, and the roots of the dimensions."""

NO_ARRAYS = (Role.PARAMETER, Role.CONSTANT, Role.TUPLE, Role.GET_TUPLE_ELEMENT, Role.FORWARD, Role.PART)
"""What these give was there before."""

_PER_CALL, _PER_KERNEL, _PER_ELEMENT = 10_000_000, 400_000, 50
"""What it takes to run a library call, any other kernel, and for each element that it computes, in operations of
contractions: a fraction of a millisecond, ten microseconds, and nanoseconds."""


@frozen
class Work:
    """What one device does in a run, as often as loops say that they run."""

    flops: int
    """Operations of contractions."""
    operations: int
    """Those, and as many as would take as long as all else."""

    @classmethod
    def of(cls, module: Module) -> Work:
        flops = others = 0
        for name, runs in run_counts(module).items():
            computation = module.by_name[name]
            for instruction in computation:
                if role_of(instruction) not in NO_ARRAYS:
                    cost = contraction_of(instruction, [use.shape for use in computation.operands_of(instruction)])
                    flops += 0 if cost is None else runs * cost.flops
                    elements = sum(leaf.array_shape.element_count for _, leaf in leaf_shapes(instruction.shape))
                    call = _PER_CALL if role_of(instruction) is Role.CUSTOM_CALL else _PER_KERNEL
                    others += runs * (call + _PER_ELEMENT * elements)
        return cls(flops, flops + others)


@frozen
class _Step:
    made: Sequence[int]
    """Arrays, by their numbers."""
    freed: Sequence[int]
    called: Sequence[str]


@define(eq=False)
class Forecast:
    """The schedule of a module: which arrays each instruction makes, and which are not needed after it."""

    dimensions: Dimensions
    _arrays: dict[_Array, int]
    """All kinds of arrays, numbered."""
    _steps: dict[str, list[_Step]]
    """By computation, callees first."""

    @classmethod
    def of(cls, module: Module, dimensions: Dimensions) -> Forecast:
        forecast = cls(dimensions, {}, {})
        for name in run_counts(module):
            forecast._steps[name] = forecast._schedule(module.by_name[name])
        return forecast

    def live_bytes(self, sizes: Mapping[int, int]) -> int:
        """The most bytes at once on one device, inputs aside, for new sizes of roots."""
        before = self.dimensions.relations.sizes
        numbers = [width * prod(sizes.get(root, before[root]) for root in roots) for width, roots in self._arrays]
        peaks: dict[str, int] = {}
        for name, steps in self._steps.items():
            alive = peak = 0
            for step in steps:
                inner = max((peaks[called] for called in step.called), default=0)
                made = sum(numbers[array] for array in step.made)
                peak = max(peak, alive + max(inner, made))
                alive += made - sum(numbers[array] for array in step.freed)
            peaks[name] = peak
        return next(reversed(peaks.values()))

    def _schedule(self, computation: Computation) -> list[_Step]:
        instructions = computation.instructions
        made = [
            () if role_of(instruction) in NO_ARRAYS else self._made(computation, instruction)
            for instruction in instructions
        ]
        freed: list[list[int]] = [[] for _ in (*instructions, computation)]
        for arrays, last_use in zip(made, _last_uses(computation), strict=True):
            freed[last_use] += arrays
        calls = ([call.computation for call in calls_of(instruction)] for instruction in instructions)
        return [_Step(*step) for step in zip(made, freed, calls, strict=False)]

    def _made(self, computation: Computation, instruction: Instruction) -> tuple[int, ...]:
        value, root = self.dimensions.values[computation.name][instruction.name], self.dimensions.relations.root
        return tuple(
            self._arrays.setdefault(
                (leaf.array_shape.element_type.byte_size, tuple(sorted(map(root, axes)))), len(self._arrays)
            )
            for (_, leaf), axes in zip(leaf_shapes(instruction.shape), value.leaves.values(), strict=True)
        )


def _last_uses(computation: Computation) -> list[int]:
    """Of each instruction, the position of the last one that needs its arrays: its own if there is none, behind all for
    those of the result."""
    positions = {instruction.name: position for position, instruction in enumerate(computation.instructions)}
    last_uses = list(range(len(positions)))
    last_uses[positions[computation.root_name]] = len(positions)
    for position, instruction in reversed([*enumerate(computation.instructions)]):
        user = last_uses[position] if role_of(instruction) in NO_ARRAYS else position
        for operand in instruction.operands:
            last_uses[positions[operand]] = max(last_uses[positions[operand]], user)
    return last_uses
