"""Collectives that concatenate or fold what several devices hold: all-gather, all-reduce, reduce-scatter.

A fold goes through the members in the order of their group: narrow floats are added, multiplied and compared in f32 and
rounded once at the end; any other reducer works step by step in the declared type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.ir import ArrayShape, Shape, TupleShape, parts_of
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.collective.groups import (
    CollectiveAttributes,
    Members,
    Results,
    RootedAttributes,
    collective,
    data_operands,
    declared_results,
    extent_of,
    group_size,
    one_or_all,
    require_distinct,
    roots_of,
    without_roots,
    zeros,
)
from hloexec.ops.common import array_shape, in_type, narrow, require, widen
from hloexec.ops.policies.exact.sums import can_reduce_exactly, reduce_exactly
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS, accumulation_dtype
from hloexec.ops.reduction.reducers import recognise, recognise_components
from hloexec.ops.registry import Callee, ProgramShape, Role, opcode
from hloexec.ops.relations import Axes, Relating, leafwise
from hloexec.ops.rounding import Sums
from hloexec.ops.signatures import (
    called,
    element_of_operand,
    one_or_tuple,
    require_reducer,
    require_same_shape,
    require_tuple,
    same_type,
)
from hloexec.ops.threads import in_pieces
from hloexec.values import Array

if TYPE_CHECKING:
    from hloexec.ops.relations import Value

__all__ = ["AllGatherAttributes", "AllReduceAttributes", "CollectiveReduceAttributes", "ReduceScatterAttributes"]

_MODES = ("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id")


@attrs.frozen
class AllGatherAttributes(CollectiveAttributes):
    constrain_layout: bool = attribute(Grammar.BOOL, default=False)
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    use_global_device_ids: bool = attribute(Grammar.BOOL, default=False)


@attrs.frozen
class _FoldAttributes(CollectiveAttributes):
    """`mode` stood in dumps for some weeks and has no effect."""

    constrain_layout: bool = attribute(Grammar.BOOL, default=False)
    use_global_device_ids: bool = attribute(Grammar.BOOL, default=False)
    mode: str | None = attribute(Grammar.ENUM, default=None, choices=_MODES)


@attrs.frozen
class AllReduceAttributes(_FoldAttributes):
    to_apply: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class ReduceScatterAttributes(_FoldAttributes):
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    to_apply: str = attribute(Grammar.COMPUTATION, formerly=("calls",))


@collective("all-gather", attributes=AllGatherAttributes, gives_same=True, moves=(0,), crosses_devices=True)
class AllGather:
    """Concatenates the operands of a group's devices along `dimensions` (XLA: AllGather)."""

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: AllGatherAttributes) -> int | None:
        return _parts_in(operands[0], result, attributes.dimension)

    @staticmethod
    def relate(use: Relating) -> None:
        _relate_gathered(use, use.result)

    @staticmethod
    def infer(*operands: Shape, attributes: AllGatherAttributes, shape: Shape) -> Shape:
        return _gathered(operands, shape, attributes, "all-gather")

    @staticmethod
    def exchange(members: Members, *, attributes: AllGatherAttributes) -> Results:
        parts = zip(*members.values(), strict=True)
        whole = one_or_all([np.concatenate(arrays, attributes.dimension) for arrays in parts])
        return dict.fromkeys(members, whole)


@collective(
    "all-gather-start", attributes=AllGatherAttributes, gives_same=True, begins=True, opens=True, owns_tuple=True
)
class AllGatherStart:
    """Starts an all-gather; the value is (operands, results)."""

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: AllGatherAttributes) -> int | None:
        parts = parts_of(result)
        return AllGather.group_members(operands, parts[1], attributes) if len(parts) > 1 else None

    @staticmethod
    def relate(use: Relating) -> None:
        for ours, theirs in zip(use.operands, use.result.part(0).leaves.values(), strict=False):
            use.same(ours.axes, theirs)
        _relate_gathered(use, use.result.part(1))

    @staticmethod
    def infer(*operands: Shape, attributes: AllGatherAttributes, shape: Shape) -> Shape:
        parts = require_tuple(shape, 2, "all-gather-start")
        require_same_shape(parts[0], one_or_tuple(operands), "element 0 of all-gather-start, its operands,")
        return TupleShape((parts[0], _gathered(operands, parts[1], attributes, "all-gather-start"), *parts[2:]))

    exchange = AllGather.exchange


@opcode("all-gather-done", operands=1, role=Role.PART, aliases=(((), (1,)),), owns_tuple=True)
class AllGatherDone:
    """The results of a started all-gather."""

    infer = element_of_operand("all-gather-done", 1)


