"""Faults in kernels that send to other devices, and what they are reported as: operation, source line and devices."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

from hloexec.errors import EvaluationError
from hloexec.ops.library_calls.mosaic.turns import Turns
from tests.library_calls.mosaic import rings
from tests.library_calls.mosaic.lowering import require_pallas
from tests.library_calls.mosaic.rings import BLOCK, COUNT, buffers, call, run, semaphores
from tests.library_calls.mosaic.test_devices import X, all_to_all, by_device, ring, scattered


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def line_of(kernel: Any, text: str) -> str:
    """`rings.py:LINE` of a line of a kernel."""
    lines, first = inspect.getsourcelines(kernel)
    (number,) = [number for number, line in enumerate(lines) if text in line]
    return f"rings.py:{first + number}:"


def assert_at(messages: list[str], line: str) -> None:
    """Both places that a message names are in this line, if kernels have lines: those of JAX 0.12 have none."""
    assert messages
    assert all(message.count(line) == 2 for message in messages) or not any("rings.py" in each for each in messages)


def test_memory_that_nothing_wrote_is_named_with_the_device_where_it_reaches_a_result() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, scratch: Any) -> None:
        me, _, _, _ = rings.neighbours()

        @pl.when(me != 2)
        def _() -> None:
            scratch[...] = x[...]

        out[...] = scratch[...]

    result, said = run(call(kernel, BLOCK, [pltpu.VMEM(BLOCK, np.float32)], has_barrier=False), [X], by_device())
    (message,) = said
    assert " on device 2 reads elements of scratch operand 0 that nothing has written" in message
    blocks = result.reshape(COUNT, *BLOCK)
    assert np.isnan(blocks[2]).all()
    assert np.array_equal(blocks[[0, 1, 3]], X.reshape(COUNT, *BLOCK)[[0, 1, 3]])


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


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_devices_changes_bits_or_hides_a_race(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices take one turn each time, in an order that is drawn."""
    first = scattered()
    generator = np.random.default_rng(seed)

    def draw(turns: Turns) -> bool:
        ready = [player for player in turns._players if not player.is_over and player.is_ready()]
        if ready:
            turns._give_turn(ready[generator.integers(len(ready))])
        return bool(ready)

    monkeypatch.setattr(Turns, "_round", draw)
    result, said = scattered()
    assert said == []
    assert result.tobytes() == first[0].tobytes()
    for faulty in (
        partial(scattered, fault="reuse"),
        partial(ring, fault="early"),
        partial(all_to_all, fault="one place"),
    ):
        _, said = faulty()
        assert any("no signal orders the two" in message or "while the transfer" in message for message in said)
