"""Plants and clean steps that were written after the others had been run; measured once, then seen."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluation.checking.clean import CLEAN
from evaluation.checking.plants import LABELS, ONE, PLANTS, ZERO, W, X, over_devices, with_value

ROW = X[0]


def plant(*calls: tuple[Any, ...]) -> Any:
    return PLANTS.add(*calls, group="reserve")


def clean(*calls: tuple[Any, ...]) -> Any:
    return CLEAN.add(*calls, group="reserve")


@plant((X, np.int32(3)), (X, np.int32(9)))
def take_out_of_range(x: Any, row: Any) -> Any:
    return jnp.sum(jnp.take(x, row, axis=0))  # here


@plant((np.array([0.5, 0.2], np.float32),), (np.array([0.5, 1], np.float32),))
def logit(p: Any) -> Any:
    odds = p / (1 - p)  # here
    return jnp.log(odds)


@plant((X, ONE), (X, ONE), (X, ZERO))
def batch_norm(x: Any, spread: Any) -> Any:
    x = x * spread
    return (x - x.mean(0)) / x.std(0)  # here


@plant((X, W), (X * 1e20, W))
def scanned_layers(x: Any, w: Any) -> Any:
    def layer(h: Any, scale: Any) -> Any:
        h = (h @ w @ w.T) * scale  # here
        return h, None

    return lax.scan(layer, x, jnp.full(6, 1e3))[0]


@plant((np.arange(1, 17, dtype=np.float32),), (np.arange(-1, 15, dtype=np.float32),))
def sharded_log(x: Any) -> Any:
    def shard(x: Any) -> Any:
        return lax.pmean(jnp.log(x), "d") + x  # here

    return over_devices(shard)(x)


@plant((ROW, np.int32(0)), (ROW, np.int32(2)))
def switch(x: Any, which: Any) -> Any:
    def third(x: Any) -> Any:
        return jnp.arctanh(x / jnp.max(x))  # here

    return lax.switch(which, [jnp.sin, jnp.cos, third], x)


@plant((X, X + 9), (X, X))
def cosine_similarity(x: Any, y: Any) -> Any:
    apart = x - y
    norm = jnp.sqrt(jnp.sum(apart**2, -1, keepdims=True))
    return apart / norm  # here


@plant((LABELS, X[:6]), (LABELS * 0, X[:6]))
def mean_by_segment(labels: Any, x: Any) -> Any:
    total = jax.ops.segment_sum(jnp.ones(8), labels, 6)
    return jax.ops.segment_sum(jnp.ones(8), labels, 6) / total  # here


@plant((X.astype("bfloat16"), np.float32(1)), (X.astype("bfloat16"), np.float32(1e38)))
def loss_scaled(x: Any, scale: Any) -> Any:
    def loss(x: Any) -> Any:
        return jnp.sum(x.astype(jnp.float32) ** 2) * 10 * scale  # here

    return jax.value_and_grad(loss)(x)


@plant((X[:4], np.int32(0)), (X[:4] * 0, np.int32(0)))
def inverse(matrix: Any, seed: Any) -> Any:
    return jnp.linalg.inv(matrix) @ ROW  # here


@clean((ROW, with_value(np.ones(4, np.float32), 2, 0.0)))
def carried_log_of_zero(x: Any, p: Any) -> Any:
    best = lax.scan(lambda best, q: (jnp.maximum(best, jnp.log(q)), best), -jnp.inf, p)[0]
    return best, jnp.where(x > 0, x, -jnp.inf)


@clean((X, with_value(np.ones(8, np.float32), 3, 0.0)))
def loop_with_a_discarded_quotient(x: Any, size: Any) -> Any:
    def body(total: Any, row: Any) -> Any:
        x, size = row
        return total + jnp.where(size > 0, x / size, 0.0), size

    return lax.scan(body, jnp.zeros(4), (x, size))[0], jnp.full(2, jnp.inf)


@clean((X,))
def early_stop(x: Any) -> Any:
    state = (0, jnp.float32(jnp.inf), jnp.float32(1))
    go_on = lambda state: (state[1] > state[2] * 1e-3) & (state[0] < 3)  # noqa: E731
    return lax.while_loop(go_on, lambda state: (state[0] + 1, jnp.sum(x**2) / (state[0] + 1), state[2]), state)


@clean((X,), (with_value(X, 2, -np.inf),))
def rewards_with_impossible_moves(x: Any) -> Any:
    return jax.nn.softmax(x[:2]), jnp.max(x, 1), jnp.argmax(x, 1)


@clean((X,))
def attention_bias(x: Any) -> Any:
    bias = jnp.triu(jnp.full((8, 8), -jnp.inf), 1)
    return bias, jax.nn.softmax(x @ x.T + bias) @ x


@clean((ROW, np.zeros(4, np.float32)))
def clipped_norm_of_zero(x: Any, g: Any) -> Any:
    norm = jnp.sqrt(jnp.sum(g * g))
    return x - g * jnp.minimum(1.0, 1.0 / norm), norm


@clean((with_value(X, (0, 0), np.nan), W))
def state_with_nan_goes_on(state: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, state: state * 0.5 + 1, state), jnp.sum(w)


@clean((X,))
def shortest_paths(x: Any) -> Any:
    edges = jnp.where(jnp.abs(x[:4]) > 1, jnp.abs(x[:4]), jnp.inf)
    relaxed = lambda _, d: jnp.minimum(d, jnp.min(d[:, None] + edges, 0))  # noqa: E731
    return lax.fori_loop(0, 4, relaxed, jnp.full(4, jnp.inf).at[0].set(0.0))


@clean((X, np.zeros(8, bool)))
def mean_of_no_token(x: Any, mask: Any) -> Any:
    count = mask.sum()
    return jnp.where(count > 0, (x * mask[:, None]).sum() / count, 0.0), jnp.sum(x)


@clean((ROW.astype("bfloat16"),))
def vmapped_infinite_start(x: Any) -> Any:
    return jax.vmap(lambda v: lax.cummax(jnp.concatenate([jnp.full(1, -jnp.inf, x.dtype), v[None]])))(x)
