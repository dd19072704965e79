"""Reducers: what a called computation does, by its structure, and one operation on whole arrays.

Reductions, scatters and collectives call a computation that combines two values. The common ones are a single binary
operation of the two parameters; kernels that know which one can work on whole arrays instead of step by step. Names are
not used: XLA calls an addition `region_3.17`.

Values are combined in the accumulation type of their element type (narrow floats in f32, integers in a type that wraps
as they do), and rounded once at the end. Sums are grouped so that rounding errors grow with the square root of the
number of terms at most: neighbours in groups of 256 and these again, others, which NumPy adds one after the other, in
groups of the square root.

How the elements of a row of neighbours are grouped depends on their number alone: a block of rows gives the same bits
as all of them do. Work is not split over cores: memory is the limit, and one core all but reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import isqrt, prod
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, DType, ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction
from hloexec.core.ir.editing import replace_instruction
from hloexec.core.process import remembered
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.common import narrow, widen
from hloexec.ops.elementwise.arithmetic import maximum, minimum

ANNOTATIONS = (
    "Sharding",
    "InspectSharding",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.PropagationBarrier",
    "LayoutConstraint",
    "annotate_device_placement",
    "MoveToHost",
    "MoveToDevice",
    "PinToDevice",
    "PinToDeviceSram",
    "SetBound",
    "AwsNeuronTransferWithStaticRing",
    "AwsNeuronLNCShardingConstraint",
)
"""Targets: how a value is partitioned, laid out, which memory holds it, or how large it gets (SetBound)."""


def is_annotation(instruction: Instruction) -> bool:
    """Whether an instruction is a custom call whose value is its operand."""
    return (
        instruction.opcode == "custom-call"
        and instruction.attributes.custom_call_target in ANNOTATIONS
        and len(instruction.operands) == 1
    )


_ACTIONS = {
    "add": 2,
    "multiply": 2,
    "minimum": 2,
    "maximum": 2,
    "and": 2,
    "or": 2,
    "xor": 2,
    "subtract": 1,
    "divide": 1,
}
"""Of which operations the first operands may be the value so far, if further ones come in any order."""
_COMMUTATIVE = frozenset({"add", "multiply", "minimum", "maximum", "and", "or", "xor"})
_ORDER_OPCODES = frozenset(
    {"parameter", "compare", "select", "minimum", "maximum", "and", "or", "not", "tuple", "copy"}
)
_LOGICAL_OPCODES = frozenset({"and", "or", "not"})


def recognise(computation: Computation) -> str | None:
    """What a computation of two parameters returns, or None for anything unusual.

    `add`, `multiply`, `minimum`, `maximum`, `and`, `or`, `xor`: that operation on the two parameters, in either order;
    `first`, `second`: parameter 0 or 1 as it is. Both parameters and the result must have one element type. Conversions
    of the parameters to a type that holds all their values, undone on the result, are looked through: the operation on
    the wider type, rounded or wrapped, is what the operation on the narrow type is. So are annotations of values, as
    shardings in the reducers of partly manual regions are.
    """
    parameters = computation.parameters
    if len(parameters) != 2:
        return None
    return recognise_value(computation, computation.root, *parameters)


@remembered
def recognise_components(computation: Computation) -> tuple[str, ...] | None:
    """`recognise` for each component of a variadic reducer, or None where one of them is unusual.

    A reducer of N arrays has 2·N parameters and a tuple of N as its root; component k must combine parameters k and
    N + k only. With N = 1 the root may be the bare value.
    """
    parameters, root = computation.parameters, computation.root
    results = computation.operands_of(root) if root.opcode == "tuple" else (root,)
    count = len(results)
    if len(parameters) != 2 * count:
        return None
    component_names = tuple(
        recognise_value(computation, result, parameters[k], parameters[count + k]) for k, result in enumerate(results)
    )
    known_names = tuple(name for name in component_names if name is not None)
    return known_names if len(known_names) == count else None


@remembered
def takes_any_order(computation: Computation) -> bool:
    """Whether a combiner of values so far with further ones gives the same, but for rounding, in whichever order these
    come: each value so far stays as it is, or something is added to it, or it is multiplied by, that does not depend on
    any value so far."""
    parameters, root = computation.parameters, computation.root
    results = computation.operands_of(root) if root.opcode == "tuple" else (root,)
    dependent = {parameter.name for parameter in parameters[: len(results)]}
    for instruction in computation:
        if dependent.intersection(instruction.operands):
            dependent.add(instruction.name)
    return all(
        _is_action(computation, result, parameter.name, dependent)
        for result, parameter in zip(results, parameters, strict=False)
    )


def _is_action(computation: Computation, result: Instruction, current: str, dependent: set[str]) -> bool:
    result = _behind_any_conversions(computation, result)
    operands = [_behind_any_conversions(computation, operand) for operand in computation.operands_of(result)]
    places = [number for number, operand in enumerate(operands) if operand.name == current]
    if result.name == current:
        return True
    if len(operands) != 2 or len(places) != 1 or places[0] >= _ACTIONS.get(result.opcode, 0):
        return False
    return operands[1 - places[0]].name not in dependent


def _behind_any_conversions(computation: Computation, instruction: Instruction) -> Instruction:
    while instruction.opcode in ("convert", "copy") or is_annotation(instruction):
        (instruction,) = computation.operands_of(instruction)
    return instruction


def unrecognised(computation: Computation) -> Computation:
    """A computation with the same parameters that is not recognised, so that kernels call it for each step."""
    return replace_instruction(computation, attrs.evolve(computation.root, opcode="call", operands=()))


def chooses_by_order(computation: Computation) -> bool:
    """Whether a computation only compares its parameters and chooses among them, as argmin and argmax do.

    Such a computation has no constants and no arithmetic, so which parameters it returns depends on nothing but how
    they are ordered, and a few representative values tell all there is to know of it.
    """
    return all(
        (instruction.opcode in _ORDER_OPCODES or is_annotation(instruction))
        and (instruction.opcode not in _LOGICAL_OPCODES or _element_type(instruction) is ELEMENT_TYPES["pred"])
        # A total order tells NaNs and zeros of different sign apart by their bits.
        and not (instruction.opcode == "compare" and instruction.attributes.type == "TOTALORDER")
        for instruction in computation
    )


def recognise_value(computation: Computation, root: Instruction, *parameters: Instruction) -> str | None:
    """What `root`, an instruction, is of two parameters: one of the names of `recognise`, or None."""
    narrow = _element_type(root)
    if narrow is None or any(_element_type(parameter) is not narrow for parameter in parameters):
        return None
    names = [parameter.name for parameter in parameters]
    root = _behind_conversions(computation, root, narrow)
    if root.name in names:
        return ("first", "second")[names.index(root.name)]
    if root.opcode not in _COMMUTATIVE:
        return None
    operands = [_behind_conversions(computation, operand, narrow) for operand in computation.operands_of(root)]
    return root.opcode if sorted(operand.name for operand in operands) == sorted(names) else None


def _element_type(instruction: Instruction) -> ElementType | None:
    return instruction.shape.element_type if isinstance(instruction.shape, ArrayShape) else None


def _behind_conversions(computation: Computation, instruction: Instruction, narrow: ElementType) -> Instruction:
    """The instruction whose value reaches `instruction` as it is, or through conversions that keep all of `narrow`."""
    while instruction.opcode in ("convert", "copy") or is_annotation(instruction):
        (operand,) = computation.operands_of(instruction)
        if not all(_holds(_element_type(end), narrow) for end in (operand, instruction)):
            break
        instruction = operand
    return instruction


def _holds(wide: ElementType | None, narrow: ElementType) -> bool:
    """Whether `wide` represents every value of `narrow`."""
    if wide is narrow:
        return True
    if wide is None or wide.bits <= narrow.bits:
        return False
    if wide.is_floating and narrow.is_floating:
        return wide.mantissa_bits >= narrow.mantissa_bits and wide.exponent_bits >= narrow.exponent_bits
    if wide.is_integral and narrow.is_integral:
        return wide.kind is narrow.kind or wide.kind is Kind.SIGNED
    return False


_CHUNK_ELEMENTS = 1 << 20
"""Number of elements of narrow arrays that are widened at a time."""
_SEQUENTIAL_TERMS = 256
"""Up to this many terms, adding one after the other is accurate enough."""
_NEIGHBOURS = 256
"""Number of neighbours added by one loop, which keeps several partial sums in a register, and adds those."""
_SHORT_ROW = 8
"""Reducing so few neighbours, NumPy spends more on each row than on its elements."""
_FEW_NEIGHBOURS = 32
"""The same for a minimum or a maximum, of which the order does not matter; a copy of the transpose takes less."""
_MANY_ROWS = 64
_MOST_COLUMNS = 64
"""So many neighbours that lie apart are added column by column, at most."""
_REGISTER_BYTES = 16
"""What NumPy's einsum adds at once, as long as NumPy is built for all processors of a kind."""


