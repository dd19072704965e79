"""Elementwise functions that only Triton kernels have: of libdevice by their symbols, rounding, and pointers.

Source: Triton, its dialect (TritonOps.td); NVIDIA, libdevice user's guide; MLIR, "math" dialect.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, largest_number
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.bridging import bits_as, elementwise_kernel, hlo_kernel
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.registry import Bind, Kernel, Scope
from hloexec.ops.library_calls.triton.instances import pointee
from hloexec.ops.library_calls.triton.registry import TRITON

_MATH = "acos acosh asin asinh atanh cosh sinh".split()
_OPCODES = {
    **{name: name for name in _MATH},
    **dict.fromkeys(("abs", "llabs", "fabs"), "abs"),
    "cbrt": "cbrt",
    "ceil": "ceil",
    "floor": "floor",
    "cos": "cosine",
    "sin": "sine",
    "tan": "tan",
    "tanh": "tanh",
    "atan2": "atan2",
    "exp": "exponential",
    "exp2": "exp2",
    "expm1": "exponential-minus-one",
    "log": "log",
    "log1p": "log-plus-one",
    "log2": "log2",
    "pow": "power",
    "fmod": "remainder",
    "rsqrt": "rsqrt",
    "sqrt": "sqrt",
    "erf": "erf",
    "popc": "popcnt",
    "clz": "count-leading-zeros",
    "popcll": "popcnt",
    "clzll": "count-leading-zeros",
    "rint": "round-nearest-even",
    "nearbyint": "round-nearest-even",
    "round": "round-nearest-afz",
    "fmin": "minimum",
    "fmax": "maximum",
}
"""Functions of libdevice and of AMD's device library by the stems of their names, and HLO's opcodes."""
_SYMBOL = re.compile(r"__nv_(?:fast_)?(?P<cuda>\w+)|__ocml_(?P<rocm>\w+)_[fiu]\d+")


def _stem(operation: Operation) -> str:
    """`exp` of `__nv_expf` and of `__ocml_exp_f32`; of f32, CUDA's names end in f."""
    symbol = str(operation.attributes.get("symbol", ""))
    match = _SYMBOL.fullmatch(symbol)
    if match is None:
        return ""
    stem = match["cuda"] or match["rocm"]
    is_single = match["cuda"] is not None and operation.operand_types[0].element == "f32"
    return {"pown": "powi"}.get(stem, stem.removesuffix("f") if is_single else stem)


def _refuse_symbol(operation: Operation) -> str | None:
    if _stem(operation) in ("powi", "nextafter", "atan") or _stem(operation) in _OPCODES:
        return None
    return f"it calls {operation.attributes.get('symbol')!r}, a function that hloexec does not know"


@TRITON.operation("tt.extern_elementwise", refuses=_refuse_symbol)
def bind_extern(operation: Operation, scope: Scope) -> Kernel:
    """The function of libdevice that `symbol` names, as HLO's opcode of that meaning; the last bits may differ."""
    stem, result = _stem(operation), operation.result_type
    if stem == "nextafter":
        return lambda value, towards: np.nextafter(value, towards)
    if stem == "powi":
        return _integer_power(operation, scope)
    if stem == "atan":
        return _arc_tangent(operation, scope)
    if stem not in ("popcll", "clzll"):
        return elementwise_kernel(_OPCODES[stem], operation, scope.numerics)
    source = operation.operand_types[0].shape
    kernel = hlo_kernel(_OPCODES[stem], [source], source, scope.numerics)
    return lambda value: np.asarray(kernel(value)).astype(result.element_type.storage)


@TRITON.operation("math.fpowi")
def bind_integer_power(operation: Operation, scope: Scope) -> Kernel:
    """HLO's power, of a float and a whole number."""
    return _integer_power(operation, scope)


def _integer_power(operation: Operation, scope: Scope) -> Kernel:
    base, exponent = operation.operand_types
    power = hlo_kernel("power", [base.shape, base.shape], base.shape, scope.numerics)
    convert = hlo_kernel("convert", [exponent.shape], base.shape, scope.numerics)
    return lambda value, number: np.asarray(power(value, convert(number)))


@TRITON.operation("math.atan")
def bind_arc_tangent(operation: Operation, scope: Scope) -> Kernel:
    """HLO's atan2 of the operand and 1."""
    return _arc_tangent(operation, scope)


def _arc_tangent(operation: Operation, scope: Scope) -> Kernel:
    shape = operation.result_type.shape
    kernel = hlo_kernel("atan2", [shape, shape], shape, scope.numerics)
    one = np.ones(shape.dimensions, shape.element_type.storage)
    return lambda value: np.asarray(kernel(value, one))


def _binding(opcode: str) -> Bind:
    return lambda operation, scope: elementwise_kernel(opcode, operation, scope.numerics)


