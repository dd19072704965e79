"""Networks on images: convolutions, patches, pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)
_NUMBERS = ("NHWC", "HWIO", "NHWC")


def _convolution(jax: Any, x: Any, kernel: Any, stride: int = 1, dilation: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", rhs_dilation=(dilation, dilation), dimension_numbers=_NUMBERS
    )


def _group_norm(jax: Any, x: Any, groups: int) -> Any:
    shape = x.shape
    x = x.reshape(*shape[:-1], groups, shape[-1] // groups)
    mean = x.mean((1, 2, 4), keepdims=True)
    variance = ((x - mean) ** 2).mean((1, 2, 4), keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(shape)


@_program
def _u_net(jax: Any) -> Any:
    """Down, a dilated middle, up with a connection across; group norms; with the gradient of a mask's loss."""
    jnp = jax.numpy

    def u_net(kernels: Any, x: Any, target: Any) -> Any:
        def loss(kernels: Any) -> Any:
            first = jax.nn.silu(_group_norm(jax, _convolution(jax, x, kernels["first"]), 2))
            low = jax.lax.reduce_window(first, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
            middle = jax.nn.silu(_group_norm(jax, _convolution(jax, low, kernels["middle"], dilation=2), 2))
            up = jnp.repeat(jnp.repeat(middle, 2, 1), 2, 2)
            joint = jnp.concatenate([first, up], -1)
            last = _convolution(jax, joint, kernels["last"])
            probability = jax.nn.sigmoid(last)
            dice = 1 - (2 * (probability * target).sum() + 1) / (probability.sum() + target.sum() + 1)
            return dice + (jax.nn.softplus(last) - last * target).mean(), last

        return jax.value_and_grad(loss, has_aux=True)(kernels)

    kernels = {
        "first": normal(1, 3, 3, 2, 4) / 2,
        "middle": normal(2, 3, 3, 4, 6) / 2,
        "last": normal(3, 3, 3, 10, 1) / 2,
    }
    return u_net, (kernels, normal(4, 1, 8, 8, 2), (normal(5, 1, 8, 8, 1) > 0).astype(np.float32))


@_program
def _vit_block_bf16(jax: Any) -> Any:
    """Patches, a class token, one block of attention and a network, in bf16 with norms in f32."""
    jnp = jax.numpy

    def normed(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale

    def vit_block_bf16(image: Any, p: Any) -> Any:
        patches = image.reshape(2, 3, 4, 3, 4, 2).transpose(0, 1, 3, 2, 4, 5).reshape(2, 9, 32)
        x = patches @ p["embed"] + p["position"]
        x = jnp.concatenate([jnp.broadcast_to(p["token"], (2, 1, 16)), x], 1)
        q, k, v = jnp.split(normed(x, p["scale"][0]) @ p["qkv"], 3, -1)
        q, k, v = (each.reshape(2, 10, 2, 8).transpose(0, 2, 1, 3) for each in (q, k, v))
        weights = jax.nn.softmax((q @ k.swapaxes(2, 3)).astype(jnp.float32) / np.sqrt(8)).astype(x.dtype)
        x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(2, 10, 16) @ p["out"]
        x = x + jax.nn.gelu(normed(x, p["scale"][1]) @ p["up"]) @ p["down"]
        return x, jax.nn.log_softmax((x[:, 0] @ p["head"]).astype(jnp.float32))

    shapes = {"embed": (32, 16), "position": (9, 16), "token": (16,), "qkv": (16, 48), "out": (16, 16)}
    shapes |= {"up": (16, 32), "down": (32, 16), "head": (16, 5)}
    weights = {name: jnp.asarray(normal(n, *size), jnp.bfloat16) for n, (name, size) in enumerate(shapes.items())}
    weights["scale"] = jnp.asarray(1 + 0.1 * normal(9, 2, 16), jnp.bfloat16)
    return vit_block_bf16, (jnp.asarray(normal(8, 2, 12, 12, 2) * 3, jnp.bfloat16), weights)


@_program
def _residual_net(jax: Any) -> Any:
    """Strided and depthwise convolutions, batch norm in training, max pooling, and the gradient of all."""
    jnp, lax = jax.numpy, jax.lax

    def residual_net(kernels: Any, x: Any, labels: Any) -> Any:
        def batch_norm(x: Any) -> Any:
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            return (x - mean) * lax.rsqrt(variance + 1e-3), mean

        def loss(kernels: Any) -> Any:
            hidden, mean = batch_norm(_convolution(jax, x, kernels[0], stride=2))
            hidden = jax.nn.relu(hidden)
            deep = lax.conv_general_dilated(
                hidden, kernels[1], (1, 1), "SAME", dimension_numbers=_NUMBERS, feature_group_count=4
            )
            hidden = hidden + jax.nn.relu6(batch_norm(deep)[0])
            pooled = lax.reduce_window(hidden, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            logits = pooled.mean((1, 2)) @ kernels[2]
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
            return -chosen.mean(), mean

        return jax.value_and_grad(loss, has_aux=True)(kernels)

    kernels = (normal(1, 3, 3, 3, 4) / 2, normal(2, 3, 3, 1, 4), normal(3, 4, 5))
    return residual_net, (kernels, normal(4, 2, 12, 12, 3), integers(5, 5, 2))


@_program
def _diffusion_step(jax: Any) -> Any:
    """A step backwards of a sampler: an embedding of the time, guidance, a threshold, and new noise from a key."""
    jnp = jax.numpy

    def network(x: Any, embedding: Any, kernels: Any) -> Any:
        hidden = _convolution(jax, x, kernels[0]) + embedding @ kernels[1]
        return _convolution(jax, jax.nn.silu(_group_norm(jax, hidden, 2)), kernels[2])

    def diffusion_step(x: Any, kernels: Any, classes: Any, time: Any, key: Any) -> Any:
        betas = jnp.linspace(1e-3, 0.1, 20)
        kept = jnp.cumprod(1 - betas)
        angles = time.astype(jnp.float32) * jnp.exp(-jnp.arange(4) * 1.5)
        embedding = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])
        free, guided = network(x, embedding, kernels), network(x, embedding + classes, kernels)
        noise = free + 3.0 * (guided - free)
        start = (x - jnp.sqrt(1 - kept[time]) * noise) / jnp.sqrt(kept[time])
        limit = jnp.maximum(jnp.sort(jnp.abs(start).reshape(-1))[-6], 1.0)
        start = jnp.clip(start, -limit, limit) / limit
        before = jnp.where(time > 0, kept[time - 1], 1.0)
        mean = jnp.sqrt(before) * betas[time] / (1 - kept[time]) * start
        mean += jnp.sqrt(1 - betas[time]) * (1 - before) / (1 - kept[time]) * x
        deviation = jnp.sqrt(betas[time] * (1 - before) / (1 - kept[time]))
        return mean + deviation * jax.random.normal(jax.random.wrap_key_data(key), x.shape), start

    kernels = (normal(1, 3, 3, 2, 4), normal(2, 8, 4), normal(3, 3, 3, 4, 2))
    return diffusion_step, (normal(4, 1, 6, 6, 2) * 2, kernels, normal(5, 8), np.int32(7), np.array([3, 9], np.uint32))
