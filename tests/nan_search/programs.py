"""Modules whose numbers go bad, or only seem to."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.ir import Module

jax = pytest.importorskip("jax", reason="JAX lowers the programs")
jnp = pytest.importorskip("jax.numpy")


def loss(w: Any, x: Any) -> Any:
    activation = jnp.tanh(x @ w)
    energy = jnp.square(x.sum(axis=1))
    return jnp.mean(activation) + jnp.mean(energy) * 1e-3


OVERFLOWING_LINE = loss.__code__.co_firstlineno + 2


def train(w: Any, given: Any) -> Any:
    def step(w: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * gradient * value, value

    return jax.lax.scan(step, w, given)


def batches(bad_iteration: int | None) -> list[np.ndarray[Any, Any]]:
    """Weights and nine batches; of one batch a row is 1e25, whose sum's square f32 cannot hold."""
    given = np.random.default_rng(0).normal(size=(9, 8, 4)).astype(np.float32)
    if bad_iteration is not None:
        given[bad_iteration, 3, :] = 1e25
    return [np.ones(4, np.float32), given]


def training_loop(*, optimized: bool) -> Module:
    return lowered(train, *batches(None), optimized=optimized)


def lowered(function: Any, *arguments: Any, optimized: bool = False) -> Module:
    """A JAX function as XLA writes its HLO, before or after optimization."""
    lowering = jax.jit(function).lower(*arguments)
    if not optimized:
        return hloexec.parse(lowering.as_text("hlo", debug_info=True))
    return hloexec.parse(lowering.compile({"xla_backend_optimization_level": 0}).as_text())


def found(text: str | Module, *inputs: Any, **options: Any) -> Any:
    """What a hunt finds in a module."""
    module = hloexec.parse(text) if isinstance(text, str) else text
    return hloexec.find_nan(module, [[np.asarray(value) for value in inputs]], **options)
