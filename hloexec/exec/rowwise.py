"""Which instructions can be taken by rows, and how.

A value of dimensions [d0, d1, …] is seen as R rows where the product of its first dimensions, the *prefix*, is R. An
instruction is taken by rows where rows i to j of its result need nothing but rows i to j of its operands, operands
without dimensions aside. Blocks of rows are arrays [rows, dimensions behind the prefix...].

Kernels choose their order of summation by strides. A block has the strides of its rows in the whole array, so that what
is said here holds for their bits, too, as long as whole arrays lie in row-major order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from math import prod
from operator import methodcaller, mul
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import ElementType
from hloexec.dtypes import element_type as element_type_named
from hloexec.exec.in_place import InPlace
from hloexec.exec.plan import Step
from hloexec.exec.widths import AsDeclared, Conversion
from hloexec.ir import ArrayShape, BufferShape, PaddingDimension
from hloexec.ops.choosing import choose_by_mask, mask_type
from hloexec.ops.flushing import Flushing
from hloexec.ops.known_reducers import KNOWN_REDUCERS, reduce_axis, reduce_known
from hloexec.ops.reducers import recognise_components
from hloexec.ops.registry import find_opcode
from hloexec.values import Array

__all__ = ["RowForm", "behind_prefix", "prefix_length", "prefixes", "row_form", "same"]

Function = Callable[..., Any]

_F32 = element_type_named("f32")
_REAL_REDUCERS = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})


@attrs.frozen(eq=False)
class RowForm:
    """How one instruction is taken by rows."""

    rows: frozenset[int]
    """The numbers of rows for which it can be."""
    bind: Callable[[int], Function]
    """For one of them, the function from blocks (and whole scalars) to a block."""
    is_view: bool = False
    """Whether the result shares the operand's memory where the instruction runs by itself."""
    needs_order: bool = False
    """Whether the bits depend on the order in which the whole operand lies in memory."""
    wide: ArrayShape | None = None
    """Where set, `bind` gives a function of f32 blocks in place of bf16 ones, whose f32 result is yet to be rounded."""
    is_exact: bool = False
    """Whether that result is a bf16 number, its bits included, without rounding."""
    is_elementwise: bool = False
    """Whether an operand that is one number everywhere may be given as an array of one element."""
    mask: np.dtype[Any] | None = None
    """Where set, `bind` gives a function of a mask of such integers in place of a pred, and of where to write."""


@lru_cache(maxsize=4096)
def prefixes(dimensions: tuple[int, ...]) -> frozenset[int]:
    """The numbers of rows that an array can be seen as."""
    return frozenset(accumulate(dimensions, mul)) - {0, 1}


def prefix_length(dimensions: Sequence[int], rows: int) -> int:
    """How many of the first dimensions make up so many rows; the fewest where several do."""
    return list(accumulate(dimensions, mul)).index(rows) + 1


def behind_prefix(dimensions: Sequence[int], rows: int) -> tuple[int, ...]:
    """The dimensions of a row."""
    return tuple(dimensions[prefix_length(dimensions, rows) :])


def row_form(step: Step, shapes: Sequence[ArrayShape | BufferShape]) -> RowForm | None:
    """How a step is taken by rows; None where it is not."""
    if step.function is None or not isinstance(step.tree, int):
        return None
    if isinstance(step.function, (InPlace, AsDeclared, Conversion, Flushing)):
        return None
    found = [shapes[slot] for slot in (*step.operands, step.tree)]
    arrays = [shape for shape in found if isinstance(shape, ArrayShape)]
    if len(arrays) < len(found) or any(not shape.is_array or shape.dynamic_dimensions for shape in arrays):
        return None
    *operands, result = arrays
    if result.element_count == 0 or not operands or any(shape.element_count == 0 for shape in operands):
        return None
    entry = find_opcode(step.instruction.opcode)
    if entry is not None and entry.is_elementwise:
        return _elementwise(step, operands, result)
    rule = _RULES.get(step.instruction.opcode)
    return None if rule is None else rule(step, operands, result)


# Elementwise instructions


