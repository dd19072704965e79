"""What hardware hides: faults planted in small Pallas kernels are named, with operation, source and grid point."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import EvaluationError, HloWarning
from tests.library_calls.mosaic.lowering import require_pallas

X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def run(kernel: Callable[..., Any], *operands: Any, **said: Any) -> tuple[Any, list[str]]:
    """The result of a kernel, and the warnings of the run."""
    import jax
    from jax.experimental import pallas as pl

    said.setdefault("out_shape", jax.ShapeDtypeStruct((8, 128), np.float32))
    call = pl.pallas_call(kernel, **said)
    module = hloexec.from_jax(jax.jit(call).trace(*operands).lower(lowering_platforms=("tpu",)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HloWarning)
        result = hloexec.run(module, *operands)
    return result, [str(each.message) for each in caught]


def require_lines(*messages: str) -> None:
    """Skips where kernels have no source lines, as in JAX 0.12."""
    if not any("test_findings.py" in message for message in messages):
        pytest.skip("this version of JAX writes no source lines into kernels")


def line_of(kernel: Callable[..., Any], text: str) -> str:
    """`test_findings.py:LINE` of a line of a kernel."""
    lines, first = inspect.getsourcelines(kernel)
    (number,) = [number for number, line in enumerate(lines) if text in line]
    return f"test_findings.py:{first + number}:"


def anywhere(count: int = 1) -> Any:
    from jax.experimental import pallas as pl

    return [pl.BlockSpec(memory_space=pl.ANY)] * count


def test_memory_that_nothing_wrote_is_named_where_it_reaches_a_result() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, scratch: Any) -> None:
        scratch[0:4] = x[0:4]
        out[...] = scratch[...] + x[...]

    result, said = run(kernel, X[:8], scratch_shapes=[pltpu.VMEM((8, 128), np.float32)])
    (message,) = said
    assert "kernel 'kernel'" in message
    assert "reads elements of scratch operand 0 that nothing has written" in message
    require_lines(message)
    assert line_of(kernel, "out[...]") in message
    assert np.array_equal(result[:4], 2 * X[:4])
    assert np.isnan(result[4:]).all()


def test_memory_that_nothing_wrote_is_no_matter_where_it_is_masked() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, scratch: Any) -> None:
        scratch[0:4] = x[0:4]
        rows = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        out[...] = jnp.where(rows < 4, scratch[...], 0.0)

    _, said = run(kernel, X[:8], scratch_shapes=[pltpu.VMEM((8, 128), np.float32)])
    assert said == []


def test_a_sum_over_the_edge_of_an_array_is_named_with_its_grid_point() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += jnp.sum(x[...], axis=0, keepdims=True)

    _, said = run(
        kernel,
        X[:21],
        grid=(3,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((1, 128), np.float32),
    )
    (message,) = said
    assert "the block of input 0" in message
    assert "grid point (2,)" in message
    require_lines(message)
    assert line_of(kernel, "jnp.sum") in message


def test_an_output_that_is_not_written_is_named() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[0:4] = x[0:4]

    result, said = run(kernel, X[:8])
    assert [("leaves elements of output 0" in message) for message in said] == [True]
    assert np.isnan(result[4:]).all()


def test_an_output_block_that_is_left_and_visited_again_has_lost_what_it_held() -> None:
    """Blocks of outputs are not fetched: an accumulation over the outer grid dimension adds to nothing."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += x[...]

    _, said = run(
        kernel,
        X,
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (j, 0)),
        out_shape=jax.ShapeDtypeStruct((16, 128), np.float32),
    )
    (message,) = said
    assert "the block of output 0" in message
    assert "grid point (1, 0)" in message


def test_blocks_that_parallel_points_write_are_named() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

    said: dict[str, Any] = {
        "grid": (4,),
        "in_specs": [pl.BlockSpec((8, 128), lambda i: (i, 0))],
        "out_specs": pl.BlockSpec((8, 128), lambda i: (0, 0)),
    }
    parallel = pltpu.CompilerParams(dimension_semantics=("parallel",))
    _, found = run(kernel, X, **said, compiler_params=parallel)
    assert len(found) == 1
    assert "writes block (0, 0) of output 0 at several points of its parallel grid dimensions" in found[0]
    assert run(kernel, X, **said)[1] == []


def test_loads_and_stores_beyond_a_block_are_named() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(start: Any, x: Any, out: Any) -> None:
        out[...] = x[pl.ds(start[0], 8), :]
        out[pl.ds(start[0], 8), :] = x[0:8, :]

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    _, said = run(kernel, np.array([28], np.int32), X, in_specs=specs)
    require_lines(*said)
    assert any(
        "accesses [8, 128] elements at [28, 0]" in each and line_of(kernel, "= x[pl.ds") in each for each in said
    )
    assert any("within the [8, 128] of output 0" in each and line_of(kernel, "= x[0:8") in each for each in said)
    assert any("reads elements of input" in each or "nothing has written" in each for each in said) is False
    assert run(kernel, np.array([0], np.int32), X, in_specs=specs)[1] == []


def test_a_scalar_beyond_its_memory_is_named() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(table: Any, x: Any, out: Any) -> None:
        out[...] = x[...] + table[table[0]].astype(np.float32)

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    _, said = run(kernel, np.array([7, 1, 2], np.int32), X[:8], in_specs=specs)
    assert len(said) == 1
    assert "accesses [1] elements at [7]" in said[0]


