"""One training step of a denoising diffusion model: a U-Net that predicts the noise in 8 images of 32².

Ho et al., Denoising Diffusion Probabilistic Models (2020), made small: two residual blocks at each of three
resolutions, attention at the lowest, the time as a sinusoidal embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.programs.sizes import Program, array, sized

_GROUPS = 4
_MULTIPLES = (1, 2, 2)
"""Channels at each resolution, as multiples of those at the first."""


class _Block(nn.Module):
    """Two convolutions, each behind a group normalization; the time shifts what is between them."""

    channels: int

    @nn.compact
    def __call__(self, x: Any, time: Any) -> Any:
        y = nn.Conv(self.channels, (3, 3))(nn.silu(nn.GroupNorm(_GROUPS)(x)))
        y = y + nn.Dense(self.channels)(nn.silu(time))[:, None, None, :]
        y = nn.Conv(self.channels, (3, 3))(nn.silu(nn.GroupNorm(_GROUPS)(y)))
        return y + (x if x.shape == y.shape else nn.Conv(self.channels, (1, 1))(x))


class _Attention(nn.Module):
    """Every place attends to every other, in one head."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        batch, height, width, channels = x.shape
        places = nn.GroupNorm(_GROUPS)(x).reshape(batch, height * width, channels)
        q, k, v = jnp.split(nn.Dense(3 * channels)(places), 3, axis=-1)
        weights = nn.softmax(jnp.einsum("bqc,bkc->bqk", q, k) * channels**-0.5)
        return x + nn.Dense(channels)(jnp.einsum("bqk,bkc->bqc", weights, v)).reshape(x.shape)


class _UNet(nn.Module):
    """Down through the resolutions and up again, where each block also sees what its counterpart going down left."""

    size: Callable[[int], int]

    @nn.compact
    def __call__(self, x: Any, noise_level: Any) -> Any:
        widths = [_GROUPS * self.size(8) * multiple for multiple in _MULTIPLES]
        frequencies = jnp.exp(jnp.linspace(0.0, 7.0, widths[0] // 2))
        angles = noise_level[:, None] * frequencies
        time = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        time = nn.Dense(4 * widths[0])(nn.silu(nn.Dense(4 * widths[0])(time)))
        out_channels = x.shape[-1]
        x = nn.Conv(widths[0], (3, 3))(x)
        left = []
        for level, width in enumerate(widths):
            if level:
                x = nn.Conv(width, (3, 3), (2, 2))(x)
            for _ in range(2):
                x = _Block(width)(x, time)
                left.append(x)
        x = _Block(widths[-1])(_Attention()(x), time)
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(2):
                x = _Block(width)(jnp.concatenate([x, left.pop()], -1), time)
            if level:
                x = nn.Conv(widths[level - 1], (3, 3))(jnp.repeat(jnp.repeat(x, 2, 1), 2, 2))
        return nn.Conv(out_channels, (3, 3))(nn.silu(nn.GroupNorm(_GROUPS)(x)))


def unet_train_step(scale: float) -> Program:
    """The gradient for 8 images of 32² with 32 to 64 channels; a step of Adam, and a moving average of the weights."""
    batch, side = sized(scale, least=2)(8), 8 * sized(scale)(4)
    network = _UNet(sized(scale))
    images = array(batch, side, side, 3)
    parameters = jax.eval_shape(network.init, jax.random.key(0), images, array(batch))

    def loss(weights: Any, images: Any, noise: Any, time: Any) -> Any:
        level = jax.nn.sigmoid(time)
        signal = jnp.cos(level * jnp.pi / 2)[:, None, None, None]
        share = jnp.sin(level * jnp.pi / 2)[:, None, None, None]
        return jnp.square(network.apply(weights, signal * images + share * noise, level) - noise).mean()

    def step(weights: Any, average: Any, first: Any, second: Any, images: Any, noise: Any, time: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, images, noise, time)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
        weights = jax.tree.map(lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
        average = jax.tree.map(lambda a, w: 0.999 * a + 0.001 * w, average, weights)
        return value, weights, average, first, second

    return step, (parameters, parameters, parameters, parameters, images, images, array(batch))
