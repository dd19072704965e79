"""Conversion, comparison and selection between values: convert, compare, select, clamp; and map.

Every conversion rounds once. NumPy's and ml_dtypes' own conversions are used where they are right; ml_dtypes' f64 →
bf16 rounds twice, an int64 is rounded twice when it is converted through f64, and NumPy leaves conversion of a float
beyond an integer's range undefined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, Kind, element_type, element_type_of, part_type
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops import intervals
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import (
    array_shape,
    in_type,
    narrow,
    operand_shapes,
    operands_shape,
    require,
    same_dimensions,
    same_type_ignoring_float_width,
    widen,
)
from hloexec.ops.elementwise.arithmetic import fill_minimum, maximum, minimum
from hloexec.ops.elementwise.declaration import ANY_TYPE, FLOAT, elementwise
from hloexec.ops.elementwise.fast.formulas import clamp_scalars, on_scalars
from hloexec.ops.elementwise.formula import choose
from hloexec.ops.intervals import INFINITY, MASK, UNKNOWN, Bounds, Demand, Demanded, Use, always
from hloexec.ops.movement.dynamic_shapes import cut_to_common_extents
from hloexec.ops.registry import ANY, Callees, Programs, opcode
from hloexec.ops.relations import pointwise
from hloexec.ops.resources import in_pieces
from hloexec.ops.signatures import as_parameters, require_parameters
from hloexec.ops.traits import REDUCER, Probe, Rounding, finite_and_not_zero


def convert(array: Array, element_type: ElementType) -> Array:
    """The array in another element type, as `Convert` has it."""
    array = np.asarray(array)
    if array.dtype == element_type.storage:
        return array
    source = element_type_of(array.dtype)
    with np.errstate(all="ignore"):
        if element_type.kind is Kind.PRED:
            return np.asarray(np.not_equal(widen(array), 0))
        if element_type.is_complex:
            if source.is_complex:
                return array.astype(element_type.storage)
            result = np.zeros(array.shape, element_type.storage)
            result.real = convert(array, part_type(element_type))
            return result
        if source.is_complex:
            return convert(array.real, element_type)
        if source.kind is Kind.PRED:
            return narrow(array.astype(element_type.compute), element_type)
        wide = widen(array)
        if source.is_integral and element_type.is_floating:
            return _integer_to_float(wide, element_type)
        if source.is_floating and element_type.is_integral:
            wide = _float_to_integer(wide, element_type)
        return narrow(wide, element_type)


_NUMPY_ROUNDS_ONCE = frozenset({("bf16", "f32"), ("f32", "bf16"), ("f32", "f16")})


def is_numpys(source: ElementType, target: ElementType) -> bool:
    """Whether NumPy's conversion from an element type to another is the one that is wanted."""
    is_plain = not (source.is_narrow or target.is_narrow or source.is_complex or target.is_complex)
    is_rounding = is_plain and target.kind is not Kind.PRED and not (source.is_floating and target.is_integral)
    return source is not target and (is_rounding or (source.name, target.name) in _NUMPY_ROUNDS_ONCE)


def _float_to_integer(array: Array, element_type: ElementType) -> Array:
    """f32 or f64 to the compute type of an integer type, truncated, saturated; NaN → 0."""
    dtype = element_type.compute
    below, above = range_of(array.dtype.type, element_type)
    # NaN is neither the smallest nor the largest number, so that no comparison holds where there is one.
    smallest, largest = (array.min(), array.max()) if array.size else (below, below)
    if smallest >= below and largest < above:
        return array.astype(dtype)
    inside = np.asarray(np.clip(array, below, np.nextafter(above, below)))
    if smallest != smallest:
        inside[np.isnan(inside)] = 0
    result = inside.astype(dtype)
    if not largest < above:
        np.copyto(result, np.array(int(above) - 1, dtype), where=array >= above)
    return result


