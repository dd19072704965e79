"""The formulas of the `exact` policy by opcode, for those opcodes whose usual formula depends on the processor, or
rounds twice.

Like all formulas they take arrays of compute types; they return f64 (or c128), and the kernel around them rounds once.
For results of f32 or less, the C library's function of f64 numbers has so many more digits that it is enough for nearly
all elements, whatever the library: it is trusted with an error below 2⁻⁴³, hundreds of times what libraries claim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.values import Array
from hloexec.ops.complex_parts import from_parts
from hloexec.ops.policies.exact import arcs, exponentials, logarithms, roots, trigonometry
from hloexec.ops.policies.exact.certainty import near_a_middle
from hloexec.ops.policies.exact.complex_functions import COMPLEX_FUNCTIONS, absolute
from hloexec.ops.threads import in_pieces

_TILE = 1 << 13
"""Elements that go through a function at a time, so that its many intermediate results stay in the cache."""

Function = Callable[..., Any]


def _formula(function: Function, dtype: Any = np.float64, usual: Function | None = None) -> Function:
    """A formula with results of `dtype`, from a function of flat f64 numbers, or of complex numbers' parts in f64.

    Where there is a usual function, it decides all elements that the other would not round to another f32.
    """

    def of_piece(*operands: Array) -> Array:
        parts = [
            np.ascontiguousarray(part, np.float64)
            for operand in operands
            for part in ((operand.real, operand.imag) if operand.dtype.kind == "c" else (operand,))
        ]
        if usual is not None:
            found: Array = usual(*parts)
            again = near_a_middle(found)
            if again.size:
                found[again] = function(*(part[again] for part in parts))
            return found
        value = function(*parts)
        return from_parts(*value) if isinstance(value, tuple) else value

    def compute(*operands: Array) -> Array:
        flat = (np.ascontiguousarray(operand).reshape(-1) for operand in operands)
        return in_pieces(of_piece, dtype, *flat, piece=_TILE).reshape(operands[0].shape)

    return compute


def _usual_logistic(x: Array) -> Array:
    power = np.exp(-x)
    power += 1
    return np.divide(1, power, out=power)


_USUAL: dict[str, Function] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "cosh": np.cosh,
    "erf": roots.plain_error_function,
    "exponential": np.exp,
    "exp2": np.exp2,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log-plus-one": np.log1p,
    "logistic": _usual_logistic,
    "power": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
}
"""What the C library has, and what is made of little more."""

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
    "exp2": exponentials.exponential_of_two,
    "exponential-minus-one": exponentials.exponential_minus_one,
    "log": logarithms.log,
    "log2": logarithms.log_to_base_two,
    "log-plus-one": logarithms.log_plus_one,
    "logistic": exponentials.logistic,
    "power": logarithms.power,
    "rsqrt": roots.reciprocal_square_root,
    "sine": trigonometry.sin,
    "sinh": exponentials.sinh,
    "tan": trigonometry.tan,
    "tanh": exponentials.tanh,
}

QUICK_FORMULAS: dict[str, Function] = {name: _formula(_FUNCTIONS[name], usual=usual) for name, usual in _USUAL.items()}
"""Formulas of floats whose results are rounded to f32 or to narrower types: the same results."""

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