@collective("all-reduce", attributes=AllReduceAttributes, gives_same=True, is_leafwise=True)
class AllReduce:
    """Folds the operands of a group's devices with `to_apply` (XLA: AllReduce)."""

    sums = Sums.FOLDED

    @staticmethod
    def well_formed(*operands: Shape, attributes: AllReduceAttributes | ReduceScatterAttributes) -> None:
        is_well_formed = attributes.channel_id is not None or not attributes.use_global_device_ids
        require(is_well_formed, "use_global_device_ids=true needs a channel_id")

    @staticmethod
    def relate(use: Relating) -> None:
        leafwise(use)
        if use.group is not None:
            use.sums_over([use.group])

    @staticmethod
    def infer(*operands: Shape, attributes: AllReduceAttributes, computations: tuple[ProgramShape, ...]) -> Shape:
        return _folded_shape(operands, attributes, computations[0], "all-reduce")

    @staticmethod
    def exchange(members: Members, *, computations: Sequence[Callee], numerics: NumericsPolicy) -> Results:
        folded = one_or_all(_folded(list(members.values()), computations[0], numerics))
        return dict.fromkeys(members, folded)


@collective(
    "all-reduce-start", attributes=AllReduceAttributes, gives_same=True, is_leafwise=True, in_place=True, opens=True
)
class AllReduceStart:
    """Starts an all-reduce; the value has the shape of the results."""

    sums = Sums.FOLDED
    well_formed = AllReduce.well_formed

    relate = staticmethod(AllReduce.relate)

    @staticmethod
    def infer(*operands: Shape, attributes: AllReduceAttributes, computations: tuple[ProgramShape, ...]) -> Shape:
        return _folded_shape(operands, attributes, computations[0], "all-reduce-start")

    exchange = AllReduce.exchange


@opcode("all-reduce-done", operands=1, role=Role.PART, aliases=(((), ()),))
class AllReduceDone:
    """The results of a started all-reduce."""

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return operand


@attrs.frozen
class CollectiveReduceAttributes(RootedAttributes):
    constrain_layout: bool = attribute(Grammar.BOOL, default=False)
    use_global_device_ids: bool = attribute(Grammar.BOOL, default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@collective("collective-reduce", attributes=CollectiveReduceAttributes, fills=True)
class CollectiveReduce:
    """An all-reduce whose result is there on the root of each group; XLA leaves open what others get: here zeros.

    The root is the first device of the group, or, with `has_dynamic_root`, for each operand the one that the last
    operand, s32[n], names by its place in the group (XLA: CollectiveReduce).
    """

    sums = Sums.FOLDED

    relate = staticmethod(AllReduce.relate)

    @staticmethod
    def infer(
        *operands: Shape, attributes: CollectiveReduceAttributes, computations: tuple[ProgramShape, ...]
    ) -> Shape:
        data = data_operands(operands, attributes, "collective-reduce")
        return _folded_shape(data, attributes, computations[0], "collective-reduce")

    @staticmethod
    def exchange(
        members: Members,
        *,
        attributes: CollectiveReduceAttributes,
        computations: Sequence[Callee],
        numerics: NumericsPolicy,
    ) -> Results:
        roots = roots_of(members, attributes, "collective-reduce")
        folded = _folded([*without_roots(members, attributes).values()], computations[0], numerics)
        return {
            member: one_or_all(
                [
                    whole if member == root else zeros(whole.dtype, whole.shape)
                    for whole, root in zip(folded, roots, strict=True)
                ]
            )
            for member in members
        }


@collective("reduce-scatter", attributes=ReduceScatterAttributes)
class ReduceScatter:
    """An all-reduce, whose result is divided among the devices along `dimensions` (XLA: ReduceScatter)."""

    sums = Sums.FOLDED
    well_formed = AllReduce.well_formed

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: ReduceScatterAttributes) -> int | None:
        return _parts_in(result, operands[0], attributes.dimension)

    @staticmethod
    def relate(use: Relating) -> None:
        for operand, axes in zip(use.operands, use.result.leaves.values(), strict=False):
            _relate_share(use, operand.axes, axes)
        if use.group is not None:
            use.sums_over([use.group])

    @staticmethod
    def infer(
        *operands: Shape, attributes: ReduceScatterAttributes, shape: Shape, computations: tuple[ProgramShape, ...]
    ) -> Shape:
        _folded_shape(operands, attributes, computations[0], "reduce-scatter")
        results = declared_results(shape, len(operands), "reduce-scatter")
        for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
            _require_parts(result, operand, attributes, f"result {number} of reduce-scatter", "a part of its operand")
        return shape

    @staticmethod
    def exchange(
        members: Members,
        *,
        attributes: ReduceScatterAttributes,
        computations: Sequence[Callee],
        numerics: NumericsPolicy,
    ) -> Results:
        folded = _folded(list(members.values()), computations[0], numerics)
        parts = [np.array_split(whole, len(members), attributes.dimension) for whole in folded]
        # Copies, as a part of an array would keep all of it alive.
        return {member: one_or_all([part[k].copy() for part in parts]) for k, member in enumerate(members)}


