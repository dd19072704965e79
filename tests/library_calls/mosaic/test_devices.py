"""Kernels that send to other devices: rings of four devices, and what a fault in one of them is reported as."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import UnsupportedError
from tests.library_calls.mosaic import rings
from tests.library_calls.mosaic.kernels import product_bound, random
from tests.library_calls.mosaic.lowering import require_pallas
from tests.library_calls.mosaic.rings import BLOCK, COUNT, buffers, call, module_of, run, semaphores

X = np.arange(COUNT * BLOCK[0] * BLOCK[1], dtype=np.float32).reshape(COUNT * BLOCK[0], BLOCK[1])
PARTS = np.random.default_rng(1).integers(-1000, 1000, (COUNT * COUNT, *BLOCK)).astype(np.float32)
"""Block d of device e at e · COUNT + d; sums of four are exact."""


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def by_device() -> tuple[Any, Any]:
    """Operands and results of which each device has a part of the first dimension."""
    import jax

    return jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec("x")


def ring(**said: Any) -> tuple[Any, list[str]]:
    return run(call(rings.gather, (COUNT, *BLOCK), semaphores(COUNT), **said), [X], by_device())


@pytest.mark.parametrize("space", ["ANY", "VMEM"])
def test_an_all_gather_in_a_ring(space: str) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    result, said = ring(space=pl.ANY if space == "ANY" else pltpu.VMEM)
    assert said == []
    assert np.array_equal(result.reshape(COUNT, *X.shape), [X] * COUNT)


def scattered(**said: Any) -> tuple[Any, list[str]]:
    from jax.experimental.pallas import tpu as pltpu

    two = pltpu.SemaphoreType.DMA((2,))
    return run(
        call(rings.scatter, BLOCK, [buffers(2), two, two, pltpu.SemaphoreType.REGULAR], **said), [PARTS], by_device()
    )


def test_a_reduce_scatter_in_a_ring() -> None:
    result, said = scattered()
    assert said == []
    assert np.array_equal(result.reshape(COUNT, *BLOCK), PARTS.reshape(COUNT, COUNT, *BLOCK).sum(0))


def test_an_all_reduce_in_a_ring() -> None:
    blocks = PARTS[:COUNT]
    result, said = run(
        call(rings.reduce, BLOCK, [buffers(COUNT), *semaphores(COUNT)]), [blocks.reshape(-1, BLOCK[1])], by_device()
    )
    assert said == []
    assert np.array_equal(result.reshape(COUNT, *BLOCK), [blocks.sum(0)] * COUNT)


def all_to_all(**said: Any) -> tuple[Any, list[str]]:
    return run(call(rings.exchange, (COUNT, *BLOCK), semaphores(), **said), [PARTS], by_device())


def test_an_all_to_all() -> None:
    result, said = all_to_all()
    assert said == []
    assert np.array_equal(result.reshape(COUNT, COUNT, *BLOCK), PARTS.reshape(COUNT, COUNT, *BLOCK).swapaxes(0, 1))


def test_a_product_with_an_operand_that_is_gathered_meanwhile() -> None:
    """Sums of 128 products in f32: γ₁₃₀ of the sums of their sizes."""
    import jax

    rows, w = random(1, COUNT * BLOCK[0], 128), random(2, 128, 128)
    specs = (jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()), jax.sharding.PartitionSpec("x")
    result, said = run(
        call(rings.multiply, (COUNT, *BLOCK), [buffers(COUNT + 1), *semaphores(COUNT)]), [rows, w], specs
    )
    assert said == []
    true, bound = rows.astype(np.float64) @ w, product_bound(rows, w)
    for part in result.reshape(COUNT, -1, 128):
        assert (np.abs(part - true) <= bound).all()


def test_the_gather_that_jax_ships() -> None:
    import jax

    shipped = pytest.importorskip("jax.experimental.pallas.ops.tpu.all_gather")
    mesh = jax.sharding.AbstractMesh((COUNT,), ("x",))
    try:
        staged = jax.jit(lambda x: shipped.all_gather(x, mesh=mesh, axis_name="x")).trace(np.repeat(X, 2, 0))
    except ValueError as error:
        pytest.skip(f"JAX {jax.__version__} does not trace it over a mesh without devices: {error}")
    module = hloexec.from_jax(staged.lower(lowering_platforms=("tpu",)))
    for result in hloexec.run_devices(module, [(np.repeat(X, 2, 0),)] * COUNT):
        assert np.array_equal(result, np.repeat(X, 2, 0))


def test_devices_of_a_mesh_are_numbered_row_by_row() -> None:
    """On a mesh of 2 × 2, to the next along x and to the next along y, by numbers on the mesh and by plain ones."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, send: Any, receive: Any, *, kind: str) -> None:
        one, two = jax.lax.axis_index("x"), jax.lax.axis_index("y")
        if kind == "x":
            copy = rings.sent(x, out, (send, receive), 1 - one, two)
        elif kind == "y":
            copy = rings.sent(x, out, (send, receive), one, 1 - two)
        else:
            number = (2 * one + two + 1) % COUNT
            logical = pl.DeviceIdType.LOGICAL
            copy = pltpu.make_async_remote_copy(x, out, send, receive, device_id=number, device_id_type=logical)
        copy.start()
        copy.wait()

    blocks = X.reshape(2, 2, *BLOCK)
    expected = {"x": blocks[::-1], "y": blocks[:, ::-1], "number": np.roll(X, BLOCK[0], 0).reshape(2, 2, *BLOCK)}
    spec = jax.sharding.PartitionSpec("x", "y")
    for kind, value in expected.items():

        def shifted(x: Any, kind: str = kind) -> Any:
            return call(kernel, BLOCK, semaphores(), has_barrier=False, kind=kind)(x.reshape(BLOCK)).reshape(
                1, 1, *BLOCK
            )

        result, said = run(shifted, [blocks], (spec, spec), sizes=(2, 2))
        assert said == []
        assert np.array_equal(result, value)


