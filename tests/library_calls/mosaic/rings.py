"""Kernels that four devices run together, for the tests: what they send travels in a ring, or to all at once.

Each takes what to leave out, or to do wrong, so that a fault can be planted in it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning
from tests.library_calls.mosaic.lowering import KNOWN_TO_LOWER

COUNT = 4
BLOCK = (8, 128)


def module_of(
    function: Callable[..., Any], arguments: Sequence[Any], specs: Any, sizes: Sequence[int] = (COUNT,)
) -> Any:
    """A function of each device's part, over a mesh with the axes x, y… of these sizes, lowered for TPUs."""
    import jax

    try:
        mesh = jax.sharding.AbstractMesh(tuple(sizes), ("x", "y")[: len(sizes)])
        mapped = jax.shard_map(function, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
        staged = jax.jit(mapped).trace(*arguments).lower(lowering_platforms=("tpu",))
    except Exception as error:
        if jax.__version__ == KNOWN_TO_LOWER:
            raise
        pytest.skip(f"JAX {jax.__version__} does not lower it: {error}")
    return hloexec.from_jax(staged)


def run(function: Callable[..., Any], arguments: Sequence[Any], specs: Any, **said: Any) -> tuple[Any, list[str]]:
    """The result, which is the same array on all devices, and the warnings of the run."""
    module = module_of(function, arguments, specs, **said)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HloWarning)
        results = hloexec.run_devices(module, [tuple(arguments)] * COUNT)
    for other in results[1:]:
        assert np.array_equal(other, results[0], equal_nan=True)
    return results[0], [str(each.message) for each in caught]


def neighbours(axis: str = "x") -> tuple[Any, Any, Any, int]:
    """The device's place on an axis, those to its left and right, and how many there are."""
    import jax

    count = jax.lax.axis_size(axis)
    me = jax.lax.axis_index(axis)
    return me, jax.lax.rem(me + count - 1, count), jax.lax.rem(me + 1, count), count


def signal(semaphore: Any, *device: Any) -> None:
    from jax.experimental import pallas as pl

    pl.semaphore_signal(semaphore, 1, device_id=device, device_id_type=pl.DeviceIdType.MESH)


def meet(*devices: Any) -> None:
    """Go on when neighbours have begun the kernel."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    barrier = pltpu.get_barrier_semaphore()
    for device in devices:
        signal(barrier, device)
    pl.semaphore_wait(barrier, len(devices))


def sent(source: Any, target: Any, semaphores: Sequence[Any], *device: Any) -> Any:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    kind = pl.DeviceIdType.MESH
    return pltpu.make_async_remote_copy(source, target, *semaphores, device_id=device, device_id_type=kind)


def gather(x: Any, out: Any, send: Any, receive: Any, *, fault: str = "") -> None:
    """Ring all-gather: at each step a device hands on what it has got last. Blocks of `out` are by device."""
    from jax.experimental.pallas import tpu as pltpu

    me, left, right, count = neighbours()
    meet(left, right)
    pltpu.sync_copy(x, out.at[me])
    for step in range(count - 1):
        place = (me + count - step) % count
        copy = sent(out.at[place], out.at[place], (send, receive.at[step]), right)
        copy.start()
        if fault == "early":
            copy.wait_send()
        else:
            copy.wait()
    if fault == "early":
        for step in range(count - 1):
            sent(x, out.at[0], (send, receive.at[step]), right).wait_recv()


def scatter(x: Any, out: Any, buffer: Any, send: Any, receive: Any, free: Any, *, fault: str = "") -> None:
    """Ring reduce-scatter: sums travel to the device that gets them, in two buffers by turns; `free` says that the next
    device has sent on what is in one."""
    from jax.experimental import pallas as pl

    me, left, right, count = neighbours()
    meet(left, right)
    buffer[0] = x[(me + count - 1) % count]
    for step in range(count - 1):
        here, there = step % 2, (step + 1) % 2
        if step and fault != "reuse":
            pl.semaphore_wait(free, 1)
        copy = sent(buffer.at[here], buffer.at[there], (send.at[here], receive.at[there]), right)
        copy.start()
        copy.wait()
        buffer[there] += x[(me + 2 * count - 2 - step) % count]
        if (step < count - 2 or fault == "left over") and fault != "reuse":
            signal(free, left)
    out[...] = buffer[(count - 1) % 2]


def reduce(x: Any, out: Any, buffer: Any, send: Any, receive: Any) -> None:
    """Ring all-reduce: what a device has got is added, and handed on."""
    _, left, right, count = neighbours()
    meet(left, right)
    out[...] = buffer[0] = x[...]
    for step in range(count - 1):
        copy = sent(buffer.at[step], buffer.at[step + 1], (send, receive.at[step]), right)
        copy.start()
        copy.wait()
        out[...] += buffer[step + 1]


def exchange(x: Any, out: Any, send: Any, receive: Any, *, fault: str = "") -> None:
    """All-to-all: block d of `x` goes to device d, where it is the block of its sender."""
    me, _, _, count = neighbours()
    meet(*range(count))
    copies = []
    for device in range(count):
        place = me if fault != "one place" else 0 * me
        copies.append(sent(x.at[device], out.at[place], (send, receive), device))
        copies[-1].start()
    for copy in copies:
        copy.wait()


def multiply(x: Any, w: Any, out: Any, blocks: Any, send: Any, receive: Any) -> None:
    """Rows of a product: while a block of x is multiplied, it travels to the next device."""
    import jax.numpy as jnp

    me, left, right, count = neighbours()
    meet(left, right)
    blocks[0] = x[...]
    for step in range(count):
        copy = sent(blocks.at[step], blocks.at[step + 1], (send, receive.at[step]), right)
        if step < count - 1:
            copy.start()
        out[(me + count - step) % count] = jnp.dot(blocks[step], w[...], preferred_element_type=jnp.float32)
        if step < count - 1:
            copy.wait()


def call(
    kernel: Callable[..., None],
    sizes: Sequence[int],
    scratch: Sequence[Any],
    space: Any = None,
    *,
    has_barrier: bool = True,
    interpret: Any = False,
    **said: Any,
) -> Any:
    """A kernel that is given its operands whole, as a function; `said` is for the kernel."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    spec = pl.BlockSpec(memory_space=pltpu.VMEM if space is None else space)
    return pl.pallas_call(
        functools.partial(kernel, **said),
        out_shape=jax.ShapeDtypeStruct(tuple(sizes), np.float32),
        in_specs=[spec] * (2 if kernel is multiply else 1),
        out_specs=spec,
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(collective_id=0 if has_barrier else None),
        interpret=interpret,
    )


def semaphores(*sizes: int) -> list[Any]:
    """Of sends, and of what is received."""
    from jax.experimental.pallas import tpu as pltpu

    return [pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA(sizes)]


def buffers(count: int) -> Any:
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.VMEM((count, *BLOCK), np.float32)