def range_of(number: type[Any], element_type: ElementType) -> tuple[Any, Any]:
    """The least number of an integer type, and the number beyond its greatest, as floats."""
    above = number(2.0 ** (element_type.bits - (element_type.kind is Kind.SIGNED)))
    return (-above if element_type.kind is Kind.SIGNED else number(0)), above


def _integer_to_float(array: Array, element_type: ElementType) -> Array:
    """Integers of 8 to 64 bits to any float type, rounded once."""
    dtype = element_type.storage
    if element_type.bits >= 32:
        return array.astype(dtype)
    itemsize = array.dtype.itemsize
    if itemsize <= 2 or not array.size or (array.min() >= -(2**24) and array.max() <= 2**24):
        return narrow(array.astype(np.float32), element_type)
    # Rounded to odd where its lowest bits are too many, a number lies on the same side of every tie of a narrow type:
    # at bit 8 beyond 2^24, for an f32, or at bit 11 beyond 2^53, for an f64.
    limit, dropped, wide = (2.0**24, 8, np.float32) if itemsize == 4 else (2.0**53, 11, np.float64)
    inexact = np.abs(array.astype(np.float64)) >= limit
    if inexact.any():
        mask = (1 << dropped) - 1
        odd = (array | np.asarray((array & mask) != 0, array.dtype) << dropped) & ~np.asarray(mask, array.dtype)
        array = np.where(inexact, odd, array)
    return narrow(array.astype(wide), element_type)


def _converted_bounds(use: Use, operand: Bounds) -> Bounds:
    """Conversion is monotonic: the bounds are converted as elements are."""
    source, target = use.shapes[0].element_type, use.shape.element_type
    if source.is_complex or target.is_complex:
        return UNKNOWN
    if target.kind is Kind.PRED:
        return Bounds(0, 1)
    if target.is_integral:
        if not source.is_floating:
            return operand
        # NaN becomes 0; numbers beyond the type's range its limits.
        low, high = (bound if math.isinf(bound) else math.trunc(bound) for bound in (operand.low, operand.high))
        return Bounds(min(low, 0), max(high, 0), operand.is_parameter)
    # A float type without infinities turns what is beyond it into NaN.
    ends = widen(convert(np.array([operand.low, operand.high], np.float64), target)).astype(np.float64).tolist()
    low, high = (
        extreme if math.isnan(bound) else bound for extreme, bound in zip((-INFINITY, INFINITY), ends, strict=True)
    )
    return Bounds(low, high, operand.is_parameter)


def _converted_demands(use: Use, demand: Demand) -> Demanded:
    """The demand on the operand. A float bounded on one side, such as a divisor, has to lie beyond the bound, so an
    integer that becomes one must not be the bound."""
    low, high = demand.low, demand.high
    if use.shapes[0].element_type.is_integral and use.shape.element_type.is_floating:
        if math.isfinite(low) and high == INFINITY:
            low = math.floor(low) + 1
        elif math.isfinite(high) and low == -INFINITY:
            high = math.ceil(high) - 1
    yield 0, attrs.evolve(demand, low=low, high=high)


def _mask_demands(use: Use) -> Demanded:
    """Integers that become preds are a mask."""
    if use.shape.element_type.kind is Kind.PRED:
        yield 0, MASK


_CONVERTS: dict[str, Any] = {
    "converts": True,
    "keeps_order": True,
    "demands": _mask_demands,
    "demands_for": _converted_demands,
    "nonzero": finite_and_not_zero,
}


