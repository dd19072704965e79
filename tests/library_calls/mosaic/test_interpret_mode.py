"""Pallas' own interpreter of TPU kernels runs the rings on CPU devices, and looks for races: it agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("conformance.xla")  # first, as it sets how many devices there are
from tests.library_calls.mosaic import rings
from tests.library_calls.mosaic.lowering import KNOWN_TO_LOWER, require_pallas
from tests.library_calls.mosaic.rings import BLOCK, COUNT, buffers, call, run, semaphores
from tests.library_calls.mosaic.test_devices import PARTS, X, by_device

RACES = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"


@pytest.fixture(autouse=True)
def _pallas() -> None:
    jax = pytest.importorskip("jax")
    require_pallas()
    if jax.__version__ != KNOWN_TO_LOWER or jax.device_count() < COUNT:
        pytest.skip("the interpreter of this version, or so many devices, are not there")


def scattering() -> list[Any]:
    from jax.experimental.pallas import tpu as pltpu

    two = pltpu.SemaphoreType.DMA((2,))
    return [buffers(2), two, two, pltpu.SemaphoreType.REGULAR]


RINGS: dict[str, tuple[Callable[..., None], Any, Callable[[], list[Any]], Any, str]] = {
    "gather": (rings.gather, (COUNT, *BLOCK), lambda: semaphores(COUNT), X, ""),
    "scatter": (rings.scatter, BLOCK, scattering, PARTS, ""),
    "reduce": (rings.reduce, BLOCK, lambda: [buffers(COUNT), *semaphores(COUNT)], X, ""),
    "exchange": (rings.exchange, (COUNT, *BLOCK), semaphores, PARTS, ""),
    "a missing wait": (rings.gather, (COUNT, *BLOCK), lambda: semaphores(COUNT), X, "early"),
    "a buffer that is used too early": (rings.scatter, BLOCK, scattering, PARTS, "reuse"),
    "one place that all write": (rings.exchange, (COUNT, *BLOCK), semaphores, PARTS, "one place"),
}


@pytest.mark.parametrize("name", RINGS)
def test_bits_and_races_are_those_of_the_interpreter(name: str) -> None:
    """The interpreter runs devices at the same time, so that bits of those with races are not defined."""
    import jax
    from jax.experimental.pallas import tpu as pltpu

    kernel, sizes, scratch, x, fault = RINGS[name]
    said = {"fault": fault} if fault else {}
    specs = by_device()
    result, warned = run(call(kernel, sizes, scratch(), **said), [x], specs)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:COUNT]), ("x",))
    mode = pltpu.InterpretParams(detect_races=True)
    function = call(kernel, sizes, scratch(), interpret=mode, **said)
    expected = np.asarray(
        jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False))(x)
    )
    races = pytest.importorskip(RACES).races
    assert races.races_found is bool(fault)
    assert bool(warned) is bool(fault)
    if not fault:
        assert result.tobytes() == expected.tobytes()
