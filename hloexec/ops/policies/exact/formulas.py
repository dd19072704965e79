"""The formulas of the `exact` policy by opcode, for those opcodes whose usual formula depends on the processor, or
rounds twice.

Like all formulas they take arrays of compute types; they return f64 (or c128), and the kernel around them rounds once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hloexec.dtypes import Kind
from hloexec.ops.complex_parts import from_parts
from hloexec.ops.policies.exact import arcs, exponentials, logarithms, roots, trigonometry
from hloexec.ops.policies.exact.complex_functions import COMPLEX_FUNCTIONS, absolute
from hloexec.ops.threads import in_pieces
from hloexec.values import Array

__all__ = ["EXACT_FORMULAS"]

_TILE = 1 << 13
"""Elements that go through a function at a time, so that its many intermediate results stay in the cache."""

Function = Callable[..., Any]


def _formula(function: Function, dtype: Any = np.float64) -> Function:
    """A formula with results of `dtype`, from a function of flat f64 numbers, or of complex numbers' parts in f64."""

    def of_piece(*operands: Array) -> Array:
        parts = (
            np.ascontiguousarray(part, np.float64)
            for operand in operands
            for part in ((operand.real, operand.imag) if operand.dtype.kind == "c" else (operand,))
        )
        value = function(*parts)
        return from_parts(*value) if isinstance(value, tuple) else value

    def compute(*operands: Array) -> Array:
        flat = (np.ascontiguousarray(operand).reshape(-1) for operand in operands)
        return in_pieces(of_piece, dtype, *flat, piece=_TILE).reshape(operands[0].shape)

    return compute


_FUNCTIONS: dict[str, Function] = {
    "acos": arcs.arc_cosine,
    "acosh": logarithms.inverse_hyperbolic_cosine,
    "asin": arcs.arc_sine,
    "asinh": logarithms.inverse_hyperbolic_sine,
    "atan2": arcs.arc_tangent_of_point,
    "atanh": logarithms.inverse_hyperbolic_tangent,
    "cbrt": roots.cube_root,
    "cosine": trigonometry.cos,
    "cosh": exponentials.cosh,
    "erf": roots.error_function,
    "exponential": exponentials.exponential,
    "exponential-minus-one": exponentials.exponential_minus_one,
    "log": logarithms.log,
    "log-plus-one": logarithms.log_plus_one,
    "logistic": exponentials.logistic,
    "power": logarithms.power,
    "rsqrt": roots.reciprocal_square_root,
    "sine": trigonometry.sin,
    "sinh": exponentials.sinh,
    "tan": trigonometry.tan,
    "tanh": exponentials.tanh,
}

EXACT_FORMULAS: dict[Kind, dict[str, Function]] = {
    Kind.FLOAT: {
        **{name: _formula(function) for name, function in _FUNCTIONS.items()},
        "divide": np.divide,
        "multiply": np.multiply,
    },
    Kind.COMPLEX: {
        **{name: _formula(function, np.complex128) for name, function in COMPLEX_FUNCTIONS.items()},
        "abs": _formula(absolute),
    },
}
"""By the kind of the first operand and the opcode; what is missing is exact anyway, as addition of floats is."""
