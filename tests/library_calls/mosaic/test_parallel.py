"""Parallel grid dimensions, whose order is not defined: what depends on it is named, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.library_calls.mosaic.lowering import require_pallas
from tests.library_calls.mosaic.test_findings import run

X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
PLACES = "another point of its parallel grid dimensions has written"


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def over(
    semantics: str, kernel: Callable[..., None], *, blocks: bool = False, scratch: Any = ()
) -> tuple[Any, list[str]]:
    """A kernel over four blocks of X, whose output is one block, or four; a second dimension has two points."""
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    return run(
        kernel,
        X,
        grid=(4, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), (lambda i, j: (i, 0)) if blocks else (lambda i, j: (0, 0))),
        out_shape=jax.ShapeDtypeStruct((32 if blocks else 8, 128), np.float32),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics, "arbitrary")),
    )


def total(x: Any, out: Any) -> None:
    """Sums over both dimensions."""
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
    def _() -> None:
        out[...] = jnp.zeros_like(out)

    out[...] += x[...]


@pytest.mark.parametrize("semantics", ["parallel", "core_parallel"])
def test_a_sum_over_a_parallel_dimension_is_named_and_over_an_arbitrary_one_is_right(semantics: str) -> None:
    result, said = over("arbitrary", total)
    assert said == []
    assert np.array_equal(result, 2 * X.reshape(4, 8, 128).sum(0))
    _, said = over(semantics, total)
    assert any(f"reads elements of the block of output 0 that {PLACES}" in message for message in said)
    assert any("writes block (0, 0) of output 0 at several points" in message for message in said)
    assert any("first at grid point (1, 0)" in message for message in said)


def test_a_sum_within_a_parallel_point_is_right() -> None:
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, scratch: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            scratch[...] = jnp.zeros_like(scratch)

        scratch[...] += x[...]
        out[...] = scratch[...]

    result, said = over("parallel", kernel, blocks=True, scratch=[pltpu.VMEM((8, 128), np.float32)])
    assert said == []
    assert np.array_equal(result, 2 * X)


def test_scratch_memory_that_carries_over_to_the_next_parallel_point_is_named() -> None:
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, scratch: Any) -> None:
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _() -> None:
            scratch[...] = jnp.zeros_like(scratch)

        scratch[...] += x[...]
        out[...] = scratch[...]

    scratch = [pltpu.VMEM((8, 128), np.float32)]
    result, said = over("parallel", kernel, blocks=True, scratch=scratch)
    assert said
    assert all(f"reads elements of scratch operand 0 that {PLACES}" in message for message in said)
    assert np.array_equal(result, 2 * np.cumsum(X.reshape(4, 8, 128), 0).reshape(X.shape))
    assert over("arbitrary", kernel, blocks=True, scratch=scratch)[1] == []


def test_scratch_memory_that_carries_over_is_no_matter_where_results_do_not_depend_on_it() -> None:
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, scratch: Any) -> None:
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _() -> None:
            scratch[...] = jnp.zeros_like(scratch)

        before = scratch[...]
        scratch[...] = x[...]
        out[...] = jnp.where(before == before, x[...], 0.0)

    _, said = over("parallel", kernel, blocks=True, scratch=[pltpu.VMEM((8, 128), np.float32)])
    assert said == []


def test_parallel_points_that_write_the_same_to_one_block_are_no_matter() -> None:
    import jax.numpy as jnp

    def kernel(x: Any, out: Any) -> None:
        out[...] = jnp.full((8, 128), 7.0)

    result, said = over("parallel", kernel)
    assert said == []
    assert (result == 7).all()


def test_parallel_points_that_copy_to_one_place_are_named() -> None:
    """An output that lies in far memory, and that the kernel writes by itself."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, *, rows: int) -> None:
        point = pl.program_id(0)
        pltpu.sync_copy(x.at[pl.ds(8 * point, 8)], out.at[pl.ds(rows * point, 8)])

    import functools

    import jax

    far = pl.BlockSpec(memory_space=pl.ANY)
    for rows in (8, 4):
        result, said = run(
            functools.partial(kernel, rows=rows),
            X,
            grid=(4,),
            in_specs=[far],
            out_specs=far,
            out_shape=jax.ShapeDtypeStruct((24 + 8 - 3 * (8 - rows), 128), np.float32),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )
        if rows == 8:
            assert said == []
            assert np.array_equal(result, X)
        else:
            (message,) = said
            assert f"writes elements of output 0 that {PLACES}" in message
            assert "first at grid point (1,)" in message


def test_a_place_of_an_inner_parallel_dimension_may_go_on_with_what_it_wrote() -> None:
    """Sums over the outer dimension in an output that lies whole in near memory; each place has rows of its own."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any) -> None:
        rows = pl.ds(8 * pl.program_id(1), 8)

        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            out[rows] = jnp.zeros((8, 128), jnp.float32)

        out[rows] += x[rows]

    near = pl.BlockSpec(memory_space=pltpu.VMEM)
    result, said = run(
        kernel,
        X,
        grid=(3, 4),
        in_specs=[near],
        out_specs=near,
        out_shape=jax.ShapeDtypeStruct((32, 128), np.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "parallel")),
    )
    assert said == []
    assert np.array_equal(result, 3 * X)
