"""One training step of a selective state-space block, whose recurrence is an associative scan over the sequence.

Gu and Dao, Mamba (2023), algorithm 2: the step size and the input and output matrices depend on the input.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.sizes import Program, array, sized

_TAPS = 4
"""Of the causal convolution before the scan."""


def mamba_train_step(scale: float) -> Program:
    """2 sequences of 256 steps, width 128, inner width 256, a state of 16 numbers per channel; gradient descent."""
    size = sized(scale, least=2)
    batch, length, width, inner, state = size(2), size(256), size(128), size(256), size(16)

    def combine(earlier: Any, later: Any) -> Any:
        decay, value = earlier
        later_decay, later_value = later
        return decay * later_decay, value * later_decay + later_value

    def block(w: Any, x: Any) -> Any:
        u, gate = jnp.split(x @ w["in"], 2, axis=-1)
        padded = jnp.pad(u, ((0, 0), (_TAPS - 1, 0), (0, 0)))
        u = jax.nn.silu(sum(padded[:, tap : tap + length] * w["taps"][tap] for tap in range(_TAPS)))
        step = jax.nn.softplus(u @ w["step"] + w["step_bias"])
        into, out = u @ w["into_state"], u @ w["out_of_state"]
        decay = jnp.exp(-step[..., None] * jnp.exp(w["log_rates"]))
        driven = (step * u)[..., None] * into[:, :, None, :]
        _, states = jax.lax.associative_scan(combine, (decay, driven), axis=1)
        y = jnp.einsum("blds,bls->bld", states, out) + w["skip"] * u
        return (y * jax.nn.silu(gate)) @ w["out"]

    def loss(w: Any, x: Any, target: Any) -> Any:
        normal = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * w["gain"]
        return jnp.square(x + block(w, normal) - target).mean()

    def train_step(w: Any, x: Any, target: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x, target)
        return value, jax.tree.map(lambda p, g: p - 0.05 * g, w, gradient)

    weights = {
        "gain": array(width),
        "in": array(width, 2 * inner),
        "taps": array(_TAPS, inner),
        "step": array(inner, inner),
        "step_bias": array(inner),
        "into_state": array(inner, state),
        "out_of_state": array(inner, state),
        "log_rates": array(inner, state),
        "skip": array(inner),
        "out": array(inner, width),
    }
    return train_step, (weights, array(batch, length, width), array(batch, length, width))
