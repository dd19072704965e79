"""Collectives: who takes part, and those that put together or fold what the devices of a group hold.

A collective's kernel is its entry's `exchange`: from the operands of the members of one group, by their numbers and in
the order of the group, to their results. `devices.topology` decides which devices form groups. Members that get
equal results get one and the same array.

A fold goes through the members in the order of their group: narrow floats are added, multiplied and compared in f32 and
rounded once at the end; any other reducer works step by step in the declared type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, DType, element_type_of
from hloexec.core.ir import ArrayShape, Computation, ReplicaGroups, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, in_type, narrow, require, widen
from hloexec.ops.policies.exact.sums import can_reduce_exactly, reduce_exactly
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.reduction.reducers import KNOWN_REDUCERS, accumulation_dtype, recognise, recognise_components
from hloexec.ops.registry import ANY, Callee, Callees, Programs, ProgramShape, Role, opcode
from hloexec.ops.relations import Axes, Relating, leafwise
from hloexec.ops.resources import in_pieces
from hloexec.ops.signatures import (
    called,
    element_of_operand,
    one_or_tuple,
    require_reducer,
    require_same_shape,
    require_tuple,
    same_type,
)
from hloexec.ops.traits import Route, Sums

if TYPE_CHECKING:
    from hloexec.ops.relations import Value


collective = partial(opcode, operands=(1, ANY), role=Role.MACHINE)
"""Register the decorated class as the entry of a collective, as `opcode` does."""

Members: TypeAlias = Mapping[int, Sequence[Array]]
"""The operands of each member of a group, by the member's number."""

Results: TypeAlias = dict[int, Any]
"""The result of each member, an array or a tuple of arrays."""


@frozen
class CollectiveAttributes:
    """Which devices take part, and over which channel."""

    channel_id: int | None = attribute(default=None)
    replica_groups: ReplicaGroups = attribute(Grammar.REPLICA_GROUPS, default=ReplicaGroups(), always_printed=True)


@frozen
class RootedAttributes(CollectiveAttributes):
    """Of collectives in which one device of each group, the root, has a part of its own."""

    has_dynamic_root: bool = attribute(default=False)
    """Whether the last operand says for each of the others which device of the group is the root; else it is the first.
    """


def data_operands(operands: Sequence[Shape], attributes: RootedAttributes, opcode_name: str) -> tuple[Shape, ...]:
    """The operands but for the roots, which are s32[n] for n operands; ShapeError where they are not."""
    if not attributes.has_dynamic_root:
        return tuple(operands)
    *data, roots = operands
    wanted = ArrayShape(ELEMENT_TYPES["s32"], (len(data),))
    require(
        bool(data) and roots.compatible(wanted),
        f"the last operand of a {opcode_name} with a dynamic root must be {wanted}, a device of the group for each "
        f"other operand, but has shape {roots}",
    )
    return tuple(data)


def without_roots(members: Members, attributes: RootedAttributes) -> Members:
    """The operands of each member but for the roots."""
    if not attributes.has_dynamic_root:
        return members
    return {member: operands[:-1] for member, operands in members.items()}


def roots_of(members: Members, attributes: RootedAttributes, opcode_name: str) -> list[int]:
    """The root of each operand, by the member's number; EvaluationError where the members name none of them."""
    numbers = list(members)
    first = members[numbers[0]]
    if not attributes.has_dynamic_root:
        return [numbers[0]] * len(first)
    places = first[-1].tolist()
    for member, operands in members.items():
        if operands[-1].tolist() != places:
            raise EvaluationError(
                f"the devices of a group of {opcode_name} name different roots: {places} on device {numbers[0]}, "
                f"{operands[-1].tolist()} on device {member}"
            )
    for place in places:
        if not 0 <= place < len(numbers):
            raise EvaluationError(f"root {place} of {opcode_name} is none of the {len(numbers)} devices of its group")
    return [numbers[place] for place in places]


@lru_cache(maxsize=1024)
def zeros(dtype: DType, sizes: Dimensions) -> Array:
    """Zeros that take no memory, the same for all members."""
    return np.broadcast_to(np.zeros((), dtype), sizes)


