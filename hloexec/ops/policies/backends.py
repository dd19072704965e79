"""Policies that do what backends do: how each computes, and which instructions it is about.

The `ftz` policy: denormal numbers are treated as zeros of the same sign, as on XLA:CPU.

XLA:CPU sets the processor's modes that flush denormal operands and results, so the effect depends on the machine
instruction that an operation is compiled to. Instructions on f16 never flush; operations on bits (negate, abs, copies,
conversions between f32 and bf16) and functions that return small arguments unchanged (sine, tanh,
exponential-minus-one, remainder) keep denormals. Source: measured, XLA:CPU of jaxlib 0.10.

Excess precision: results that are used before they are rounded to bf16 or f16, as the `excess` policy has it.

Backends compute bf16 and f16 in f32. XLA writes that down as a conversion behind every instruction and one in front of
each of its users, and under xla_allow_excess_precision may leave out both (XLA: FloatNormalization,
SimplifyFPConversions). Here, elementwise instructions read what elementwise instructions and contractions of their own
computation give before it is rounded; who stores, moves, contracts or reduces it reads it rounded. A conversion to a
narrower type that the text itself has rounds. In a module that is not optimized yet, a computation is as one fusion.

XLA:CPU of jaxlib 0.10 leaves out the conversions in front of the text's own ones to f32, and no others: there, it is
the converts alone that have this policy (measured; docs/precision.md).

Functions of f32 made of 2ˣ, log₂ x, 1/x and 1/√x, each correct to the last place: the `fast-functions` policy.

GPUs have instructions for these four, and compilers that are told to be fast make the others of them: what is added
around them is rounded to f32, and its rounding is what makes the result differ: eˣ = 2^(x·log₂ e) loses as many bits as
x has in front of its point, eˣ − 1 and ln(1 + x) all of them near zero. The instructions themselves err by a few last
places, as each processor does in its own way; here they are rounded correctly. Source: NVIDIA, "PTX ISA" (ex2.approx,
lg2.approx, rcp.approx, rsqrt.approx) and "CUDA C++ Programming Guide", "Intrinsic functions" (__expf, __logf, __powf,
__fdividef).

Sums of narrow floats whose partial sums are rounded at each step: the `narrow-sums` policy.

Under `reference`, sums of types narrower than f32 are accumulated in f32 and rounded once. Hardware and compilers also
accumulate them in the type itself, in an order of their choice. Here reductions take XLA:CPU's: up to 32 terms along a
dimension are added one after the other. More are padded with zeros at both ends, as for a `SAME` convolution, to blocks
of 32; the sums of the blocks are then added likewise (XLA: TreeReductionRewriter; the bits are those of XLA:CPU of
jaxlib 0.10). The products of a contraction are added one after the other.

What XLA:CPU computes of f32, bit for bit: fused multiply-adds, and its own approximations of functions.

The `xla-cpu` policy runs on these instead of NumPy's functions. Source: measured, XLA:CPU of jaxlib 0.10 on x86-64.

Compilers emit a · b + c as a fused multiply-add with one rounding, which NumPy lacks. The product of two f32 numbers is
exact in f64, so f64 arithmetic takes two roundings, of which the first matters only if its result is a tie of the
second.

The functions are polynomials and rational functions on a reduced argument. Coefficients are those of S. Moshier's
Cephes library (expf, logf, log1p) and of Eigen (tanh, erf), rounded to f32. The order of operations matters: every
product that has a sum as its only user is fused with it, as in the compiler.

Which instructions a numerics policy may compute otherwise than `reference` does, as opcodes and types tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Shape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow_unchecked, widen
from hloexec.ops.elementwise.formula import power
from hloexec.ops.policies.exact.doubled import two_sum
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Role, find_opcode
from hloexec.ops.resources import in_pieces
from hloexec.ops.traits import Rounding, Sums, Traits

_FLUSHED_TYPES = frozenset({"bf16", "f32", "f64"})
_KEPT_CONVERSIONS = frozenset({"bf16", "f32"})


def flushes(traits: Traits, types: frozenset[ElementType]) -> bool:
    """Whether an operation whose operands and results have these element types flushes denormals."""
    moves_bits = traits.converts and (len(types) == 1 or {entry.name for entry in types} <= _KEPT_CONVERSIONS)
    return traits.flushes_denormals and not moves_bits


@frozen(eq=False)
class Flushing:
    """A kernel whose operands and results are flushed."""

    kernel: Callable[..., Any]

    def __call__(self, *operands: Any) -> Any:
        result = self.kernel(*map(flushed, operands))
        return tuple(map(flushed, result)) if isinstance(result, tuple) else flushed(result)


def flushed(array: Array) -> Array:
    """The array with denormal numbers of f32, bf16, f64, c64 and c128 replaced by zeros of their sign."""
    entry = element_type_of(array.dtype)
    if entry.is_complex:
        parts = np.ascontiguousarray(array).reshape(-1).view(f"f{array.itemsize // 2}")
        return flushed(parts).view(array.dtype).reshape(array.shape)
    if entry.name not in _FLUSHED_TYPES:
        return array
    bits = array.view(f"u{array.itemsize}")
    tiny = (bits & bits.dtype.type(((1 << entry.exponent_bits) - 1) << entry.mantissa_bits)) == 0
    if not tiny.any():
        return array
    return np.where(tiny, bits & bits.dtype.type(1 << entry.bits - 1), bits).view(entry.storage)


def reads_excess(instruction: Instruction) -> bool:
    """Whether an instruction, under the policy, reads its operands unrounded."""
    return _computes_elements(instruction)


def has_excess(computation: Computation, instruction: Instruction, numerics: NumericsPolicy) -> bool:
    """Whether some user reads an instruction's result unrounded."""
    entry = find_opcode(instruction.opcode)
    if entry is None or not _is_half(instruction) or entry.traits.converts:
        return False
    if not (_is_contraction(instruction) or _computes_elements(instruction)):
        return False
    users = computation.users[instruction.name]
    return any(numerics.of(computation.name, user.name).keeps_excess and reads_excess(user) for user in users)


