"""From a case to a module: JAX lowers for TPUs without one; what this version of JAX does not lower is skipped."""

from __future__ import annotations

from typing import Any

import pytest

import hloexec
from tests.library_calls.mosaic.kernels import Case

KNOWN_TO_LOWER = "0.10.2"
"""The version of JAX with which all cases are lowered: others may lack something."""


def require_pallas() -> None:
    """Skip where there is no Pallas for TPUs; else say which chip kernels are lowered for, which it asks for."""
    pytest.importorskip("jaxlib")
    pytest.importorskip("jax.experimental.pallas.tpu")
    tpu_info = pytest.importorskip("jax._src.pallas.mosaic.tpu_info")
    if hasattr(tpu_info, "registry"):
        tpu_info.registry["cpu"] = lambda: tpu_info.get_tpu_info_for_chip(tpu_info.ChipVersion.TPU_V5E, 1)


def lowered(case: Case) -> hloexec.Module:
    """The module of a case, lowered for TPUs."""
    import jax

    try:
        staged = jax.jit(case.build(False)).trace(*case.arguments).lower(lowering_platforms=("tpu",))
    except Exception as error:
        if jax.__version__ == KNOWN_TO_LOWER:
            raise
        pytest.skip(f"JAX {jax.__version__} does not lower it: {error}")
    return hloexec.from_jax(staged)


def interpreted(case: Case) -> tuple[Any, ...]:
    """What Pallas' interpret mode gives."""
    import jax
    from jax.experimental.pallas import tpu as pltpu

    mode = pltpu.InterpretParams() if case.interpret == "tpu" else True
    result = jax.jit(case.build(mode))(*case.arguments)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
