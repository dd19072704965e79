"""Steps whose NaN and infinities are meant: masks, initial values, lanes that nobody reads, arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from evaluation.checking.cases import Table
from evaluation.checking.plants import W, X, over_devices, with_value

CLEAN = Table()
INF, NAN = float("inf"), float("nan")
ROW = X[0]
clean = CLEAN.add


@clean((X, np.int32(3)))
def causal_mask(x: Any, length: Any) -> Any:
    scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), x @ x.T, -jnp.inf)
    return jax.nn.softmax(scores) @ x


@clean((X,))
def mask_returned(x: Any) -> Any:
    return jnp.where(x > 0, x, -jnp.inf), jnp.sum(x)


@clean((with_value(X, 0, 0.0),))
def quotient_discarded(x: Any) -> Any:
    return jnp.where(x != 0, 1 / x, 0.0)


@clean((with_value(X**2, 1, 0.0),))
def log_masked(p: Any) -> Any:
    return -jnp.sum(jnp.where(p > 0, p * jnp.log(p), 0.0))


@clean((with_value(X**2, 1, 0.0),))
def log_masked_twice(p: Any) -> Any:
    safe = lambda p: jnp.sum(jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1.0)), 0.0))  # noqa: E731
    return jax.value_and_grad(safe)(p)


@clean((with_value(X, (slice(6, 8),), NAN),))
def padding_unread(x: Any) -> Any:
    return jnp.sum(x[:6] ** 2)


@clean((with_value(X, (slice(6, 8),), NAN), np.int32(6)))
def padding_masked(x: Any, length: Any) -> Any:
    return jnp.sum(jnp.where(jnp.arange(8)[:, None] < length, x, 0.0))


@clean((with_value(X, 3, NAN), W))
def nan_of_arguments(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w), jnp.sum(w)


@clean((with_value(X, 3, NAN), W))
def nan_through_a_scan(x: Any, w: Any) -> Any:
    return lax.scan(lambda total, row: (total + jnp.sum(row), total), 0.0, x)


@clean((with_value(X, 3, INF),))
def infinity_of_arguments(x: Any) -> Any:
    return x * 2, jnp.maximum(x, 0)


@clean((np.array([INF, 1, -INF], np.float32), np.array([-INF, 0, INF], np.float32)))
def infinite_bounds(high: Any, low: Any) -> Any:
    return high - low, jnp.minimum(high, low)


@clean((X,))
def running_minimum(x: Any) -> Any:
    return lax.scan(lambda best, row: (jnp.minimum(best, row), best), jnp.full(4, jnp.inf), x)


@clean((X, np.int32(0)))
def best_loss_so_far(x: Any, count: Any) -> Any:
    return lax.fori_loop(0, count, lambda i, best: jnp.minimum(best, x[i].sum()), jnp.inf)


@clean((ROW,))
def beam_scores(logits: Any) -> Any:
    scores = jnp.full((3,), -jnp.inf).at[0].set(0.0)
    both = (scores[:, None] + jax.nn.log_softmax(logits)).ravel()
    return lax.top_k(both, 6)


@clean((X,))
def top_k_filter(x: Any) -> Any:
    least = lax.top_k(x, 2)[0][:, -1:]
    kept = jnp.where(x < least, -jnp.inf, x)
    return kept, jax.nn.softmax(kept)


@clean((X,))
def log_sum_exp_masked(x: Any) -> Any:
    return jax.nn.logsumexp(jnp.where(x > -9, x, -jnp.inf), axis=-1), jnp.where(x > 0, jax.nn.log_softmax(x), -jnp.inf)


@clean((X * 0, W))
def no_rows(x: Any, w: Any) -> Any:
    return jnp.max(x[:0] @ w, 0, initial=-jnp.inf), jnp.sum(x)


@clean((X,))
def empty_maximum_by_segment(x: Any) -> Any:
    return jax.ops.segment_max(x[:, 0], jnp.array([0, 0, 1, 1, 1, 3, 3, 3]), 5)


@clean((X * 1000,))
def sigmoid_saturates(x: Any) -> Any:
    return jax.nn.sigmoid(x), 1 / (1 + jnp.exp(-x))


@clean((np.float32(0), ROW))
def loss_scale_skips(scale: Any, g: Any) -> Any:
    unscaled = g / scale
    finite = jnp.all(jnp.isfinite(unscaled))
    return jnp.where(finite, ROW - unscaled, ROW), finite


@clean((np.float32(0), ROW))
def cond_skips(scale: Any, g: Any) -> Any:
    unscaled = g / scale
    return lax.cond(jnp.isfinite(unscaled).all(), lambda g: ROW - g, lambda g: ROW + 0 * jnp.ones(4), unscaled)


@clean((with_value(X, (2, 1), NAN),))
def nan_mean(x: Any) -> Any:
    return jnp.nanmean(x, 0), jnp.nan_to_num(x).sum()


@clean((ROW,))
def history_not_yet_known(x: Any) -> Any:
    return jnp.full((2, 3), jnp.nan), jnp.sum(x)


@clean((X, np.int32(12)))
def gather_out_of_bounds(x: Any, index: Any) -> Any:
    return x.at[index].get(mode="fill", fill_value=-jnp.inf), jnp.sum(x)


@clean((ROW,))
def distance_to_nearest_other(x: Any) -> Any:
    apart = jnp.abs(x[:, None] - x) + jnp.where(jnp.eye(4, dtype=bool), jnp.inf, 0.0)
    return apart.min(1), apart


@clean((X.astype("float16"),))
def half_mask(x: Any) -> Any:
    return jnp.where(x > 0, x, jnp.finfo(jnp.float16).min), jnp.where(x > 0, x, -jnp.inf).max()


@clean((np.arange(16, dtype=np.float32),))
def sharded_maximum(x: Any) -> Any:
    return over_devices(lambda x: lax.pmax(jnp.where(x > 3, x, -jnp.inf), "d"))(x)


@clean((X, W))
def adam(w: Any, g: Any) -> Any:
    mean, square = 0.1 * w, 0.001 * w**2
    return w - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square


@clean((np.full((2, 3), NAN, np.float32), ROW[:3]))
def state_begins_with_nan(history: Any, x: Any) -> Any:
    return jnp.concatenate([history[1:], x[None]])


@clean((X, np.zeros((2, 3), np.int32)))
def integers_alone(x: Any, count: Any) -> Any:
    return count + 1, jnp.argmax(jnp.where(x > 9, x, -jnp.inf)), 1j * jnp.sum(x)
