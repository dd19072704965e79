"""Pallas kernels for GPUs that were written last, when the others ran: see `kernels` for what a case is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.library_calls.mosaic.kernels import FUNCTION_ULPS, Case, U, gamma, integers, product_bound, random
from tests.library_calls.triton.kernels import call, case, shaped


@case
def split_matmul_with_atomic_sums() -> Case:
    """Instances along the third grid dimension each add their part of the contracted dimension to the result."""
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    def kernel(x: Any, y: Any, zeros: Any, out: Any) -> None:
        del zeros
        rows, columns = (pl.ds(pl.program_id(axis) * 16, 16) for axis in (0, 1))
        plgpu.atomic_add(out, (rows, columns), jnp.dot(x[...], y[...], precision="highest"))

    def build(interpret: Any) -> Any:
        return call(
            kernel,
            shaped(32, 32),
            interpret,
            grid=(2, 2, 4),
            in_specs=[
                pl.BlockSpec((16, 16), lambda i, j, k: (i, k)),
                pl.BlockSpec((16, 16), lambda i, j, k: (k, j)),
                pl.BlockSpec((32, 32), lambda i, j, k: (0, 0)),
            ],
            out_specs=pl.BlockSpec((32, 32), lambda i, j, k: (0, 0)),
            input_output_aliases={2: 0},
        )

    x, y = random(40, 32, 64), random(41, 64, 32)
    true = x.astype(np.float64) @ y.astype(np.float64)
    bound = product_bound(x, y, extra=5)
    return Case("split_matmul_with_atomic_sums", build, (x, y, np.zeros((32, 32), np.float32)), (true,), (bound,))


@case
def two_best_experts() -> Case:
    """A router: the two greatest logits of a row, their places, and their shares; vmap makes the rows a batch."""
    import jax
    import jax.numpy as jnp

    def kernel(logits: Any, places: Any, shares: Any) -> None:
        values = logits[...]
        first = jnp.argmax(values, axis=0).astype(jnp.int32)
        rest = jnp.where(jnp.arange(16) == first, -jnp.inf, values)
        second = jnp.argmax(rest, axis=0).astype(jnp.int32)
        gap = jnp.exp(jnp.max(rest, axis=0) - jnp.max(values, axis=0))
        is_second = jnp.arange(2) == 1
        places[...] = jnp.where(is_second, second, first)
        shares[...] = jnp.where(is_second, gap, 1.0) / (1.0 + gap)

    def build(interpret: Any) -> Any:
        return jax.vmap(call(kernel, [shaped(2, dtype=np.int32), shaped(2)], interpret))

    logits = random(42, 10, 16)
    order = np.argsort(-logits, 1)[:, :2].astype(np.int32)
    wide = np.take_along_axis(logits, order, 1).astype(np.float64)
    weights = np.exp(wide - wide[:, :1])
    true = weights / weights.sum(1, keepdims=True)
    relative = (np.ptp(wide, 1, keepdims=True) * U + FUNCTION_ULPS * U) * 2 + gamma(3)
    return Case("two_best_experts", build, (logits,), (order, true), (0 * order, relative * true))


@case
def linear_recurrence() -> Case:
    """h = a h + x along sequences: an instance for each, with the state of 16 channels in registers."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(a: Any, x: Any, out: Any) -> None:
        sequence = pl.program_id(0)

        def step(place: Any, state: Any) -> Any:
            state = a[sequence, place] * state + x[sequence, place]
            out[sequence, place] = state
            return state

        jax.lax.fori_loop(0, 24, step, jnp.zeros(16, jnp.int32))

    a, x = integers(43, 3, 24, 16, low=-2, high=3), integers(44, 3, 24, 16, low=-5, high=5)
    state, true = np.zeros((3, 16), np.int64), np.zeros((3, 24, 16), np.int64)
    for place in range(24):
        true[:, place] = state = a[:, place] * state + x[:, place]
    return Case(
        "linear_recurrence",
        lambda interpret: call(kernel, shaped(3, 24, 16, dtype=np.int32), interpret, grid=(3,)),
        (a, x),
        (true.astype(np.int32),),
    )


@case
def rotary_embedding() -> Case:
    """Pairs of f16, half a row apart, turned by angles that are computed in the kernel."""
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        place = pl.program_id(0)
        angle = place * jnp.exp2(-jnp.arange(16).astype(jnp.float32) / 2)
        first, second = (x[place, pl.ds(start, 16)].astype(jnp.float32) for start in (0, 16))
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        out[place, pl.ds(0, 16)] = (first * cosine - second * sine).astype(jnp.float16)
        out[place, pl.ds(16, 16)] = (first * sine + second * cosine).astype(jnp.float16)

    x = random(45, 12, 32, dtype=np.float16)
    wide = x.astype(np.float64)
    angle = np.arange(12)[:, None] * np.exp2(-np.arange(16) / 2)
    first, second = wide[:, :16], wide[:, 16:]
    true = np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)], 1
    )
    # An angle is off by some ULP of itself, a function by some of 1, and the result is rounded to f16: 2⁻¹¹ of itself.
    size = np.tile(np.abs(first) + np.abs(second), 2)
    relative = (FUNCTION_ULPS + 3) * U * np.tile(angle, 2) + FUNCTION_ULPS * U + gamma(3)
    bound = relative * size + 2.0**-11 * (np.abs(true) + relative * size) + 2.0**-25
    return Case(
        "rotary_embedding",
        lambda interpret: call(kernel, shaped(12, 32, dtype=np.float16), interpret, grid=(12,)),
        (x,),
        (true,),
        (bound,),
    )
