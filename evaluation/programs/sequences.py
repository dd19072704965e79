"""Recurrences, attention and dynamic programming along a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


@_program
def _gru_bf16(jax: Any) -> Any:
    """A gated recurrence whose state is bf16."""
    jnp = jax.numpy

    def gru_bf16(x: Any, start: Any, w: Any, u: Any, b: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            gates = jax.nn.sigmoid(x @ w[0] + state @ u[0] + b[0])
            update, reset = jnp.split(gates, 2, -1)
            candidate = jnp.tanh(x @ w[1][:, :8] + (reset * state) @ u[1][:, :8] + b[1][:8])
            state = update * state + (1 - update) * candidate
            return state, state.astype(jnp.float32).sum(-1)

        return jax.lax.scan(step, start, x)

    arrays = normal(1, 7, 4, 6), normal(2, 4, 8), normal(3, 2, 6, 16), normal(4, 2, 8, 16), 0.1 * normal(5, 2, 16)
    return gru_bf16, tuple(jnp.asarray(each, jnp.bfloat16) for each in arrays)


@_program
def _lstm(jax: Any) -> Any:
    """A recurrence over sequences of distinct lengths, with the gradient through time."""
    jnp = jax.numpy

    def lstm(w: Any, u: Any, x: Any, lengths: Any) -> Any:
        def loss(w: Any, u: Any) -> Any:
            def step(carry: Any, given: Any) -> Any:
                hidden, cell = carry
                time, x = given
                i, f, g, o = jnp.split(x @ w + hidden @ u, 4, -1)
                new_cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
                new_hidden = jax.nn.sigmoid(o) * jnp.tanh(new_cell)
                goes_on = (time < lengths)[:, None]
                return (jnp.where(goes_on, new_hidden, hidden), jnp.where(goes_on, new_cell, cell)), new_hidden

            zeros = jnp.zeros((5, 6))
            (hidden, _), outputs = jax.lax.scan(step, (zeros, zeros), (jnp.arange(8), x))
            return (hidden**2).sum() + 0.1 * (outputs**2).mean()

        return jax.value_and_grad(loss, (0, 1))(w, u)

    return lstm, (normal(1, 4, 24), normal(2, 6, 24), normal(3, 8, 5, 4), np.array([8, 3, 5, 1, 7], np.int32))


@_program
def _rope_cache_bf16(jax: Any) -> Any:
    """Attention of four new tokens with rotary positions against a cache that they are written to."""
    jnp, lax = jax.numpy, jax.lax

    def rotated(x: Any, positions: Any) -> Any:
        frequencies = 1.0 / (100.0 ** (jnp.arange(4, dtype=jnp.float32) / 4))
        angles = positions[:, None].astype(jnp.float32) * frequencies
        cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        left, right = jnp.split(x.astype(jnp.float32), 2, -1)
        turned = jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)
        return turned.astype(x.dtype)

    def rope_cache_bf16(x: Any, w: Any, out: Any, keys: Any, values: Any, scale: Any, place: Any) -> Any:
        wide = x.astype(jnp.float32)
        normed = (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale
        q, k, v = (normed @ each for each in w)
        q, k, v = (each.reshape(4, 2, 8) for each in (q, k, v))
        positions = place + jnp.arange(4)
        keys = lax.dynamic_update_slice(keys, rotated(k, positions), (place, 0, 0))
        values = lax.dynamic_update_slice(values, v, (place, 0, 0))
        scores = jnp.einsum("qhd,khd->hqk", rotated(q, positions), keys).astype(jnp.float32) / np.sqrt(8)
        mask = jnp.arange(16)[None, :] <= positions[:, None]
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(x.dtype)
        attended = jnp.einsum("hqk,khd->qhd", weights, values).reshape(4, 16)
        return x + attended @ out, keys, values

    arrays = normal(1, 4, 16) * 2, normal(2, 3, 16, 16), normal(3, 16, 16), normal(4, 16, 2, 8), normal(5, 16, 2, 8)
    given = (*arrays, 1 + 0.1 * normal(6, 16))
    return rope_cache_bf16, (*(jnp.asarray(each, jnp.bfloat16) for each in given), np.int32(9))


@_program(keeps=[2])
def _random_field(jax: Any) -> Any:
    """A conditional random field: the partition function forward, the best path and where it came from."""
    jnp = jax.numpy

    def random_field(scores: Any, transitions: Any, tags: Any) -> Any:
        def likelihood(transitions: Any) -> Any:
            def forward(alpha: Any, score: Any) -> Any:
                return jax.nn.logsumexp(alpha[:, None] + transitions, 0) + score, None

            alpha, _ = jax.lax.scan(forward, scores[0], scores[1:])
            gold = scores[jnp.arange(9), tags].sum() + transitions[tags[:-1], tags[1:]].sum()
            return jax.nn.logsumexp(alpha) - gold

        def viterbi(best: Any, score: Any) -> Any:
            every = best[:, None] + transitions
            return every.max(0) + score, every.argmax(0)

        best, back = jax.lax.scan(viterbi, scores[0], scores[1:])
        last = best.argmax()
        _, path = jax.lax.scan(lambda tag, row: (row[tag], row[tag]), last, back, reverse=True)
        return *jax.value_and_grad(likelihood)(transitions), path, last

    return random_field, (2 * normal(1, 9, 5), normal(2, 5, 5), integers(3, 5, 9))


@_program
def _time_warping(jax: Any) -> Any:
    """The soft distance of two series: a scan over rows, in each of which a scan over columns."""
    jnp = jax.numpy

    def time_warping(x: Any, y: Any) -> Any:
        def distance(x: Any, y: Any) -> Any:
            costs = ((x[:, None] - y[None]) ** 2).sum(-1)

            def row(above: Any, cost: Any) -> Any:
                def cell(left: Any, given: Any) -> Any:
                    up, diagonal, here = given
                    found = here - 0.5 * jax.nn.logsumexp(jnp.stack([left, up, diagonal]) / -0.5)
                    return found, found

                _, found = jax.lax.scan(cell, 1e3, (above[1:], above[:-1], cost))
                return jnp.concatenate([jnp.full(1, 1e3), found]), found[-1]

            start = jnp.full(y.shape[0] + 1, 1e3).at[0].set(0.0)
            end, rows = jax.lax.scan(row, start, costs)
            return end[-1], rows

        (total, rows), gradient = jax.value_and_grad(distance, has_aux=True)(x, y)
        return total, rows, gradient

    return time_warping, (normal(1, 6, 3), normal(2, 7, 3))


@_program
def _associative_scan(jax: Any) -> Any:
    """A state space model: a linear recurrence as an associative scan, gated and read out."""
    jnp = jax.numpy

    def associative_scan(x: Any, decay: Any, b: Any, c: Any, gate: Any) -> Any:
        def combine(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        step = jax.nn.softplus(x)
        factors = jnp.exp(-step[..., None] * jax.nn.softplus(decay))
        inputs = (step * x)[..., None] * b
        _, states = jax.lax.associative_scan(combine, (factors, inputs), axis=0)
        read = (states * c).sum(-1)
        return read * jax.nn.silu(x @ gate), states[-1]

    return associative_scan, (normal(1, 16, 6), normal(2, 6, 4), normal(3, 6, 4), normal(4, 6, 4), normal(5, 6, 6))


@_program
def _kalman_filter(jax: Any) -> Any:
    """Prediction and correction with a small covariance inverted by hand, and the log likelihood."""
    jnp = jax.numpy

    def kalman_filter(measured: Any, motion: Any, sensor: Any, noise: Any) -> Any:
        def step(carry: Any, z: Any) -> Any:
            mean, covariance, total = carry
            mean = motion @ mean
            covariance = motion @ covariance @ motion.T + noise * jnp.eye(4)
            residual = z - sensor @ mean
            s = sensor @ covariance @ sensor.T + 0.5 * jnp.eye(2)
            determinant = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
            inverse = jnp.array([[s[1, 1], -s[0, 1]], [-s[1, 0], s[0, 0]]]) / determinant
            gain = covariance @ sensor.T @ inverse
            mean = mean + gain @ residual
            covariance = (jnp.eye(4) - gain @ sensor) @ covariance
            total = total - 0.5 * (residual @ inverse @ residual + jnp.log(determinant))
            return (mean, (covariance + covariance.T) / 2, total), mean

        return jax.lax.scan(step, (jnp.zeros(4), jnp.eye(4), 0.0), measured)

    motion = np.eye(4, dtype=np.float32) + 0.1 * np.eye(4, k=2, dtype=np.float32)
    sensor = np.eye(2, 4, dtype=np.float32) + 0.05 * normal(2, 2, 4)
    return kalman_filter, (normal(1, 9, 2) * 3, motion, sensor, positive(3, 1)[0])
