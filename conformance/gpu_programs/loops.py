"""Loops of a hundred steps, in which errors gather or die away."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from conformance.gpu_programs.program import normal, program, weight

_STEPS = 100


@program(weight(24, 6), normal(40, 24), normal(40, 6), types="f32 bf16")
def descend(weights, x, y):
    """Least squares by gradient descent with momentum: the loss of each step, and where it ends."""

    def loss(w: Any) -> Any:
        return ((x @ w - y).astype(jnp.float32) ** 2).mean()

    def step(state: Any, _: Any) -> Any:
        w, speed = state
        value, gradient = jax.value_and_grad(loss)(w)
        speed = jnp.asarray(0.5, w.dtype) * speed + gradient
        return (w - jnp.asarray(0.25, w.dtype) * speed, speed), value

    return lax.scan(step, (weights, jnp.zeros_like(weights)), length=_STEPS)


@program(weight(20, 20), normal(100, 8, 20), types="f32 bf16 f16")
def recur(weights, xs):
    """A recurrent layer, whose state forgets."""

    def cell(h: Any, x: Any) -> Any:
        h = jnp.tanh(jnp.asarray(0.5, h.dtype) * (h @ weights) + x)
        return h, h.sum(-1)

    return lax.scan(cell, jnp.zeros_like(xs[0]), xs)


@program(normal(18, 30), types="f32 f16")
def diffuse(field):
    """Heat on a torus: every point becomes a mean of itself and its four neighbours."""

    def step(_: Any, u: Any) -> Any:
        around = sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1))
        return u + jnp.asarray(0.125, u.dtype) * (around - 4 * u)

    return lax.fori_loop(0, _STEPS, step, field)