def widest_shape(computation: Computation, instruction: Instruction) -> Shape:
    """The shape with the widest type in which an implementation may keep a result until its users have read it.

    A bf16 or f16 result of an elementwise instruction or a contraction that elementwise instructions alone see has the
    type that it is computed in: who rounds to eight bits means it. And an f32 product that sums alone see has f64,
    which holds it exactly, as it is in a multiply-add: where products cancel, the rounding error of one of them is all
    that is left.
    """
    users, shape = computation.users[instruction.name], instruction.shape
    if not isinstance(shape, ArrayShape) or instruction is computation.root:
        return shape
    if _is_half(instruction) and (_is_contraction(instruction) or _rounds_elements(instruction)):
        return wide_shape(shape) if all(map(_rounds_elements, users)) else shape
    if _is_f32_product(instruction) and all(_takes_first(computation, user, instruction) for user in users):
        return shape.with_element_type(ELEMENT_TYPES["f64"])
    return shape


def wide_shape(shape: Shape) -> Shape:
    """A shape with the types that its narrow floats are computed in."""
    if not isinstance(shape, ArrayShape) or not shape.element_type.is_floating or not shape.element_type.is_narrow:
        return shape
    return shape.with_element_type(element_type_of(shape.element_type.compute))


def _is_half(instruction: Instruction) -> bool:
    shape = instruction.shape
    return isinstance(shape, ArrayShape) and shape.element_type.is_floating and shape.element_type.bits == 16


def _takes_first(computation: Computation, user: Instruction, product: Instruction) -> bool:
    """Whether `user` is a sum of which compilers make a multiply-add with this product: if both operands are products,
    with the first (see `plan.passes.products`)."""
    names = user.operands
    if user.opcode not in ("add", "subtract") or names.count(product.name) != 1:
        return False
    return names[0] == product.name or not _is_f32_product(computation.by_name[names[0]])