for _name, _opcode in {
    **{f"math.{name}": name for name in _MATH},
    "tt.precise_divf": "divide",
    "tt.precise_sqrt": "sqrt",
}.items():
    TRITON.add(_name, _binding(_opcode), f"HLO's {_opcode}.")


@TRITON.operation("math.fma")
def bind_fused_product(operation: Operation, scope: Scope) -> Kernel:
    """lhs * rhs + addend, computed in f64, and rounded to the type of the result."""
    result = operation.result_type
    element = ELEMENT_TYPES["f64"]
    shape = ArrayShape(element, result.dimensions)
    narrow = hlo_kernel("convert", [shape], result.shape, scope.numerics)

    def compute(lhs: Array, rhs: Array, addend: Array) -> Array:
        wide = [operand.astype(element.storage) for operand in (lhs, rhs, addend)]
        return np.asarray(narrow(wide[0] * wide[1] + wide[2]))

    return compute


@TRITON.operation("tt.clampf")
def bind_clamp(operation: Operation, scope: Scope) -> Kernel:
    """The operand, but at least the second one and at most the third; of NaN, NaN with `propagateNan` all, else the
    second."""
    shape = operation.result_type.shape
    minimum, maximum = (hlo_kernel(name, [shape, shape], shape, scope.numerics) for name in ("minimum", "maximum"))
    is_kept = bool(operation.attributes.get("propagateNan"))

    def compute(value: Array, low: Array, high: Array) -> Array:
        value = value if is_kept else np.where(value != value, low, value)
        return np.asarray(minimum(maximum(value, low), high))

    return compute


@TRITON.operation("tt.mulhiui")
def bind_high_product(operation: Operation, scope: Scope) -> Kernel:
    """The upper half of the bits of the product of two unsigned integers."""
    word = ELEMENT_TYPES[f"u{operation.result_type.bits}"].storage
    storage = operation.result_type.element_type.storage
    half = word.type(word.itemsize * 4)
    low = word.type((1 << word.itemsize * 4) - 1)

    def compute(lhs: Array, rhs: Array) -> Array:
        one, two = lhs.view(word), rhs.view(word)
        middle = (one >> half) * (two & low) + ((one & low) * (two & low) >> half)
        other = (one & low) * (two >> half) + (middle & low)
        return np.asarray(((one >> half) * (two >> half) + (middle >> half) + (other >> half)).view(storage))

    return compute


@TRITON.operation("tt.fp_to_fp")
def bind_float_conversion(operation: Operation, scope: Scope) -> Kernel:
    """Floats of another type, rounded to nearest even, or towards zero where `rounding` is 0.

    In a type of 8 bits, what is beyond its greatest number, infinities included, becomes that: PTX, cvt with satfinite.
    """
    source, result = operation.operand_types[0].element_type, operation.result_type
    target = result.element_type
    kernel = hlo_kernel("convert", [operation.operand_types[0].shape], result.shape, scope.numerics)
    limit = largest_number(target)
    cuts = operation.attributes.get("rounding") == 0

    def compute(value: Array) -> Array:
        if target.bits < source.bits and (target.bits == 8 or cuts):
            wide = value.astype(np.float64)
            is_finite = np.isfinite(wide) | (target.bits == 8)
            wide = np.where(is_finite, np.clip(wide, -float(limit), float(limit)), wide)
            value = wide.astype(source.storage)
        converted = np.asarray(kernel(value))
        if not cuts:
            return converted
        word = ELEMENT_TYPES[f"u{target.bits}"]
        bits = bits_as(converted, word)
        is_beyond = np.abs(converted.astype(np.float64)) > np.abs(value.astype(np.float64))
        return bits_as(bits - is_beyond.astype(word.storage), target)

    return compute


@TRITON.operation("tt.bitcast")
def bind_bitcast(operation: Operation, scope: Scope) -> Kernel:
    """The bits of each element as another type of the same width; a pointer as one to another type."""
    if pointee(operation.result_type) is not None:
        return lambda value: value
    return elementwise_kernel("bitcast-convert", operation, scope.numerics)


@TRITON.operation("tt.ptr_to_int", "tt.int_to_ptr")
def bind_forward(operation: Operation, scope: Scope) -> Kernel:
    """The address, in bytes: of pointers and integers alike."""
    return lambda value: value


@TRITON.operation("tt.addptr")
def bind_pointer_addition(operation: Operation, scope: Scope) -> Kernel:
    """The address so many elements further on."""
    element = pointee(operation.result_type)
    assert element is not None
    size = np.int64(element.element_type.storage.itemsize)

    def compute(address: Array, offset: Array) -> Any:
        return address + offset.astype(np.int64) * size

    return compute