@opcode(
    "convert",
    operands=1,
    is_elementwise=True,
    bounds=_converted_bounds,
    **_CONVERTS,
    flushes_denormals=True,
    fast_in="hloexec.ops.elementwise.fast.selection",
)
class Convert:
    """The operand in the declared element type.

    Floats become the nearest number, ties to even; beyond the range ∞, NaN or (f4e2m1fn) the largest number, as the
    type has it. Float to integer: truncated, saturated, NaN → 0. Integers wrap. To pred: whether it is not zero.
    Complex to real drops the imaginary part. XLA: ConvertElementType.
    """

    states_shape = True
    keeps_relative_errors = True
    probe = Probe("T[2] convert(a0)", ("T[2]",))

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> ArrayShape:
        source = operands_shape("convert", (operand,), ANY_TYPE)
        result = array_shape(shape, "the result of convert")
        return source.with_element_type(result.element_type)

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape) -> Array:
        return convert(operand, shape.element_type)


@frozen
class ReducePrecisionAttributes:
    """The format whose precision the operand is reduced to."""

    exponent_bits: int = attribute()
    mantissa_bits: int = attribute()


def _infer_reduce_precision(operand: Shape, *, attributes: ReducePrecisionAttributes) -> ArrayShape:
    for name, fewest in (("exponent_bits", 1), ("mantissa_bits", 0)):
        bits = getattr(attributes, name)
        require(bits >= fewest, f"reduce-precision needs {name} of {fewest} or more, but they are {bits}")
    return operands_shape("reduce-precision", (operand,), FLOAT)


def _reduce_precision(operand: Array, *, attributes: ReducePrecisionAttributes, operand_shapes: ArrayShapes) -> Array:
    return in_pieces(partial(_reduced, attributes, operand_shapes[0].element_type), operand.dtype, operand)


def _reduced(attributes: ReducePrecisionAttributes, element_type: ElementType, operand: Array) -> Array:
    """The operand, which holds values of an element type in its compute type, in a narrower format."""
    word = operand.dtype.itemsize * 8
    mantissa, exponent = (23, 8) if word == 32 else (52, 11)
    unsigned: Any = np.dtype(f"u{word // 8}").type
    infinity = unsigned((1 << exponent) - 1) << unsigned(mantissa)
    bits = operand.view(unsigned)
    magnitude = bits & unsigned((1 << (word - 1)) - 1)
    has_nan = bool(magnitude.size) and magnitude.max() > infinity
    if attributes.mantissa_bits < element_type.mantissa_bits:
        dropped = unsigned(mantissa - attributes.mantissa_bits)
        tie = magnitude >> dropped
        tie &= unsigned(1)
        tie += (unsigned(1) << (dropped - unsigned(1))) - unsigned(1)
        magnitude += tie
        magnitude &= ~((unsigned(1) << dropped) - unsigned(1))
    if attributes.exponent_bits < element_type.exponent_bits:
        bias = (1 << (exponent - 1)) - 1
        reach = (1 << (attributes.exponent_bits - 1)) - 1
        too_large = unsigned(bias + reach + 1) << unsigned(mantissa)
        smallest_normal = unsigned(bias - reach + 1) << unsigned(mantissa)
        np.copyto(magnitude, infinity, where=magnitude >= too_large)
        magnitude *= magnitude >= smallest_normal
    elif (
        attributes.exponent_bits == element_type.exponent_bits < exponent
        and attributes.mantissa_bits < element_type.mantissa_bits
    ):
        # The operand's own denormals are normal numbers of the compute type: their last place does not move with them.
        pattern = np.array([1 << element_type.mantissa_bits], f"u{element_type.byte_size}")
        smallest = widen(pattern.view(element_type.storage))[0]
        step = smallest * operand.dtype.type(2.0**-attributes.mantissa_bits)
        rounded = np.abs(np.rint(operand / step) * step).view(unsigned)
        magnitude = np.where(np.abs(operand) < smallest, rounded, magnitude)
    # In half the time of `copysign`.
    magnitude |= bits & unsigned(1 << (word - 1))
    result: Array = magnitude.view(operand.dtype)
    return np.where(np.isnan(operand), operand, result) if has_nan else result


