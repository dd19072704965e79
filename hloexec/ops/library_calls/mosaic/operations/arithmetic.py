"""Elementwise operations of the dialects arith and math, and those of Mosaic's that are of their kind.

Most are an opcode of HLO's, in the tables. Integer scalars, of which indices and conditions are made, are Python's
numbers and are computed as such. Source: MLIR, "arith" and "math" dialects; JAX, Pallas' lowering for TPUs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.mosaic.bridging import (
    as_array,
    as_value,
    elementwise_kernel,
    hlo_kernel,
    with_sign,
)
from hloexec.ops.library_calls.mosaic.ir import Elements, MlirType, Operation
from hloexec.ops.library_calls.mosaic.registry import Bind, Kernel, Scope, add_operation, operation

_OPCODES = {
    "arith.addf": "add",
    "arith.subf": "subtract",
    "arith.mulf": "multiply",
    "arith.divf": "divide",
    "arith.remf": "remainder",
    "arith.negf": "negate",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
    "arith.addi": "add",
    "arith.subi": "subtract",
    "arith.muli": "multiply",
    "arith.divsi": "divide",
    "arith.remsi": "remainder",
    "arith.maxsi": "maximum",
    "arith.minsi": "minimum",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.shli": "shift-left",
    "arith.shrsi": "shift-right-arithmetic",
    "math.absf": "abs",
    "math.absi": "abs",
    "math.atan2": "atan2",
    "math.cbrt": "cbrt",
    "math.ceil": "ceil",
    "math.cos": "cosine",
    "math.ctlz": "count-leading-zeros",
    "math.ctpop": "popcnt",
    "math.erf": "erf",
    "math.exp": "exponential",
    "math.exp2": "exp2",
    "math.expm1": "exponential-minus-one",
    "math.floor": "floor",
    "math.log": "log",
    "math.log1p": "log-plus-one",
    "math.log2": "log2",
    "math.powf": "power",
    "math.round": "round-nearest-afz",
    "math.roundeven": "round-nearest-even",
    "math.rsqrt": "rsqrt",
    "math.sin": "sine",
    "math.sqrt": "sqrt",
    "math.tan": "tan",
    "math.tanh": "tanh",
    "tpu.logistic": "logistic",
}
_UNSIGNED = {
    "arith.divui": "divide",
    "arith.remui": "remainder",
    "arith.maxui": "maximum",
    "arith.minui": "minimum",
    "arith.shrui": "shift-right-logical",
}
_SCALARS: dict[str, Callable[..., Any]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    "arith.maxsi": max,
    "arith.minsi": min,
}
"""What Python's numbers give before the result is wrapped, where that is right for all operands."""


def wrapped(value: int, value_type: MlirType) -> Any:
    """An integer as one of a type, modulo its width."""
    if value_type.element == "i1":
        return bool(value & 1)
    half = 1 << value_type.bits - 1
    return (value + half & 2 * half - 1) - half


def _binding(opcode: str, *, is_unsigned: bool = False) -> Bind:
    def bind(operation: Operation, scope: Scope) -> Kernel:
        scalar, result = _SCALARS.get(operation.name), operation.result_type
        if scalar is not None and result.is_scalar and result.is_integer:
            return lambda lhs, rhs: wrapped(scalar(lhs, rhs), result)
        return elementwise_kernel(opcode, operation, scope.numerics, is_unsigned=is_unsigned)

    return bind


for _name, _opcode in _OPCODES.items():
    add_operation(_name, _binding(_opcode), f"HLO's {_opcode}.")
for _name, _opcode in _UNSIGNED.items():
    add_operation(_name, _binding(_opcode, is_unsigned=True), f"HLO's {_opcode} of unsigned integers.")


@operation("arith.constant")
def bind_constant(operation: Operation, scope: Scope) -> Kernel:
    """The attribute `value`."""
    value, value_type = operation.attributes["value"], operation.result_type
    storage = value_type.element_type.storage
    constant: Any
    if isinstance(value, Elements):
        constant = _vector(value, value_type)
    elif value_type.is_integer:
        constant = wrapped(int(value), value_type)
    else:
        constant = np.asarray(value, np.float64).astype(storage)
    return lambda: constant


def _vector(value: Elements, value_type: MlirType) -> Array:
    """All elements, or the only one in each place."""
    is_integer = value_type.is_integer
    numbers = [wrapped(int(item), value_type) if is_integer else item for item in value.elements]
    elements = np.array(numbers, np.int64 if is_integer else np.float64).astype(value_type.element_type.storage)
    if elements.size == 1:
        return np.full(value_type.dimensions, elements[0])
    return elements.reshape(value_type.dimensions)


