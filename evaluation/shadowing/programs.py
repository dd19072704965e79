"""Small programs of JAX's that lose digits, and some that lose none; each with its arguments, in two halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Case = Callable[[Any, Any], tuple[Callable[..., Any], tuple[Any, ...]]]
"""Gives, from jax and jax.numpy, a function and its arguments."""

SEEN: dict[str, Case] = {}
HELD: dict[str, Case] = {}


def among(half: dict[str, Case]) -> Callable[[Case], Case]:
    """Puts a case, by its name, among those of a half."""

    def add(case: Case) -> Case:
        half[case.__name__.removeprefix("_")] = case
        return case

    return add


def normal(*shape: int, seed: int = 0) -> Any:
    """Normally distributed numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def hilbert(size: int) -> Any:
    """A matrix whose inverse loses digits."""
    return (1.0 / (np.arange(size)[:, None] + np.arange(size) + 1)).astype(np.float32)


def vandermonde(size: int) -> Any:
    """The same: powers of numbers around 1."""
    return (np.linspace(0.5, 1.5, size)[:, None] ** np.arange(size)).astype(np.float32)


def _eliminated(jax: Any, jnp: Any, matrix: Any, right: Any) -> Any:
    size = matrix.shape[0]

    def step(k: Any, a: Any) -> Any:
        row = a[k] / a[k, k]
        column = a[:, k] * (1 - (jnp.arange(size) == k))
        return (a - column[:, None] * row[None, :]).at[k].set(row)

    found = jax.lax.fori_loop(0, size, step, jnp.concatenate([matrix, right], 1))
    return found[:, size:]


@among(SEEN)
def _inverse(jax: Any, jnp: Any) -> Any:
    return lambda h: _eliminated(jax, jnp, h, jnp.eye(h.shape[0], dtype=h.dtype)), (hilbert(6),)


@among(HELD)
def _solve(jax: Any, jnp: Any) -> Any:
    return lambda v, b: _eliminated(jax, jnp, v, b), (vandermonde(7), normal(7, 2))


@among(SEEN)
def _exponential_series(jax: Any, jnp: Any) -> Any:
    def series(x: Any) -> Any:
        def step(k: Any, state: Any) -> Any:
            total, term = state
            term = term * x / (k + 1).astype(x.dtype)
            return total + term, term

        return jax.lax.fori_loop(0, 40, step, (jnp.ones_like(x), jnp.ones_like(x)))[0]

    return series, (-np.linspace(4, 7, 8, dtype=np.float32),)


@among(HELD)
def _sine_series(jax: Any, jnp: Any) -> Any:
    def series(x: Any) -> Any:
        def step(state: Any, k: Any) -> Any:
            total, term = state
            term = -term * (x * x) / (2 * k * (2 * k + 1))
            return (total + term, term), None

        return jax.lax.scan(step, (x, x), jnp.arange(1, 25).astype(x.dtype))[0][0]

    return series, (np.linspace(7, 10, 9, dtype=np.float32),)


def _orthogonal(jnp: Any, columns: Any, *, is_modified: bool) -> Any:
    found: list[Any] = []
    for k in range(columns.shape[1]):
        v = a = columns[:, k]
        for q in found:
            v = v - q * (q * (v if is_modified else a)).sum()
        found.append(v / jnp.sqrt((v * v).sum()))
    return jnp.stack(found, 1)


@among(SEEN)
def _gram_schmidt(jax: Any, jnp: Any) -> Any:
    return lambda a: _orthogonal(jnp, a, is_modified=False), (hilbert(5),)


@among(HELD)
def _modified_gram_schmidt(jax: Any, jnp: Any) -> Any:
    return lambda a: _orthogonal(jnp, a, is_modified=True), (vandermonde(6)[:, :5],)


@among(SEEN)
def _naive_variance(jax: Any, jnp: Any) -> Any:
    return lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, (100 + normal(8, 64),)


@among(HELD)
def _covariance(jax: Any, jnp: Any) -> Any:
    def covariance(x: Any, y: Any) -> Any:
        return (x * y).sum(-1) / 50 - x.sum(-1) * y.sum(-1) / 2500

    return covariance, (50 + normal(6, 50), 80 + normal(6, 50, seed=1))


@among(SEEN)
def _normalisation(jax: Any, jnp: Any) -> Any:
    def norm(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) - mean * mean + 1e-5)

    return norm, (30 + normal(8, 32),)


@among(HELD)
def _centred_normalisation(jax: Any, jnp: Any) -> Any:
    def norm(x: Any) -> Any:
        y = x * 1.1
        distance = y - y.mean(-1, keepdims=True)
        return distance * jax.lax.rsqrt((distance * distance).mean(-1, keepdims=True) + 1e-5)

    return norm, (3000 + normal(8, 32),)


