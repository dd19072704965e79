"""Small networks, forward and backward, as people write them: a training step each, in plain JAX and in flax.

A program is a function of parameters and data, and their values in f32; what it returns is checked leaf by leaf. Most are those of
`evaluation/programs`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from evaluation import programs as evaluation
from evaluation.programs.program import integers, normal

jax: Any = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return -jnp.take_along_axis(nn.log_softmax(logits), targets[..., None], -1).mean()


def _step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """One step of gradient descent: the loss, and the parameters after it."""

    def step(parameters: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        return value, jax.tree.map(lambda p, g: p - np.asarray(0.125, p.dtype) * g, parameters, gradients)

    return step


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

    parameters = {"router": normal(1, 8, experts), "up": normal(4, experts, 8, 12), "down": normal(5, experts, 12, 8)}
    return _step(loss), (parameters, normal(2, tokens, 8), normal(3, tokens, 8))


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
    images, labels = normal(1, 2, 4, 4, 2), integers(2, 3, 2)
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

    words, lengths, labels = integers(1, 11, 3, 6), np.array([6, 2, 4], np.int32), integers(2, 4, 3)
    parameters = jax.tree.map(np.asarray, Network(np.float32).init(jax.random.key(0), words, lengths))

    def loss(weights: Any, words: Any, lengths: Any, targets: Any) -> Any:
        network = Network(jax.tree.leaves(weights)[0].dtype)
        return _cross_entropy(network.apply(weights, words, lengths), targets)

    return _step(loss), (parameters, words, lengths, labels)


_WRITTEN_FOR_EVALUATION = "layer_norm_mlp decoder_training recurrent_step residual_net u_net".split()
"""Adam and Adam with weight decay, attention, scans, convolutions and pooling, forward and backward."""
PROGRAMS: dict[str, Callable[[], Program]] = {
    **{name: partial(evaluation.PROGRAMS[name].make, jax) for name in _WRITTEN_FOR_EVALUATION},
    "flax_attention": _flax_attention,
    "flax_residual": _flax_residual,
    "mixture_of_experts": _mixture_of_experts,
}