def _is_f32_product(instruction: Instruction) -> bool:
    shape = instruction.shape
    return instruction.opcode == "multiply" and isinstance(shape, ArrayShape) and shape.element_type.name == "f32"


def _is_contraction(instruction: Instruction) -> bool:
    entry = find_opcode(instruction.opcode)
    return entry is not None and entry.traits.sums is Sums.PRODUCTS


def _computes_elements(instruction: Instruction) -> bool:
    """Whether an instruction is elementwise on floats, rounding them or choosing among them."""
    entry = find_opcode(instruction.opcode)
    return entry is not None and entry.is_elementwise and _is_floating(instruction.shape)


def _rounds_elements(instruction: Instruction) -> bool:
    entry = find_opcode(instruction.opcode)
    rounds = entry is not None and entry.rounding in (Rounding.ONCE, Rounding.FUNCTION)
    return rounds and _is_floating(instruction.shape)


def _is_floating(shape: Shape) -> bool:
    return isinstance(shape, ArrayShape) and shape.element_type.is_floating


_f32 = np.float32
_LOG2_E = _f32(1.4426950408889634)
_LN_2 = _f32(0.6931471805599453)


def _ex2(operand: Array) -> Array:
    return np.exp2(operand, dtype=np.float64).astype(np.float32)


def _lg2(operand: Array) -> Array:
    return np.log2(operand, dtype=np.float64).astype(np.float32)


def _exponential(operand: Array) -> Array:
    return _ex2(operand * _LOG2_E)


def _log(operand: Array) -> Array:
    return _lg2(operand) * _LN_2


def _divided(dividend: Array | np.float32, divisor: Array) -> Array:
    return dividend * (_f32(1) / divisor)


def _power(base: Array, exponent: Array) -> Array:
    """Of bases that are not positive as ever: the instructions are for others."""
    return np.where(base > 0, _ex2(exponent * _lg2(base)), power(base, exponent))


def _root(operand: Array) -> Array:
    """x · 1/√x, which is no number for 0 and ∞."""
    product = operand * (1 / np.sqrt(operand, dtype=np.float64)).astype(np.float32)
    return np.where((operand == 0) | (operand == np.inf), operand, product)


FAST_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "divide": _divided,
    "exponential": _exponential,
    "exp2": _ex2,
    "exponential-minus-one": lambda operand: _exponential(operand) - _f32(1),
    "log": _log,
    "log2": _lg2,
    "log-plus-one": lambda operand: _log(_f32(1) + operand),
    "logistic": lambda operand: _f32(1) / (_f32(1) + _exponential(-operand)),
    "power": _power,
    "sqrt": _root,
    "tanh": lambda operand: _f32(1) - _divided(_f32(2), _exponential(operand + operand) + _f32(1)),
}
"""By opcode: from f32 to f32."""


_STEPS = 32
"""Number of terms that are added one after the other."""


def is_narrow_sum(entry: ElementType) -> bool:
    """Whether a type of sums is one that is usually accumulated in a wider one."""
    return entry.is_floating and entry.is_narrow


def added_stepwise(
    terms: Array, dimensions: Sequence[int], entry: ElementType, init_value: Array | None = None
) -> Array:
    """Floats, widened, added along dimensions in steps that are each rounded to a narrow type; widened, too."""
    sums = np.moveaxis(terms, dimensions, range(len(dimensions)))
    rank = len(dimensions)
    while max(sums.shape[:rank], default=1) > _STEPS:
        blocks = sums
        for axis in range(rank):
            blocks = _in_blocks(blocks, 2 * axis)
        # [count, steps, count, steps, …]: the counts stay.
        blocks = np.moveaxis(blocks, range(1, 2 * rank, 2), range(rank))
        sums = _added_in_order(blocks.reshape(-1, *blocks.shape[rank:]), entry)
    flat = sums.reshape(-1, *sums.shape[rank:])
    return _added_in_order(flat, entry, None if init_value is None else widen(init_value))


