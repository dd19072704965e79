"""The correspondence between the parameters and results of two modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hloexec.core.ir import ArrayShape, Module, Shape, flat_arrays, leaf_shapes, map_shape
from hloexec.core.structs import frozen
from hloexec.core.values import TOKEN, Array, Value, flat
from hloexec.core.wording import counted, listing
from hloexec.engine.devices.manual_regions import is_boundary
from hloexec.engine.devices.topology import Topology
from hloexec.errors import InputError
from hloexec.ops.registry import Role, exchanges, role_of
from hloexec.tools.diffing.graph import Node


@frozen
class Correspondence:
    """Parameters and results of two modules, leaf by leaf."""

    before: Module
    after: Module
    result_order: tuple[int, ...]
    """For each leaf of `after`'s result, which of `before`'s it is."""
    notes: tuple[str, ...]

    def inputs(self, values: Sequence[Value]) -> list[Value]:
        """`after`'s parameters out of `before`'s."""
        leaves: Iterator[Any] = iter([leaf for leaf in flat(tuple(values)) if leaf is not TOKEN])
        return [nested(shape, leaves) for shape in self.after.entry.parameter_shapes]

    def inputs_by_device(self, values: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """The same on each device."""
        return [self.inputs(entry) for entry in values]

    def result(self, arrays: Sequence[Array]) -> Value:
        """`before`'s result out of arrays in the order of `after`'s."""
        places = dict(zip(self.result_order, arrays, strict=True))
        return nested(self.before.entry.result_shape, iter([places[place] for place in range(len(arrays))]))

    def ordered(self, outputs: Sequence[Node]) -> list[Node]:
        """`before`'s arrays of the result, in the order of `after`'s."""
        return [outputs[place] for place in self.result_order]


def unseen_exchanges(modules: Sequence[Module], topology: Topology, inputs: Sequence[Sequence[Value]]) -> list[str]:
    """A note where modules on shards exchange values between devices that all had the same inputs."""
    is_equal = topology.count > 1 and len(inputs) == 1
    if not is_equal or any(map(_takes_wholes, modules)):
        return []
    if not any(exchanges(instruction) for module in modules for part in module for instruction in part):
        return []
    return [
        f"all {topology.count} devices had the same inputs, so that values exchanged with the wrong devices may not "
        "show; give each its own (--different-inputs)"
    ]


def _takes_wholes(module: Module) -> bool:
    """Whether a module has yet to be partitioned: XLA then appends `_spmd` to the name of its entry. One that exchanges
    values otherwise than in manual regions is on shards, though it may say how its parameters are divided."""
    instructions = [instruction for part in module for instruction in part]
    is_annotated = any(instruction.sharding is not None for instruction in instructions)
    calls = [instruction for instruction in instructions if role_of(instruction) is Role.CUSTOM_CALL]
    is_on_shards = any(map(exchanges, instructions)) and not any(map(is_boundary, calls))
    return is_annotated and "_spmd" not in module.entry_name and not is_on_shards


def correspondence_of(before: Module, after: Module, topologies: Sequence[Topology]) -> Correspondence:
    """Pair the parameters and the results of two modules.

    Leaves are paired in order, however they are nested in tuples. Where the results' shapes are the same in
    another order, and each shape occurs once, they are paired by shape.

    Raises InputError where leaves are left over, or differ in element type or dimensions, or the modules are for
    different numbers of devices.
    """
    if topologies[0].count != topologies[1].count:
        raise InputError(
            f"the modules are for different numbers of devices: {before.name} for {topologies[0]}, {after.name} for "
            f"{topologies[1]}"
        )
    notes = []
    ours, counterpart = (flat_arrays(*module.entry.parameter_shapes) for module in (after, before))
    _require_same(ours, counterpart, after, before, "parameter")
    if _nesting(after.entry.parameter_shapes) != _nesting(before.entry.parameter_shapes):
        notes.append(
            f"the parameters nest otherwise: {len(before.entry.parameters)} of {before.name} are "
            f"{len(after.entry.parameters)} of {after.name}, paired array by array"
        )
    ours, counterpart = (flat_arrays(module.entry.result_shape) for module in (after, before))
    is_permuted = len(ours) == len(counterpart) and not all(map(_alike, ours, counterpart))
    order = _by_shape(ours, counterpart) if is_permuted else None
    if order is not None:
        notes.append("the results come in another order; they are paired by their shapes")
    else:
        order = tuple(range(len(ours)))
        _require_same(ours, counterpart, after, before, "result")
        if _nesting([after.entry.result_shape]) != _nesting([before.entry.result_shape]):
            notes.append("the results nest otherwise; they are paired array by array")
    return Correspondence(before, after, order, tuple(notes))


def _nesting(shapes: Sequence[Shape]) -> list[list[tuple[int, ...]]]:
    return [[index for index, _ in leaf_shapes(shape)] for shape in shapes]


def _alike(ours: Shape, counterpart: Shape) -> bool:
    return (
        isinstance(ours, ArrayShape)
        and isinstance(counterpart, ArrayShape)
        and ours.element_type is counterpart.element_type
        and ours.dimensions == counterpart.dimensions
    )


def _require_same(ours: Sequence[Shape], theirs: Sequence[Shape], after: Module, before: Module, what: str) -> None:
    if len(ours) != len(theirs):
        raise InputError(
            f"the modules do not correspond: {before.name} has {_arrays(theirs, what)}, "
            f"{after.name} {_arrays(ours, what)}"
        )
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if not _alike(one, other):
            raise InputError(
                f"the modules do not correspond: {what} {number} (counting arrays) is {other} in {before.name}, {one} "
                f"in {after.name}"
            )


def _arrays(shapes: Sequence[Shape], what: str) -> str:
    return f"{counted(len(shapes), what)} ({listing(shapes, 6)})"


def _by_shape(ours: Sequence[Shape], counterpart: Sequence[Shape]) -> tuple[int, ...] | None:
    """Which of the other leaves each one is, where shapes tell; None where they do not."""
    order = []
    for shape in ours:
        places = [place for place, other in enumerate(counterpart) if _alike(shape, other)]
        if len(places) != 1 or places[0] in order:
            return None
        order.append(places[0])
    return tuple(order)


def nested(shape: Shape, leaves: Iterator[Any]) -> Value:
    """The value of a shape whose arrays are the next of `leaves`."""
    return map_shape(shape, lambda leaf: next(leaves) if leaf.is_array else TOKEN)