def transfer(body: Callable[..., None]) -> tuple[Any, list[str]]:
    """A kernel that moves X by itself: it is given input and output anywhere, a buffer, and semaphores."""
    from jax.experimental.pallas import tpu as pltpu

    scratch = [pltpu.VMEM((2, 8, 128), np.float32), pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.REGULAR]
    return run(body, X, in_specs=anywhere(), scratch_shapes=scratch)


def test_memory_that_is_read_before_its_transfer_has_been_waited_for_is_named() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, buffer: Any, done: Any, _: Any) -> None:
        copy = pltpu.make_async_copy(x.at[0:8], buffer.at[0], done.at[0])
        copy.start()
        out[...] = buffer[0]
        copy.wait()

    _, said = transfer(kernel)
    (message,) = said
    assert "reads scratch operand 0 while the transfer to it" in message
    require_lines(message)
    assert line_of(kernel, "out[...]") in message
    assert line_of(kernel, "copy.start()") in message


def test_the_other_buffer_may_be_used_while_a_transfer_is_under_way() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, buffer: Any, done: Any, _: Any) -> None:
        pltpu.sync_copy(x.at[0:8], buffer.at[0])
        copy = pltpu.make_async_copy(x.at[8:16], buffer.at[1], done.at[1])
        copy.start()
        out[...] = buffer[0]
        copy.wait()
        out[...] += buffer[1]

    result, said = transfer(kernel)
    assert said == []
    assert np.array_equal(result, X[:8] + X[8:16])


def test_the_source_of_a_transfer_that_is_overwritten_is_named() -> None:
    import jax.numpy as jnp
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, buffer: Any, done: Any, _: Any) -> None:
        buffer[0] = jnp.ones((8, 128), jnp.float32)
        copy = pltpu.make_async_copy(buffer.at[0], buffer.at[1], done.at[0])
        copy.start()
        buffer[0] = jnp.zeros((8, 128), jnp.float32)
        copy.wait()
        out[...] = buffer[1]

    _, said = transfer(kernel)
    assert len(said) == 1
    assert "writes to scratch operand 0 while the transfer" in said[0]
    require_lines(said[0])
    assert line_of(kernel, "jnp.zeros") in said[0]


def test_two_transfers_to_one_place_are_named() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, buffer: Any, done: Any, _: Any) -> None:
        copies = [pltpu.make_async_copy(x.at[8 * i : 8 * i + 8], buffer.at[0], done.at[i]) for i in range(2)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()
        out[...] = buffer[0]

    _, said = transfer(kernel)
    assert len(said) == 1
    assert "copies input 0 to scratch operand 0 while the transfer" in said[0]


def test_semaphores_that_do_not_come_back_to_zero_are_named() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, buffer: Any, done: Any, count: Any) -> None:
        pltpu.make_async_copy(x.at[0:8], buffer.at[0], done.at[0]).start()
        pl.semaphore_signal(count, 2)
        pl.semaphore_wait(count, 1)
        pltpu.sync_copy(x.at[0:8], out)

    _, said = transfer(kernel)
    assert sorted("scratch operand 1 is 4096, not zero" in message for message in said) == [False, True]
    assert sorted("scratch operand 2 is 1, not zero" in message for message in said) == [False, True]


def test_a_wait_that_would_never_end_is_an_error() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, buffer: Any, done: Any, _: Any) -> None:
        copy = pltpu.make_async_copy(x.at[0:8], buffer.at[0], done.at[0])
        copy.start()
        copy.wait()
        copy.wait()
        out[...] = buffer[0]

    with pytest.raises(EvaluationError, match=r"(?s)wait_dma2?.* waits for 4096 bytes of transfers, but .* forever"):
        transfer(kernel)


def test_a_transfer_of_what_lies_beyond_an_array_is_an_error() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(start: Any, x: Any, out: Any) -> None:
        pltpu.sync_copy(x.at[pl.ds(start[0], 8)], out)

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), *anywhere()]
    with pytest.raises(EvaluationError, match=r"takes \[8, 128\] elements at \[25, 0\].* \[32, 128\] of input 1"):
        run(kernel, np.array([25], np.int32), X, in_specs=specs)
    result, said = run(kernel, np.array([24], np.int32), X, in_specs=specs)
    assert said == []
    assert np.array_equal(result, X[24:])


def test_what_is_in_near_memory_at_the_start_may_be_written() -> None:
    """Prefetched scalars and whole inputs are copies; the caller's array stays as it is."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(count: Any, x: Any, out: Any) -> None:
        count[0] = count[0] + 2
        x[0:1] = x[1:2]
        out[...] = x[...] * count[0].astype(np.float32)

    count, x = np.array([1], np.int32), X[:8].copy()
    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    result, said = run(kernel, count, x, in_specs=specs)
    assert said == []
    assert np.array_equal(result, 3 * X[[1, 1, 2, 3, 4, 5, 6, 7]])
    assert count[0] == 1
    assert np.array_equal(x, X[:8])


def test_an_input_that_shares_no_memory_with_an_output_cannot_be_written() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any) -> None:
        pltpu.sync_copy(x.at[0:8], x.at[8:16])
        pltpu.sync_copy(x.at[0:8], out)

    with pytest.raises(EvaluationError, match="copies to input 0, which is an input that no output shares memory with"):
        run(kernel, X, in_specs=anywhere(), out_specs=anywhere()[0])


def test_a_check_that_fails_is_an_error() -> None:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        pl.debug_check(x[0, 0] > 5, "the first element is small")
        out[...] = x[...]

    with pl.enable_debug_checks(True), pytest.raises(EvaluationError, match="the first element is small"):
        run(kernel, X[:8])
