"""What hardware hides: faults planted in small Triton kernels are named, with operation, source and instance."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning
from tests.library_calls.triton.kernels import call, shaped
from tests.library_calls.triton.lowering import lowered, require_pallas

X = np.arange(64, dtype=np.float32)


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def run(kernel: Callable[..., Any], *operands: Any, out: Any = None, **said: Any) -> tuple[Any, list[str]]:
    """The result of a kernel, and the warnings of the run."""
    module = lowered(call(kernel, shaped(64) if out is None else out, False, **said), *operands)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HloWarning)
        result = hloexec.run(module, *operands)
    return result, [str(item.message) for item in caught]


def line_of(kernel: Callable[..., Any], text: str) -> str:
    """`test_findings.py:LINE` of a line of a kernel."""
    lines, first = inspect.getsourcelines(kernel)
    (number,) = [number for number, line in enumerate(lines) if text in line]
    return f"test_findings.py:{first + number}:"


def part(size: int = 16) -> Any:
    from jax.experimental import pallas as pl

    return pl.ds(pl.program_id(0) * size, size)


def test_a_load_beyond_an_input_is_named_with_its_instance() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[part()] = x[part()]

    result, said = run(kernel, X[:50], grid=(4,))
    assert any("accesses elements beyond the 50 of input 0" in message for message in said)
    (message,) = [message for message in said if "beyond" in message]
    assert "kernel 'kernel'" in message
    assert "tt.load" in message
    assert line_of(kernel, "x[part()]") in message
    assert "(3, 0, 0)" in message
    assert np.array_equal(result[:50], X[:50])
    assert np.isnan(result[50:]).all()


def test_a_store_beyond_an_output_is_named_and_dropped() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[part()] = x[part()]

    result, said = run(kernel, X, out=shaped(50), grid=(4,))
    (message,) = said
    assert "tt.store" in message
    assert "accesses elements beyond the 50 of output 0" in message
    assert np.array_equal(result, X[:50])


def test_elements_that_nothing_wrote_are_named() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[part()] = x[part()]

    result, said = run(kernel, X, grid=(3,))
    (message,) = said
    assert message == "kernel 'kernel': leaves elements of output 0 that nothing has written"
    assert np.isnan(result[48:]).all()


def test_a_sum_into_memory_that_nothing_wrote_is_named() -> None:
    """Outputs are not zero at the start, unless they share the memory of an input that is."""

    def kernel(x: Any, out: Any) -> None:
        out[part()] += x[part()]

    result, said = run(kernel, X, grid=(4,))
    (message,) = said
    assert "reads elements of output 0 that nothing has written" in message
    assert line_of(kernel, "+=") in message
    assert "(0, 0, 0)" in message
    assert np.isnan(result).all()


def test_an_atomic_sum_into_memory_that_nothing_wrote_is_named() -> None:
    from jax.experimental.pallas import triton as plgpu

    def kernel(x: Any, out: Any) -> None:
        plgpu.atomic_add(out, (part(),), x[part()])

    _, said = run(kernel, X, grid=(4,))
    assert ["reads elements of output 0 that nothing has written" in message for message in said] == [True]


def test_two_instances_that_write_other_values_to_one_element_are_named() -> None:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[pl.ds(pl.program_id(0) * 15, 16)] = x[pl.ds(pl.program_id(0) * 16, 16)]

    result, said = run(kernel, X, out=shaped(61), grid=(4,))
    (message,) = said
    assert "tt.store" in message
    assert "writes to elements of output 0" in message
    assert "other values" in message
    assert "(1, 0, 0)" in message
    # One after the other, the last one counts.
    assert result[15] == X[16]


def test_two_instances_that_write_the_same_are_no_matter() -> None:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        here = pl.ds(pl.program_id(0) * 8, 16)
        out[here] = x[here]

    result, said = run(kernel, X, grid=(7,))
    assert said == []
    assert np.array_equal(result, X)


def test_an_instance_that_reads_what_another_writes_is_named() -> None:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[part()] = x[part()] + 1

        @pl.when(pl.program_id(0) > 0)
        def _() -> None:
            before = pl.ds(pl.program_id(0) * 16 - 16, 16)
            out[part()] = out[before] + 1

    result, said = run(kernel, X, grid=(4,))
    (message,) = said
    assert "reads elements of output 0 that another program instance writes" in message
    assert line_of(kernel, "out[before] + 1") in message
    assert "(1, 0, 0)" in message
    assert np.array_equal(result, X % 16 + np.repeat([1, 2, 3, 4], 16))


def test_an_in_place_update_that_reads_its_neighbours_is_named() -> None:
    """The input shares its memory with the output: what an instance reads, another one may have written before."""
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        following = pl.ds((pl.program_id(0) * 16 + 16) % 64, 16)
        out[part()] = x[part()] + x[following]

    _, said = run(kernel, X, grid=(4,), input_output_aliases={0: 0})
    assert any("writes to elements of input 0 that another program instance reads" in message for message in said)


def test_a_masked_load_without_a_value_is_named_where_it_reaches_a_result() -> None:
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    def kernel(x: Any, out: Any) -> None:
        row = plgpu.load(x.at[pl.ds(0, 64)], mask=jnp.arange(64) < 50)
        out[...] = jnp.sum(row, axis=0)

    _, said = run(kernel, X[:50], out=shaped())
    (message,) = said
    assert "tt.load" in message
    assert "leaves out elements by its mask, and says no value for them" in message
    assert line_of(kernel, "plgpu.load") in message


def test_a_masked_load_without_a_value_is_no_matter_where_the_store_has_the_mask() -> None:
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

    def kernel(x: Any, out: Any) -> None:
        mask = jnp.arange(64) < 50
        plgpu.store(out.at[pl.ds(0, 64)], plgpu.load(x.at[pl.ds(0, 64)], mask=mask), mask=mask)

    _, said = run(kernel, X[:50], out=shaped(50))
    assert said == []


def test_a_write_to_an_input_is_an_error() -> None:
    def kernel(x: Any, out: Any) -> None:
        x[part()] = out[part()] * 0

    with pytest.raises(hloexec.HloError, match=r"kernel 'kernel'.*writes to input 0, which is an input that no output"):
        run(kernel, X, grid=(4,))