elementwise(
    "reduce-precision",
    _reduce_precision,
    "The operand as if converted to a float of exponent_bits and mantissa_bits and back: the mantissa is rounded to "
    "nearest, ties to even, then numbers too large become infinite and those below the smallest normal number zero "
    "(XLA: ReducePrecision).",
    operands=1,
    kinds=FLOAT,
    attributes=ReducePrecisionAttributes,
    rounding=Rounding.FORMAT,
    infer=_infer_reduce_precision,
    # Numbers keep their signs, but may become infinite, or zero.
    bounds=lambda _, x: Bounds(0 if x.low >= 0 else -INFINITY, 0 if x.high <= 0 else INFINITY, x.is_parameter),
    states_shape=True,
    probe=Probe("T[2] reduce-precision(a0), exponent_bits=5, mantissa_bits=2", ("T[2]",)),
    **_CONVERTS,
)


def _infer_stochastic_convert(operand: Shape, random: Shape, *, shape: Shape) -> ArrayShape:
    value = operands_shape("stochastic-convert", (operand,), FLOAT)
    number = array_shape(random, "operand 1 of stochastic-convert")
    require(
        number.element_type.kind is Kind.UNSIGNED and number.element_type.bits == value.element_type.bits,
        f"operand 1 of stochastic-convert must be of unsigned integers as wide as {value.element_type}, but has "
        f"shape {number}",
    )
    result = array_shape(shape, "the result of stochastic-convert")
    return same_dimensions(value, number, "the operands of stochastic-convert").with_element_type(result.element_type)


def _stochastic_convert(operand: Array, random: Array, *, shape: ArrayShape, operand_shapes: ArrayShapes) -> Array:
    source, target = (entry.element_type for entry in (operand_shapes[0], shape))
    if target.kind is not Kind.SIGNED:
        raise UnsupportedError(f"stochastic-convert is defined to signed integers only, not from {source} to {target}")
    function = partial(_stochastically_rounded, source.bits, target)
    return in_pieces(function, target.compute, operand, random)


def _stochastically_rounded(bits: int, target: ElementType, operand: Array, random: Array) -> Array:
    # Below 2^bits, where nothing is lost: a fraction that is not 0 leaves the whole number room to grow by one, and a
    # fixed-point number of as many bits as the float has takes what is left of its mantissa. What infinities and NaN
    # have for a fraction makes no difference.
    rounded = np.abs(operand)
    fraction = np.copy(rounded)
    np.trunc(rounded, out=rounded)
    fraction -= rounded
    fraction *= fraction.dtype.type(2.0**bits)
    rounded += random < fraction.astype(random.dtype)
    return _float_to_integer(np.copysign(rounded, operand, out=rounded), target)


elementwise(
    "stochastic-convert",
    _stochastic_convert,
    "A float to a signed integer, rounded away from zero with a probability equal to the fraction: |x| is truncated, "
    "and one is added where the fraction, as a fixed-point number of as many bits as operand 1 has, is larger than "
    "operand 1. Saturates; NaN → 0 (XLA: StochasticConvert).",
    operands=2,
    kinds=FLOAT,
    infer=_infer_stochastic_convert,
    states_shape=True,
    probe=Probe("s8[2] stochastic-convert(a0, a1)", ("T[2]", "U[2]")),
)


