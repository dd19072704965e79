"""Checking before a run that its devices are those that a plan's collectives and channels need."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import attrs

from hloexec.core.ir import ReplicaGroups
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import Topology
from hloexec.engine.devices.transfers import FromDevice, ToDevice
from hloexec.engine.plan.steps import Exchange, Plan, Step, groups_at
from hloexec.errors import InputError, ShapeError, UnsupportedError
from hloexec.ops.registry import Callee, ProgramShape, find_opcode


def require_devices(plan: Plan, topology: Topology) -> None:
    """InputError unless a plan's collectives and channels are for these devices; UnsupportedError for a single one.

    A single device can be a group by itself, but can only send to and receive from itself.
    """
    fitting = _fitting.setdefault(plan, set())
    if topology in fitting:
        return
    for step in plan.communication:
        try:
            if isinstance(step.flow, Exchange):
                groups = groups_at(step, topology)
                for size in sorted({len(group) for group in groups}):
                    _require_fitting_shapes(step, size)
            elif isinstance(step.flow, (FromDevice, ToDevice)):
                _require_ends(step, step.flow, topology)
        except InputError as error:
            if topology.count > 1:
                raise
            raise UnsupportedError(_needs_devices(step)) from error
    fitting.add(topology)


_fitting: WeakKeyDictionary[Plan, set[Topology]] = WeakKeyDictionary()
"""The devices that plans have been found to be for: small modules are run many times."""


def _require_fitting_shapes(step: Step, size: int) -> None:
    """Ask the opcode's shape rule with groups of this size, which the text may leave open."""
    instruction, computation = step.instruction, step.scope.computation
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.infer is None or not hasattr(instruction.attributes, "replica_groups"):
        return
    groups = ReplicaGroups((tuple(range(size)),))
    attributes = attrs.evolve(instruction.attributes, replica_groups=groups, channel_id=None)
    shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
    assert isinstance(step.flow, Exchange)
    callees: Sequence[Callee] = step.flow.callees
    programs = tuple(
        ProgramShape(
            tuple(parameter.shape for parameter in callee.computation.parameters), callee.computation.result_shape
        )
        for callee in callees
    )
    try:
        entry.infer(*shapes, attributes=attributes, shape=instruction.shape, computations=programs)
    except ShapeError as error:
        raise InputError(
            f"%{instruction.name} in computation {computation.name} does not fit groups of {size} devices: "
            f"{error.message}"
        ) from error


def _require_ends(step: Step, flow: FromDevice | ToDevice, topology: Topology) -> None:
    """The pairs of a channel must name devices that are there, none of them twice at one end."""
    name = step.instruction.name
    if flow.pairs is None:
        if topology.count == 1:
            raise InputError(f"%{name} exchanges data with another device")
        return
    kind, count = ("partition", topology.partitions) if topology.partitions > 1 else ("replica", topology.replicas)
    for end, what in enumerate(("source", "target")):
        numbers = [pair[end] for pair in flow.pairs]
        for number in numbers:
            if number >= count:
                raise InputError(f"%{name} names {kind} {number} as a {what}, but there are {count} ({topology})")
            if numbers.count(number) > 1:
                raise InputError(f"%{name} names {kind} {number} as a {what} twice")


def _needs_devices(step: Step) -> str:
    return (
        f"%{step.instruction.name} in computation {step.scope.computation.name} ({step.instruction.opcode}) exchanges "
        "values with other devices, and a single one has none; run the module on all of its devices "
        f"({argument('run_devices')})"
    )
