"""How XLA compiles single instructions, with which kernels are compared."""

from __future__ import annotations

import pytest

from conformance.xla import COMPILED_SOONEST


@pytest.fixture(autouse=True)
def compiled_soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's own passes stay as they are; LLVM's, which take longer than such a module runs, are left out.

    LLVM contracts products and sums, which the policies of XLA's own numerics do, too: their tests need it. Where slow
    tests are left out, XLA's older emitters make the code, but of elementwise operations, which some of them compute in
    other ways.
    """
    if "policies" in request.path.parts:
        return
    flags = {"xla_backend_optimization_level": 0}
    if "not slow" in request.config.getoption("markexpr") and "elementwise" not in request.path.parts:
        flags = dict(COMPILED_SOONEST)
    monkeypatch.setattr("conformance.xla.COMPILATION_FLAGS", flags)
