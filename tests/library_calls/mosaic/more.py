"""Pallas kernels for TPUs, written for these tests: functions, unsigned integers, packed types, products, odd shapes.

See `kernels` for what a case is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.library_calls.mosaic.kernels import (
    FUNCTION_ULPS,
    Case,
    U,
    case,
    gamma,
    integers,
    product_bound,
    random,
    rows_kernel,
    whole_kernel,
)


@case
def functions() -> Case:
    import jax
    import jax.numpy as jnp

    computed = (
        (jnp.floor, np.floor, 0),
        (jnp.sqrt, np.sqrt, 1),
        (jnp.log1p, np.log1p, 2),
        (jnp.log, np.log, 2),
        (jnp.sin, np.sin, 4),
        (jnp.tan, np.tan, 8),
        (jax.lax.erf, np.vectorize(math.erf), 2),
        (jnp.round, np.round, 0),
        (lambda x: x**3.5, lambda x: x**3.5, 16),
        (jax.nn.softplus, lambda x: np.logaddexp(x, 0), 8),
    )

    def kernel(x: Any, out: Any) -> None:
        for number, (function, _, _) in enumerate(computed):
            out[number] = function(x[...])

    x = np.abs(random(200, 8, 128)) + np.float32(0.01)
    wide = x.astype(np.float64)
    true = np.stack([function(wide) for _, function, _ in computed])
    # FUNCTION_ULPS for each, and as much again for each step that a function is lowered to.
    steps = np.array([steps for *_, steps in computed])[:, None, None]
    bound = np.where(steps > 0, (1 + steps) * FUNCTION_ULPS * U * (np.abs(true) + 1), 0)
    build = whole_kernel(kernel, ((len(computed), 8, 128), np.float32))
    return Case("functions", build, (x,), (true,), (bound,))


@case
def not_numbers() -> Case:
    """Pallas lowers `!=` to MLIR's `one`, which is false of NaN, unlike JAX's: interpret mode is no reference for it."""
    import jax.numpy as jnp

    def kernel(x: Any, out: Any) -> None:
        value = x[...]
        out[0] = (value != value).astype(jnp.int32)
        out[1] = jnp.isfinite(value).astype(jnp.int32)
        out[2] = (value != 1).astype(jnp.int32)
        out[3] = (value < 1).astype(jnp.int32) + 2 * (value >= 1).astype(jnp.int32)
        out[4] = (value == jnp.maximum(value, 0.5)).astype(jnp.int32)

    x = random(201, 8, 128)
    x[0, :6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]
    is_number = ~np.isnan(x)
    rows = [np.zeros_like(is_number), np.isfinite(x), is_number & (x != 1), (x < 1) + 2 * (x >= 1), x >= 0.5]
    true = np.stack([np.asarray(row, np.int32) for row in rows])
    return Case("not_numbers", whole_kernel(kernel, (true.shape, np.int32)), (x,), (true,), interpret=None)


@case
def unsigned_integers() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, y: Any, out: Any, real: Any) -> None:
        a, b = x[...], y[...]
        out[0] = jnp.maximum(a, b)
        out[1] = jnp.minimum(a, b)
        out[2] = (a < b).astype(jnp.uint32) + (a >= jnp.uint32(2**31)).astype(jnp.uint32)
        out[3] = a >> 5
        out[4] = a * b + 1
        real[...] = (a >> 8).astype(jnp.float32)

    x, y = (integers(seed, 8, 128, low=0, high=2**32, dtype=np.uint32) for seed in (202, 203))
    true = np.stack(
        [
            np.maximum(x, y),
            np.minimum(x, y),
            (x < y) + (x >= 2**31).astype(np.uint32),
            x >> np.uint32(5),
            x * y + np.uint32(1),
        ]
    )
    build = whole_kernel(kernel, (true.shape, np.uint32), (x.shape, np.float32))
    return Case("unsigned_integers", build, (x, y), (true.astype(np.uint32), (x >> np.uint32(8)).astype(np.float32)))


@case
def packed_elements() -> Case:
    import jax.numpy as jnp
    import ml_dtypes
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, y: Any, words: Any, back: Any) -> None:
        packed = pltpu.pack_elementwise([x[...], y[...]], packed_dtype=jnp.bfloat16)
        words[...] = packed.astype(jnp.int32) if packed.dtype != jnp.uint32 else packed.view(jnp.int32)
        back[...] = pltpu.unpack_elementwise(packed, index=1, packed_dtype=jnp.bfloat16, unpacked_dtype=jnp.float32)

    x, y = random(204, 8, 128), random(205, 8, 128)
    halves = [each.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for each in (x, y)]
    words = (halves[0] | halves[1] << np.uint32(16)).view(np.int32)
    build = whole_kernel(kernel, ((8, 128), np.int32), ((8, 128), np.float32))
    true = (words, y.astype(ml_dtypes.bfloat16).astype(np.float32))
    return Case("packed_elements", build, (x, y), true, interpret=None)


@case
def reciprocals() -> Case:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[...] = pl.reciprocal(x[...], approx=False)

    x = random(206, 8, 128) + np.float32(5)
    true = 1 / x.astype(np.float64)
    return Case("reciprocals", whole_kernel(kernel, (x.shape, np.float32)), (x,), (true,), (2 * U * true,))


@case
def scalars_in_and_out() -> Case:
    """Scalar memory: blocks of it, and results in it."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, flags: Any, out: Any) -> None:
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _() -> None:
            out[0] = 0
            out[1] = 1000

        @pl.when(flags[step] > 0)
        def _() -> None:
            out[0] += x[step] * step
            out[1] = jax.numpy.minimum(out[1], x[step])

    def build(interpret: Any) -> Any:
        scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
        return pl.pallas_call(
            kernel,
            grid=(6,),
            in_specs=[scalars, scalars],
            out_specs=scalars,
            out_shape=jax.ShapeDtypeStruct((2,), np.int32),
            interpret=interpret,
        )

    x, flags = integers(207, 6), np.array([1, 0, 1, 1, 0, 1], np.int32)
    true = np.array([(x * np.arange(6) * flags).sum(), x[flags > 0].min()], np.int32)
    return Case("scalars_in_and_out", build, (x, flags), (true,))


