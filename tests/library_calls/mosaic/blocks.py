"""Pallas kernels for TPUs, written for these tests: prefetched tables, state between blocks, transfers, pipelines.

See `kernels` for what a case is. All of these move data or compute integers, unless a bound says otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.library_calls.mosaic.kernels import (
    Case,
    case,
    gamma,
    integers,
    product_bound,
    random,
)


@case
def scalar_prefetch_gathers_blocks() -> Case:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(places: Any, table: Any, out: Any) -> None:
        out[...] = table[...] + places[pl.program_id(0)]

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(4,),
                in_specs=[pl.BlockSpec((8, 128), lambda i, places: (places[i], 0))],
                out_specs=pl.BlockSpec((8, 128), lambda i, places: (i, 0)),
            ),
            out_shape=jax.ShapeDtypeStruct((32, 128), np.int32),
            interpret=interpret,
        )

    places, table = np.array([3, 0, 5, 3], np.int32), integers(50, 48, 128)
    true = table.reshape(6, 8, 128)[places] + places[:, None, None]
    return Case("scalar_prefetch_gathers_blocks", build, (places, table), (true.reshape(32, 128),))


@case
def paged_attention() -> Case:
    """One query for each sequence, over pages of keys and values that a table names; lengths are prefetched."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(lengths: Any, pages: Any, q: Any, k: Any, v: Any, out: Any, top: Any, total: Any, acc: Any) -> None:
        sequence, page = pl.program_id(0), pl.program_id(1)
        last = pl.num_programs(1) - 1

        @pl.when(page == 0)
        def _() -> None:
            top[...] = jnp.full_like(top, -1e30)
            total[...] = jnp.zeros_like(total)
            acc[...] = jnp.zeros_like(acc)

        @pl.when(page * 16 < lengths[sequence])
        def _() -> None:
            dims = (((1,), (1,)), ((), ()))
            scores = jax.lax.dot_general(q[0], k[0], dims, preferred_element_type=jnp.float32)
            place = page * 16 + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(place < lengths[sequence], scores, -1e30)
            now = jnp.maximum(top[...], jnp.max(scores, axis=1, keepdims=True))
            weights, factor = jnp.exp(scores - now[:, :1]), jnp.exp(top[...] - now)
            total[...] = total[...] * factor + jnp.sum(weights, axis=1, keepdims=True)
            acc[...] = acc[...] * factor + jnp.dot(weights, v[0], preferred_element_type=jnp.float32)
            top[...] = now

        @pl.when(page == last)
        def _() -> None:
            out[0] = acc[...] / total[...]

    def build(interpret: Any) -> Any:
        page = pl.BlockSpec((1, 16, 128), lambda b, p, lengths, pages: (pages[b, p], 0, 0))
        row = pl.BlockSpec((1, 8, 128), lambda b, p, lengths, pages: (b, 0, 0))
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(3, 4),
                in_specs=[row, page, page],
                out_specs=row,
                scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)] * 3,
            ),
            out_shape=jax.ShapeDtypeStruct((3, 8, 128), np.float32),
            interpret=interpret,
        )

    lengths, pages = np.array([5, 64, 33], np.int32), integers(51, 3, 4, low=0, high=10)
    q, k, v = random(52, 3, 8, 128, scale=0.1), random(53, 10, 16, 128), random(54, 10, 16, 128)
    true, bound = np.zeros((3, 8, 128)), np.zeros((3, 8, 128))
    for number, length in enumerate(lengths):
        keys, values = (each[pages[number]].reshape(64, 128)[:length].astype(np.float64) for each in (k, v))
        scores = q[number].astype(np.float64) @ keys.T
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        true[number] = weights @ values
        # As in flash attention: scores off by γ₁₃₀ Σ|qk|, arguments of exp by u of their spread, sums by γ₁₃₀.
        size = (np.abs(q[number]).astype(np.float64) @ np.abs(keys).T).max()
        relative = 2 * gamma(130) * size + 4 * gamma(1) * np.ptp(scores) + gamma(200)
        bound[number] = relative * (weights @ np.abs(values))
    return Case("paged_attention", build, (lengths, pages, q, k, v), (true,), (bound,))


