"""Programs of many layers, whose modules have up to 3 000 instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evaluation.programs.program import normal

DEEP = ["deep_decoder", "deep_mlp", "deep_mixer", "deep_convolutions"]
"""Every other one is of the held half."""


def made(jax: Any, name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its arguments."""
    jnp = jax.numpy

    def mlp(weights: Any, x: Any) -> Any:
        for up, down in weights:
            mean = x.mean(-1, keepdims=True)
            scaled = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
            x = x + jnp.tanh(scaled @ up) @ down
        return (x**2).mean()

    def mixer(weights: Any, x: Any) -> Any:
        for tokens, channels in weights:
            x = x + jax.nn.gelu(x.T @ tokens).T
            x = x + jax.nn.softmax(x @ channels)
        return jnp.abs(x).sum()

    def decoder(weights: Any, x: Any) -> Any:
        mask = jnp.tril(jnp.ones((8, 8), bool))
        for qkv, out in weights:
            q, k, v = jnp.split(x @ qkv, 3, -1)
            scores = jnp.where(mask, q @ k.T / 4, -1e9)
            x = x + jax.nn.softmax(scores) @ v @ out
            x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return jax.nn.logsumexp(x)

    def convolutions(weights: Any, x: Any) -> Any:
        for kernel, scale in weights:
            y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = x + jax.nn.relu(y * scale)
        return (x**3).mean()

    programs: dict[str, tuple[Any, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
        "deep_mlp": (mlp, 24, (16, 32), (32, 16), (8, 16)),
        "deep_mixer": (mixer, 24, (8, 8), (16, 16), (8, 16)),
        "deep_decoder": (decoder, 24, (16, 48), (16, 16), (8, 16)),
        "deep_convolutions": (convolutions, 40, (3, 3, 4, 4), (4,), (2, 6, 6, 4)),
    }
    function, layers, first, second, given = programs[name]
    weights = [(normal(2 * layer, *first), normal(2 * layer + 1, *second)) for layer in range(layers)]
    return jax.value_and_grad(function), (weights, normal(999, *given))
