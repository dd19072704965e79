"""Pallas kernels for TPUs, written for these tests: control flow, edges, shared memory, movement of data.

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
    random,
    rows_kernel,
    whole_kernel,
)


@case
def control_flow() -> Case:
    """A while loop whose end depends on data, a conditional of four branches, and a loop that carries two values."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(n: Any, x: Any, out: Any) -> None:
        def collatz(state: Any) -> Any:
            value, steps = state
            return jnp.where(value % 2 == 0, value // 2, 3 * value + 1), steps + 1

        _, steps = jax.lax.while_loop(lambda state: state[0] != 1, collatz, (n[0], 0))
        branches = [lambda v, k=k: v * (k + 2) for k in range(4)]
        chosen = jax.lax.switch(jax.lax.rem(steps, 4), branches, x[...])

        def step(i: Any, state: Any) -> Any:
            return state[0] + state[1] * i, state[1] ^ i

        first, second = jax.lax.fori_loop(2, 7, step, (chosen, x[...]))
        out[...] = first - second + steps

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
            out_shape=jax.ShapeDtypeStruct((8, 128), np.int32),
            interpret=interpret,
        )

    n, x = np.array([27], np.int32), integers(63, 8, 128)
    value, steps = 27, 0
    while value != 1:
        value, steps = (value // 2 if value % 2 == 0 else 3 * value + 1), steps + 1
    first, second = x * (steps % 4 + 2), x
    for i in range(2, 7):
        first, second = first + second * i, second ^ i
    return Case("control_flow", build, (n, x), ((first - second + steps).astype(np.int32),))


@case
def uneven_blocks() -> Case:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2 + 1

    x = integers(64, 21, 200)
    return Case("uneven_blocks", rows_kernel(kernel, 8, (True,), (x.shape, np.int32)), (x,), (x * 2 + 1,))


@case
def uneven_reduction_with_a_mask() -> Case:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        rows = step * 8 + jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        out[...] += jnp.sum(jnp.where(rows < 21, x[...], 0.0), axis=0, keepdims=True)

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
            out_shape=jax.ShapeDtypeStruct((1, 128), np.float32),
            interpret=interpret,
        )

    x = random(65, 21, 128)
    bound = gamma(24) * np.abs(x.astype(np.float64)).sum(0, keepdims=True)
    true = x.astype(np.float64).sum(0, keepdims=True)
    return Case("uneven_reduction_with_a_mask", build, (x,), (true,), (bound,))


@case
def shared_memory_of_input_and_output() -> Case:
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, whole: Any, out: Any) -> None:
        out[...] = x[...] + 5

    def build(interpret: Any) -> Any:
        # Blocks 0 and 2 are written; block 1 keeps what the input has there.
        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0)), pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((8, 128), lambda i: (2 * i, 0)),
            out_shape=jax.ShapeDtypeStruct((24, 128), np.int32),
            input_output_aliases={1: 0},
            interpret=interpret,
        )

    x, whole = integers(66, 16, 128), integers(67, 24, 128)
    true = np.concatenate([x[:8] + 5, whole[8:16], x[8:] + 5])
    return Case("shared_memory_of_input_and_output", build, (x, whole), (true,))


@case
def blocks_of_four_dimensions() -> Case:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[0, 0] = jnp.sum(x[0], axis=0) + x[0, 1]

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(2, 3),
            in_specs=[pl.BlockSpec((1, 4, 8, 128), lambda i, j: (i, 0, j, 0))],
            out_specs=pl.BlockSpec((1, 1, 8, 128), lambda i, j: (j, i, 0, 0)),
            out_shape=jax.ShapeDtypeStruct((3, 2, 8, 128), np.int32),
            interpret=interpret,
        )

    x = integers(68, 2, 4, 24, 128)
    true = (x.sum(1) + x[:, 1]).reshape(2, 3, 8, 128).transpose(1, 0, 2, 3).astype(np.int32)
    return Case("blocks_of_four_dimensions", build, (x,), (true,))


@case
def squeezed_blocks() -> Case:
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] - 1

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(3, 2),
            in_specs=[pl.BlockSpec((None, 8, 128), lambda i, j: (i, j, 0))],
            out_specs=pl.BlockSpec((None, 8, 128), lambda i, j: (2 - i, j, 0)),
            out_shape=jax.ShapeDtypeStruct((3, 16, 128), np.int32),
            interpret=interpret,
        )

    x = integers(69, 3, 16, 128)
    return Case("squeezed_blocks", build, (x,), (x[::-1] - 1,))


@case
def masks() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, flags: Any, out: Any, counts: Any) -> None:
        one = (x[...] > 0) & (flags[...] | (x[...] % 3 == 0))
        two = jnp.logical_not(one) ^ (x[...] < -50)
        out[...] = two
        counts[...] = jnp.where(one, x[...], -x[...])

    x, flags = integers(70, 16, 128), integers(71, 16, 128, low=0, high=2, dtype=np.bool_)
    one = (x > 0) & (flags | (x % 3 == 0))
    true = (~one ^ (x < -50), np.where(one, x, -x))
    return Case("masks", whole_kernel(kernel, (x.shape, np.bool_), (x.shape, np.int32)), (x, flags), true)