def test_a_program_of_several_kernels_and_collectives() -> None:
    """In a loop, what a kernel has moved goes on through instructions of HLO."""
    import jax

    def program(x: Any) -> Any:
        shift = call(_shift, BLOCK, semaphores())
        return jax.lax.fori_loop(0, 3, lambda step, value: shift(value) + 1, x) + jax.lax.psum(x[0, 0], "x")

    result, said = run(program, [X], by_device())
    assert said == []
    assert np.array_equal(result, np.roll(X, 3 * BLOCK[0], 0) + 3 + X[:: BLOCK[0], 0].sum())


def _shift(x: Any, out: Any, send: Any, receive: Any) -> None:
    _, left, right, _ = rings.neighbours()
    rings.meet(left, right)
    copy = rings.sent(x, out, (send, receive), right)
    copy.start()
    copy.wait()


def test_memory_that_is_allocated_in_a_part_of_a_kernel_is_reached_there() -> None:
    """A device that is ahead waits until the other has allocated it."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any) -> None:
        _, _, right, _ = rings.neighbours()

        def part(buffer: Any, send: Any, receive: Any) -> None:
            copy = rings.sent(x, buffer, (send, receive), right)
            copy.start()
            copy.wait()
            out[...] = 2 * buffer[...]

        pl.run_scoped(part, pltpu.VMEM(BLOCK, np.float32), pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA)

    result, said = run(call(kernel, BLOCK, [], has_barrier=False), [X], by_device())
    assert said == []
    assert np.array_equal(result, 2 * np.roll(X, BLOCK[0], 0))


def test_a_device_that_looks_at_a_semaphore_again_and_again_lets_others_go_on() -> None:
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any, count: Any) -> None:
        _, left, right, _ = rings.neighbours()
        rings.signal(count, right)
        rings.signal(count, left)
        seen = jax.lax.while_loop(lambda seen: seen < 2, lambda seen: pl.semaphore_read(count), 0)
        pl.semaphore_wait(count, 2)
        out[...] = x[...] + seen.astype(np.float32)

    from jax.experimental.pallas import tpu as pltpu

    result, said = run(call(kernel, BLOCK, [pltpu.SemaphoreType.REGULAR], has_barrier=False), [X], by_device())
    assert said == []
    assert np.array_equal(result, X + 2)


def test_a_ring_whose_steps_are_points_of_the_grid() -> None:
    """An all-reduce: what travels lies in a second output in far memory, of which there are two slots; a device sends
    when the next one has handed on what is in the slot."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, slots: Any, near: Any, local: Any, send: Any, receive: Any, free: Any) -> None:
        step = pl.program_id(0)
        _, left, right, count = rings.neighbours()
        here, there = step % 2, (step + 1) % 2

        @pl.when(step == 0)
        def _() -> None:
            rings.meet(left, right)
            out[...] = x[...]
            near[...] = x[...]
            copy = pltpu.make_async_copy(near, slots.at[0], local)
            copy.start()
            copy.wait()
            rings.signal(free, left)

        pl.semaphore_wait(free, 1)
        copy = rings.sent(slots.at[here], slots.at[there], (send.at[here], receive.at[there]), right)
        copy.start()
        copy.wait()

        @pl.when(step < count - 2)
        def _() -> None:
            rings.signal(free, left)

        pltpu.sync_copy(slots.at[there], near)
        out[...] += near[...]

    def program(x: Any) -> Any:
        spec = pl.BlockSpec(BLOCK, lambda step: (0, 0))
        return pl.pallas_call(
            kernel,
            grid=(COUNT - 1,),
            in_specs=[spec],
            out_specs=[spec, pl.BlockSpec(memory_space=pl.ANY)],
            out_shape=[jax.ShapeDtypeStruct(BLOCK, np.float32), jax.ShapeDtypeStruct((2, *BLOCK), np.float32)],
            scratch_shapes=[
                pltpu.VMEM(BLOCK, np.float32),
                pltpu.SemaphoreType.DMA,
                *[pltpu.SemaphoreType.DMA((2,))] * 2,
                pltpu.SemaphoreType.REGULAR,
            ],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)[0]

    blocks = PARTS[:COUNT]
    result, said = run(program, [blocks.reshape(-1, BLOCK[1])], by_device())
    assert said == []
    assert np.array_equal(result.reshape(COUNT, *BLOCK), [blocks.sum(0)] * COUNT)


