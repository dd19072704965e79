"""Sorting, gathering, scattering, random bits, sums, scans, loops and elementary functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from conformance.gpu_programs.program import exactly, integers, normal, permutation, program, uniform, weight

# Sorting and choosing


@program(normal(30000), types="f32 bf16", rule="bits")
def sort_long(x):
    """So many elements that CUB sorts them."""
    return jnp.sort(x)


@program(integers(0, 500, 30000), types="s32", rule="bits")
def sort_pairs(keys):
    """Keys with equal ones among them, and where they came from."""
    return lax.sort((keys, lax.iota(jnp.int32, keys.size)), num_keys=1, is_stable=True)


@program(normal(12, 100), integers(0, 9, 12, 100), rule="bits")
def sort_rows(values, keys):
    """A comparator of the compiler's own: two keys, one of them descending, along the rows."""
    return lax.sort((keys, -values, values), dimension=1, num_keys=2)


@program(normal(4, 2048), types="f32 bf16", rule="bits")
def top_k(x):
    """The largest eight of each row, and where they are: few enough for the GPU's own kernel."""
    return lax.top_k(x, 8)


@program(normal(16, 100), rule="bits")
def arguments_of_extremes(x):
    """A reduction of pairs."""
    return jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.max(x), jnp.median(x, axis=1)


# Gather and scatter


@program(normal(40, 24), integers(0, 40, 30), rule="bits")
def gather_rows(table, rows):
    """An embedding."""
    return table[rows]


@program(normal(40, 24), integers(0, 40, 100), normal(100, 24), types="f32 bf16")
def scatter_add(table, rows, updates):
    """Rows that are added to more than once, in an order that nobody knows."""
    return table.at[rows].add(updates)


@program(integers(0, 50, 40), integers(0, 45, 300), integers(0, 50, 300), types="s32", rule="bits")
def scatter_integers(values, places, updates):
    """Sums, and maxima, of integers; some places lie beyond the end and are dropped."""
    return values.at[places].add(updates, mode="drop"), values.at[places].max(updates, mode="drop")


@program(normal(50, 8), permutation(50), normal(50, 8), rule="bits")
def scatter_unique(values, places, updates):
    """Every place once."""
    return values.at[places].set(updates, unique_indices=True)


@program(normal(300, 4), integers(0, 12, 300))
def segment_sums(values, segments):
    """Sums of rows by their number."""
    return jax.ops.segment_sum(values, segments, 12)


# Random numbers

_KEY = exactly(np.array([20260101, 7], np.uint32))
_KEY_4 = exactly(np.array([20260101, 7, 3, 11], np.uint32))


@program(_KEY, types="u32", rule="bits")
def threefry_bits(key):
    """Threefry's bits, of two widths."""
    typed = jax.random.wrap_key_data(key, impl="threefry2x32")
    return jax.random.bits(typed, (1000,)), jax.random.bits(typed, (333,), np.uint8)


@program(_KEY)
def threefry_normal(key):
    """Normal numbers: the inverse error function of uniform ones."""
    return jax.random.normal(jax.random.wrap_key_data(key, impl="threefry2x32"), (40, 50))


@program(_KEY, types="u32", rule="bits")
def threefry_uniform(key):
    """Uniform numbers, integers and a permutation, which no rounding changes."""
    typed = jax.random.wrap_key_data(key, impl="threefry2x32")
    return (
        jax.random.uniform(typed, (500,)),
        jax.random.randint(typed, (200,), 0, 77),
        jax.random.permutation(typed, 97),
    )


@program(_KEY_4, types="u32", rule="bits")
def philox_bits(key):
    """The bits of rng-bit-generator, as the GPU's kernel makes them."""
    return jax.random.bits(jax.random.wrap_key_data(key, impl="rbg"), (1001,))


# Sums, scans and loops


@program(normal(16, 300), types="f32 bf16")
def sums(x):
    """Sums of rows, of columns and of everything."""
    return x.sum(1), x.sum(0), x.sum()


@program(normal(8, 500), types="f32 bf16")
def cumulative_sum(x):
    """A prefix sum."""
    return jnp.cumsum(x, 1)


@program(normal(8, 100))
def cumulative_logsumexp(x):
    """A prefix sum of exponentials, a prefix maximum and a reversed product."""
    return lax.cumlogsumexp(x, 1), lax.cummax(x, 1), lax.cumprod(1 + x[:, :20] / 8, 1, reverse=True)


@program(uniform(0.5, 1, 64, 8), normal(64, 8))
def associative_scan(decay, x):
    """A linear recurrence as a tree."""

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    return lax.associative_scan(combine, (decay, x))[1]


@program(normal(4, 8), weight(8, 8), normal(12, 4, 8), types="f32 bf16")
def recurrence(state, w, xs):
    """A scan with a product in its body."""

    def step(state: Any, x: Any) -> Any:
        following = jnp.tanh(state @ w + x)
        return following, following

    return lax.scan(step, state, xs)


@program(uniform(1, 50, 40))
def newton(x):
    """A while loop that ends when a value says so."""

    def going_on(state: Any) -> Any:
        estimate, count = state
        return jnp.logical_and(jnp.max(jnp.abs(estimate * estimate - x)) > 1e-2, count < 30)

    return lax.while_loop(going_on, lambda state: ((state[0] + x / state[0]) / 2, state[1] + 1), (x, 0))[0]


@program(normal(30), exactly(np.int32(2)))
def branches(x, which):
    """A conditional of four branches."""
    return lax.switch(which, [jnp.sin, jnp.cos, lambda value: value * value - 1, jnp.negative], x)


# Elementwise


@program(uniform(-4, 4, 600), types="f32 bf16 f16")
def functions(x):
    """Elementary functions in one kernel each, whose accuracy is the GPU's own."""
    positive = jnp.abs(x) + 0.25
    return (jnp.exp(x), jnp.log(positive), jnp.tanh(x), lax.erf(x), lax.rsqrt(positive), lax.logistic(x), jnp.sin(x),
            jnp.cos(x), jnp.log1p(positive), jnp.expm1(x), jnp.cbrt(x), jnp.power(positive, x / 2))  # fmt: skip


@program(normal(400, scale=30.0), rule="bits")
def conversions(x):
    """Roundings to narrower types and to integers, saturating ones among them."""
    narrow = [x.astype(dtype) for dtype in (jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8)]
    return (*narrow, (x * 1e9).astype(jnp.int32), lax.bitcast_convert_type(x, jnp.int32))


@program(integers(-(2**31), 2**31, 400), integers(-9, 9, 400), types="s32", rule="bits")
def integer_arithmetic(x, y):
    """Division by zero, shifts beyond the width, wrapping products."""
    return (
        x // jnp.where(y == 0, 1, y),
        lax.div(x, y),
        lax.rem(x, y),
        x * y,
        x << y,
        x >> (y & 31),
        lax.population_count(x),
    )
