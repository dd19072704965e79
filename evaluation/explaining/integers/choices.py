"""Results that choose: the largest, the nearest, an order, a path."""

from __future__ import annotations

from typing import Any

from evaluation.explaining.integers.program import Program, registering

PROGRAMS: dict[str, Program] = {}
_register = registering(PROGRAMS)


@_register((3000, 48), (48, 64))
def argmax_of_logits(jax: Any, x: Any, w: Any) -> Any:
    return jax.numpy.argmax(x @ w, axis=-1)


@_register((800, 32), (32, 40))
def top_indices(jax: Any, x: Any, w: Any) -> Any:
    return jax.lax.top_k(x @ w, 5)[1]


@_register((400, 24), (24,))
def order_of_scores(jax: Any, x: Any, v: Any) -> Any:
    return jax.numpy.argsort(x @ v)


@_register((3000, 16), (60, 16))
def nearest_codes(jax: Any, x: Any, codes: Any) -> Any:
    jnp = jax.numpy
    distances = jnp.sum(x * x, 1)[:, None] - 2 * (x @ codes.T) + jnp.sum(codes * codes, 1)
    return jnp.argmin(distances, axis=1)


@_register((2500, 32), (32, 48), (48, 50))
def tokens_of_two_layers(jax: Any, x: Any, u: Any, v: Any) -> Any:
    return jax.numpy.argmax(jax.nn.gelu(x @ u) @ v, axis=-1)


@_register((4, 40, 16), (4, 40, 16), (4, 40, 24))
def places_attended(jax: Any, q: Any, k: Any, v: Any) -> Any:
    jnp = jax.numpy
    weights = jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 4.0, axis=-1)
    return jnp.argmax(weights, -1), jnp.argmax(jnp.einsum("hqk,hkd->hqd", weights, v), -1)


@_register((800, 24), (24, 60), (800,))
def beams(jax: Any, x: Any, w: Any, scores: Any) -> Any:
    total = (scores[:, None] + jax.nn.log_softmax(x @ w)).reshape(100, -1)
    places = jax.lax.top_k(total, 6)[1]
    return places // 60, places % 60


@_register((400, 24), (24, 24), (24, 400))
def greedy_tokens(jax: Any, table: Any, w: Any, out: Any) -> Any:
    def step(state: Any, _: Any) -> Any:
        hidden, token = state
        hidden = jax.numpy.tanh(hidden @ w + table[token])
        token = jax.numpy.argmax(hidden @ out, axis=-1)
        return (hidden, token), token

    start = (table[:300], jax.numpy.arange(300))
    return jax.lax.scan(step, start, None, length=6)[1]


@_register((6000, 12), (9, 12))
def clusters(jax: Any, x: Any, centres: Any) -> Any:
    jnp = jax.numpy

    def assigned(means: Any) -> Any:
        return jnp.argmin(jnp.sum(means * means, 1) - 2 * (x @ means.T), axis=1)

    first = jax.nn.one_hot(assigned(centres), 9, dtype=jnp.float32)
    means = (first.T @ x) / jnp.maximum(first.sum(0), 1.0)[:, None]
    return assigned(means)


@_register((20, 300, 8), (8, 12))
def best_path(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    emissions = jax.nn.log_softmax(x @ w, axis=-1)
    steps = jnp.log1p(jnp.abs(w[:, :1] - w)).sum(0)[None] * 0.1

    def step(best: Any, emitted: Any) -> Any:
        scores = best[:, :, None] + steps + emitted[:, None, :]
        return scores.max(1), scores.argmax(1)

    return jax.lax.scan(step, emissions[0], emissions[1:])[1]


@_register((600, 20), (20, 6))
def orders_by_two_keys(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    y = x @ w
    first = jnp.floor(y[:, 0] * 2).astype(jnp.int32)
    _, _, places = jax.lax.sort((first, y[:, 1], jnp.arange(600)), num_keys=2)
    return places


@_register((2500, 20), (20, 5), (20, 5))
def experts(jax: Any, x: Any, gate: Any, noise: Any) -> Any:
    jnp = jax.numpy
    scores = jax.nn.softmax(x @ gate + jax.nn.softplus(x @ noise) * 0.1)
    return jax.lax.top_k(scores, 2)[1], (jax.nn.one_hot(jnp.argmax(scores, 1), 5).sum(0)).astype(jnp.int32)


@_register((400, 16), (400, 16))
def matched_rows(jax: Any, x: Any, y: Any) -> Any:
    jnp = jax.numpy
    similar = (x @ y.T) / (jnp.linalg.norm(x, axis=1)[:, None] * jnp.linalg.norm(y, axis=1))
    best, back = jnp.argmax(similar, 1), jnp.argmax(similar, 0)
    return best, back[best] == jnp.arange(400)


@_register((90, 64), (64, 90), type="bfloat16")
def argmax_in_bf16(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    scores = jnp.tanh(x * w.T) * x + w.T
    return jnp.argmax(scores, axis=1), jnp.argsort(scores[:, 0] * scores[:, 1])


@_register((120, 96), type="bfloat16")
def largest_sums_in_bf16(jax: Any, x: Any) -> Any:
    jnp = jax.numpy
    zero = jnp.bfloat16(0)
    sums = jax.lax.reduce(x * x, zero, jax.lax.add, (1,))
    others = jax.lax.reduce(x, zero, jax.lax.add, (0,))
    return jnp.argsort(sums), jnp.argsort(others)


@_register((300,), (300,), is_tiny=True)
def tiny_orders(jax: Any, x: Any, y: Any) -> Any:
    return jax.numpy.argsort((x * 3e-20) * (y * 4e-20))
