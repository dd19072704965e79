"""One training step of a physics-informed network, whose loss contains second derivatives of the network itself.

Raissi et al., Physics-informed neural networks (2019): Burgers' equation, u_t + u u_x = ν u_xx.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.sizes import Program, array, sized

_VISCOSITY = 0.01 / jnp.pi


def pinn_train_step(scale: float) -> Program:
    """8192 points within and 512 at the start, 4 hidden layers of 64 numbers, Adam."""
    size = sized(scale, least=2)
    inside, border, width, layers = size(8192), size(512), size(64), size(4)

    def network(weights: Any, time: Any, place: Any) -> Any:
        h = jnp.stack([time, place])
        for w in weights["hidden"]:
            h = jnp.tanh(h @ w["kernel"] + w["bias"])
        return h @ weights["head"]

    def residual(weights: Any, point: Any) -> Any:
        time, place = jax.nn.sigmoid(point[0]), jnp.tanh(point[1])
        u, u_t = jax.value_and_grad(network, argnums=1)(weights, time, place)
        u_x, u_xx = jax.value_and_grad(jax.grad(network, argnums=2), argnums=2)(weights, time, place)
        return u_t + u * u_x - _VISCOSITY * u_xx

    def loss(weights: Any, points: Any, places: Any) -> Any:
        at_points = jax.vmap(residual, in_axes=(None, 0))(weights, points)
        at_start = jax.vmap(network, in_axes=(None, None, 0))(weights, 0.0, jnp.tanh(places))
        return jnp.square(at_points).mean() + jnp.square(at_start + jnp.sin(jnp.pi * jnp.tanh(places))).mean()

    def step(weights: Any, first: Any, second: Any, points: Any, places: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, points, places)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        weights = jax.tree.map(lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
        return value, weights, first, second

    hidden = [{"kernel": array(width if layer else 2, width), "bias": array(width)} for layer in range(layers)]
    weights = {"hidden": hidden, "head": array(width)}
    return step, (weights, weights, weights, array(inside, 2), array(border))