def _elementwise(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    opcode = step.instruction.opcode
    entry = find_opcode(opcode)
    assert entry is not None and step.function is not None
    declared = [shape.element_type for shape in _declared(step)]
    if declared != [shape.element_type for shape in operands] or entry.bind is None:
        return None
    if any(shape.dimensions not in ((), result.dimensions) for shape in operands) or not result.dimensions:
        return None
    if opcode == "select" and operands[0].rank == 0:
        return None
    if opcode in ("real", "imag") or (opcode == "convert" and operands[0].element_type is result.element_type):
        # They may give their operand itself.
        return None
    rows = prefixes(result.dimensions)
    if opcode == "select":
        return _select(operands[1:], result, rows)
    types = [shape.element_type.name for shape in (*operands, result)]
    if "bf16" in types and opcode not in ("reduce-precision", "stochastic-convert"):
        is_direct = opcode != "convert" or set(types) == {"bf16", "f32"} or types[0] == "bf16"
        if is_direct:
            given = tuple(_wide(shape) for shape in operands)
            wide = _wide(result)
            if opcode == "convert" and given[0].element_type is wide.element_type:
                return RowForm(rows, lambda _: same, wide=wide, is_exact=types[0] == "bf16", is_elementwise=True)
            formula = entry.bind(attributes=step.instruction.attributes, shape=wide, operand_shapes=given)
            assert formula is not None, "elementwise entries give one for all element types"
            return RowForm(rows, lambda _: formula, wide=wide, is_elementwise=True)
    function = step.function
    return RowForm(rows, lambda _: function, is_elementwise=True)


def _select(choices: Sequence[ArrayShape], result: ArrayShape, rows: frozenset[int]) -> RowForm | None:
    """Several selects by one pred share its mask."""
    if any(shape.element_type is not result.element_type for shape in choices):
        return None
    wide = _wide(result)
    mask = mask_type(wide.element_type.storage)
    if mask is None:
        return None
    is_bfloat = wide is not result
    return RowForm(
        rows,
        lambda _: choose_by_mask,
        wide=wide if is_bfloat else None,
        is_exact=is_bfloat,
        is_elementwise=True,
        mask=mask,
    )


def _declared(step: Step) -> list[ArrayShape]:
    by_name = step.scope.computation.by_name
    found = [by_name[name].shape for name in step.instruction.operands]
    return [shape for shape in found if isinstance(shape, ArrayShape)]


def _wide(shape: ArrayShape) -> ArrayShape:
    return shape.with_element_type(_F32) if shape.element_type.name == "bf16" else shape


def same(block: Array) -> Array:
    """The block itself."""
    return block


# Instructions that move data


def _reshape(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    (operand,) = operands
    if operand.element_type is not result.element_type:
        return None
    rows = prefixes(operand.dimensions) & prefixes(result.dimensions)
    return RowForm(rows, lambda count: partial(_reshaped, behind_prefix(result.dimensions, count)), is_view=True)


def _reshaped(row: tuple[int, ...], block: Array) -> Array:
    return block.reshape((block.shape[0], *row))


def _bitcast(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    (operand,) = operands
    if operand.element_count != result.element_count:
        return None
    (declared,) = _declared(step)
    return _reshape(step, operands, result) if _is_row_major(declared) and _is_row_major(result) else None


def _is_row_major(shape: ArrayShape) -> bool:
    layout = shape.layout
    return layout is None or (
        not layout.tiles and tuple(layout.minor_to_major) == tuple(reversed(range(len(shape.dimensions))))
    )


def _broadcast(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    (operand,) = operands
    dimensions = step.instruction.attributes.dimensions
    if list(dimensions) != sorted(dimensions):
        return None
    shared = next((k for k, dimension in enumerate(dimensions) if dimension != k), len(dimensions))
    # Dimensions behind the prefix stay behind it.
    rows = frozenset(
        count
        for count in prefixes(operand.dimensions[:shared])
        if prefix_length(operand.dimensions, count) == prefix_length(result.dimensions, count)
    )

    def bind(count: int) -> Function:
        length = prefix_length(result.dimensions, count)
        behind = range(length, result.rank)
        index = (slice(None), *(slice(None) if dimension in dimensions else None for dimension in behind))
        return partial(_broadcasted, index, result.dimensions[length:])

    return RowForm(rows, bind, is_view=True)


def _broadcasted(index: tuple[slice | None, ...], row: tuple[int, ...], block: Array) -> Array:
    return np.broadcast_to(block[index], (block.shape[0], *row))


def _slice(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    (operand,) = operands
    ranges = step.instruction.attributes.slice
    pairs = zip(operand.dimensions, result.dimensions, strict=True)
    whole = next((k for k, (size, its) in enumerate(pairs) if size != its), operand.rank)
    slices = [slice(entry.start, entry.limit, entry.stride) for entry in ranges]

    def bind(count: int) -> Function:
        index = (slice(None), *slices[prefix_length(result.dimensions, count) :])
        return lambda block: block[index]

    return RowForm(prefixes(operand.dimensions[:whole]), bind, is_view=True)


_NO_PADDING = PaddingDimension(0, 0, 0)


def _pad(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    padding = step.instruction.attributes.padding
    if {shape.element_type for shape in operands} != {result.element_type}:
        return None
    if all(max(entry.edge_padding_low, entry.edge_padding_high, entry.interior_padding) <= 0 for entry in padding):
        # A crop is a view of the operand.
        return None
    whole = next(k for k, entry in enumerate(padding) if entry != _NO_PADDING)

    def bind(count: int) -> Function:
        behind = padding[prefix_length(result.dimensions, count) :]
        return _with_attributes(step, padding=(_NO_PADDING, *behind))

    return RowForm(prefixes(result.dimensions[:whole]), bind)


def _concatenate(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    if {shape.element_type for shape in operands} != {result.element_type}:
        return None
    dimension = step.instruction.attributes.dimension

    def bind(count: int) -> Function:
        return _with_attributes(step, dimension=dimension - prefix_length(result.dimensions, count) + 1)

    return RowForm(prefixes(result.dimensions[:dimension]), bind)


def _with_attributes(step: Step, **changed: Any) -> Function:
    """The step's kernel with other attributes."""
    function = step.function
    assert isinstance(function, partial)
    attributes = attrs.evolve(function.keywords["attributes"], **changed)
    return partial(function.func, **{**function.keywords, "attributes": attributes})


def _bitcast_convert(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    (operand,) = operands
    source, target = operand.element_type, result.element_type
    is_plain = source.bits == target.bits and "pred" not in (source.name, target.name) and source is not target
    if not is_plain or source.byte_size != target.byte_size:
        return None
    return RowForm(prefixes(result.dimensions), lambda _: methodcaller("view", target.storage), is_view=True)


# Reductions


def _reduce(step: Step, operands: Sequence[ArrayShape], result: ArrayShape) -> RowForm | None:
    if len(operands) != 2 or not isinstance(step.function, partial):
        return None
    operand, element_type = operands[0], result.element_type
    (callee,) = step.function.keywords["computations"]
    names = recognise_components(callee.computation)
    if names is None or names[0] not in _REAL_REDUCERS or element_type.is_complex:
        return None
    if not operand.element_type is operands[1].element_type is element_type:
        return None
    dimensions = step.instruction.attributes.dimensions
    if not dimensions:
        return None
    first = min(dimensions)
    reducer = KNOWN_REDUCERS[names[0]]
    is_at_end = sorted(dimensions) == list(range(first, operand.rank))

    def bind(count: int) -> Function:
        before = prefix_length(operand.dimensions, count) - 1
        places = tuple(dimension - before for dimension in dimensions)
        general = partial(_reduced, places, reducer, element_type)
        if not is_at_end or element_type.is_narrow:
            return general
        length = prod(operand.dimensions[first:])
        return partial(_reduced_neighbours, length, operand.dimensions[before + 1 : first], reducer, general)

    return RowForm(prefixes(operand.dimensions[:first]), bind, needs_order=True)


def _reduced(dimensions: tuple[int, ...], reducer: Any, element_type: ElementType, block: Array, init: Array) -> Array:
    return reduce_known(block, dimensions, init, reducer, element_type)


def _reduced_neighbours(
    length: int, kept: tuple[int, ...], reducer: Any, general: Function, block: Array, init: Array
) -> Array:
    """The last dimensions combined, which is what `reduce_known` does where it finds nothing to convert or to order."""
    if block.dtype != init.dtype or not block.flags.c_contiguous:
        return general(block, init)  # type: ignore[no-any-return]
    total = reducer.combine(init, reduce_axis(block.reshape(-1, length), 1, reducer))
    return total.reshape((block.shape[0], *kept))  # type: ignore[no-any-return]


_RULES: dict[str, Callable[[Step, Sequence[ArrayShape], ArrayShape], RowForm | None]] = {
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast_convert,
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "pad": _pad,
    "reduce": _reduce,
    "reshape": _reshape,
    "slice": _slice,
}
"""The opcodes whose names matter here, with the prefix that each leaves alone."""
