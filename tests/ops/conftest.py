"""How XLA compiles single instructions, with which kernels are compared."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_llvm_passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's own passes stay as they are; LLVM's, which take longer than such a module runs, are left out.

    LLVM contracts products and sums, which the policies of XLA's own numerics do, too: their tests need it.
    """
    if "policies" not in request.path.parts:
        monkeypatch.setattr("conformance.xla.COMPILATION_FLAGS", {"xla_backend_optimization_level": 0})