@frozen
class KnownReducer:
    """One associative and commutative operation."""

    combine: Callable[[Any, Any], Any]
    """The operation on arrays of one accumulation type."""
    ufunc: np.ufunc | None
    """The same but for the signs of zeros, where NumPy has it."""
    identity: Callable[[DType], Any]
    """The value that changes nothing, in an accumulation type; minimum and maximum have none in complex types."""
    zero_wins: Callable[[Array], Array] | None = None
    """minimum and maximum: given the bits of zeros, which of them is the result against the other zero."""


def _limits(dtype: DType) -> tuple[Any, Any]:
    """The lowest and the highest number of a type."""
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _zero(dtype: DType) -> Any:
    # −0 + x is x for every x; +0 + −0 is not.
    return -0.0 if dtype.kind in "fc" else 0


KNOWN_REDUCERS = {
    "add": KnownReducer(np.add, np.add, _zero),
    "multiply": KnownReducer(np.multiply, np.multiply, lambda dtype: 1),
    "minimum": KnownReducer(minimum, np.minimum, lambda dtype: _limits(dtype)[1], lambda bits: bits != 0),
    "maximum": KnownReducer(maximum, np.maximum, lambda dtype: _limits(dtype)[0], lambda bits: bits == 0),
    "and": KnownReducer(np.bitwise_and, np.bitwise_and, lambda dtype: True if dtype.kind == "b" else ~dtype.type(0)),
    "or": KnownReducer(np.bitwise_or, np.bitwise_or, lambda dtype: 0),
    "xor": KnownReducer(np.bitwise_xor, np.bitwise_xor, lambda dtype: 0),
}
"""By the names that `recognise` gives. NumPy's add and multiply of booleans are OR and AND, as XLA's of pred are."""

