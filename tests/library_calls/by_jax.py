"""What JAX computes, each time as one program: run one by one, operations are also compiled one by one.

Programs are compiled soon rather than well, since each runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.xla import COMPILED_SOONEST


def by_jax(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function's result, with NumPy's arrays as its leaves; f64 stays f64."""
    import jax

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function, compiler_options={**COMPILED_SOONEST})(*arguments))


def with_gradients_by_jax(
    function: Callable[..., Any], *arguments: Any, cotangent: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """The output, the gradients by each argument for a cotangent of the output and, `has_aux`, what is returned beside
    the output."""
    import jax

    def differentiated(cotangent: Any, *arguments: Any) -> tuple[Any, ...]:
        output, pull, *others = jax.vjp(function, *arguments, has_aux=has_aux)
        return output, pull(cotangent), *others

    return by_jax(differentiated, cotangent, *arguments)