def one_or_all(arrays: Sequence[Array]) -> Any:
    """The array where there is only one, else all of them as a tuple."""
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def group_size(groups: ReplicaGroups, opcode_name: str) -> int | None:
    """How many devices a group has, or None where the text leaves it to the module; groups must be of one size."""
    if groups.iota is not None:
        return groups.iota.dimensions[-1]
    require_distinct(groups, opcode_name)
    sizes = {len(group) for group in groups.groups}
    require(
        len(sizes) <= 1, f"the replica groups of {opcode_name} must be of one size, but have {sorted(sizes)} devices"
    )
    return next(iter(sizes), None)


def require_distinct(groups: ReplicaGroups, opcode_name: str) -> None:
    """No group may be empty; no device may be in two groups, or twice in one."""
    require(all(groups.groups), f"the replica groups of {opcode_name} must not be empty, but are {groups.groups}")
    devices = [device for group in groups.groups for device in group]
    require(
        len(set(devices)) == len(devices) and all(device >= 0 for device in devices),
        f"the replica groups of {opcode_name} must name each device at most once, but are {groups.groups}",
    )


def extent_of(shape: ArrayShape, dimension: int, subject: str) -> int:
    """The size of a dimension, which must be there."""
    require(
        0 <= dimension < shape.rank, f"dimension {dimension} is out of range for {subject}, which has shape {shape}"
    )
    return shape.dimensions[dimension]


def is_handed_on(number: int, operand: Shape, attributes: object) -> bool:
    """Whether an operand goes along unchanged, only to keep collectives in order: a token, or a scalar behind arrays
    that are divided or put together, which is what PyTorch/XLA on AWS Neuron has for one. Neuron's compiler takes it
    away before the module runs ("Compute-Communication Overlap in Neuron"); XLA's parser reads it."""
    if number == 0 or not isinstance(operand, ArrayShape):
        return False
    return operand.is_token or (operand.rank == 0 and getattr(attributes, "dimension", None) is not None)


def declared_results(shape: Shape, count: int, opcode_name: str) -> tuple[Shape, ...]:
    """The results as declared: one array, or a tuple of as many as there are operands."""
    results = parts_of(shape)
    require(len(results) == count, f"{opcode_name} has {count} operands, but {len(results)} results: {shape}")
    return results


class Divided(Protocol):
    """The attributes of such a collective."""

    @property
    def dimension(self) -> int: ...

    @property
    def replica_groups(self) -> ReplicaGroups: ...

    @property
    def channel_id(self) -> int | None: ...

    @property
    def use_global_device_ids(self) -> bool: ...


def pairs_of_shares(
    operands: Sequence[Shape], shape: Shape, attributes: Divided, opcode_name: str
) -> Iterator[tuple[int, Shape, Shape]]:
    """The operands that devices share in by their numbers, each with its declared result; ShapeError where there are
    not as many results as operands, or one that is handed on is declared otherwise."""
    results = declared_results(shape, len(operands), opcode_name)
    for number, (operand, result) in enumerate(zip(operands, results, strict=True)):
        if is_handed_on(number, operand, attributes):
            require_same_shape(result, operand, f"result {number} of {opcode_name}")
        else:
            yield number, operand, result


def require_shares(part: Shape, whole: Shape, attributes: Divided, subject: str, expected: str) -> None:
    """ShapeError unless `whole` is a group's `part`s one after the other along the dimension."""
    opcode_name = subject.rpartition(" ")[2]
    small, large = array_shape(part, subject), array_shape(whole, subject)
    dimension, size = attributes.dimension, group_size(attributes.replica_groups, opcode_name)
    extent = extent_of(small, dimension, subject)
    others = [number for number in range(small.rank) if number != dimension]
    same = small.rank == large.rank and all(small.dimensions[i] == large.dimensions[i] for i in others)
    total = large.dimensions[dimension] if same else -1
    # A channel without global device numbers brings in all partitions of the replicas that the groups list.
    is_exact = size is not None and (attributes.channel_id is None or attributes.use_global_device_ids)
    unit = extent * (size or 1)
    fits = total == unit if is_exact else total % max(unit, 1) == 0
    require(
        same and fits and same_type(small.element_type, large.element_type),
        f"{subject} must be {expected} along dimension {dimension} with {size or 'some number of'} devices in a group, "
        f"but the shapes are {part} and {whole}",
    )


