"""The trip counts that loops state, where their bounds have changed."""

from __future__ import annotations

import re

import attrs

from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.ops.costs import trip_count_of
from hloexec.ops.registry import Role, role_of

_COUNT = re.compile(r'("known(?:_trip_c|TripC)ount"\s*:\s*\{\s*"n"\s*:\s*"?)(\d+)')


def with_trip_counts(before: Module, after: Module) -> Module:
    """The module with the trip counts that its loops have now, where they were stated and follow from constants."""
    return attrs.evolve(
        after, computations=tuple(_restated(before, after, computation) for computation in after.computations)
    )


def _restated(before: Module, after: Module, computation: Computation) -> Computation:
    changes = {}
    for instruction in computation.instructions:
        if role_of(instruction) is not Role.WHILE or trip_count_of(instruction) is None:
            continue
        counts = [
            loop_trips(module, module.by_name[computation.name], _without_count(instruction))
            for module in (before, after)
        ]
        if None not in counts and counts[0] == trip_count_of(instruction) and counts[0] != counts[1]:
            changes[instruction.name] = _with_count(instruction, counts[1] or 0)
    if not changes:
        return computation
    found = tuple(changes.get(instruction.name, instruction) for instruction in computation.instructions)
    return attrs.evolve(computation, instructions=found)


def _without_count(loop: Instruction) -> Instruction:
    return attrs.evolve(loop, backend_config=None)


def _with_count(loop: Instruction, count: int) -> Instruction:
    return attrs.evolve(loop, backend_config=_COUNT.sub(rf"\g<1>{count}", loop.backend_config or ""))