UFUNCS = {name: reducer.ufunc for name, reducer in KNOWN_REDUCERS.items() if reducer.ufunc is not None}


def accumulation_dtype(operand: ElementType, result: ElementType) -> DType:
    """The type in which values of one element type are combined to results of another."""
    if result.kind is Kind.PRED or result.is_integral:
        return result.compute
    if operand is result:
        return result.accumulate
    return np.result_type(operand.accumulate, result.accumulate)


def reduce_known(
    array: Array, dimensions: Sequence[int], init_value: Array, reducer: KnownReducer, result_type: ElementType
) -> Array:
    """All elements along `dimensions` combined, and with `init_value` (a scalar) once; the other dimensions stay."""
    dtype = accumulation_dtype(element_type_of(array.dtype), result_type)
    init = widen(init_value).astype(dtype)
    if not array.size or not isinstance(reducer.combine, np.ufunc):
        # NumPy's functions do that by themselves, and faster.
        init = np.broadcast_to(init, [size for axis, size in enumerate(array.shape) if axis not in dimensions])
    if array.size:
        merging = merging_of(array.shape, array.strides, tuple(dimensions))
        merged = array.transpose(merging.order).reshape(merging.sizes)
        total = _reduce_chunks(merged, merging.axes, reducer, dtype)
        init = reducer.combine(init, total.reshape(merging.kept_sizes).transpose(merging.kept_order))
    # NumPy makes scalars of arrays without dimensions.
    return narrow(np.asarray(init), result_type)


@frozen
class _Merging:
    """How an array is seen with neighbouring dimensions of one kind merged, and its result put in order again."""

    order: Dimensions
    """The dimensions in the order in which they lie in memory."""
    sizes: Dimensions
    axes: Dimensions
    """Which of the merged dimensions are reduced."""
    kept_sizes: Dimensions
    kept_order: Dimensions


