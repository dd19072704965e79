"""Sphere tracing of a signed distance field: each ray goes as far as nothing can be hit, until none moves any more.

Hart, Sphere Tracing (1996). The loop ends when the last ray does, so that how often it runs depends on the scene.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.sizes import Program, array, sized

_FAR = 12.0
_NEAR_ENOUGH = 1e-3


def ray_march(scale: float) -> Program:
    """A picture of 180 × 240 points: 8 balls that melt into each other over a wavy floor, with normals and a shadow.

    At most 64 steps to the surface, and 16 to the light.
    """
    size = sized(scale, least=2)
    height, width, balls, steps, shadow_steps = size(180), size(240), size(8), size(64), size(16)

    def distance(scene: Any, place: Any) -> Any:
        """Of one place (f32[3]) to the nearest surface, negative inside; the minimum is rounded off."""
        centres = jnp.tanh(scene["centres"])
        radii = 0.25 + 0.2 * jax.nn.sigmoid(scene["radii"])
        to_balls = jnp.sqrt(jnp.square(place - centres).sum(-1) + 1e-12) - radii
        floor = place[1] + 1.2 + 0.05 * jnp.sin(3 * place[0]) * jnp.sin(3 * place[2])
        return -jax.nn.logsumexp(-8 * jnp.append(to_balls, 0.8 * floor)) / 8

    def render(scene: Any, light: Any) -> Any:
        rows, columns = jnp.linspace(0.75, -0.75, height), jnp.linspace(-1, 1, width)
        across = jnp.stack([*jnp.meshgrid(columns, rows), jnp.full((height, width), 1.5)], -1).reshape(-1, 3)
        rays = across / jnp.linalg.norm(across, axis=-1, keepdims=True)
        eye = jnp.array([0.0, 0.0, -3.5])
        all_distances = jax.vmap(distance, in_axes=(None, 0))

        def is_going_on(state: Any) -> Any:
            count, _, moving = state
            return (count < steps) & moving.any()

        def march(state: Any) -> Any:
            count, gone, moving = state
            free = all_distances(scene, eye + gone[:, None] * rays)
            gone = jnp.where(moving, gone + free, gone)
            return count + 1, gone, moving & (free > _NEAR_ENOUGH) & (gone < _FAR)

        started = (0, jnp.zeros(height * width), jnp.ones(height * width, bool))
        _, gone, _ = jax.lax.while_loop(is_going_on, march, started)
        places = eye + gone[:, None] * rays
        normals = jax.vmap(jax.grad(distance, argnums=1), in_axes=(None, 0))(scene, places)
        to_light = jnp.array([0.3, 1.0, -0.5]) + 0.2 * jnp.tanh(light)
        to_light = to_light / jnp.linalg.norm(to_light)

        def darken(step: Any, shade: Any) -> Any:
            along = 0.05 + 0.15 * step
            return jnp.minimum(shade, 8 * all_distances(scene, places + along * to_light) / along)

        shade = jax.lax.fori_loop(0, shadow_steps, darken, jnp.ones(height * width))
        bright = jnp.maximum(normals @ to_light, 0) * jax.nn.sigmoid(4 * shade - 2)
        fog = jnp.exp(-gone / _FAR)
        return ((0.1 + 0.9 * bright) * fog).reshape(height, width)

    return render, ({"centres": array(balls, 3), "radii": array(balls)}, array(3))
