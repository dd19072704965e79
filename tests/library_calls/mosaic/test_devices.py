"""Kernels that send to other devices: rings of four devices, and what a fault in one of them is reported as."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import EvaluationError, UnsupportedError
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


def line_of(kernel: Any, text: str) -> str:
    """`rings.py:LINE` of a line of a kernel."""
    lines, first = inspect.getsourcelines(kernel)
    (number,) = [number for number, line in enumerate(lines) if text in line]
    return f"rings.py:{first + number}:"


def assert_at(messages: list[str], line: str) -> None:
    """Both places that a message names are in this line, if kernels have lines: those of JAX 0.12 have none."""
    assert messages
    assert all(message.count(line) == 2 for message in messages) or not any("rings.py" in each for each in messages)


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
    staged = jax.jit(lambda x: shipped.all_gather(x, mesh=mesh, axis_name="x")).trace(np.repeat(X, 2, 0))
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


# Faults


def test_a_block_that_is_handed_on_before_it_is_there_is_named() -> None:
    """A missing wait."""
    _, said = ring(fault="early")
    races = [message for message in said if "copies output 0 to output 0 of another device" in message]
    assert any("of another device starts touches them, first from device 0" in message for message in races)
    assert all(" on device" in message for message in races)
    assert_at(races, line_of(rings.gather, "copy.start()"))


def test_memory_that_is_read_before_a_neighbour_has_written_it_is_named_with_the_device() -> None:
    """Device 0 reads before anything has been sent to it, the others while it is under way."""

    def kernel(x: Any, out: Any, buffer: Any, send: Any, receive: Any) -> None:
        _, left, right, _ = rings.neighbours()
        rings.meet(left, right)
        copy = rings.sent(x, buffer.at[0], (send, receive), right)
        copy.start()
        out[...] = buffer[0]
        copy.wait()

    _, said = run(call(kernel, BLOCK, [buffers(1), *semaphores()]), [X], by_device())
    assert any(
        "on devices 1–3 reads scratch operand 0 while the transfer to it that tpu.enqueue_dma at " in message
        and message.endswith("of another device starts is under way, first from device 0")
        for message in said
    )
    assert any(
        "on device 3 copies input 0 to scratch operand 0 of another device, where vector.load at " in message
        and message.endswith("reads: no signal orders the two, first to device 0")
        for message in said
    )


def test_a_neighbour_that_is_not_there_is_an_error_that_names_the_device() -> None:
    def kernel(x: Any, out: Any, send: Any, receive: Any) -> None:
        me, _, _, _ = rings.neighbours()
        copy = rings.sent(x, out, (send, receive), me + 1)
        copy.start()
        copy.wait()

    with pytest.raises(
        EvaluationError, match=r"tpu\.enqueue_dma.* on device 3 reaches for device 4, but there are 4 dev"
    ):
        run(call(kernel, BLOCK, semaphores(), has_barrier=False), [X], by_device())


def test_a_wrong_neighbour_is_named_by_who_waits_for_what_and_where() -> None:
    """Device 3 sends to itself, not to device 0."""

    def kernel(x: Any, out: Any, send: Any, receive: Any) -> None:
        import jax.numpy as jnp

        me, _, _, count = rings.neighbours()
        copy = rings.sent(x, out, (send, receive), jnp.minimum(me + 1, count - 1))
        copy.start()
        copy.wait()

    with pytest.raises(EvaluationError) as error:
        run(call(kernel, BLOCK, semaphores(), has_barrier=False), [X], by_device())
    assert "no device can go on:\n  device 0: tpu.wait_dma2 at " in str(error.value)
    assert "waits for 4096 bytes of transfers, but its semaphore has 0\n  devices 1–3: at the end" in str(error.value)


def test_a_semaphore_that_does_not_come_back_to_zero_is_named_with_the_devices() -> None:
    _, said = scattered(fault="left over")
    (message,) = said
    assert "on devices 0–3 ends while scratch operand 3 is 1, not zero" in message


def test_waiting_for_what_never_comes_names_each_device_and_its_place() -> None:
    def kernel(x: Any, out: Any, count: Any) -> None:
        from jax.experimental import pallas as pl

        me, _, _, _ = rings.neighbours()

        @pl.when(me % 2 == 0)
        def _() -> None:
            pl.semaphore_wait(count, 1)

        @pl.when(me == 3)
        def _() -> None:
            pl.semaphore_wait(count, 2)

        out[...] = x[...]

    from jax.experimental.pallas import tpu as pltpu

    with pytest.raises(EvaluationError) as error:
        run(call(kernel, BLOCK, [pltpu.SemaphoreType.REGULAR], has_barrier=False), [X], by_device())
    message = str(error.value)
    assert "no device can go on:" in message
    assert "devices 0, 2: tpu.sem_wait at " in message
    assert "device 3: tpu.sem_wait at " in message
    assert "waits for 2 signals, but its semaphore has 0" in message
    assert "device 1: at the end" in message


def test_two_devices_that_write_one_place_are_named() -> None:
    """At once, and one after the other without a signal between."""
    _, said = all_to_all(fault="one place")
    writes = "on devices 1–3 copies input 0 to output 0 of another device"
    assert any(f"{writes} while the transfer that tpu.enqueue_dma at" in message for message in said)
    assert any(
        writes in message and "writes: no signal orders the two, first to device 0" in message for message in said
    )
    assert any("leaves elements of output 0 that nothing has written" in message for message in said)


def test_a_buffer_that_is_used_again_before_the_neighbour_has_read_it_is_named() -> None:
    _, said = scattered(fault="reuse")
    races = [
        message for message in said if "copies scratch operand 0 to scratch operand 0 of another device" in message
    ]
    assert any("reads: no signal orders the two, first to device 1" in message for message in races)
    assert_at(races, line_of(rings.scatter, "copy.start()"))


def test_a_run_has_the_same_bits_and_findings_each_time() -> None:
    first, second = scattered(fault="reuse"), scattered(fault="reuse")
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1] == second[1]


def test_one_device_alone_is_refused() -> None:
    function = functools.partial(call(rings.gather, (COUNT, *BLOCK), semaphores(COUNT)))
    module = module_of(function, [X], by_device())
    with pytest.raises(UnsupportedError, match=r"exchanges values with other devices.*run_devices"):
        hloexec.run(module, X)


def test_a_mesh_of_one_device_is_one_device() -> None:
    module = module_of(call(_shift, X.shape, semaphores()), [X], by_device(), sizes=(1,))
    assert np.array_equal(hloexec.run(module, X), X)
