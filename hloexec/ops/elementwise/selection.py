"""Comparison, and selection between values: select and clamp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloexec.core.dtypes import Kind, element_type, element_type_of
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import ShapeError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, operands_shape, require, same_dimensions, same_type_ignoring_float_width
from hloexec.ops.elementwise import ranges
from hloexec.ops.elementwise.arithmetic import fill_minimum, maximum, minimum
from hloexec.ops.elementwise.choosing import choose
from hloexec.ops.elementwise.convert import convert
from hloexec.ops.elementwise.declaration import ANY_TYPE, elementwise
from hloexec.ops.elementwise.fast.formulas import clamp_scalars, on_scalars
from hloexec.ops.intervals import Demand, always
from hloexec.ops.probes import Probe
from hloexec.ops.registry import opcode
from hloexec.ops.rounding import Rounding

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
    for shape, what in ((low, "min"), (high, "max")):
        bound = array_shape(shape, f"the {what} of clamp")
        together = f"operand and {what} of clamp"
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
    demands=ranges.compare_demands,
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
    bounds=ranges.rising(lambda low, x, high: min(max(x, low), high)),
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