@case
def iota_and_roll() -> Case:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any) -> None:
        rows = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        columns = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 1)
        turned = pltpu.roll(x[...], 3, 1) + pltpu.roll(x[...], 5, 0)
        out[...] = turned + rows * 1000 + columns + pltpu.roll(x[...], 2, 1, stride=1, stride_axis=0)

    x = integers(72, 8, 128)
    slanted = np.stack([np.roll(row, 2 + number) for number, row in enumerate(x)])
    true = np.roll(x, 3, 1) + np.roll(x, 5, 0) + np.arange(8)[:, None] * 1000 + np.arange(128) + slanted
    return Case("iota_and_roll", whole_kernel(kernel, (x.shape, np.int32)), (x,), (true.astype(np.int32),))


@case
def transposes_and_reshapes() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, out: Any, other: Any) -> None:
        out[...] = jnp.transpose(x[...], (1, 0, 2)).reshape(16, 4 * 128)
        other[...] = jnp.concatenate([x[1].T, x[0].T], axis=1)

    x = integers(73, 4, 16, 128)
    true = (x.transpose(1, 0, 2).reshape(16, 512), np.concatenate([x[1].T, x[0].T], 1))
    build = whole_kernel(kernel, ((16, 512), np.int32), ((128, 32), np.int32))
    return Case("transposes_and_reshapes", build, (x,), true)


@case
def reductions_of_all_kinds() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, f: Any, out: Any, real: Any) -> None:
        v = x[...]
        out[0:1] = jnp.sum(v, axis=0, keepdims=True)
        out[1:2] = jnp.max(v, axis=0, keepdims=True)
        out[2:3] = jnp.min(v, axis=0, keepdims=True)
        out[3:4] = jnp.argmax(f[...], axis=0).reshape(1, 128).astype(jnp.int32)
        out[4:5] = jnp.argmin(f[...], axis=0).reshape(1, 128).astype(jnp.int32)
        out[5:6] = jnp.any(f[...] > 2, axis=0, keepdims=True).astype(jnp.int32)
        out[6:7] = jnp.all(f[...] > -2, axis=0, keepdims=True).astype(jnp.int32)
        out[7:8] = jnp.full((1, 128), jnp.max(f[...]).astype(jnp.int32))
        real[...] = jnp.max(f[...], axis=1, keepdims=True) - jnp.min(f[...], axis=1, keepdims=True)

    x, f = integers(74, 16, 128), np.round(random(75, 16, 128) * 64) / 64
    rows = [x.sum(0), x.max(0), x.min(0), f.argmax(0), f.argmin(0), (f > 2).any(0), (f > -2).all(0)]
    true = np.stack([*rows, np.full(128, int(f.max()))]).astype(np.int32)
    span = (f.max(1, keepdims=True) - f.min(1, keepdims=True)).astype(np.float32)
    build = whole_kernel(kernel, ((8, 128), np.int32), ((16, 1), np.float32))
    return Case("reductions_of_all_kinds", build, (x, f.astype(np.float32)), (true, span))


@case
def conversions() -> Case:
    import jax.numpy as jnp
    import ml_dtypes

    def kernel(f: Any, i: Any, half: Any, small: Any, whole: Any, unsigned: Any, back: Any) -> None:
        half[...] = f[...].astype(jnp.bfloat16)
        small[...] = i[...].astype(jnp.int8)
        whole[...] = f[...].astype(jnp.int32)
        unsigned[...] = (i[...].astype(jnp.uint32) >> 3) * 2
        back[...] = i[...].astype(jnp.float32)

    f, i = random(76, 32, 128, scale=30), integers(77, 32, 128, low=-(2**31), high=2**31)
    shapes = [(f.shape, each) for each in (ml_dtypes.bfloat16, np.int8, np.int32, np.uint32, np.float32)]
    true = (
        f.astype(ml_dtypes.bfloat16),
        i.astype(np.int8),
        np.trunc(f).astype(np.int32),
        (i.astype(np.uint32) >> np.uint32(3)) * np.uint32(2),
        i.astype(np.float32),
    )
    return Case("conversions", whole_kernel(kernel, *shapes), (f, i), true)


@case
def packed_bits() -> Case:
    import jax.numpy as jnp
    import ml_dtypes
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, words: Any, out: Any, halves: Any, again: Any) -> None:
        out[...] = pltpu.bitcast(x[...], jnp.int32)
        halves[...] = pltpu.bitcast(words[...], jnp.bfloat16)
        again[...] = words.bitcast(jnp.int16)[...] + jnp.int16(1)

    x = random(78, 16, 128, dtype=ml_dtypes.bfloat16)
    words = random(79, 8, 128).view(np.int32)
    bits = x.view(np.uint16).astype(np.uint32).reshape(8, 2, 128)
    packed = (bits[:, 0] | bits[:, 1] << 16).view(np.int32)
    parts = (
        np.stack([words.view(np.uint32) & 0xFFFF, words.view(np.uint32) >> 16], 1).astype(np.uint16).reshape(16, 128)
    )
    true = (packed, parts.view(ml_dtypes.bfloat16), parts.view(np.int16) + np.int16(1))
    build = whole_kernel(kernel, ((8, 128), np.int32), ((16, 128), ml_dtypes.bfloat16), ((16, 128), np.int16))
    return Case("packed_bits", build, (x, words), true, interpret=None)