_ORDERS = ("EQ", "NE", "LT", "LE", "GT", "GE", "LT", "LE", "GT", "GE")
"""Of cmpi, by predicate; those from number 6 on are of unsigned integers."""
_RELATIONS = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


@operation("arith.cmpi")
def bind_compare_integers(operation: Operation, scope: Scope) -> Kernel:
    """Whether the relation `predicate` holds of two integers: eq, ne, signed slt to sge, unsigned ult to uge."""
    predicate, value_type = operation.attributes["predicate"], operation.operand_types[0]
    direction, is_unsigned = _ORDERS[predicate], predicate > 5
    if value_type.is_scalar and not is_unsigned:
        return _RELATIONS[direction]
    return _comparison(operation, scope, direction, is_unsigned=is_unsigned)


_ORDERED = {1: "EQ", 2: "GT", 3: "GE", 4: "LT", 5: "LE", 13: "NE"}
"""Predicates of cmpf that are comparisons of HLO's: false where there is a NaN, but for NE."""
_UNORDERED = {8: (4, 2), 9: (5,), 10: (4,), 11: (3,), 12: (2,)}
"""Those that hold where none of these do."""


@operation("arith.cmpf")
def bind_compare_floats(operation: Operation, scope: Scope) -> Kernel:
    """Whether the relation `predicate` holds of two floats: oeq to ole are false of NaN, ueq to une are true of it.

    Pallas writes one for `!=`, so that `x != x`, and `jnp.isnan`, are false in a kernel, as its text has it.
    """
    predicate = operation.attributes["predicate"]
    if predicate in _ORDERED:
        return _comparison(operation, scope, _ORDERED[predicate])
    if predicate in _UNORDERED:
        parts = [_comparison(operation, scope, _ORDERED[part]) for part in _UNORDERED[predicate]]
        return lambda lhs, rhs: _not(np.logical_or.reduce([part(lhs, rhs) for part in parts]))
    if predicate == 6:  # one
        less, greater = _comparison(operation, scope, "LT"), _comparison(operation, scope, "GT")
        return lambda lhs, rhs: less(lhs, rhs) | greater(lhs, rhs)
    if predicate in (7, 14):  # ord, uno
        same = _comparison(operation, scope, "EQ")
        if predicate == 7:
            return lambda lhs, rhs: same(lhs, lhs) & same(rhs, rhs)
        return lambda lhs, rhs: _not(same(lhs, lhs) & same(rhs, rhs))
    raise UnsupportedError(f"its kernel compares with predicate {predicate}")


def _not(value: Any) -> Any:
    return np.logical_not(value) if isinstance(value, np.ndarray) else not value


def _comparison(operation: Operation, scope: Scope, direction: str, *, is_unsigned: bool = False) -> Kernel:
    return elementwise_kernel("compare", operation, scope.numerics, is_unsigned=is_unsigned, direction=direction)


@operation("arith.select")
def bind_select(operation: Operation, scope: Scope) -> Kernel:
    """The second operand where the first is true, the third elsewhere; all of it where the first is a scalar."""
    if operation.operand_types[0].is_scalar:
        return lambda condition, chosen, other: chosen if condition else other
    return elementwise_kernel("select", operation, scope.numerics)


@operation("arith.maxnumf", "arith.minnumf")
def bind_extremum_of_numbers(operation: Operation, scope: Scope) -> Kernel:
    """The greater, or the less, of two floats; of NaN and a number, the number."""
    opcode = "maximum" if operation.name == "arith.maxnumf" else "minimum"
    extremum = elementwise_kernel(opcode, operation, scope.numerics)

    def compute(lhs: Any, rhs: Any) -> Any:
        one, two = lhs != lhs, rhs != rhs
        return np.asarray(np.where(one, rhs, np.where(two, lhs, extremum(lhs, rhs))))

    return compute


@operation("arith.extui", "arith.uitofp", "tpu.uitofp")
def bind_convert_unsigned(operation: Operation, scope: Scope) -> Kernel:
    """The numbers of unsigned integers in a wider type, or as floats, rounded to nearest."""
    return _conversion(operation, scope, is_unsigned=True)


@operation("arith.extsi")
def bind_extend_signed(operation: Operation, scope: Scope) -> Kernel:
    """The numbers of signed integers in a wider type; true is -1."""
    if operation.operand_types[0].element != "i1":
        return _conversion(operation, scope)
    value_type = operation.result_type
    if value_type.is_scalar:
        return lambda value: -int(value)
    return lambda value: np.where(value, -1, 0).astype(value_type.element_type.storage)