def shares_in(part: Shape, whole: Shape, dimension: int) -> int | None:
    """How many times `whole` has the extent of `part` along a dimension; of tuples, their first elements. None where
    these are not such arrays, as in a module that is not verified."""
    extents = []
    for shape in (part, whole):
        first = next(iter(parts_of(shape)), None)
        if isinstance(first, ArrayShape) and 0 <= dimension < first.rank:
            extents.append(first.dimensions[dimension])
    return extents[1] // extents[0] if len(extents) == 2 and all(extents) else None


def relate_share(use: Relating, whole: Axes, part: Axes) -> None:
    """Along the dimension that devices share, one array is a multiple of the other."""
    for number, (ours, theirs) in enumerate(zip(whole, part, strict=True)):
        if number == use.attributes.dimension:
            use.shared(ours, theirs, use.group)
        else:
            use.same([ours], [theirs])


@frozen
class AllGatherAttributes(CollectiveAttributes):
    constrain_layout: bool = attribute(default=False)
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    use_global_device_ids: bool = attribute(default=False)


@collective("all-gather", attributes=AllGatherAttributes, gives_same=True, moves=(0,), crosses_devices=True)
class AllGather:
    """Concatenates the operands of a group's devices along `dimensions` (XLA: AllGather)."""

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: AllGatherAttributes) -> int | None:
        return shares_in(operands[0], result, attributes.dimension)

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


def _gathered(operands: tuple[Shape, ...], shape: Shape, attributes: AllGatherAttributes, opcode_name: str) -> Shape:
    for number, operand, result in pairs_of_shares(operands, shape, attributes, opcode_name):
        require_shares(operand, result, attributes, f"operand {number} of {opcode_name}", "a part of its result")
    return shape


def _relate_gathered(use: Relating, result: Value) -> None:
    for operand, axes in zip(use.operands, result.leaves.values(), strict=False):
        relate_share(use, axes, operand.axes)


_MODES = ("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id")


@frozen
class _FoldAttributes(CollectiveAttributes):
    """`mode` stood in dumps for some weeks and has no effect."""

    constrain_layout: bool = attribute(default=False)
    use_global_device_ids: bool = attribute(default=False)
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

    route = Route.FOLDED
    sums = Sums.FOLDED

    @staticmethod
    def well_formed(*operands: Shape, attributes: _FoldAttributes) -> None:
        is_well_formed = attributes.channel_id is not None or not attributes.use_global_device_ids
        require(is_well_formed, "use_global_device_ids=true needs a channel_id")

    @staticmethod
    def relate(use: Relating) -> None:
        leafwise(use)
        use.sums_over_devices()

    @staticmethod
    def infer(*operands: Shape, attributes: AllReduceAttributes, computations: Programs) -> Shape:
        return _folded_shape(operands, attributes, computations[0], "all-reduce")

    @staticmethod
    def exchange(members: Members, *, computations: Callees, numerics: NumericsPolicy) -> Results:
        total = one_or_all(folded(list(members.values()), computations[0], numerics))
        return dict.fromkeys(members, total)


