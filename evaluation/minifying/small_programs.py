"""Programs whose modules have some tens of instructions, in which faults are planted for `reasons`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evaluation.programs.program import Program, normal

_Made = Callable[[Any, Any, Any], Any]


def _attention(jax: Any, x: Any, w: Any) -> Any:
    q = x @ w
    return jax.nn.softmax(q @ x.T / 2, axis=-1) @ x


def _scanned(jax: Any, x: Any, w: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        carry = jax.numpy.tanh(carry @ w + row)
        return carry, carry.sum()

    return jax.lax.scan(step, x[0], x)


def _standardized(jax: Any, x: Any, w: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jax.numpy.sqrt(variance + 1e-3) * w[0], mean


def _gradient(jax: Any, x: Any, w: Any) -> Any:
    return jax.grad(lambda w: (jax.numpy.sin(x @ w) ** 2).sum())(w)


def _indexed(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    order = jnp.argsort(x[:, 0])
    rows = jnp.take(x, order[:4], axis=0)
    return jnp.cumsum(rows, 0) * jnp.where(rows > 0, rows, -rows), order


def _newton(jax: Any, x: Any, w: Any) -> Any:
    def body(state: Any) -> Any:
        count, v = state
        return count + 1, v - 0.3 * (v * v - jax.numpy.abs(x[0]) - 1) / (2 * v)

    return jax.lax.while_loop(lambda state: state[0] < 4, body, (0, 2 + w[0] * w[0]))[1]


def _branching(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    y = jax.lax.cond(x.sum() > 0, lambda a: jnp.exp(a * 0.1) @ w, lambda a: jnp.cos(a).T @ a, x[:4])
    return y - y.T


def _convolved(jax: Any, x: Any, w: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    image, kernel = x.reshape(1, 3, 4, 2), w[:2].reshape(2, 2, 2, 1)
    y = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)
    return jax.nn.relu(y).max(axis=(1, 2)), y.sum()


def _mixed(jax: Any, x: Any, w: Any) -> Any:
    h = x
    for _ in range(3):
        h = h + jax.numpy.tanh(h @ w) @ w.T
        h = h / jax.numpy.sqrt((h**2).mean(-1, keepdims=True) + 1e-5)
    return jax.nn.logsumexp(h, -1), h[:, ::-1]


def _pooled(jax: Any, x: Any, w: Any) -> Any:
    y = jax.lax.reduce_window(x, -jax.numpy.inf, jax.lax.max, (2, 2), (1, 1), "VALID")
    z = jax.numpy.pad(y, ((1, 0), (0, 1)))
    return z * x, jax.numpy.roll(z, 1, 0) @ w


SMALL_SEEN: tuple[_Made, ...] = (
    _attention, _scanned, _standardized, _gradient, _indexed, _newton, _branching, _convolved, _mixed, _pooled,
)  # fmt: skip


def _huber(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy

    def loss(w: Any) -> Any:
        error = jnp.abs(x @ w - 0.2)
        return jnp.where(error < 0.5, error**2 / 2, 0.5 * (error - 0.25)).mean()

    return jax.value_and_grad(loss)(w)


def _low_pass(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    spectrum = jnp.fft.rfft(x, axis=0)
    kept = jnp.where(jnp.arange(spectrum.shape[0])[:, None] < 3, spectrum, 0)
    return jnp.fft.irfft(kept, n=6, axis=0) @ w, jnp.abs(spectrum)


def _best_two(jax: Any, x: Any, w: Any) -> Any:
    values, places = jax.lax.top_k(x @ w, 2)
    return jax.nn.softmax(values), jax.nn.one_hot(places, 4).sum(1) * x


def _state_space(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    decay = jnp.exp(-jnp.abs(w[0]))

    def step(state: Any, row: Any) -> Any:
        state = decay * state + (1 - decay) * row
        return state, (state @ w, jnp.maximum(state, 0).sum())

    return jax.lax.scan(step, jnp.zeros(4), x)


def _kernel_distances(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)
    kernel = jnp.exp(-squares / (1 + squares.mean()))
    return kernel @ x @ w - kernel.sum(1, keepdims=True)


def _interpolated(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    place = 5 * jax.nn.sigmoid(w.reshape(-1))
    low = jnp.clip(jnp.floor(place).astype(jnp.int32), 0, 4)
    part = (place - low)[:, None]
    return x[low] * (1 - part) + x[low + 1] * part


def _segments(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    number = (jnp.abs(x[:, 0]) * 3).astype(jnp.int32) % 3
    sums = jnp.zeros((3, 4)).at[number].add(x @ w)
    counts = jnp.zeros(3).at[number].add(1.0)
    return sums / jnp.maximum(counts, 1)[:, None], counts


def _eigenvector(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    matrix = w @ w.T + jnp.eye(4)

    def step(_: Any, v: Any) -> Any:
        v = matrix @ v
        return v / jnp.sqrt((v * v).sum())

    v = jax.lax.fori_loop(0, 5, step, x[0])
    return v, v @ matrix @ v


def _switched(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    branches = [lambda a: a * 2 - 1, lambda a: jnp.sin(a) @ w, lambda a: jnp.log1p(jnp.exp(a)) - w[0]]
    return jax.lax.switch(jnp.argmax(x[0]) % 3, branches, x) + jax.lax.switch(jnp.argmin(x[1]) % 3, branches, x @ w)


def _momentum(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy

    def step(carry: Any, row: Any) -> Any:
        weights, velocity = carry
        slope = jax.grad(lambda weights: ((row @ weights - 1) ** 2).mean())(weights)
        velocity = 0.9 * velocity - 0.05 * slope
        return (weights + velocity, velocity), jnp.abs(slope).max()

    return jax.lax.scan(step, (w, jnp.zeros_like(w)), x)


SMALL_HELD: tuple[_Made, ...] = (
    _huber, _low_pass, _best_two, _state_space, _kernel_distances, _interpolated, _segments, _eigenvector, _switched,
    _momentum,
)  # fmt: skip


def _program(made: _Made) -> Program:
    name = f"small{made.__name__}"

    def make(jax: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        def function(x: Any, w: Any) -> Any:
            return made(jax, x, w)

        return function, (normal(7, 6, 4), normal(8, 4, 4) * 2)

    return Program(name, make)


SMALL = {program.name: program for program in map(_program, (*SMALL_SEEN, *SMALL_HELD))}
"""By name."""
