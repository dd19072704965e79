"""Ten more Pallas kernels for TPUs, written when all others ran, and measured once before anything was changed.

See `kernels` for what a case is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.library_calls.mosaic.kernels import (
    FUNCTION_ULPS,
    U_BF16,
    Case,
    U,
    case,
    gamma,
    integers,
    product_bound,
    random,
    rows_kernel,
    softmax_of,
    whole_kernel,
)


@case
def attention_backward() -> Case:
    """The gradient of q, from the logarithms of sums that the forward pass keeps."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    across, along = (((1,), (1,)), ((), ())), (((1,), (0,)), ((), ()))

    def kernel(q: Any, k: Any, v: Any, do: Any, lse: Any, delta: Any, dq: Any, acc: Any) -> None:
        step, last = pl.program_id(1), pl.num_programs(1) - 1

        @pl.when(step == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        scores = jax.lax.dot_general(q[...], k[...], across, preferred_element_type=jnp.float32)
        weights = jnp.exp(scores - lse[...])
        grown = jax.lax.dot_general(do[...], v[...], across, preferred_element_type=jnp.float32)
        ds = weights * (grown - delta[...])
        acc[...] += jax.lax.dot_general(ds, k[...], along, preferred_element_type=jnp.float32)

        @pl.when(step == last)
        def _() -> None:
            dq[...] = acc[...]

    def build(interpret: Any) -> Any:
        mine, theirs = pl.BlockSpec((32, 128), lambda i, j: (i, 0)), pl.BlockSpec((16, 128), lambda i, j: (j, 0))
        column = pl.BlockSpec((32, 1), lambda i, j: (i, 0))
        return pl.pallas_call(
            kernel,
            grid=(2, 4),
            in_specs=[mine, theirs, theirs, mine, column, column],
            out_specs=mine,
            out_shape=jax.ShapeDtypeStruct((64, 128), np.float32),
            scratch_shapes=[pltpu.VMEM((32, 128), jnp.float32)],
            interpret=interpret,
        )

    q, k, v, do = (random(100 + number, 64, 128, scale=0.3) for number in range(4))
    wide = [each.astype(np.float64) for each in (q, k, v, do)]
    scores = wide[0] @ wide[1].T
    lse = np.log(np.exp(scores).sum(1, keepdims=True)).astype(np.float32)
    weights = np.exp(scores - lse)
    delta = (softmax_of(scores) @ wide[2] * wide[3]).sum(1, keepdims=True).astype(np.float32)
    grown = wide[3] @ wide[2].T
    ds = weights * (grown - delta)
    true = ds @ wide[1]
    # Scores and `grown` are off by γ₁₃₀ of the sums of sizes; a weight by as much and the ULPs of exp; ds by both.
    size = np.abs(wide[0]) @ np.abs(wide[1]).T
    relative = gamma(130) * size + 2 * U * (np.abs(scores) + np.abs(lse)) + FUNCTION_ULPS * U
    off = np.abs(ds) * (relative + 4 * U) + weights * (
        gamma(130) * (np.abs(wide[3]) @ np.abs(wide[2]).T) + 2 * U * np.abs(delta)
    )
    bound = 1.01 * (off @ np.abs(wide[1])) + gamma(70) * (np.abs(ds) @ np.abs(wide[1]))
    return Case("attention_backward", build, (q, k, v, do, lse, delta), (true,), (bound,))


@case
def attention_with_segments() -> Case:
    import jax
    import jax.numpy as jnp

    def kernel(q: Any, k: Any, v: Any, rows: Any, columns: Any, out: Any) -> None:
        scores = jax.lax.dot_general(q[...], k[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        scores = jnp.where(rows[...] == columns[...], scores, -1e9)
        powers = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        out[...] = jnp.dot(powers, v[...], preferred_element_type=jnp.float32) / powers.sum(axis=1, keepdims=True)

    q, k, v = (random(110 + number, 32, 128, scale=0.2) for number in range(3))
    segments = np.repeat(np.arange(4, dtype=np.int32), [5, 11, 9, 7])
    wide = [each.astype(np.float64) for each in (q, k, v)]
    same = segments[:, None] == segments
    scores = np.where(same, wide[0] @ wide[1].T, -1e9)
    weights = softmax_of(scores)
    size = (np.abs(wide[0]) @ np.abs(wide[1]).T).max()
    relative = 2 * gamma(130) * size + 2 * U * np.ptp(scores[same]) + 2 * FUNCTION_ULPS * U + gamma(80)
    arguments = (q, k, v, segments[:, None], segments[None])
    build = whole_kernel(kernel, ((32, 128), np.float32))
    return Case(
        "attention_with_segments", build, arguments, (weights @ wide[2],), (relative * (weights @ np.abs(wide[2])),)
    )


@case
def greatest_of_a_row() -> Case:
    """The four greatest elements of a row and their places, one after the other."""
    import jax
    import jax.numpy as jnp

    def kernel(x: Any, values: Any, places: Any) -> None:
        columns = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
        left = x[...]
        for number in range(4):
            top = jnp.max(left, axis=1, keepdims=True)
            place = jnp.argmax(left, axis=1).reshape(8, 1).astype(jnp.int32)
            values[:, number : number + 1] = top
            places[:, number : number + 1] = place
            left = jnp.where(columns == place, -jnp.inf, left)

    x = random(120, 8, 256)
    order = np.argsort(-x, axis=1, kind="stable")[:, :4]
    true = (np.take_along_axis(x, order, 1), order.astype(np.int32))
    return Case("greatest_of_a_row", whole_kernel(kernel, ((8, 4), np.float32), ((8, 4), np.int32)), (x,), true)


@case
def rms_norm_with_residual() -> Case:
    import jax
    import jax.numpy as jnp
    import ml_dtypes

    def kernel(x: Any, residual: Any, scale: Any, out: Any, total: Any) -> None:
        added = x[...].astype(jnp.float32) + residual[...].astype(jnp.float32)
        total[...] = added.astype(jnp.bfloat16)
        root = jax.lax.rsqrt(jnp.mean(jnp.square(added), axis=-1, keepdims=True) + 1e-6)
        out[...] = (added * root).astype(jnp.bfloat16) * scale[...]

    bf16 = ml_dtypes.bfloat16
    x, residual, scale = (
        random(121, 32, 256, dtype=bf16),
        random(122, 32, 256, dtype=bf16),
        random(123, 1, 256, dtype=bf16),
    )
    added = x.astype(np.float64) + residual.astype(np.float64)
    true = added / np.sqrt((added**2).mean(-1, keepdims=True) + 1e-6) * scale.astype(np.float64)
    # The quotient is rounded to bf16, and so is the product with the scale; all else is f32's.
    bound = (2 * U_BF16 + U_BF16**2 + gamma(270) + FUNCTION_ULPS * U) * np.abs(true)
    build = rows_kernel(kernel, 16, (True, True, False), (x.shape, bf16), (x.shape, bf16))
    return Case(
        "rms_norm_with_residual",
        build,
        (x, residual, scale),
        (true, added),
        (bound, U_BF16 * np.abs(added) + U * np.abs(added)),
    )


@case
def groups_that_share_a_tile() -> Case:
    """A tile of rows that belongs to several groups is visited once for each, and is added to."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(tiles: Any, groups: Any, starts: Any, x: Any, w: Any, out: Any) -> None:
        step = pl.program_id(1)
        tile, group = tiles[step], groups[step]
        rows = tile * 16 + jax.lax.broadcasted_iota(jnp.int32, (16, 128), 0)
        inside = jnp.logical_and(rows >= starts[group], rows < starts[group + 1])
        part = jnp.where(inside, jnp.dot(x[...], w[...], preferred_element_type=jnp.float32), 0)
        is_first = jnp.logical_or(step == 0, tiles[jnp.maximum(step - 1, 0)] != tile)

        @pl.when(is_first)
        def _() -> None:
            out[...] = part

        @pl.when(jnp.logical_not(is_first))
        def _() -> None:
            out[...] += part

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=3,
                grid=(2, 5),
                in_specs=[
                    pl.BlockSpec((16, 64), lambda n, s, tiles, groups, starts: (tiles[s], 0)),
                    pl.BlockSpec((None, 64, 128), lambda n, s, tiles, groups, starts: (groups[s], 0, n)),
                ],
                out_specs=pl.BlockSpec((16, 128), lambda n, s, tiles, groups, starts: (tiles[s], n)),
            ),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
            out_shape=jax.ShapeDtypeStruct((48, 256), np.float32),
            interpret=interpret,
        )

    starts = np.array([0, 10, 30, 48], np.int32)
    tiles, groups = np.array([0, 0, 1, 2, 2], np.int32), np.array([0, 1, 1, 1, 2], np.int32)
    starts = np.array([0, 10, 40, 48], np.int32)
    x, w = random(124, 48, 64), random(125, 3, 64, 256)
    true, bound = np.zeros((48, 256)), np.zeros((48, 256))
    for group in range(3):
        part = slice(starts[group], starts[group + 1])
        true[part] = x[part].astype(np.float64) @ w[group]
        bound[part] = product_bound(x[part], w[group], 4)
    return Case("groups_that_share_a_tile", build, (tiles, groups, starts, x, w), (true,), (bound,))


@case
def matmul_of_four_bit_weights() -> Case:
    import jax.numpy as jnp
    import ml_dtypes

    def kernel(x: Any, w: Any, scales: Any, out: Any) -> None:
        weights = w[...].astype(jnp.float32).astype(jnp.bfloat16)
        out[...] = jnp.dot(x[...], weights, preferred_element_type=jnp.float32) * scales[...]

    x, w = (
        random(126, 16, 128, dtype=ml_dtypes.bfloat16),
        integers(127, 128, 128, low=-8, high=8).astype(ml_dtypes.int4),
    )
    scales = np.abs(random(128, 1, 128))
    true = x.astype(np.float64) @ w.astype(np.float64) * scales
    bound = (product_bound(x, w.astype(np.int8), 4)) * scales
    return Case(
        "matmul_of_four_bit_weights", whole_kernel(kernel, ((16, 128), np.float32)), (x, w, scales), (true,), (bound,)
    )


@case
def convolution_of_time_steps() -> Case:
    """Four taps along rows; the last rows of a block are kept for the next one."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, taps: Any, out: Any, window: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            window[0:8, :] = jnp.zeros((8, 128), jnp.int32)

        window[8:24, :] = x[...]
        total = jnp.zeros((16, 128), jnp.int32)
        for tap in range(4):
            total += window[pl.ds(5 + tap, 16), :] * taps[tap : tap + 1, :]
        out[...] = total
        window[0:8, :] = x[8:16, :]

    def build(interpret: Any) -> Any:
        block = pl.BlockSpec((16, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            grid=(3,),
            in_specs=[block, pl.BlockSpec((4, 128), lambda i: (0, 0))],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct((48, 128), np.int32),
            scratch_shapes=[pltpu.VMEM((24, 128), jnp.int32)],
            interpret=interpret,
        )

    x, taps = integers(129, 48, 128), integers(130, 4, 128)
    padded = np.concatenate([np.zeros((3, 128), np.int32), x])
    true = sum(padded[tap : tap + 48] * taps[tap] for tap in range(4))
    return Case("convolution_of_time_steps", build, (x, taps), (np.asarray(true, np.int32),))


@case
def linear_recurrence() -> Case:
    """h = a·h + b along rows, with the state kept from block to block."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(a: Any, b: Any, out: Any, state: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            state[...] = jnp.zeros_like(state)

        def step(row: Any, h: Any) -> Any:
            h = jax.nn.sigmoid(a[0, pl.ds(row, 1), :]) * h + b[0, pl.ds(row, 1), :]
            out[0, pl.ds(row, 1), :] = h
            return h

        state[...] = jax.lax.fori_loop(0, 8, step, state[...], unroll=2)

    def build(interpret: Any) -> Any:
        block = pl.BlockSpec((1, 8, 128), lambda batch, i: (batch, i, 0))
        return pl.pallas_call(
            kernel,
            grid=(2, 3),
            in_specs=[block, block],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct((2, 24, 128), np.float32),
            scratch_shapes=[pltpu.VMEM((1, 128), jnp.float32)],
            interpret=interpret,
        )

    a, b = random(131, 2, 24, 128), random(132, 2, 24, 128)
    gates = 1 / (1 + np.exp(-a.astype(np.float64)))
    true, bound = np.zeros(a.shape), np.zeros(a.shape)
    h = off = np.zeros((2, 128))
    for row in range(24):
        # A gate is off by its ULPs; the product and the sum are rounded.
        off = gates[:, row] * (off + (FUNCTION_ULPS + 8) * U * np.abs(h))
        h = gates[:, row] * h + b[:, row]
        off = off + 2 * U * (np.abs(h) + off)
        true[:, row], bound[:, row] = h, 1.01 * off
    return Case("linear_recurrence", build, (a, b), (true,), (bound,))


@case
def rotary_embedding() -> Case:
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, angles: Any, out: Any) -> None:
        turned = pltpu.roll(x[...], 64, 1)
        columns = jnp.arange(128)[None]
        sign = jnp.where(columns < 64, -1.0, 1.0)
        out[...] = x[...] * jnp.cos(angles[...]) + sign * turned * jnp.sin(angles[...])

    x, angles = random(133, 16, 128), np.tile(random(134, 16, 64), (1, 2))
    wide = x.astype(np.float64)
    sign = np.where(np.arange(128) < 64, -1, 1)
    turned = np.roll(wide, 64, 1)
    true = wide * np.cos(angles.astype(np.float64)) + sign * turned * np.sin(angles.astype(np.float64))
    bound = (FUNCTION_ULPS + 3) * U * (np.abs(wide) + np.abs(turned))
    return Case("rotary_embedding", whole_kernel(kernel, (x.shape, np.float32)), (x, angles), (true,), (bound,))


@case
def product_by_an_emitted_pipeline() -> Case:
    """The pipeline runs within the kernel, and its blocks are revisited to add up a product."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, y: Any, out: Any, acc: Any) -> None:
        def inner(left: Any, right: Any, product: Any) -> None:
            @pl.when(pl.program_id(1) == 0)
            def _() -> None:
                acc[...] = jnp.zeros_like(acc)

            acc[...] += jnp.dot(left[...], right[...], preferred_element_type=jnp.float32)

            @pl.when(pl.program_id(1) == 1)
            def _() -> None:
                product[...] = acc[...]

        pltpu.emit_pipeline(
            inner,
            grid=(3, 2),
            in_specs=[pl.BlockSpec((16, 128), lambda i, k: (i, k)), pl.BlockSpec((128, 128), lambda i, k: (k, 0))],
            out_specs=[pl.BlockSpec((16, 128), lambda i, k: (i, 0))],
        )(x, y, out)

    def build(interpret: Any) -> Any:
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel,
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct((48, 128), jnp.float32),
            scratch_shapes=[pltpu.VMEM((16, 128), jnp.float32)],
            interpret=interpret,
        )

    x, y = random(135, 48, 256), random(136, 256, 128)
    return Case(
        "product_by_an_emitted_pipeline",
        build,
        (x, y),
        (x.astype(np.float64) @ y,),
        (product_bound(x, y),),
        interpret=None,
    )
