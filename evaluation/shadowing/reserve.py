"""Programs that were written after the limits of `shadowing.alone` were, to be measured and not to be tuned to."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.shadowing.programs import Case, among, hilbert, normal, vandermonde

RESERVE: dict[str, Case] = {}


@among(RESERVE)
def _newton_inverse(jax: Any, jnp: Any) -> Any:
    def inverse(a: Any) -> Any:
        start = a.T / (jnp.abs(a).sum(0).max() * jnp.abs(a).sum(1).max())
        return jax.lax.fori_loop(0, 30, lambda k, x: 2 * x - x @ a @ x, start)

    return inverse, (hilbert(4),)


@among(RESERVE)
def _cholesky(jax: Any, jnp: Any) -> Any:
    def factor(a: Any) -> Any:
        size = a.shape[0]
        for k in range(size):
            column = a[:, k] / jnp.sqrt(a[k, k]) * (jnp.arange(size) >= k)
            below = column * (jnp.arange(size) > k)
            a = (a - below[:, None] * below[None, :]).at[:, k].set(column)
        return a[size - 1, size - 1]

    return factor, (hilbert(5),)


@among(RESERVE)
def _residual(jax: Any, jnp: Any) -> Any:
    def residual(a: Any, b: Any) -> Any:
        def step(k: Any, x: Any) -> Any:
            return x + (b - a @ x) / jnp.diagonal(a)

        return b - a @ jax.lax.fori_loop(0, 12, step, jnp.zeros_like(b))

    a = 5 * np.eye(6, dtype=np.float32) + normal(6, 6) / 3
    return residual, (a.astype(np.float32), normal(6, seed=1))


@among(RESERVE)
def _cosine_series(jax: Any, jnp: Any) -> Any:
    def series(x: Any) -> Any:
        def step(state: Any) -> Any:
            k, total, term = state
            term = -term * x * x / ((2 * k + 1) * (2 * k + 2)).astype(x.dtype)
            return k + 1, total + term, term

        first = 0, jnp.ones_like(x), jnp.ones_like(x)
        return jax.lax.while_loop(lambda state: state[0] < 24, step, first)[1]

    return series, (np.linspace(6.5, 9.5, 8, dtype=np.float32),)


@among(RESERVE)
def _alternating_powers(jax: Any, jnp: Any) -> Any:
    def series(x: Any) -> Any:
        k = jnp.arange(1, 40).astype(x.dtype)
        signs = 1 - 2 * ((jnp.arange(1, 40) + 1) % 2).astype(x.dtype)
        return (signs * x[:, None] ** k / k**3).sum(-1)

    return series, (np.linspace(1.5, 1.7, 6, dtype=np.float32),)


@among(RESERVE)
def _gram_schmidt_in_a_loop(jax: Any, jnp: Any) -> Any:
    def orthogonal(a: Any) -> Any:
        def step(k: Any, q: Any) -> Any:
            v = a[:, k] - q @ (q.T @ a[:, k])
            return q.at[:, k].set(v / jnp.sqrt(jnp.sum(v * v)))

        return jax.lax.fori_loop(0, a.shape[1], step, jnp.zeros_like(a))

    return orthogonal, (vandermonde(5),)


@among(RESERVE)
def _reflections(jax: Any, jnp: Any) -> Any:
    def triangular(a: Any) -> Any:
        size = a.shape[0]
        for k in range(size - 1):
            x = a[:, k] * (jnp.arange(size) >= k)
            v = x - jnp.sqrt((x * x).sum()) * (jnp.arange(size) == k)
            a = a - 2 * v[:, None] * (v @ a)[None, :] / (v * v).sum()
        return jnp.diagonal(a)[-2:]

    return triangular, (hilbert(5),)


@among(RESERVE)
def _batch_normalisation(jax: Any, jnp: Any) -> Any:
    def norm(x: Any, scale: Any, shift: Any) -> Any:
        mean, square = x.mean(0), (x * x).mean(0)
        return (x - mean) / jnp.sqrt(square - mean * mean + 1e-3) * scale + shift

    return norm, (60 + normal(48, 6), normal(6, seed=1), normal(6, seed=2))


@among(RESERVE)
def _standard_score(jax: Any, jnp: Any) -> Any:
    def score(x: Any) -> Any:
        count = x.shape[-1]
        total, square = x.sum(-1), (x * x).sum(-1)
        deviation = jnp.sqrt((square - total * total / count) / (count - 1))
        return (x[:, 0] - total / count) / deviation

    return score, (40 + normal(7, 20),)


@among(RESERVE)
def _log_ratio(jax: Any, jnp: Any) -> Any:
    def ratio(x: Any, y: Any) -> Any:
        return jnp.log(jnp.exp(x).sum(-1)) - jnp.log(jnp.exp(y).sum(-1))

    x = 8 + normal(6, 12)
    return ratio, (x, (x + 1e-4 * normal(6, 12, seed=1)).astype(np.float32))


@among(RESERVE)
def _running_sum(jax: Any, jnp: Any) -> Any:
    def total(x: Any) -> Any:
        start = jnp.full(x.shape[1:], 3e4, x.dtype)
        return jax.lax.scan(lambda state, each: (state + jnp.sin(each), None), start, x)[0] - start

    return total, (normal(60, 5),)


@among(RESERVE)
def _second_difference(jax: Any, jnp: Any) -> Any:
    def curvature(x: Any) -> Any:
        h = 0.01
        return (jnp.tanh(x + h) - 2 * jnp.tanh(x) + jnp.tanh(x - h)) / (h * h)

    return curvature, (np.linspace(0.3, 1.1, 9, dtype=np.float32),)


@among(RESERVE)
def _chebyshev(jax: Any, jnp: Any) -> Any:
    def polynomial(x: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            before, now = state
            return (now, 2 * x * now - before), None

        return jax.lax.scan(step, (jnp.ones_like(x), x), None, length=40)[0][1]

    return polynomial, (np.linspace(0.985, 0.999, 7, dtype=np.float32),)


@among(RESERVE)
def _determinant(jax: Any, jnp: Any) -> Any:
    def determinant(m: Any) -> Any:
        a, b, c = (m[:, 0, k] for k in range(3))
        d, e, f = (m[:, 1, k] for k in range(3))
        g, h, i = (m[:, 2, k] for k in range(3))
        return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)

    base = np.float32([[1.1, 2.3, 3.2], [4.3, 5.2, 6.9], [7.4, 8.2, 10.7]])
    return determinant, (base + 1e-3 * normal(6, 3, 3),)


@among(RESERVE)
def _roots_apart(jax: Any, jnp: Any) -> Any:
    return lambda x: x * (jnp.sqrt(x + 1) - jnp.sqrt(x)), (np.linspace(3e3, 9e3, 8, dtype=np.float32),)


@among(RESERVE)
def _correlation(jax: Any, jnp: Any) -> Any:
    def correlation(x: Any, y: Any) -> Any:
        xy, xx, yy = (x * y).mean(-1), (x * x).mean(-1), (y * y).mean(-1)
        a, b = x.mean(-1), y.mean(-1)
        return (xy - a * b) * jax.lax.rsqrt((xx - a * a) * (yy - b * b))

    return correlation, (20 + normal(5, 40), 30 + normal(5, 40, seed=1))