@frozen
class MapAttributes:
    """All dimensions in order (the text may leave them out), and the computation."""

    dimensions: Dimensions = attribute(default=())
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode("map", operands=(0, ANY), attributes=MapAttributes, rounding=Rounding.NONE)
class Map:
    """out[i...] = computation(operand 0[i...], operand 1[i...], …)   (XLA: Map)"""

    probe = Probe("T[2] map(a0, a1), dimensions={0}, to_apply=c", ("T[2]", "T[2]"), REDUCER)

    relate = staticmethod(pointwise)

    @staticmethod
    def infer(*operands: Shape, attributes: MapAttributes, computations: Programs) -> Shape:
        require(len(operands) > 0, "map must have at least one operand")
        arrays = operand_shapes(operands, "map")
        (program,) = computations
        require_parameters(program, [ArrayShape(array.element_type) for array in arrays], "the computation of map")
        result = arrays[0]
        for array in arrays:
            result = same_dimensions(result, array, "the operands of map")
        require(
            attributes.dimensions in ((), tuple(range(result.rank))),
            f"map must name all {result.rank} dimensions in order, but names {list(attributes.dimensions)}",
        )
        value = array_shape(program.result, "the result of the computation of map")
        require(value.rank == 0, f"the computation of map must return a scalar, but returns {value}")
        return result.with_element_type(value.element_type)

    @staticmethod
    def evaluate(
        *operands: Array, shape: ArrayShape, operand_shapes: Sequence[ArrayShape], computations: Callees
    ) -> Array:
        (callee,) = computations
        operands = tuple(cut_to_common_extents(operands, operand_shapes))
        if operands[0].size == 0:
            return np.empty(operands[0].shape, shape.element_type.storage)
        return in_type(callee(*as_parameters(operands, callee.computation)), shape.element_type)