def _in_blocks(array: Array, axis: int) -> Array:
    """A dimension as two: blocks, and up to `_STEPS` terms in each; zeros fill the first and the last."""
    size = array.shape[axis]
    steps = min(_STEPS, size)
    count = -(-size // steps)
    missing = count * steps - size
    padding = [(0, 0)] * array.ndim
    padding[axis] = (missing // 2, missing - missing // 2)
    padded = np.pad(array, padding, constant_values=-0.0)
    return padded.reshape(*array.shape[:axis], count, steps, *array.shape[axis + 1 :])


def _added_in_order(terms: Array, entry: ElementType, start: Array | None = None) -> Array:
    """The sum over the first dimension."""
    total = np.full(terms.shape[1:], -0.0, terms.dtype) if start is None else np.broadcast_to(start, terms.shape[1:])
    for term in terms:
        total = widen(narrow_unchecked(total + term, entry))
    return np.asarray(total)


def products_added_stepwise(lhs: Array, rhs: Array, entry: ElementType) -> Array:
    """`[batch..., m, k]` times `[batch..., k, n]`, each sum rounded to a narrow type as it grows; widened."""
    total = np.zeros((*lhs.shape[:-1], rhs.shape[-1]), np.result_type(lhs, rhs))
    for k in range(lhs.shape[-1]):
        total += lhs[..., :, k, None] * rhs[..., None, k, :]
        total = widen(narrow_unchecked(total, entry))
    return total


_DROPPED_BITS = np.int64((1 << 29) - 1)
"""Those of an f64's significand that f32 has no room for."""
_TIE = np.int64(1 << 28)


def multiply_add(factor: Any, other_factor: Any, addend: Any) -> Array:
    """factor · other_factor + addend of f32 numbers, rounded once to f32 (results below 2⁻¹²⁶ perhaps twice).

    Where the sum, rounded to f64, is halfway between two f32, it takes the last bit's step towards what was lost:
    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd" (2008).
    """
    product = np.multiply(factor, other_factor, dtype=np.float64)
    total = np.array(product + addend, ndmin=1)
    ties = (total.view(np.int64) & _DROPPED_BITS) == _TIE
    if ties.any():
        where = np.nonzero(ties)
        addends = np.broadcast_to(np.asarray(addend, np.float64), total.shape)
        product = np.broadcast_to(product, total.shape)
        _, lost = two_sum(product[where], addends[where])
        step = np.sign(lost) * np.sign(total[where])
        total.view(np.int64)[where] += np.nan_to_num(step).astype(np.int64)
    sizes = np.broadcast_shapes(*(np.shape(value) for value in (factor, other_factor, addend)))
    return np.asarray(total, np.float32).reshape(sizes)


def _horner(coefficients: tuple[float, ...], argument: Array) -> Array:
    """Σ coefficients[k] · argumentⁿ⁻¹⁻ᵏ of f32 by Horner's rule with fused multiply-adds."""
    result: Any = np.float32(coefficients[0])
    for coefficient in coefficients[1:]:
        result = multiply_add(result, argument, np.float32(coefficient))
    return np.asarray(result)


_TILE = 1 << 13
"""Elements that go through a function at a time, so that its many intermediate results stay in the cache."""


# ln 2 as a number of few bits, whose multiples are exact, and the rest.
_LN_2_HIGH = _f32(0.693359375)
_LN_2_LOW = _f32(-2.12194440e-4)

_SQRT_HALF = _f32(0.707106781186547524)
_LOG_POLYNOMIALS = (
    (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1),
    (-1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1),
    (2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)


def log(operand: Array) -> Array:
    """ln x = ln m + e ln 2 for x = m 2ᵉ, √½ ≤ m < √2; ln(1 + r) = r − r²/2 + r³ P(r)."""
    bits = np.maximum(operand, np.finfo(_f32).smallest_normal).view(np.int32)
    exponent = ((bits >> 23) - 126).astype(_f32)
    significand = ((bits & 0x7FFFFF) | 0x3F000000).view(_f32)
    is_low = significand < _SQRT_HALF
    exponent -= is_low
    rest = (significand - _f32(1)) + np.where(is_low, significand, _f32(0))
    square = rest * rest
    cube = square * rest
    first, second, third = (_horner(coefficients, rest) for coefficients in _LOG_POLYNOMIALS)
    series = multiply_add(multiply_add(first, cube, second), cube, third)
    series = multiply_add(series, cube, _LN_2_LOW * exponent)
    result = multiply_add(_LN_2_HIGH, exponent, multiply_add(_f32(-0.5), square, rest) + series)
    result = np.where(operand > 0, result, np.where(operand == 0, _f32(-np.inf), _f32(np.nan)))
    return np.where(operand == np.inf, operand, result)


_LOG_PLUS_ONE_SMALL = _f32(0.41421356237309503)
_LOG_PLUS_ONE_NUMERATOR = (
    4.5270000866445199635215e-5, 4.9854102823193375972212e-1, 6.5787325942061044846969, 2.9911919328553073277375e1,
    6.0949667980987787057556e1, 5.7112963590585538103336e1, 2.0039553499201281259648e1,
)  # fmt: skip
_LOG_PLUS_ONE_DENOMINATOR = (
    1.0, 1.5062909083469192043167e1, 8.3047565967967209469434e1, 2.2176239823732856465394e2,
    3.0909872225312059774938e2, 2.1642788614495947685003e2, 6.0118660497603843919306e1,
)  # fmt: skip


def log_plus_one(operand: Array) -> Array:
    """ln(1 + x) = x − x²/2 + x³ P(x)/Q(x) for |x| < √2 − 1; beyond that ln of the rounded sum."""
    square = operand * operand
    ratio = _horner(_LOG_PLUS_ONE_NUMERATOR, operand) / _horner(_LOG_PLUS_ONE_DENOMINATOR, operand)
    small = operand + multiply_add(_f32(-0.5), square, operand * square * ratio)
    return np.where(np.abs(operand) < _LOG_PLUS_ONE_SMALL, small, log(_f32(1) + operand))


_EXP_POLYNOMIAL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
)  # fmt: skip


def exponential(operand: Array) -> Array:
    """eˣ = 2ⁿ eʳ for x = n ln 2 + r, x clamped to [−87.8, 88.8] and n to [−127, 127]; eʳ = 1 + r + r² P(r)."""
    held = np.clip(operand, _f32(-87.8), _f32(88.8))
    whole = np.clip(np.floor(multiply_add(held, _f32(1.44269504088896341), _f32(0.5))), _f32(-127), _f32(127))
    rest = multiply_add(-_LN_2_LOW, whole, multiply_add(-_LN_2_HIGH, whole, held))
    series = _f32(1) + multiply_add(_horner(_EXP_POLYNOMIAL, rest), rest * rest, rest)
    power = ((np.nan_to_num(whole).astype(np.int32) + 127) << 23).view(_f32)
    return np.asarray(series * power)


def exponential_minus_one(operand: Array) -> Array:
    """eˣ − 1, where |x| ≤ ½ as tanh(x/2) · (eˣ + 1)."""
    power = exponential(operand)
    half = operand * _f32(0.5)
    result = np.where(np.abs(operand) > _f32(0.5), power - _f32(1), tanh(half) * (power + _f32(1)))
    return np.where(np.abs(half) < np.finfo(_f32).smallest_normal, operand, result)


def logistic(operand: Array) -> Array:
    """1 / (1 + e⁻ˣ)."""
    return _f32(1) / (_f32(1) + exponential(-operand))


_TANH_BOUND = _f32(7.9988117)
_TANH_NUMERATOR = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def tanh(operand: Array) -> Array:
    """x P(x²)/Q(x²) with x clamped to ±7.9988; x itself where |x| < 0.0004, ±1 from 20 on."""
    magnitude = np.abs(operand)
    held = np.clip(operand, -_TANH_BOUND, _TANH_BOUND)
    square = held * held
    ratio = held * _horner(_TANH_NUMERATOR, square) / _horner(_TANH_DENOMINATOR, square)
    result = np.where(magnitude < _f32(0.0004), operand, ratio)
    return np.where(magnitude >= 20, np.copysign(_f32(1), operand), result)


_ERF_IS_ONE_FROM = _f32(3.832507)
_ERF_NUMERATOR = (0.00022905065, 0.003408291, 0.050955694, 0.18520832, 1.1283791)
_ERF_DENOMINATOR = (-1.1791603e-07, 2.3547966e-05, 0.0010179626, 0.01407047, 0.11098505, 0.49746925, 1.0)


def erf(operand: Array) -> Array:
    """x P(x²)/Q(x²); ±1 from 3.8325 on."""
    square = operand * operand
    ratio = operand * _horner(_ERF_NUMERATOR, square) / _horner(_ERF_DENOMINATOR, square)
    return np.where(np.abs(operand) >= _ERF_IS_ONE_FROM, np.copysign(_f32(1), operand), ratio)


def _in_tiles(function: Callable[[Array], Array], operand: Array) -> Array:
    return in_pieces(function, _f32, np.ascontiguousarray(operand), piece=_TILE)


XLA_CPU_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "erf": partial(_in_tiles, erf),
    "exponential": partial(_in_tiles, exponential),
    "exponential-minus-one": partial(_in_tiles, exponential_minus_one),
    "log": partial(_in_tiles, log),
    "log-plus-one": partial(_in_tiles, log_plus_one),
    "logistic": partial(_in_tiles, logistic),
    "tanh": partial(_in_tiles, tanh),
}
"""By opcode: from f32 to f32."""


def concerns(policy: NumericsPolicy, computation: Computation, instruction: Instruction) -> bool:
    """Whether a policy is about an instruction; of library calls, every one is about all."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is Role.CUSTOM_CALL:
        return entry is not None
    types = [
        shape.element_type
        for shape in (
            *(operand.shape for operand in computation.operands_of(instruction)),
            *parts_of(instruction.shape),
        )
        if isinstance(shape, ArrayShape)
    ]
    is_f32 = any(kind.name == "f32" for kind in types)
    is_computed_in_f32 = bool(types) and types[0].is_floating and types[0].compute.name == "float32"
    operands = [operand for operand in computation.operands_of(instruction) if operand.name in computation.by_name]
    return (
        (
            policy.contraction_operand_mantissa_bits is not None
            and entry.traits.sums is Sums.PRODUCTS
            and is_f32
            and _has_default_precision(instruction)
        )
        or (
            policy.keeps_excess
            and reads_excess(instruction)
            and any(has_excess(computation, operand, policy) for operand in operands)
        )
        or (policy.narrows_sums and entry.rounding is Rounding.SUM and any(map(is_narrow_sum, types)))
        or (policy.has_fast_functions and entry.name in FAST_FUNCTIONS and is_computed_in_f32)
        or (policy.has_xla_cpu_functions and entry.name in XLA_CPU_FUNCTIONS and is_computed_in_f32)
        or (policy.fuses_multiply_add and entry.is_elementwise and is_f32)
        or (policy.flushes_denormals and flushes(entry.traits, frozenset(types)))
        or (policy.is_exact and entry.rounding is not Rounding.NONE)
    )


def _has_default_precision(contraction: Instruction) -> bool:
    """Whether the text leaves it to the backend how the operands are rounded: of what has a precision, the default."""
    attributes = contraction.attributes
    if not hasattr(attributes, "operand_precision"):
        return False
    words = (*attributes.operand_precision, getattr(attributes, "algorithm", "unset"))
    return all(word in ("default", "unset") for word in words)