def _require_parts(
    part: Shape, whole: Shape, attributes: AllGatherAttributes | ReduceScatterAttributes, what: str, expected: str
) -> None:
    """`whole` must be a group's `part`s one after the other along the dimension."""
    opcode_name = what.rpartition(" ")[2]
    small, large = array_shape(part, what), array_shape(whole, what)
    dimension, size = attributes.dimension, group_size(attributes.replica_groups, opcode_name)
    extent = extent_of(small, dimension, what)
    others = [number for number in range(small.rank) if number != dimension]
    same = small.rank == large.rank and all(small.dimensions[i] == large.dimensions[i] for i in others)
    total = large.dimensions[dimension] if same else -1
    # A channel without global device numbers brings in all partitions of the replicas that the groups list.
    is_exact = size is not None and (attributes.channel_id is None or attributes.use_global_device_ids)
    unit = extent * (size or 1)
    fits = total == unit if is_exact else total % max(unit, 1) == 0
    require(
        same and fits and same_type(small.element_type, large.element_type),
        f"{what} must be {expected} along dimension {dimension} with {size or 'some number of'} devices in a group, "
        f"but the shapes are {part} and {whole}",
    )


def _parts_in(part: Shape, whole: Shape, dimension: int) -> int | None:
    """How many times `whole` has the extent of `part` along a dimension; of tuples, their first elements. None where
    these are not such arrays, as in a module that is not verified."""
    extents = []
    for shape in (part, whole):
        first = next(iter(parts_of(shape)), None)
        if isinstance(first, ArrayShape) and 0 <= dimension < first.rank:
            extents.append(first.dimensions[dimension])
    return extents[1] // extents[0] if len(extents) == 2 and all(extents) else None


def _gathered(operands: tuple[Shape, ...], shape: Shape, attributes: AllGatherAttributes, opcode_name: str) -> Shape:
    results = declared_results(shape, len(operands), opcode_name)
    for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
        _require_parts(operand, result, attributes, f"operand {number} of {opcode_name}", "a part of its result")
    return shape


def _folded_shape(
    operands: tuple[Shape, ...], attributes: CollectiveAttributes, program: ProgramShape, opcode_name: str
) -> Shape:
    """The operands' own: they must be arrays, and the computation must combine two scalars of their type.

    One computation of two scalars serves all operands, even where they differ in type.
    """
    arrays = [array_shape(operand, f"operand {number} of {opcode_name}") for number, operand in enumerate(operands)]
    require_distinct(attributes.replica_groups, opcode_name)
    reduced = arrays if len(program.parameters) == 2 * len(arrays) else arrays[:1]
    require_reducer(program, reduced, f"to_apply of {opcode_name}")
    return one_or_tuple(operands)


def _folded(members: Sequence[Sequence[Array]], callee: Callee, numerics: NumericsPolicy) -> list[Array]:
    """The operands of all members combined, one after the other in the order of the members."""
    computation = callee.computation
    count = len(members[0])
    if len(members) == 1:
        return list(members[0])
    is_shared = len(computation.parameters) == 2
    names = (recognise(computation),) * count if is_shared else recognise_components(computation)
    if names is not None and all(name in KNOWN_REDUCERS for name in names):
        columns = zip(*members, strict=True)
        return [_combined(column, name, numerics) for column, name in zip(columns, names, strict=True) if name]
    if is_shared:
        return [_called([[operand] for operand in column], callee)[0] for column in zip(*members, strict=True)]
    return _called(members, callee)


def _combined(operands: Sequence[Array], name: str, numerics: NumericsPolicy) -> Array:
    """One operand of each member, by a reducer that is one usual operation."""
    element_type = element_type_of(operands[0].dtype)
    reducer = KNOWN_REDUCERS[name]
    dtype = accumulation_dtype(element_type, element_type)
    if numerics.is_exact and can_reduce_exactly(name, element_type):
        init = narrow(np.asarray(reducer.identity(dtype), dtype), element_type)
        return reduce_exactly(name, np.stack(operands), (0,), init, element_type)

    if numerics.rounding_seed is not None and name == "add" and (element_type.is_floating or element_type.is_complex):
        from hloexec.ops.policies.chance import sum_by_chance

        return sum_by_chance(np.stack(operands))

    def combined(first: Array, *others: Array) -> Array:
        total = widen(first).astype(dtype, copy=False)
        for array in others:
            total = reducer.combine(total, widen(array).astype(dtype, copy=False))
        return narrow(np.asarray(total), element_type)

    return in_pieces(combined, element_type.storage, *operands)


def _called(members: Sequence[Sequence[Array]], callee: Callee) -> list[Array]:
    """The operands of all members, by a reducer that is called with what is accumulated and the next member's."""
    total = list(members[0])
    types = [element_type_of(array.dtype) for array in total]
    for operands in members[1:]:
        total = [in_type(*pair) for pair in zip(called(callee, *total, *operands), types, strict=True)]
    return total


def _relate_gathered(use: Relating, result: Value) -> None:
    for operand, axes in zip(use.operands, result.leaves.values(), strict=False):
        _relate_share(use, axes, operand.axes)


def _relate_share(use: Relating, whole: Axes, part: Axes) -> None:
    """Along the dimension that devices share, one array is a multiple of the other."""
    for number, (ours, theirs) in enumerate(zip(whole, part, strict=True)):
        if number == use.attributes.dimension:
            use.shared(ours, theirs, use.group)
        else:
            use.same([ours], [theirs])