@among(SEEN)
def _softmax(jax: Any, jnp: Any) -> Any:
    def softmax(x: Any) -> Any:
        e = jnp.exp(x * 30.1 - (x * 30.1).max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return softmax, (normal(4, 32),)


@among(HELD)
def _log_softmax(jax: Any, jnp: Any) -> Any:
    return lambda x: x - jnp.log(jnp.exp(x).sum(-1, keepdims=True)), (np.float32([[40, 1, 2], [39, 2, 0], [50, 3, 1]]),)


@among(SEEN)
def _logistic_map(jax: Any, jnp: Any) -> Any:
    def orbit(x: Any) -> Any:
        return jax.lax.fori_loop(0, 14, lambda k, x: 3.9 * x * (1 - x), x)

    return orbit, (np.linspace(0.11, 0.89, 9, dtype=np.float32),)


@among(HELD)
def _bessel_recurrence(jax: Any, jnp: Any) -> Any:
    def recurrence(first: Any, second: Any) -> Any:
        def step(state: Any, k: Any) -> Any:
            before, now = state
            return (now, 2 * k / 3.1 * now - before), None

        return jax.lax.scan(step, (first, second), jnp.arange(1, 12).astype(first.dtype))[0][1]

    return recurrence, (np.float32([-0.29206435, -0.31]), np.float32([0.30092113, 0.32]))


@among(SEEN)
def _one_minus_cosine(jax: Any, jnp: Any) -> Any:
    return lambda x: (1 - jnp.cos(x)) / (x * x), (np.linspace(0.01, 0.05, 12, dtype=np.float32),)


@among(HELD)
def _quadratic(jax: Any, jnp: Any) -> Any:
    return lambda b, c: (jnp.sqrt(b * b - 4 * c) - b) / 2, (
        np.linspace(90, 120, 7, dtype=np.float32),
        np.linspace(0.7, 1.9, 7, dtype=np.float32),
    )


@among(SEEN)
def _difference_quotient(jax: Any, jnp: Any) -> Any:
    return lambda x: (jnp.exp(x + 0.001) - jnp.exp(x)) / 0.001, (np.linspace(0.1, 2, 11, dtype=np.float32),)


@among(HELD)
def _horner(jax: Any, jnp: Any) -> Any:
    def polynomial(x: Any) -> Any:
        coefficients = (1.0, -7.0, 21.0, -35.0, 35.0, -21.0, 7.0, -1.0)
        found = jnp.zeros_like(x)
        for each in coefficients:
            found = found * x + each
        return found

    return polynomial, (np.linspace(1.15, 1.3, 9, dtype=np.float32),)


@among(SEEN)
def _distances(jax: Any, jnp: Any) -> Any:
    def distances(x: Any, y: Any) -> Any:
        return (x * x).sum(-1)[:, None] + (y * y).sum(-1)[None] - 2 * x @ y.T

    return distances, (20 + normal(5, 16), 20 + normal(6, 16, seed=1))


@among(HELD)
def _triangle(jax: Any, jnp: Any) -> Any:
    def area(a: Any, b: Any, c: Any) -> Any:
        s = (a + b + c) / 2
        return jnp.sqrt(s * (s - a) * (s - b) * (s - c))

    thin = np.float32([1e-4, 3e-4, 2e-4])
    return area, (np.float32([5.1, 7.3, 9.7]), np.float32([3.3, 4.1, 5.9]), np.float32([1.8, 3.2, 3.8]) + thin)


@among(SEEN)
def _power_iteration(jax: Any, jnp: Any) -> Any:
    def power(a: Any, v: Any) -> Any:
        def step(state: Any) -> Any:
            k, v = state
            w = a @ v
            return k + 1, w / jnp.sqrt((w * w).sum())

        v = jax.lax.while_loop(lambda state: state[0] < 8, step, (0, v))[1]
        return a @ v - v * (v @ (a @ v))

    return power, (hilbert(6), np.ones(6, np.float32))


@among(HELD)
def _conditional(jax: Any, jnp: Any) -> Any:
    def program(x: Any) -> Any:
        y = jax.lax.cond(x[0] > 0, lambda z: jnp.sin(z * 40.3) + 1.5, lambda z: z * z, x)
        return jnp.log(y + 1000) - jnp.log(y * 1.0001 + 1000)

    return program, (np.linspace(0.3, 1.7, 10, dtype=np.float32),)


@among(SEEN)
def _geometric_sum(jax: Any, jnp: Any) -> Any:
    return lambda x: (jnp.exp(12 * jnp.log(x)) - 1) / (x - 1), (1 + np.linspace(0.01, 0.02, 9, dtype=np.float32),)


@among(HELD)
def _cross_product(jax: Any, jnp: Any) -> Any:
    def cross(a: Any, b: Any) -> Any:
        return a[:, 1] * b[:, 2] - a[:, 2] * b[:, 1]

    a = 1 + normal(8, 3) / 3
    return cross, (a, (a * 1.3 + 1e-4 * normal(8, 3, seed=1)).astype(np.float32))