@case
def strided_accesses() -> Case:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[0:8] = x[pl.ds(1, 8, stride=3), :]
        out[pl.ds(9, 4, stride=2), :] = x[0:4]
        out[pl.ds(8, 4, stride=2), :] = x[20:24]

    x = integers(80, 24, 128)
    true = np.zeros((16, 128), np.int32)
    true[:8], true[9::2], true[8::2] = x[1:24:3], x[:4], x[20:]
    return Case("strided_accesses", whole_kernel(kernel, (true.shape, np.int32)), (x,), (true,))


@case
def elements_by_index() -> Case:
    """Index maps that give elements, not blocks: windows that overlap."""
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[0:8] + x[8:16]

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(3,),
            in_specs=[pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (8 * i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((24, 128), np.int32),
            interpret=interpret,
        )

    x = integers(81, 32, 128)
    return Case("elements_by_index", build, (x,), (x[:24] + x[8:],))


@case
def scoped_memory_and_signals() -> Case:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any) -> None:
        def body(buffer: Any, done: Any, count: Any) -> None:
            copy = pltpu.async_copy(x, buffer, done)
            pl.semaphore_signal(count, 3)
            copy.wait()
            pl.semaphore_wait(count, 2)
            out[...] = buffer[...] * pl.semaphore_read(count)
            pl.semaphore_wait(count, 1)

        pl.run_scoped(body, pltpu.VMEM((8, 128), jnp.int32), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR)

    def build(interpret: Any) -> Any:
        return pl.pallas_call(
            kernel,
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_shape=jax.ShapeDtypeStruct((8, 128), np.int32),
            interpret=interpret,
        )

    x = integers(82, 8, 128)
    return Case("scoped_memory_and_signals", build, (x,), (x,), interpret=None)


@case
def dynamic_grid() -> Case:
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 3

    def build(interpret: Any) -> Any:
        def run(n: Any, x: Any) -> Any:
            block = pl.BlockSpec((8, 128), lambda i: (i, 0))
            shape = jax.ShapeDtypeStruct((16, 128), np.int32)
            call = pl.pallas_call(
                kernel, grid=(n,), in_specs=[block], out_specs=block, out_shape=shape, interpret=interpret
            )
            return call(x)

        return run

    x = integers(83, 16, 128)
    return Case("dynamic_grid", build, (np.int32(2), x), (x * 3,), interpret=None)


@case
def gathers_along_lanes() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, index: Any, out: Any) -> None:
        out[...] = jnp.take_along_axis(x[...], index[...], axis=1)

    x, index = integers(84, 8, 128), integers(85, 8, 128, low=0, high=128)
    true = np.take_along_axis(x, index, 1)
    return Case("gathers_along_lanes", whole_kernel(kernel, (x.shape, np.int32)), (x, index), (true,))


@case
def integer_arithmetic() -> Case:
    import jax
    import jax.numpy as jnp

    def kernel(x: Any, y: Any, out: Any) -> None:
        a, b = x[...], y[...]
        out[0] = a // b
        out[1] = jax.lax.rem(a, b)
        out[2] = jax.lax.shift_right_logical(a, 3) ^ (b << 5)
        out[3] = jax.lax.population_count(a) + jax.lax.clz(b)
        out[4] = jnp.minimum(a, b) * jnp.maximum(a, b)
        out[5] = jnp.abs(a) - jnp.sign(b)
        out[6] = jnp.bitwise_not(a) & 0xFF | b

    x = integers(86, 8, 128, low=-(2**31), high=2**31)
    y = integers(87, 8, 128, low=1, high=1000) * np.where(integers(88, 8, 128) > 0, 1, -1).astype(np.int32)
    bits, other = x.view(np.uint32), y.view(np.uint32)
    count = np.array([bin(int(each)).count("1") for each in bits.ravel()]).reshape(x.shape)
    zeros = np.array([32 - int(each).bit_length() for each in other.ravel()]).reshape(x.shape)
    true = np.stack(
        [
            x // y,
            np.fmod(x, y),
            (bits >> 3).view(np.int32) ^ (y << 5),
            count + zeros,
            np.minimum(x, y) * np.maximum(x, y),
            np.abs(x) - np.sign(y),
            ~x & 0xFF | y,
        ]
    ).astype(np.int32)
    return Case("integer_arithmetic", whole_kernel(kernel, (true.shape, np.int32)), (x, y), (true,))