@case
def products_of_transposed_operands() -> Case:
    import jax
    import jax.numpy as jnp

    def kernel(x: Any, y: Any, out: Any, other: Any) -> None:
        across = (((1,), (1,)), ((), ()))
        out[...] = jax.lax.dot_general(x[...], y[...], across, preferred_element_type=jnp.float32)
        other[...] = jnp.dot(x[...].T, x[...] + 1, preferred_element_type=jnp.float32)

    x, y = random(208, 16, 128), random(209, 128, 128)
    wide = x.astype(np.float64)
    true = (wide @ y.T.astype(np.float64), wide.T @ (wide + 1))
    bounds = (
        product_bound(x, y.T),
        product_bound(x.T, np.abs(x) + 1) * 1.01 + gamma(4) * (np.abs(wide).T @ (np.abs(wide) + 1)),
    )
    build = whole_kernel(kernel, ((16, 128), np.float32), ((128, 128), np.float32))
    return Case("products_of_transposed_operands", build, (x, y), true, bounds)


@case
def batched_products() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = jnp.einsum("bik,bkj->bij", x[...], y[...], preferred_element_type=jnp.float32)

    x, y = random(210, 3, 8, 64), random(211, 3, 64, 128)
    true = np.einsum("bik,bkj->bij", x.astype(np.float64), y)
    bound = gamma(66) * np.einsum("bik,bkj->bij", np.abs(x).astype(np.float64), np.abs(y))
    return Case("batched_products", whole_kernel(kernel, (true.shape, np.float32)), (x, y), (true,), (bound,))


@case
def mapped_over_a_batch() -> Case:
    """vmap makes a further grid dimension, and prefetched scalars of each element of the batch."""
    import jax

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    x = integers(212, 3, 16, 128)
    inner = rows_kernel(kernel, 8, (True,), ((16, 128), np.int32))
    return Case("mapped_over_a_batch", lambda interpret: jax.vmap(inner(interpret)), (x,), (x * 2,))