@operation("arith.extf", "tpu.extf", "arith.sitofp", "tpu.sitofp", "arith.index_cast", "arith.fptosi")
def bind_convert(operation: Operation, scope: Scope) -> Kernel:
    """The numbers in another type, rounded to nearest; floats become integers towards zero, and saturate."""
    if operation.operand_types[0].element == "i1" and operation.name == "arith.index_cast":
        return lambda value: -int(value)
    return _conversion(operation, scope)


@operation("arith.index_castui")
def bind_cast_unsigned_index(operation: Operation, scope: Scope) -> Kernel:
    """An unsigned integer as an index, or the reverse."""
    return _conversion(operation, scope, is_unsigned=True)


@operation("arith.truncf", "tpu.truncf")
def bind_truncate(operation: Operation, scope: Scope) -> Kernel:
    """Floats in a narrower type, rounded to nearest, ties to even."""
    _require_rounding(operation, "to_nearest_even", "to_nearest_even")
    return _conversion(operation, scope)


@operation("tpu.fptosi", "tpu.fptoui", "arith.fptoui")
def bind_float_to_integer(operation: Operation, scope: Scope) -> Kernel:
    """Floats as integers, rounded towards zero or to the nearest even, as `rounding_mode` says; they saturate."""
    is_unsigned = operation.name.endswith("ui")
    mode = _require_rounding(operation, "towards_zero", "towards_zero", "to_nearest_even")
    convert = _conversion(operation, scope, is_unsigned=is_unsigned)
    if mode == "towards_zero":
        return convert
    source = operation.operand_types[0]
    nearest = hlo_kernel("round-nearest-even", [source.shape], source.shape, scope.numerics)
    return lambda value: convert(nearest(value))


def _require_rounding(operation: Operation, default: str, *modes: str) -> str:
    mode = operation.word("rounding_mode" if operation.name.startswith("tpu") else "roundingmode", default)
    names = {"0": "towards_zero", "1": "to_nearest_even"}
    mode = names.get(mode, mode)
    if mode not in modes:
        raise UnsupportedError(f"its kernel rounds {mode} in {operation.place}")
    return mode


def _conversion(operation: Operation, scope: Scope, *, is_unsigned: bool = False) -> Kernel:
    """HLO's convert; of unsigned integers on the side that has integers."""
    source, target = operation.operand_types[0], operation.result_type
    if source.is_scalar and source.is_integer and target.is_scalar and target.is_integer:
        mask = (1 << source.bits) - 1
        return lambda value: wrapped(int(value) & mask if is_unsigned else int(value), target)
    types = [with_sign(item, is_unsigned=is_unsigned) for item in (source, target)]
    shapes = [ArrayShape(value_type, item.dimensions) for value_type, item in zip(types, (source, target), strict=True)]
    kernel = hlo_kernel("convert", shapes[:1], shapes[1], scope.numerics)
    seen, stored = types[0].storage, target.element_type.storage
    return lambda value: as_value(np.asarray(kernel(as_array(value, source).view(seen))).view(stored), target)


@operation("arith.trunci")
def bind_truncate_integer(operation: Operation, scope: Scope) -> Kernel:
    """The lowest bits of integers."""
    source, target = operation.operand_types[0], operation.result_type
    if target.element != "i1" or target.is_scalar:
        return _conversion(operation, scope)
    one = np.ones((), source.element_type.storage)
    return lambda value: np.asarray((value & one) != 0)


@operation("arith.bitcast")
def bind_bitcast(operation: Operation, scope: Scope) -> Kernel:
    """The bits of each element as another type of the same width."""
    return elementwise_kernel("bitcast-convert", operation, scope.numerics)


@operation("tpu.reciprocal")
def bind_reciprocal(operation: Operation, scope: Scope) -> Kernel:
    """1 / x, rounded to nearest; `approx` allows hardware to be less precise."""
    value_type = operation.result_type
    divide = hlo_kernel("divide", [value_type.shape] * 2, value_type.shape, scope.numerics)
    one = np.ones(value_type.dimensions, value_type.element_type.storage)
    return lambda value: np.asarray(divide(one, value))


@operation("tpu.weird")
def bind_weird(operation: Operation, scope: Scope) -> Kernel:
    """Whether a float is infinite or NaN."""
    source, target = operation.operand_types[0], operation.result_type
    shape = ArrayShape(ELEMENT_TYPES["pred"], source.dimensions)
    finite = hlo_kernel("is-finite", [source.shape], shape, scope.numerics)

    def compute(value: Array) -> Any:
        return as_value(np.logical_not(finite(value)).astype(target.element_type.storage), target)

    return compute
