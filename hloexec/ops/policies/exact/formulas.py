"""The formulas of the `exact` policy by opcode, for those opcodes whose usual formula depends on the processor, or
rounds twice.

Like all formulas they take arrays of compute types; they return f64 (or c128), and the kernel around them rounds once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.dtypes import Kind
from hloexec.ops.complex_parts import from_parts
from hloexec.ops.policies.exact import arcs, complex_functions, exponentials, logarithms, roots, trigonometry
from hloexec.values import Array

__all__ = ["EXACT_FORMULAS"]

_TILE = 1 << 13
"""Elements that go through a function at a time, so that its many intermediate results stay in the cache."""

Function = Callable[..., Any]


def _in_tiles(function: Function, operands: Sequence[Array], results: Sequence[Array]) -> None:
    """Fill flat f64 results with what the function makes of flat operands, taken to f64 and a tile at a time."""
    for start in range(0, operands[0].size, _TILE):
        tile = slice(start, start + _TILE)
        values = function(*(np.ascontiguousarray(operand[tile], np.float64) for operand in operands))
        for result, value in zip(results, values if isinstance(values, tuple) else (values,), strict=True):
            result[tile] = value


def _real(function: Function) -> Function:
    """A formula for real operands."""

    def compute(*operands: Array) -> Array:
        result = np.empty(operands[0].shape, np.float64)
        _in_tiles(function, [operand.reshape(-1) for operand in operands], [result.reshape(-1)])
        return result

    return compute


def _parts(operands: Sequence[Array]) -> list[Array]:
    flat = [operand.reshape(-1) for operand in operands]
    return [part for operand in flat for part in (operand.real, operand.imag)]


def _complex(function: Function) -> Function:
    """A formula for complex operands and results, of a function on parts."""

    def compute(*operands: Array) -> Array:
        real, imag = np.empty((2, operands[0].size))
        _in_tiles(function, _parts(operands), [real, imag])
        result: Array = from_parts(real, imag).reshape(operands[0].shape)
        return result

    return compute


def _length(function: Function) -> Function:
    """A formula for complex operands and real results."""

    def compute(*operands: Array) -> Array:
        result = np.empty(operands[0].shape, np.float64)
        _in_tiles(function, _parts(operands), [result.reshape(-1)])
        return result

    return compute


# By opcode: of floats, of complex numbers.
_FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "acos": (arcs.arc_cosine, complex_functions.acos),
    "acosh": (logarithms.inverse_hyperbolic_cosine, complex_functions.acosh),
    "asin": (arcs.arc_sine, complex_functions.asin),
    "asinh": (logarithms.inverse_hyperbolic_sine, complex_functions.asinh),
    "atan2": (arcs.arc_tangent_of_point, complex_functions.atan2),
    "atanh": (logarithms.inverse_hyperbolic_tangent, complex_functions.atanh),
    "cosine": (trigonometry.cos, complex_functions.cosine),
    "cosh": (exponentials.cosh, complex_functions.hyperbolic_cosine),
    "exponential": (exponentials.exponential, complex_functions.exponential),
    "exponential-minus-one": (exponentials.exponential_minus_one, complex_functions.expm1),
    "log": (logarithms.log, complex_functions.log),
    "log-plus-one": (logarithms.log_plus_one, complex_functions.log1p),
    "logistic": (exponentials.logistic, complex_functions.logistic),
    "rsqrt": (roots.reciprocal_square_root, complex_functions.rsqrt),
    "sine": (trigonometry.sin, complex_functions.sine),
    "sinh": (exponentials.sinh, complex_functions.hyperbolic_sine),
    "tan": (trigonometry.tan, complex_functions.tangent),
    "tanh": (exponentials.tanh, complex_functions.hyperbolic_tangent),
}

_FLOAT_FORMULAS: dict[str, Function] = {
    **{name: _real(function) for name, (function, _) in _FUNCTIONS.items()},
    "cbrt": _real(roots.cube_root),
    "divide": np.divide,
    "erf": _real(roots.error_function),
    "multiply": np.multiply,
    "power": _real(logarithms.power),
}
_COMPLEX_FORMULAS: dict[str, Function] = {
    **{name: _complex(function) for name, (_, function) in _FUNCTIONS.items()},
    "abs": _length(complex_functions.absolute),
    "divide": _complex(complex_functions.divide),
    "multiply": _complex(complex_functions.multiply),
    "power": _complex(complex_functions.power),
    "sign": _complex(complex_functions.sign),
    "sqrt": _complex(complex_functions.square_root),
}

EXACT_FORMULAS = {Kind.FLOAT: _FLOAT_FORMULAS, Kind.COMPLEX: _COMPLEX_FORMULAS}
"""By the kind of the first operand and the opcode; what is missing is exact anyway, as addition of floats is."""