def test_one_device_alone_is_refused() -> None:
    function = partial(call(rings.gather, (COUNT, *BLOCK), semaphores(COUNT)))
    module = module_of(function, [X], by_device())
    with pytest.raises(UnsupportedError, match=r"exchanges values with other devices.*run_devices"):
        hloexec.run(module, X)


def test_a_mesh_of_one_device_is_one_device() -> None:
    module = module_of(call(_shift, X.shape, semaphores()), [X], by_device(), sizes=(1,))
    assert np.array_equal(hloexec.run(module, X), X)


def test_tools_take_a_kernel_of_several_devices_as_a_collective(tmp_path: Path) -> None:
    """A difference that it makes is blamed on it, a NaN that it hands on is not, and it runs alone once extracted."""
    import jax

    rows, w = random(3, COUNT * BLOCK[0], 128), random(4, 128, 128)
    specs = (jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()), jax.sharding.PartitionSpec("x")
    kernel = call(rings.multiply, (COUNT, *BLOCK), [buffers(COUNT + 1), *semaphores(COUNT)])
    module = module_of(lambda x, w: kernel(2 * x, w) + 1, [rows, w], specs)
    (name,) = [each.name for part in module for each in part if each.name.startswith("pallas_call")]
    inputs = [(rows, w)] * COUNT
    found = hloexec.diff(module, module, inputs, numerics=("reference", "bf16"))
    assert [finding.after.instruction for finding in found.findings] == [name]
    spoilt = rows.copy()
    spoilt[9, 3] = np.nan
    assert hloexec.find_nan(module, [(spoilt, w)] * COUNT).finding is None
    (untold,) = hloexec.shadow(module, inputs).untold
    assert untold.instruction == name
    assert "devices that meet has no kernel in f64" in untold.reason
    assert hloexec.extract(module, inputs, name).check().has_same_bits