DIRECTIONS: dict[str, Callable[..., Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}

_TYPES_BY_KIND = {
    Kind.PRED: ("UNSIGNED", "TOTALORDER"),
    Kind.SIGNED: ("SIGNED", "TOTALORDER"),
    Kind.UNSIGNED: ("UNSIGNED", "TOTALORDER"),
    Kind.FLOAT: ("FLOAT", "TOTALORDER"),
    Kind.COMPLEX: ("FLOAT",),
}


@frozen
class CompareAttributes:
    """`direction=LT, type=TOTALORDER`; without `type`, the usual comparison of the element type."""

    direction: str = attribute(Grammar.ENUM, choices=DIRECTIONS)
    type: str | None = attribute(
        Grammar.ENUM,
        default=None,
        choices=("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
        lately={"order": {"TOTAL": "TOTALORDER", "PARTIAL": None}},
    )


def _infer_compare(lhs: Shape, rhs: Shape, *, attributes: CompareAttributes) -> ArrayShape:
    common = operands_shape("compare", (lhs, rhs), ANY_TYPE)
    expected = _TYPES_BY_KIND[common.element_type.kind]
    if attributes.type is not None and attributes.type not in expected:
        raise ShapeError(
            f"a compare of {common.element_type} has type {' or '.join(expected)}, but {attributes.type} is given"
        )
    return common.with_element_type(element_type("pred"))


def _compare(lhs: Array, rhs: Array, *, attributes: CompareAttributes) -> Array:
    relation = DIRECTIONS[attributes.direction]
    if attributes.type == "TOTALORDER" and element_type_of(lhs.dtype).is_floating:
        return _in_total_order(relation, lhs, rhs)
    return relation(lhs, rhs)


def _in_total_order(relation: Callable[..., Array], lhs: Array, rhs: Array) -> Array:
    """A relation of floats in the total order, which is that of numbers but for NaN and zeros: looking for these takes
    less time than making keys."""
    if relation in (np.equal, np.not_equal):
        word = f"i{lhs.itemsize}"
        return np.asarray(relation(lhs.view(word), rhs.view(word)))
    is_less, is_greater = np.less(lhs, rhs), np.greater(lhs, rhs)
    decided = np.count_nonzero(is_less) + np.count_nonzero(is_greater)
    if decided == is_less.size:
        return is_less if relation in (np.less, np.less_equal) else is_greater
    is_ordered = decided + np.count_nonzero(np.equal(lhs, rhs)) == is_less.size
    if is_ordered and (lhs.all() or rhs.all()):
        return relation(lhs, rhs)
    return relation(total_order_key(lhs), total_order_key(rhs))


def total_order_key(array: Array) -> Array:
    """Integers in the order of floats −NaN < −∞ < … < −0 < +0 < … < +∞ < +NaN; of these, as floats, their bits again.

    The bits of a float are sign and magnitude: as two's complement, the magnitudes of negative numbers count down.
    """
    bits = array.view(f"i{array.dtype.itemsize}")
    key = np.asarray(bits >> (8 * bits.itemsize - 1))
    key &= bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
    key ^= bits
    return key


def _infer_clamp(low: Shape, operand: Shape, high: Shape) -> ArrayShape:
    result = operands_shape("clamp", (operand,), ANY_TYPE)
    for shape, name in ((low, "min"), (high, "max")):
        bound = array_shape(shape, f"the {name} of clamp")
        together = f"operand and {name} of clamp"
        same_type_ignoring_float_width(result, bound, together)
        if bound.rank > 0:
            same_dimensions(result, bound, together)
    return result


@on_scalars(clamp_scalars)
def _clamp(low: Array, operand: Array, high: Array) -> Array:
    return minimum(high, maximum(low, operand))


elementwise(
    "compare",
    _compare,
    "Whether lhs and rhs are in the relation `direction`. FLOAT: IEEE 754, NaN is unordered; TOTALORDER: NaNs are "
    "beyond the infinities by their signs, and −0 < +0 (of integers it is the usual order); complex numbers compare by "
    "(real, imag) (XLA: Compare).",
    operands=2,
    kinds=ANY_TYPE,
    attributes=CompareAttributes,
    infer=_infer_compare,
    chosen=lambda attributes, _: None if attributes.type == "TOTALORDER" else DIRECTIONS[attributes.direction],
    bounds=always(0, 1),
    integer_bounds=intervals.compared_bounds,
    demands=intervals.compare_demands,
    same_unit=True,
    probe=Probe("pred[2] compare(a0, a1), direction=EQ", ("T[2]", "T[2]")),
    flushes_denormals=True,
)
elementwise(
    "clamp",
    _clamp,
    "min(max(operand, low), high), of operands low, operand, high; the bounds may be scalars; NaN in any gives NaN "
    "(XLA: Clamp).",
    operands=3,
    kinds=ANY_TYPE,
    fill=lambda low, operand, high, out: fill_minimum(high, maximum(low, operand), out),
    same_unit=True,
    infer=_infer_clamp,
    rounding=Rounding.NONE,
    layout_of=(1,),
    bounds=intervals.rising(lambda low, x, high: min(max(x, low), high)),
    demands_for=lambda _, demand: [(1, Demand(demand.low, demand.high))],
    flushes_denormals=True,
)


@opcode(
    "select",
    operands=3,
    is_elementwise=True,
    rounding=Rounding.NONE,
    moves=(1, 2),
    layout_of=(0, 1),
    fast_in="hloexec.ops.elementwise.fast.selection",
)
class Select:
    """on_true where pred, else on_false; a scalar pred chooses the whole array. Any element type (XLA: Select)."""

    probe = Probe("T[2] select(a0, a1, a2)", ("pred[2]", "T[2]", "T[2]"))

    @staticmethod
    def infer(pred: Shape, on_true: Shape, on_false: Shape) -> ArrayShape:
        result = operands_shape("select", (on_true, on_false), ANY_TYPE)
        choice = array_shape(pred, "operand 0 of select")
        require(choice.element_type.kind is Kind.PRED, f"operand 0 of select must be of pred, but has shape {choice}")
        if choice.rank == 0:
            return result
        return same_dimensions(result, choice, "pred and the other operands of select")

    @staticmethod
    def evaluate(pred: Array, on_true: Array, on_false: Array, *, shape: ArrayShape) -> Array:
        # No-ops, unless float precisions are mixed.
        on_true, on_false = convert(on_true, shape.element_type), convert(on_false, shape.element_type)
        if pred.ndim == 0:
            return on_true if pred else on_false
        return choose(pred, on_true, on_false)