@case
def blocks_of_one_dimension() -> Case:
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] + 7

    def build(interpret: Any) -> Any:
        block = pl.BlockSpec((1024,), lambda i: (i,))
        shape = jax.ShapeDtypeStruct((2500,), np.int32)
        return pl.pallas_call(
            kernel, grid=(3,), in_specs=[block], out_specs=block, out_shape=shape, interpret=interpret
        )

    x = integers(213, 2500)
    return Case("blocks_of_one_dimension", build, (x,), (x + 7,))


@case
def reshaped_memory() -> Case:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x.reshape(32, 128)[8:16, :] + x[1, 0:8, :]

    x = integers(214, 2, 16, 128)
    true = x.reshape(32, 128)[8:16] + x[1, :8]
    return Case("reshaped_memory", whole_kernel(kernel, ((8, 128), np.int32)), (x,), (true,))


@case
def notes_for_tools() -> Case:
    """Names of scopes, prints and promises of divisibility, which compute nothing."""
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        with jax.named_scope("doubling"):
            start = pl.multiple_of(pl.program_id(0) * 8, 8)
            pl.debug_print("at {}", start)
            out[...] = x[pl.ds(start, 8), :] * pl.num_programs(0)

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((16, 128), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((16, 128), np.int32),
            interpret=interpret,
        )

    x = integers(215, 16, 128)
    return Case("notes_for_tools", build, (x,), (x * 2,), interpret=None)


@case
def quotients_and_signs() -> Case:
    import jax
    import jax.numpy as jnp

    def kernel(x: Any, y: Any, out: Any, whole: Any) -> None:
        out[0] = jax.lax.rem(x[...], y[...])
        out[1] = jnp.sign(x[...]) * jnp.ceil(y[...])
        out[2] = jax.lax.clamp(-1.0, x[...], 1.0)
        whole[...] = jnp.floor_divide(x[...].astype(jnp.int32), 3) + jnp.mod(y[...].astype(jnp.int32), 4)

    x, y = random(216, 8, 128, scale=10), random(217, 8, 128, scale=3)
    true = np.stack([np.fmod(x, y), np.sign(x) * np.ceil(y), np.clip(x, -1, 1)])
    whole = np.trunc(x).astype(np.int32) // 3 + np.mod(np.trunc(y).astype(np.int32), 4)
    build = whole_kernel(kernel, (true.shape, np.float32), (x.shape, np.int32))
    return Case("quotients_and_signs", build, (x, y), (true, whole))


@case
def eight_bit_floats() -> Case:
    import jax.numpy as jnp
    import ml_dtypes

    def kernel(x: Any, e4: Any, e5: Any, back: Any) -> None:
        e4[...] = x[...].astype(jnp.float8_e4m3fn)
        e5[...] = x[...].astype(jnp.float8_e5m2)
        back[...] = x[...].astype(jnp.float8_e4m3fn).astype(jnp.float32)

    x = random(218, 32, 128)
    small = x.astype(ml_dtypes.float8_e4m3fn)
    shapes = [(x.shape, each) for each in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float32)]
    true = (small, x.astype(ml_dtypes.float8_e5m2), small.astype(np.float32))
    return Case("eight_bit_floats", whole_kernel(kernel, *shapes), (x,), true)


@case
def copies_within_far_memory() -> Case:
    """From HBM to HBM, tiles of two dimensions, with an output that is an input's memory."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, _: Any, out: Any, done: Any) -> None:
        for number in range(2):
            part = pl.ds(8 * number, 8)
            pltpu.make_async_copy(x.at[part, 0:128], out.at[part, 128:256], done.at[number]).start()
        for number in range(2):
            part = pl.ds(8 * number, 8)
            pltpu.make_async_copy(x.at[part, 0:128], out.at[part, 128:256], done.at[number]).wait()

    def build(interpret: Any) -> Any:
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel,
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct((16, 256), np.int32),
            scratch_shapes=[pltpu.SemaphoreType.DMA((2,))],
            input_output_aliases={1: 0},
            interpret=interpret,
        )

    x, y = integers(219, 16, 128), integers(220, 16, 256)
    true = np.concatenate([y[:, :128], x], 1)
    return Case("copies_within_far_memory", build, (x, y), (true,), interpret="tpu")