@collective(
    "all-reduce-start", attributes=AllReduceAttributes, gives_same=True, is_leafwise=True, in_place=True, opens=True
)
class AllReduceStart:
    """Starts an all-reduce; the value has the shape of the results."""

    route = Route.FOLDED
    sums = Sums.FOLDED
    well_formed = AllReduce.well_formed

    relate = staticmethod(AllReduce.relate)

    @staticmethod
    def infer(*operands: Shape, attributes: AllReduceAttributes, computations: Programs) -> Shape:
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
    constrain_layout: bool = attribute(default=False)
    use_global_device_ids: bool = attribute(default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@collective("collective-reduce", attributes=CollectiveReduceAttributes, fills=True)
class CollectiveReduce:
    """An all-reduce whose result is there on the root of each group; XLA leaves open what others get: here zeros.

    The root is the first device of the group, or, with `has_dynamic_root`, for each operand the one that the last
    operand, s32[n], names by its place in the group (XLA: CollectiveReduce).
    """

    route = Route.TO_ROOT
    sums = Sums.FOLDED

    relate = staticmethod(AllReduce.relate)

    @staticmethod
    def infer(*operands: Shape, attributes: CollectiveReduceAttributes, computations: Programs) -> Shape:
        data = data_operands(operands, attributes, "collective-reduce")
        return _folded_shape(data, attributes, computations[0], "collective-reduce")

    @staticmethod
    def exchange(
        members: Members, *, attributes: CollectiveReduceAttributes, computations: Callees, numerics: NumericsPolicy
    ) -> Results:
        roots = roots_of(members, attributes, "collective-reduce")
        folded_operands = folded([*without_roots(members, attributes).values()], computations[0], numerics)
        return {
            member: one_or_all(
                [
                    whole if member == root else zeros(whole.dtype, whole.shape)
                    for whole, root in zip(folded_operands, roots, strict=True)
                ]
            )
            for member in members
        }


@collective("reduce-scatter", attributes=ReduceScatterAttributes)
class ReduceScatter:
    """An all-reduce, whose result is divided among the devices along `dimensions` (XLA: ReduceScatter)."""

    route = Route.PARTED
    sums = Sums.FOLDED
    well_formed = AllReduce.well_formed

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: ReduceScatterAttributes) -> int | None:
        return shares_in(result, operands[0], attributes.dimension)

    @staticmethod
    def relate(use: Relating) -> None:
        for operand, axes in zip(use.operands, use.result.leaves.values(), strict=False):
            relate_share(use, operand.axes, axes)
        use.sums_over_devices()

    @staticmethod
    def infer(*operands: Shape, attributes: ReduceScatterAttributes, shape: Shape, computations: Programs) -> Shape:
        _folded_shape(operands, attributes, computations[0], "reduce-scatter")
        for number, operand, result in pairs_of_shares(operands, shape, attributes, "reduce-scatter"):
            require_shares(result, operand, attributes, f"result {number} of reduce-scatter", "a part of its operand")
        return shape

    @staticmethod
    def exchange(
        members: Members, *, attributes: ReduceScatterAttributes, computations: Callees, numerics: NumericsPolicy
    ) -> Results:
        totals = folded(list(members.values()), computations[0], numerics)
        parts = [np.array_split(whole, len(members), attributes.dimension) for whole in totals]
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


def folds_each_element(exchange: Any, operands: Sequence[Any]) -> bool:
    """Whether a bound exchange is a fold that all members get, of each element of the operands by itself, and alike
    wherever it stands: parts of arrays then give parts of the results."""
    return getattr(exchange, "func", None) is AllReduce.exchange and folds_alike(exchange, operands)


def folds_alike(exchange: Any, operands: Sequence[Any]) -> bool:
    """Whether the fold of a bound exchange is the same for an element wherever it stands."""
    (callee,), numerics = exchange.keywords["computations"], exchange.keywords["numerics"]
    types = [element_type_of(operand.dtype) for operand in operands if isinstance(operand, np.ndarray)]
    if len(types) < len(operands) or any(element_type.is_complex for element_type in types):
        return False
    if numerics.rounding_seed is not None and any(element_type.is_floating for element_type in types):
        return False
    return _names_of(callee.computation, len(operands)) is not None


def joins_along(exchange: Any, operands: Sequence[Any]) -> int | None:
    """The dimension along which a bound exchange puts the members' operands one after the other, also in memory; None
    where it does anything else."""
    if getattr(exchange, "func", None) is not AllGather.exchange:
        return None
    dimension: int = exchange.keywords["attributes"].dimension
    are_arrays = all(isinstance(operand, np.ndarray) and operand.ndim > dimension for operand in operands)
    return dimension if are_arrays and all(set(operand.shape[:dimension]) <= {1} for operand in operands) else None


def _names_of(computation: Computation, count: int) -> tuple[str, ...] | None:
    """The usual operation that a reducer is for each of so many operands; None where one is unusual."""
    names = (recognise(computation),) * count if len(computation.parameters) == 2 else recognise_components(computation)
    if names is None or not all(name in KNOWN_REDUCERS for name in names):
        return None
    return tuple(name for name in names if name is not None)


def folded(members: Sequence[Sequence[Array]], callee: Callee, numerics: NumericsPolicy) -> list[Array]:
    """The operands of all members combined, one after the other in the order of the members."""
    if len(members) == 1:
        return list(members[0])
    names = _names_of(callee.computation, len(members[0]))
    if names is not None:
        columns = zip(*members, strict=True)
        return [_combined(column, name, numerics) for column, name in zip(columns, names, strict=True)]
    if len(callee.computation.parameters) == 2:
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
