"""Runs of kernels with a timeout, and under policies that do what backends do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.errors import ResourceError
from tests.library_calls.mosaic.kernels import random
from tests.library_calls.mosaic.lowering import KNOWN_TO_LOWER, require_pallas
from tests.library_calls.mosaic.rings import BLOCK, COUNT, call, module_of, neighbours, signal
from tests.library_calls.mosaic.test_devices import X, by_device

TINY = np.float32(2.0**-140)


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def module(kernel: Callable[..., None], *operands: Any, dtype: Any = np.float32, **said: Any) -> hloexec.Module:
    import jax
    from jax.experimental import pallas as pl

    function = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(BLOCK, dtype), **said)
    traced = jax.jit(function).trace(*operands)
    try:
        return hloexec.from_jax(traced.lower(lowering_platforms=("tpu",)))
    except Exception as error:
        if jax.__version__ == KNOWN_TO_LOWER:
            raise
        pytest.skip(f"JAX {jax.__version__} does not lower it: {error}")


def endless(x: Any, out: Any) -> None:
    """As long as the first element is not negative."""
    import jax

    out[...] = x[...]

    def grow(number: Any) -> Any:
        out[...] += 1.0
        return number + 1

    jax.lax.while_loop(lambda number: out[0, 0] >= 0, grow, 0)


def counted(x: Any, out: Any) -> None:
    import jax

    out[...] = x[...]

    @jax.named_scope("count")
    def add(step: Any, _: Any) -> None:
        out[...] += 1.0

    jax.lax.fori_loop(0, 2**30, add, None)


def spread(x: Any, out: Any) -> None:
    out[...] = x[...] + 1.0


@pytest.mark.parametrize(("kernel", "grid"), [(endless, ()), (counted, ()), (spread, (2**14, 2**14))])
def test_a_timeout_ends_the_loops_of_a_kernel_and_its_grid(kernel: Callable[..., None], grid: tuple[int, ...]) -> None:
    """Within about a second; ten are allowed, as a machine may be busy."""
    x = np.ones(BLOCK, np.float32)
    lowered = module(kernel, x, grid=grid)
    started = time.monotonic()
    with pytest.raises(ResourceError, match=r"timeout=0\.2 ends the run, which has taken longer"):
        hloexec.run(lowered, x, timeout=0.2)
    assert time.monotonic() - started < 10


def test_a_timeout_ends_devices_that_look_for_what_never_comes() -> None:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, out: Any, count: Any) -> None:
        me, _, right, _ = neighbours()

        @pl.when(me == 0)
        def _() -> None:
            signal(count, right)

        seen = jax.lax.while_loop(lambda seen: seen < 2, lambda seen: pl.semaphore_read(count), 0)
        out[...] = x[...] + seen.astype(np.float32)

    lowered = module_of(call(kernel, BLOCK, [pltpu.SemaphoreType.REGULAR], has_barrier=False), [X], by_device())
    with pytest.raises(ResourceError, match="ends the run"):
        hloexec.run_devices(lowered, [(X,)] * COUNT, timeout=0.2)


def operations(x: Any, out: Any) -> None:
    """Rows of 8 ways to make a denormal number, or to meet one."""
    import jax.numpy as jnp

    out[0:1] = x[0:1] * 0.5
    out[1:2] = (x[1:2] + x[0:1]) * 2.0**30
    out[2:3] = x[2:3] / 4.0
    out[3:4] = jnp.broadcast_to(jnp.sum(x[0:2], axis=1, keepdims=True)[0:1] * 2.0**30, (1, 128))
    out[4:5] = jnp.where(x[4:5] > 0, 1.0, 2.0)
    out[5:6] = jnp.maximum(x[5:6], 0.0)
    out[6:7] = x[6:7]
    out[7:8] = jnp.abs(x[7:8])


def test_denormals_are_flushed_in_a_kernel_as_in_instructions() -> None:
    """Those that instructions of the same opcodes flush: the module of plain instructions is the reference here, and
    which of them flush is measured of XLA:CPU elsewhere."""
    import jax
    import jax.numpy as jnp

    x = np.full(BLOCK, TINY)

    def plain(x: Any) -> Any:
        rows = [x[0:1] * 0.5, (x[1:2] + x[0:1]) * 2.0**30, x[2:3] / 4.0]
        rows.append(jnp.broadcast_to(jnp.sum(x[0:2], axis=1, keepdims=True)[0:1] * 2.0**30, (1, 128)))
        rows += [jnp.where(x[4:5] > 0, 1.0, 2.0), jnp.maximum(x[5:6], 0.0), x[6:7], jnp.abs(x[7:8])]
        return jnp.concatenate(rows)

    instructions = hloexec.from_jax(jax.jit(plain).lower(x))
    kernel = module(operations, x)
    flushed = hloexec.run(kernel, x, numerics="ftz")
    assert flushed.tobytes() == hloexec.run(instructions, x, numerics="ftz").tobytes()
    kept = hloexec.run(kernel, x)
    assert kept.tobytes() == hloexec.run(instructions, x).tobytes()
    assert (flushed[:5] != kept[:5]).all()
    assert (flushed[:4] == 0).all()
    assert (flushed[6:] == kept[6:]).all()


def test_a_product_of_denormals_is_flushed() -> None:
    import jax.numpy as jnp

    def kernel(x: Any, w: Any, out: Any) -> None:
        out[...] = jnp.dot(x[...], w[...], preferred_element_type=jnp.float32)

    x, w = np.full(BLOCK, TINY), np.full((128, 128), np.float32(2.0**20))
    assert (hloexec.run(module(kernel, x, w), x, w) == TINY * 2.0**27).all()
    assert (hloexec.run(module(kernel, x, w), x, w, numerics="ftz") == 0).all()


def test_excess_precision_is_for_what_xla_fuses_and_changes_nothing_in_a_kernel() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * x[...] + x[...]

    x = random(5, *BLOCK, dtype=ml_dtypes.bfloat16)
    lowered = module(kernel, x, dtype=ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    product = (wide * wide).astype(ml_dtypes.bfloat16).astype(np.float32)
    for policy in ("reference", "excess"):
        result = hloexec.run(lowered, x, numerics=policy)
        assert result.tobytes() == (product + wide).astype(ml_dtypes.bfloat16).tobytes()