@lru_cache(maxsize=4096)
def merging_of(shape: tuple[int, ...], strides: tuple[int, ...], dimensions: tuple[int, ...]) -> _Merging:
    """Few and long loops for NumPy: dimensions in memory order, merged where strides allow and both stay or both go.

    Reducing dimensions of size 1 combines nothing: they are left out.
    """
    # Dimensions of size 1 may lie anywhere: in front of all others, whose strides then decide.
    order = sorted(range(len(shape)), key=lambda dimension: (shape[dimension] != 1, -abs(strides[dimension])))
    groups: list[list[int]] = []
    for dimension in order:
        if shape[dimension] == 1 and dimension in dimensions:
            continue
        last = groups[-1][-1] if groups else dimension
        joins = (
            bool(groups)
            and (last in dimensions) == (dimension in dimensions)
            and (strides[last] == strides[dimension] * shape[dimension] or shape[last] == 1)
        )
        if joins:
            groups[-1].append(dimension)
        else:
            groups.append([dimension])
    kept = [dimension for dimension in order if dimension not in dimensions]
    return _Merging(
        order=tuple(order),
        sizes=tuple(prod(shape[dimension] for dimension in group) for group in groups),
        axes=tuple(place for place, group in enumerate(groups) if group[0] in dimensions),
        kept_sizes=tuple(shape[dimension] for dimension in kept),
        kept_order=tuple(kept.index(dimension) for dimension in sorted(kept)),
    )


