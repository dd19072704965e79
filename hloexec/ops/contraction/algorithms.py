"""The `algorithm` of a dot: the type that its operands are rounded to, and the type in which products are accumulated.

A name is `dot_<lhs>_<rhs>_<accumulation>`. An operand with more precision than one rounding keeps is split: x3, x6 and
x9 are the numbers of products of parts (high, middle, low) that are added, the small ones first. Source: StableHLO,
dot_general, "algorithm"; XLA, PrecisionConfig.Algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type
from hloexec.core.values import Array
from hloexec.ops.common import narrow, widen
from hloexec.ops.contraction.matrix_product import (
    HIGH_AND_MIDDLE,
    WITHOUT_THE_SMALLEST,
    FloatMultiplier,
    OperandSplit,
    operand_split,
    round_mantissa,
)
from hloexec.ops.policies.policy import NumericsPolicy


def _round_trip(array: Array, entry: ElementType) -> Array:
    return widen(narrow(array, entry))


_BF16: Callable[[Array], Array] = partial(_round_trip, entry=element_type("bf16"))
_F16: Callable[[Array], Array] = partial(_round_trip, entry=element_type("f16"))
_TF32: Callable[[Array], Array] = partial(round_mantissa, bits=10)

_ALL_NINE = ((2, 2), (2, 1), (1, 2), *WITHOUT_THE_SMALLEST)

_PLAIN = FloatMultiplier(np.dtype(np.float32))


def _in_f32(split: OperandSplit, sum_type: str | None = None) -> FloatMultiplier:
    return FloatMultiplier(np.dtype(np.float32), split, None if sum_type is None else element_type(sum_type))


_MULTIPLIERS = {
    "dot_any_f8_any_f8_f32": _PLAIN,
    "dot_any_f8_any_f8_f32_fast_accum": _PLAIN,
    "dot_f16_f16_f16": _in_f32(OperandSplit(_F16), "f16"),
    "dot_f16_f16_f32": _in_f32(OperandSplit(_F16)),
    "dot_bf16_bf16_bf16": _in_f32(OperandSplit(_BF16), "bf16"),
    "dot_bf16_bf16_f32": _in_f32(OperandSplit(_BF16)),
    "dot_bf16_bf16_f32_x3": _in_f32(OperandSplit(_BF16, 2, HIGH_AND_MIDDLE)),
    "dot_bf16_bf16_f32_x6": _in_f32(OperandSplit(_BF16, 3, WITHOUT_THE_SMALLEST)),
    "dot_tf32_tf32_f32": _in_f32(OperandSplit(_TF32)),
    "dot_tf32_tf32_f32_x3": _in_f32(OperandSplit(_TF32, 2, HIGH_AND_MIDDLE)),
    "dot_f32_f32_f32": _PLAIN,
    "dot_f64_f64_f64": FloatMultiplier(np.dtype(np.float64)),
    "dot_bf16_bf16_f32_x9": _in_f32(OperandSplit(_BF16, 3, _ALL_NINE)),
}

DOT_ALGORITHMS = ("unset", *_MULTIPLIERS)
"""The words that `algorithm=` takes, in the order of their numbers in protocol buffers; `unset` is what types say."""


def algorithm_multiplier(algorithm: str) -> FloatMultiplier:
    """How a dot with this algorithm multiplies; KeyError for `unset` and words that are not in DOT_ALGORITHMS."""
    return _MULTIPLIERS[algorithm]


def contraction_split(
    given: Mapping[str, Any], numerics: NumericsPolicy
) -> tuple[OperandSplit | None, Mapping[str, Any]]:
    """What a contraction's algorithm, precision and policy do to its operands, and the keyword arguments of its kernel
    without that; None, and all of them, where they do nothing, or round sums as well. What has no precision, as the
    solution of a triangular system, no policy is about."""
    attributes = given["attributes"]
    algorithm = getattr(attributes, "algorithm", "unset")
    if algorithm != "unset" and not numerics.ignores_algorithms:
        multiplier = algorithm_multiplier(algorithm)
        if multiplier.sum_type is not None or multiplier.split is None:
            return None, given
        return multiplier.split, {**given, "attributes": attrs.evolve(attributes, algorithm="unset")}
    precision = getattr(attributes, "operand_precision", None)
    is_default = precision is not None and all(word == "default" for word in precision)
    split = operand_split(numerics) if is_default else None
    if split is None:
        return None, given
    return split, {**given, "numerics": numerics.changed(contraction_operand_mantissa_bits=None, contraction_passes=1)}
