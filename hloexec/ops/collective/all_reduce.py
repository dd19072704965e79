"""Collectives that fold what several devices hold: all-reduce, collective-reduce, reduce-scatter.

A fold goes through the members in the order of their group: narrow floats are added, multiplied and compared in f32 and
rounded once at the end; any other reducer works step by step in the declared type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.collective.groups import (
    CollectiveAttributes,
    Members,
    Results,
    RootedAttributes,
    collective,
    data_operands,
    is_handed_on,
    one_or_all,
    require_distinct,
    roots_of,
    without_roots,
    zeros,
)
from hloexec.ops.collective.shares import pairs_of_shares, relate_share, require_shares, shares_in
from hloexec.ops.common import array_shape, in_type, narrow, require, widen
from hloexec.ops.policies.exact.sums import can_reduce_exactly, reduce_exactly
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS, accumulation_dtype
from hloexec.ops.reduction.reducers import recognise, recognise_components
from hloexec.ops.registry import Callee, ProgramShape, Role, opcode
from hloexec.ops.relations import Relating, leafwise
from hloexec.ops.rounding import Sums
from hloexec.ops.signatures import (
    called,
    one_or_tuple,
    require_reducer,
)
from hloexec.ops.threads import in_pieces

_MODES = ("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id")


@frozen
class _FoldAttributes(CollectiveAttributes):
    """`mode` stood in dumps for some weeks and has no effect."""

    constrain_layout: bool = attribute(Grammar.BOOL, default=False)
    use_global_device_ids: bool = attribute(Grammar.BOOL, default=False)
    mode: str | None = attribute(Grammar.ENUM, default=None, choices=_MODES, is_open=True)


@frozen
class AllReduceAttributes(_FoldAttributes):
    to_apply: str = attribute(Grammar.COMPUTATION)


@frozen
class ReduceScatterAttributes(_FoldAttributes):
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    to_apply: str = attribute(Grammar.COMPUTATION, formerly=("calls",))


@collective("all-reduce", attributes=AllReduceAttributes, gives_same=True, is_leafwise=True)
class AllReduce:
    """Folds the operands of a group's devices with `to_apply` (XLA: AllReduce)."""

    sums = Sums.FOLDED

    @staticmethod
    def well_formed(*operands: Shape, attributes: _FoldAttributes) -> None:
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


@frozen
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
        return shares_in(result, operands[0], attributes.dimension)

    @staticmethod
    def relate(use: Relating) -> None:
        for operand, axes in zip(use.operands, use.result.leaves.values(), strict=False):
            relate_share(use, operand.axes, axes)
        if use.group is not None:
            use.sums_over([use.group])

    @staticmethod
    def infer(
        *operands: Shape, attributes: ReduceScatterAttributes, shape: Shape, computations: tuple[ProgramShape, ...]
    ) -> Shape:
        _folded_shape(operands, attributes, computations[0], "reduce-scatter")
        for number, operand, result in pairs_of_shares(operands, shape, attributes, "reduce-scatter"):
            require_shares(result, operand, attributes, f"result {number} of reduce-scatter", "a part of its operand")
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


def _folded_shape(
    operands: tuple[Shape, ...], attributes: CollectiveAttributes, program: ProgramShape, opcode_name: str
) -> Shape:
    """The operands' own: they must be arrays or handed on, and the computation must combine two scalars of their type.

    One computation of two scalars serves all operands, even where they differ in type.
    """
    arrays = [
        array_shape(operand, f"operand {number} of {opcode_name}")
        for number, operand in enumerate(operands)
        if not is_handed_on(number, operand, attributes)
    ]
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
