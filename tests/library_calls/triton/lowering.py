"""From a case to a module: JAX lowers for GPUs without one; what this version of JAX does not lower is skipped."""

from __future__ import annotations

from typing import Any

import pytest

import hloexec
from tests.library_calls.mosaic.kernels import Case
from tests.library_calls.mosaic.lowering import KNOWN_TO_LOWER


def require_pallas() -> None:
    """Skip where there is no Pallas for GPUs, or it lowers to PTX."""
    pytest.importorskip("jaxlib.triton")
    pytest.importorskip("jax.experimental.pallas.triton")


def lowered(function: Any, *arguments: Any) -> hloexec.Module:
    """The module of a function, lowered for CUDA."""
    import jax

    try:
        staged = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    except Exception as error:
        if jax.__version__ == KNOWN_TO_LOWER:
            raise
        pytest.skip(f"JAX {jax.__version__} does not lower it: {error}")
    if "__gpu$xla.gpu.triton" not in staged.as_text():
        pytest.skip(f"JAX {jax.__version__} compiles kernels to PTX")
    return hloexec.from_jax(staged)


def interpreted(case: Case) -> tuple[Any, ...]:
    """What Pallas' interpret mode gives."""
    import jax

    result = jax.jit(case.build(True))(*case.arguments)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