@case
def grouped_matmul() -> Case:
    """Rows of a group are multiplied by the group's matrix: which one, a prefetched table of row blocks says."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(groups: Any, starts: Any, x: Any, w: Any, out: Any) -> None:
        tile, group = pl.program_id(0), groups[pl.program_id(0)]
        rows = tile * 8 + jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        inside = (rows >= starts[group]) & (rows < starts[group + 1])
        out[...] = jnp.where(inside, jnp.dot(x[...], w[0], preferred_element_type=jnp.float32), 0.0)

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(4,),
                in_specs=[
                    pl.BlockSpec((8, 64), lambda i, groups, starts: (i, 0)),
                    pl.BlockSpec((1, 64, 128), lambda i, groups, starts: (groups[i], 0, 0)),
                ],
                out_specs=pl.BlockSpec((8, 128), lambda i, groups, starts: (i, 0)),
            ),
            out_shape=jax.ShapeDtypeStruct((32, 128), np.float32),
            interpret=interpret,
        )

    groups, starts = np.array([0, 0, 2, 2], np.int32), np.array([0, 14, 14, 32], np.int32)
    x, w = random(55, 32, 64), random(56, 3, 64, 128)
    rows = np.arange(32)[:, None]
    true = np.zeros((32, 128))
    bound = np.zeros((32, 128))
    for tile, group in enumerate(groups):
        part = slice(8 * tile, 8 * tile + 8)
        inside = (rows[part] >= starts[group]) & (rows[part] < starts[group + 1])
        true[part] = np.where(inside, x[part].astype(np.float64) @ w[group], 0)
        bound[part] = product_bound(x[part], w[group])
    return Case("grouped_matmul", build, (groups, starts, x, w), (true,), (bound + 2.0**-126,))


@case
def cumulative_sum_over_blocks() -> Case:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, carry: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            carry[...] = jnp.zeros_like(carry)

        def step(row: Any, total: Any) -> Any:
            total = total + x[pl.ds(row, 1), :]
            out[pl.ds(row, 1), :] = total
            return total

        carry[...] = jax.lax.fori_loop(0, 8, step, carry[...])

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((32, 128), np.int32),
            scratch_shapes=[pltpu.VMEM((1, 128), jnp.int32)],
            interpret=interpret,
        )

    x = integers(57, 32, 128)
    return Case("cumulative_sum_over_blocks", build, (x,), (np.cumsum(x, 0).astype(np.int32),))


@case
def embedding_by_transfers() -> Case:
    """Rows of a table in HBM, each by a transfer of its own, all under way at once."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(tokens: Any, table: Any, out: Any, done: Any) -> None:
        copies = [
            pltpu.make_async_copy(table.at[pl.ds(tokens[row], 1)], out.at[pl.ds(row, 1)], done.at[row])
            for row in range(8)
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
            out_shape=jax.ShapeDtypeStruct((8, 128), np.float32),
            scratch_shapes=[pltpu.SemaphoreType.DMA((8,))],
            interpret=interpret,
        )

    tokens, table = integers(58, 8, low=0, high=40), random(59, 40, 128)
    return Case("embedding_by_transfers", build, (tokens, table), (table[tokens],), interpret="tpu")


@case
def double_buffered_pipeline() -> Case:
    """Chunks of HBM through two buffers: the next one is fetched while this one is used."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, buffers: Any, result: Any, fetched: Any, stored: Any) -> None:
        def fetch(chunk: Any, slot: Any) -> Any:
            return pltpu.make_async_copy(x.at[pl.ds(chunk * 8, 8)], buffers.at[slot], fetched.at[slot])

        fetch(0, 0).start()

        def step(chunk: Any, _: Any) -> None:
            slot = jax.lax.rem(chunk, 2)

            @pl.when(chunk + 1 < 4)
            def _() -> None:
                fetch(chunk + 1, 1 - slot).start()

            fetch(chunk, slot).wait()
            result[...] = buffers[slot] * 2 + chunk
            copy = pltpu.make_async_copy(result, out.at[pl.ds(chunk * 8, 8)], stored)
            copy.start()
            copy.wait()

        jax.lax.fori_loop(0, 4, step, None)

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            out_shape=jax.ShapeDtypeStruct((32, 128), np.int32),
            scratch_shapes=[
                pltpu.VMEM((2, 8, 128), jnp.int32),
                pltpu.VMEM((8, 128), jnp.int32),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.DMA(()),
            ],
            interpret=interpret,
        )

    x = integers(60, 32, 128)
    true = x * 2 + np.arange(4, dtype=np.int32).repeat(8)[:, None]
    return Case("double_buffered_pipeline", build, (x,), (true,), interpret="tpu")


@case
def emitted_pipeline() -> Case:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def inner(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] + 3 * y[...]

    def kernel(x: Any, y: Any, out: Any) -> None:
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(inner, grid=(5,), in_specs=[block, block], out_specs=[block])(x, y, out)

    def build(interpret: Any) -> Any:
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel,
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct((40, 128), jnp.int32),
            interpret=interpret,
        )

    x, y = integers(61, 40, 128), integers(62, 40, 128)
    return Case("emitted_pipeline", build, (x, y), (x + 3 * y,), interpret=None)


@case
def blocks_that_are_visited_again() -> Case:
    """An accumulation over the outer dimension of the grid: output blocks are left, and restored."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += x[...]

    def build(interpret: Any) -> Any:
        mode = pl.Buffered(1, revisit=pl.RevisitMode.ANY)
        return pl.pallas_call(
            kernel,
            grid=(3, 2),
            in_specs=[pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, j: (j, 0), pipeline_mode=mode),
            out_shape=jax.ShapeDtypeStruct((16, 128), np.int32),
            interpret=interpret,
        )

    x = integers(90, 48, 128)
    return Case("blocks_that_are_visited_again", build, (x,), (x.reshape(3, 16, 128).sum(0).astype(np.int32),))
