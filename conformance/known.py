"""Where hloexec differs from XLA:CPU on purpose, each with the sentence that settles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from conformance import bounds
from conformance.cell import Accumulated, Array, Correct, Example, Normwise
from conformance.checking import Outcome
from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of

Where = Callable[[Example, Outcome, Sequence[Array], Sequence[Array] | None], bool]
"""Whether a difference is this one: every wrong element, and the whole message, is explained by it."""


@attrs.frozen
class Known:
    """A class of differences."""

    name: str
    reason: str
    """What XLA:CPU does, what hloexec does, and the sentence of the specification that settles it."""
    where: Where


KNOWN: list[Known] = []


def known_difference(
    example: Example, outcome: Outcome, ours: Sequence[Array], xla: Sequence[Array] | None
) -> str | None:
    """The name of the known difference that a difference is, or None."""
    for known in KNOWN:
        if known.where(example, outcome, ours, xla):
            return known.name
    return None


def _is_float(example: Example) -> bool:
    entry = ELEMENT_TYPES[example.element_type]
    return entry.is_floating or entry.is_complex


def _opcodes(names: str, *types: str) -> Callable[[Example], bool]:
    chosen = names.split()
    return lambda example: example.opcode in chosen and (not types or example.element_type in types)


def _where(matches: Callable[[Example], bool], *words: str) -> Where:
    """A difference of these examples, in its elements, or whose message has one of the words."""

    def holds(example: Example, outcome: Outcome, ours: Sequence[Array], xla: Sequence[Array] | None) -> bool:
        if outcome.message:
            return matches(example) and any(word in outcome.message for word in words)
        return not words and matches(example)

    return holds


def _at(matches: Callable[[Example], bool], explained: Callable[[Example, Array, Array], Array]) -> Where:
    """A difference whose every wrong element, hloexec's or XLA's, is one that `explained` names."""

    def holds(example: Example, outcome: Outcome, ours: Sequence[Array], xla: Sequence[Array] | None) -> bool:
        if outcome.message or xla is None or not matches(example):
            return False
        masks = outcome.xla_wrong if outcome.is_right else outcome.wrong
        return all(
            bool(explained(example, value, theirs)[mask].all())
            for mask, value, theirs in zip(masks, ours, xla, strict=True)
            if mask.any()
        )

    return holds


def _xla_inaccurate(example: Example, outcome: Outcome, ours: Sequence[Array], xla: Sequence[Array] | None) -> bool:
    return outcome.is_right and isinstance(example.check, Correct) and _is_float(example)


def _xla_sums_stepwise(example: Example, outcome: Outcome, ours: Sequence[Array], xla: Sequence[Array] | None) -> bool:
    return (
        outcome.is_right
        and isinstance(example.check, Accumulated | Normwise)
        and any(mask.any() for mask in outcome.xla_wrong)
    )


def _is_flushed(example: Example, value: Array, theirs: Array) -> Array:
    """Denormal here and zero there."""
    entry = element_type_of(value.dtype)
    if not entry.is_floating:
        return np.zeros(value.shape, bool)
    tiny = bounds.smallest_normal(element_type_of(entry.compute))
    return np.asarray((np.abs(value.astype(np.float64)) < tiny) & (theirs.astype(np.float64) == 0))


def _exponent_beyond_six_bits(example: Example, value: Array, theirs: Array) -> Array:
    exponent = example.operands[1].astype(np.float64)
    return np.asarray(
        (exponent < 0) | (exponent >= 64) | (exponent >= 2 ** (ELEMENT_TYPES[example.element_type].bits - 1))
    )


def _largest_f4(example: Example, value: Array, theirs: Array) -> Array:
    return np.asarray(np.abs(example.operands[0].astype(np.float32)) == 6)


def _f16_denormal(example: Example, value: Array, theirs: Array) -> Array:
    return np.asarray(np.abs(example.operands[0].astype(np.float64)) < 2.0**-14)


_COMPLEX = ("c64", "c128")
_STOCHASTIC = ("f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn", "f8e4m3fnuz", "f8e3m4", "f4e2m1fn", "f8e8m0fnu", "f8e5m2fnuz")

KNOWN += [
    Known(
        "denormal numbers",
        "XLA:CPU flushes denormal results to zero, hloexec keeps them. IEEE 754: subnormal numbers are among the "
        "numbers of a format.",
        _at(lambda example: True, _is_flushed),
    ),
    Known(
        "accuracy of functions",
        "XLA:CPU's result is farther from the exact value than the bound, hloexec's is within it. The mathematical "
        "function, evaluated with mpmath or in f64, decides.",
        _xla_inaccurate,
    ),
    Known(
        "accuracy of sums",
        "XLA:CPU adds some narrow floats in their own type, step by step, and leaves the bound of accumulation in f32; "
        "hloexec stays within it. StableHLO, reduce: 'The order of reductions is implementation-defined'; the exact "
        "sum decides.",
        _xla_sums_stepwise,
    ),
    Known(
        "exponents of integer powers",
        "XLA:CPU reads the lowest six bits of an exponent, as a signed number; hloexec reads all of it. StableHLO, "
        "power: 'For integers: integer exponentiation'.",
        _at(_opcodes("power"), _exponent_beyond_six_bits),
    ),
    Known(
        "bits of s4",
        "XLA:CPU counts the bits of a sign-extended s4, hloexec its four. StableHLO, popcnt: 'element-wise count of "
        "the number of bits set in the operand tensor'.",
        _at(_opcodes("popcnt", "s4", "s2"), lambda example, value, theirs: example.operands[0].astype(np.int8) < 0),
    ),
    Known(
        "order of complex numbers",
        "XLA:CPU compares real parts only, hloexec pairs. StableHLO, compare: 'For complex element types, "
        "lexicographic comparison of (real, imag) pairs is performed'.",
        _where(_opcodes("maximum minimum clamp compare sort reduce", *_COMPLEX)),
    ),
    Known(
        "topk of complex numbers",
        "XLA runs it, hloexec refuses it. StableHLO, compare: 'Imposing an ordering on complex numbers involves "
        "surprising semantics'.",
        _where(_opcodes("topk", *_COMPLEX), "does not allow"),
    ),
    Known(
        "NaN in complex constants",
        "XLA's import makes both parts of a complex constant NaN where one is; hloexec keeps what the text says. "
        "StableHLO, constant: 'Produces an output tensor from a constant value'.",
        _at(_opcodes("constant", *_COMPLEX), lambda example, value, theirs: np.isnan(value) & np.isnan(theirs)),
    ),
    Known(
        "f4e2m1fn to integers",
        "XLA:CPU takes 6, the largest number of the type, for one beyond every integer type and saturates; hloexec "
        "gives 6. StableHLO, convert: 'For conversions involving floating-point-to-integer, the fractional part is "
        "truncated'.",
        _at(_opcodes("convert stochastic-convert", "f4e2m1fn"), _largest_f4),
    ),
    Known(
        "scale of stochastic-convert",
        "XLA:CPU scales the fraction by 2^bits in the operand's own type, whose range does not reach it; hloexec "
        "compares exactly. XLA rounds away from zero where the random number is below the fraction.",
        _where(_opcodes("stochastic-convert", *_STOCHASTIC)),
    ),
    Known(
        "reduce-precision of f16 denormals",
        "XLA:CPU widens f16 to f32, in which its denormals are normal numbers, and flushes those below the smallest "
        "normal number of the target; hloexec rounds them as f16 does. StableHLO, reduce_precision: 'element-wise "
        "conversion of operand to another floating-point type that uses exponent_bits and mantissa_bits and back'.",
        _at(_opcodes("reduce-precision", "f16"), _f16_denormal),
    ),
]
