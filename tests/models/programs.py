"""Small networks, forward and backward, as people write them: a training step each, in plain JAX and in flax.

A program is a function of parameters and data, and their values in f32; what it returns is checked leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn

Program = tuple[Callable[..., Any], tuple[Any, ...]]

_WIDTH, _HEADS, _LENGTH, _WORDS, _LAYERS = 16, 4, 10, 23, 3


def _weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Normal numbers that keep the size of what they are multiplied with."""
    generator = np.random.default_rng(seed)
    return {
        name: (generator.normal(size=shape) / np.sqrt(shape[-2] if len(shape) > 1 else 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def _numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _integers(seed: int, below: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)


def _layer_norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * scale


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return -jnp.take_along_axis(nn.log_softmax(logits), targets[..., None], -1).mean()


def _step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """One step of gradient descent: the loss, and the parameters after it."""

    def step(parameters: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        return value, jax.tree.map(lambda p, g: p - np.asarray(0.125, p.dtype) * g, parameters, gradients)

    return step


def _transformer() -> Program:
    """A decoder: a scan over its layers, each of them computed again on the way back."""

    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        heads = (*x.shape[:2], _HEADS, _WIDTH // _HEADS)
        q, k, v = (part.reshape(heads) for part in jnp.split(_layer_norm(x, w["scale"]) @ w["qkv"], 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
        mask = np.tril(np.ones((_LENGTH, _LENGTH), bool))
        attention = nn.softmax(jnp.where(mask, scores, -1e9))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", attention, v).reshape(x.shape) @ w["out"]
        return x + nn.gelu(_layer_norm(x, w["scale"]) @ w["up"]) @ w["down"], None

    def loss(parameters: Any, words: Any) -> Any:
        x = parameters["embedding"][words[:, :-1]] + parameters["positions"]
        x, _ = lax.scan(layer, x, parameters["layers"])
        return _cross_entropy(x @ parameters["embedding"].T, words[:, 1:])

    layers = _weights(
        1,
        scale=(_LAYERS, _WIDTH),
        qkv=(_LAYERS, _WIDTH, 3 * _WIDTH),
        out=(_LAYERS, _WIDTH, _WIDTH),
        up=(_LAYERS, _WIDTH, 2 * _WIDTH),
        down=(_LAYERS, 2 * _WIDTH, _WIDTH),
    )
    parameters = _weights(2, embedding=(_WORDS, _WIDTH), positions=(_LENGTH, _WIDTH)) | {"layers": layers}
    return _step(loss), (parameters, _integers(3, _WORDS, 2, _LENGTH + 1))


def _convnet() -> Program:
    """Convolution, batch normalization, pooling: the gradient of a maximum goes to one element of each window."""

    def block(x: Any, w: Any, stride: int) -> Any:
        x = lax.conv_general_dilated(
            x, w["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return nn.relu((x - mean) * lax.rsqrt(variance + 1e-3) * w["scale"] + w["bias"])

    def loss(parameters: Any, images: Any, labels: Any) -> Any:
        x = block(images, parameters["first"], 1)
        x = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        x = block(x, parameters["second"], 2)
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID") / 4
        return _cross_entropy(x.mean((1, 2)) @ parameters["head"], labels)

    parameters = {
        "first": _weights(1, kernel=(3, 3, 3, 8), scale=(8,), bias=(8,)),
        "second": _weights(2, kernel=(3, 3, 8, 8), scale=(8,), bias=(8,)),
        "head": _numbers(3, 8, 5),
    }
    return _step(loss), (parameters, _numbers(4, 4, 9, 9, 3), _integers(5, 5, 4))


def _lstm() -> Program:
    """A scan over time, forwards and backwards, over sequences of different length."""

    def run(w: Any, xs: Any, mask: Any, *, reverse: bool) -> Any:
        def cell(state: Any, step: Any) -> Any:
            (h, c), (x, present) = state, step
            i, f, g, o = jnp.split(x @ w["input"] + h @ w["hidden"] + w["bias"], 4, axis=-1)
            following_c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            following_h = nn.sigmoid(o) * jnp.tanh(following_c)
            h, c = (jnp.where(present[:, None], new, old) for new, old in ((following_h, h), (following_c, c)))
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], 6), xs.dtype)
        return lax.scan(cell, (zeros, zeros), (xs, mask), reverse=reverse)[1]

    def loss(parameters: Any, xs: Any, lengths: Any, targets: Any) -> Any:
        mask = np.arange(xs.shape[0])[:, None] < lengths
        both = [run(parameters[name], xs, mask, reverse=name == "backward") for name in ("forward", "backward")]
        return _cross_entropy(jnp.concatenate(both, -1).max(0) @ parameters["head"], targets)

    shapes: dict[str, tuple[int, ...]] = {"input": (5, 24), "hidden": (6, 24), "bias": (24,)}
    parameters = {"forward": _weights(1, **shapes), "backward": _weights(2, **shapes), "head": _numbers(3, 12, 4)}
    return _step(loss), (parameters, _numbers(4, 8, 3, 5), np.array([8, 3, 5], np.int32), _integers(5, 4, 3))


def _mixture_of_experts() -> Program:
    """Tokens are sorted by expert, the ones that exceed an expert's capacity are dropped, and results scattered back."""
    tokens, experts, capacity = 24, 4, 8

    def loss(parameters: Any, x: Any, target: Any) -> Any:
        gates = nn.softmax(x @ parameters["router"])
        weights, chosen = lax.top_k(gates, 2)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        token = order // 2
        start = jnp.searchsorted(flat[order], jnp.arange(experts))
        position = jnp.arange(2 * tokens) - start[flat[order]]
        slot = jnp.where(position < capacity, flat[order] * capacity + position, experts * capacity)
        gathered = jnp.zeros((experts * capacity, x.shape[1]), x.dtype).at[slot].set(x[token], mode="drop")
        hidden = nn.silu(jnp.einsum("ecd,edf->ecf", gathered.reshape(experts, capacity, -1), parameters["up"]))
        computed = jnp.einsum("ecf,efd->ecd", hidden, parameters["down"]).reshape(experts * capacity, -1)
        back = computed.at[slot].get(mode="fill", fill_value=0) * weights.reshape(-1)[order][:, None]
        mixed = jnp.zeros_like(x).at[token].add(back)
        balance = (gates.mean(0) * nn.one_hot(chosen[:, 0], experts, dtype=x.dtype).mean(0)).sum()
        return ((mixed - target) ** 2).mean() + balance

    parameters = _weights(1, router=(8, experts), up=(experts, 8, 12), down=(experts, 12, 8))
    return _step(loss), (parameters, _numbers(2, tokens, 8), _numbers(3, tokens, 8))


def _diffusion_block() -> Program:
    """A block of a denoising U-Net: group norm, time embedding, down, attention over pixels, up, skip connection."""
    channels = 8

    def convolution(x: Any, kernel: Any, **options: Any) -> Any:
        settings = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        return lax.conv_general_dilated(x, kernel, **(settings | options))

    def group_norm(x: Any, groups: int = 2) -> Any:
        grouped = x.reshape(*x.shape[:3], groups, -1)
        mean, variance = grouped.mean((1, 2, 4), keepdims=True), grouped.var((1, 2, 4), keepdims=True)
        return ((grouped - mean) * lax.rsqrt(variance + 1e-3)).reshape(x.shape)

    def embedding(times: Any, dtype: Any) -> Any:
        angles = times[:, None] * np.exp(-np.arange(4) / 2).astype(np.float32)
        return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).astype(dtype)

    def loss(parameters: Any, image: Any, noise: Any, times: Any) -> Any:
        x = convolution(image + noise, parameters["enter"])
        time = nn.silu(embedding(times, x.dtype) @ parameters["time"])[:, None, None]
        skip = x + convolution(nn.silu(group_norm(x)) + time, parameters["inner"])
        low = convolution(skip, parameters["down"], window_strides=(2, 2))
        flat = low.reshape(low.shape[0], -1, channels)
        attention = nn.softmax(flat @ parameters["query"] @ flat.swapaxes(1, 2) / 4)
        low = (flat + attention @ flat).reshape(low.shape)
        high = jax.image.resize(low, skip.shape, "nearest")
        predicted = convolution(jnp.concatenate([skip, high], -1), parameters["leave"])
        return ((predicted - noise) ** 2).mean()

    generator = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "enter": (3, 3, 3, channels),
        "inner": (3, 3, channels, channels),
        "down": (3, 3, channels, channels),
        "leave": (3, 3, 2 * channels, 3),
        "time": (8, channels),
        "query": (channels, channels),
    }
    parameters = {
        name: (generator.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    times = np.array([0.5, 3.0], np.float32)
    return _step(loss), (parameters, _numbers(1, 2, 6, 6, 3), _numbers(2, 2, 6, 6, 3), times)


def _adam() -> Program:
    """An optimizer with state, under clipping by the global norm, over several steps in a loop."""

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        return ((jnp.tanh(x @ parameters["first"]) @ parameters["second"] - y) ** 2).mean()

    def train(parameters: Any, x: Any, y: Any) -> Any:
        def step(count: Any, state: Any) -> Any:
            p, m, v = state
            g = jax.grad(loss)(p, x, y)
            norm = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(g)))
            g = jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1), g)
            m = jax.tree.map(lambda a, b: a * 0.875 + b * 0.125, m, g)
            v = jax.tree.map(lambda a, b: a * 0.9375 + b * b * 0.0625, v, g)
            p = jax.tree.map(lambda a, b, c: a - 0.0625 * b / (jnp.sqrt(c) + 0.125), p, m, v)
            return p, m, v

        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return lax.fori_loop(0, 4, step, (parameters, zeros, zeros))

    return train, (_weights(1, first=(5, 8), second=(8, 2)), _numbers(2, 12, 5), _numbers(3, 12, 2))


def _flax_residual() -> Program:
    """flax's own layers: dense, convolution, batch statistics that are carried along, dropout off."""
    linen = pytest.importorskip("flax.linen")

    class Network(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            # A bias before a normalization has a gradient of zero, which nothing can be compared with.
            y = linen.Conv(6, (3, 3), use_bias=False, dtype=x.dtype)(x)
            y = linen.BatchNorm(use_running_average=False, dtype=x.dtype)(y)
            y = linen.relu(y) + linen.Conv(6, (1, 1), use_bias=False, dtype=x.dtype)(x)
            y = linen.max_pool(y, (2, 2), (2, 2))
            y = linen.GroupNorm(num_groups=2, dtype=x.dtype)(y)
            y = linen.LayerNorm(dtype=x.dtype)(y.reshape(y.shape[0], -1))
            return linen.Dense(3, dtype=x.dtype)(linen.Dropout(0.5, deterministic=True)(y))

    network = Network()
    # No two elements of a window are so close that a rounding in bf16 would change which one is its maximum.
    images, labels = _numbers(1, 2, 4, 4, 2), _integers(2, 3, 2)
    variables = jax.tree.map(np.asarray, network.init(jax.random.key(0), images))

    def step(parameters: Any, statistics: Any, x: Any, targets: Any) -> Any:
        def loss(weights: Any) -> Any:
            given = {"params": weights, "batch_stats": statistics}
            logits, changed = network.apply(given, x, mutable=["batch_stats"])
            return _cross_entropy(logits, targets), changed

        return jax.value_and_grad(loss, has_aux=True)(parameters)

    return step, (variables["params"], variables["batch_stats"], images, labels)


def _flax_attention() -> Program:
    """flax's multi-head attention and its recurrent cell, on masked sequences."""
    linen = pytest.importorskip("flax.linen")

    class Network(linen.Module):  # type: ignore[misc, name-defined]
        parameter_type: Any

        @linen.compact
        def __call__(self, words: Any, lengths: Any) -> Any:
            x = linen.Embed(11, 8)(words)
            mask = linen.make_attention_mask(*(2 * [np.arange(words.shape[1]) < lengths[:, None]]))
            # Softmax does not see a bias of the keys: its gradient would be zero, which nothing can be compared with.
            attention = linen.MultiHeadDotProductAttention(num_heads=2, use_bias=False)
            x = linen.LayerNorm()(x + attention(x, x, mask=mask))
            # By default, its kernels begin orthogonal, which JAX since 0.12 makes in bf16 no more.
            begin = linen.initializers.lecun_normal()
            cell = linen.GRUCell(features=6, param_dtype=self.parameter_type, recurrent_kernel_init=begin)
            x = linen.RNN(cell)(x, seq_lengths=lengths)
            return linen.Dense(4)(x[:, -1])

    words, lengths, labels = _integers(1, 11, 3, 6), np.array([6, 2, 4], np.int32), _integers(2, 4, 3)
    parameters = jax.tree.map(np.asarray, Network(np.float32).init(jax.random.key(0), words, lengths))

    def loss(weights: Any, words: Any, lengths: Any, targets: Any) -> Any:
        network = Network(jax.tree.leaves(weights)[0].dtype)
        return _cross_entropy(network.apply(weights, words, lengths), targets)

    return _step(loss), (parameters, words, lengths, labels)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "adam": _adam,
    "convnet": _convnet,
    "diffusion_block": _diffusion_block,
    "flax_attention": _flax_attention,
    "flax_residual": _flax_residual,
    "lstm": _lstm,
    "mixture_of_experts": _mixture_of_experts,
    "transformer": _transformer,
}