def _reduce_chunks(array: Array, axes: Dimensions, reducer: KnownReducer, dtype: DType) -> Array:
    """Reduce an array that may have to be widened, a chunk along its first axis of any length at a time."""
    if array.dtype == dtype or array.size <= 2 * _CHUNK_ELEMENTS:
        return reduce_axes(widen(array).astype(dtype, copy=False), axes, reducer)
    cut = 0 if 0 not in axes else next(axis for axis, size in enumerate(array.shape) if size > 1)
    step = max(1, _CHUNK_ELEMENTS * array.shape[cut] // array.size)
    parts = [
        reduce_axes(widen(_slice(array, cut, start, start + step)).astype(dtype, copy=False), axes, reducer)
        for start in range(0, array.shape[cut], step)
    ]
    if cut in axes:
        return reduce_axes(np.stack(parts), (0,), reducer)
    return np.concatenate(parts, axis=sum(axis not in axes for axis in range(cut)))


def reduce_axes(array: Array, axes: Dimensions, reducer: KnownReducer) -> Array:
    """Reduce an array of the accumulation type, axis by axis from the last one."""
    for axis in sorted(axes, reverse=True):
        array = reduce_axis(array, axis, reducer)
    return array


def reduce_axis(array: Array, axis: int, reducer: KnownReducer) -> Array:
    """Elements of an array of an accumulation type combined along an axis; where rounding matters, in groups."""
    length = array.shape[axis]
    is_innermost = axis == array.ndim - 1
    if is_innermost and length <= _SHORT_ROW and array.ndim > 1:
        total = array[..., 0]
        for place in range(1, length):
            total = reducer.combine(total, array[..., place])
        return total
    if is_innermost and reducer.ufunc is np.add and array.dtype.kind == "f":
        if array.ndim > 1 and abs(array.strides[-1]) > array.itemsize and _adds_in_lanes(length, array.dtype):
            return _sum_of_columns(array)
        return _sum_of_neighbours(array)
    if is_innermost and array.size > _MANY_ROWS * length and _is_extremum_of_few(length, reducer):
        return _extremum_of_few(array.reshape(-1, length), reducer).reshape(array.shape[:-1])
    if not is_innermost and length > _SEQUENTIAL_TERMS and array.dtype.kind in "fc":
        # Groups of about √length: errors of adding one after the other then grow with 2·√length.
        group = isqrt(length)
        whole = length // group * group
        grouped = _slice(array, axis, 0, whole)
        grouped = grouped.reshape((*array.shape[:axis], whole // group, group, *array.shape[axis + 1 :]))
        total = _ufunc_reduce(_ufunc_reduce(grouped, axis, reducer), axis, reducer)
        if whole < length:
            total = reducer.combine(total, _ufunc_reduce(_slice(array, axis, whole, length), axis, reducer))
        return total
    return _ufunc_reduce(array, axis, reducer)


def reduces_columns(rows: int, length: int, reducer: KnownReducer, dtype: DType) -> bool:
    """Whether `reduce_axis` combines so many neighbours column by column, so that it does not matter where they lie."""
    if length <= _SHORT_ROW or (rows > _MANY_ROWS and _is_extremum_of_few(length, reducer)):
        return True
    return reducer.ufunc is np.add and dtype.kind == "f" and _adds_in_lanes(length, dtype)


def _is_extremum_of_few(length: int, reducer: KnownReducer) -> bool:
    return length <= _FEW_NEIGHBOURS and reducer.zero_wins is not None


def _extremum_of_few(rows: Array, reducer: KnownReducer) -> Array:
    """The minimum or maximum of each row, by way of the transpose; which of several NaNs it is, NumPy's own decides."""
    total = _ufunc_reduce(np.ascontiguousarray(rows.T), 0, reducer)
    nans = np.flatnonzero(total != total)
    if nans.size:
        total[nans] = _ufunc_reduce(np.ascontiguousarray(rows[nans]), 1, reducer)
    return total


def _sum_of_neighbours(array: Array) -> Array:
    """Floats added along the last axis, as einsum does, in half to a third of the time of NumPy's own sum."""
    rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
    return _with_signs_of_zeros(_sums_of_rows(rows), rows).reshape(array.shape[:-1])


def _with_signs_of_zeros(total: Array, rows: Array) -> Array:
    """Sums along the last axis, in place, with the zeros among them as IEEE 754 has them: einsum begins with +0."""
    if not total.all():
        zeros = np.nonzero(total == 0)
        total[zeros] = np.where(np.signbit(rows[zeros]).all(axis=-1) & ~rows[zeros].any(axis=-1), -0.0, 0.0)
    return total


def _sums_of_rows(rows: Array) -> Array:
    length = rows.shape[1]
    total: Array
    if length <= _NEIGHBOURS:
        total = np.einsum("ij->i", rows)
        return total
    whole = length // _NEIGHBOURS * _NEIGHBOURS
    groups = np.einsum("ijk->ij", rows[:, :whole].reshape(len(rows), -1, _NEIGHBOURS))
    total = _sums_of_rows(groups)
    if whole < length:
        total += np.einsum("ij->i", rows[:, whole:])
    return total


def _sum_of_columns(array: Array) -> Array:
    """The same of neighbours that lie apart; which of several NaNs a sum is, einsum itself decides."""
    total = _sum_in_lanes(array)
    nans = np.nonzero(total != total)
    if len(nans[0]):
        total[nans] = _sums_of_rows(np.ascontiguousarray(array[nans]))
    return _with_signs_of_zeros(total, array)


def _sum_in_lanes(array: Array) -> Array:
    """Floats added along the last axis in the order of einsum's loop over neighbours, whose partial sums are the lanes
    of a register; each operation is one of all rows."""
    lanes = _REGISTER_BYTES // array.itemsize
    terms = np.moveaxis(array, -1, 0)
    parts = [terms[start : start + lanes] for start in range(0, len(terms), lanes)]
    # Four at a time, as far as they go.
    unrolled = len(terms) // (4 * lanes) * 4
    groups = [(parts[k] + parts[k + 1]) + (parts[k + 2] + parts[k + 3]) for k in range(0, unrolled, 4)]
    total, *others = groups + parts[unrolled:]
    total = total if unrolled else total.copy()
    for group in others:
        total[: len(group)] += group
    while len(total) > 1:
        total = total[::2] + total[1::2]
    first: Array = total[0]
    return first


@cache
def _adds_in_lanes(length: int, dtype: DType) -> bool:
    """Whether einsum adds so many neighbours of a type as `_sum_in_lanes` does; how NumPy was built decides that."""
    if not _SHORT_ROW < length <= _MOST_COLUMNS:
        return False
    numbers = np.sin(np.arange(1.0, 1 + _MANY_ROWS * length)).reshape(length, _MANY_ROWS).T.astype(dtype)
    expected: Array = np.einsum("ij->i", np.ascontiguousarray(numbers))
    return _sum_in_lanes(numbers).tobytes() == expected.tobytes()


def _slice(array: Array, axis: int, start: int, stop: int) -> Array:
    return array[(slice(None),) * axis + (slice(start, stop),)]


def _ufunc_reduce(array: Array, axis: int, reducer: KnownReducer) -> Array:
    assert reducer.ufunc is not None
    # NumPy begins sums with +0, to which −0 is lost.
    how: dict[str, Any] = {"initial": -0.0} if reducer.ufunc is np.add and array.dtype.kind == "f" else {}
    result: Array = np.asarray(reducer.ufunc.reduce(array, axis=axis, dtype=array.dtype, **how))
    if reducer.zero_wins is not None and result.dtype.kind == "f":
        zeros = result == 0
        if zeros.any():
            # All elements are ≤ 0 for a maximum, ≥ 0 for a minimum: the winning zero is there or it is not.
            is_zero = array == 0
            wins = is_zero & reducer.zero_wins(array.view(f"i{array.itemsize}"))
            winner, loser = (0.0, -0.0) if reducer.ufunc is np.maximum else (-0.0, 0.0)
            result = np.where(zeros, np.where(wins.any(axis=axis), winner, loser), result).astype(result.dtype)
    return result
