"""How XLA compiles single instructions, with which kernels are compared."""

from collections.abc import Iterator

import pytest

from conformance.xla import COMPILED_SOONEST
from tests.drawing import examples

_WITHOUT_LLVM_PASSES: dict[str, object] = {"xla_backend_optimization_level": 0}


@pytest.fixture(autouse=True, scope="module")
def compiled_soon(request: pytest.FixtureRequest) -> Iterator[None]:
    """XLA's own passes stay as they are; LLVM's, which take longer than such a module runs, are left out.

    LLVM contracts products and sums, and so does the policy of XLA's own functions, whose tests need it. Where less is
    drawn, XLA's older emitters make the code, in a seventh of the time for elementwise operations.
    """
    flags = dict(COMPILED_SOONEST) if examples(100) < 100 else _WITHOUT_LLVM_PASSES
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem != "test_xla_cpu_functions":
            patch.setattr("conformance.xla.COMPILATION_FLAGS", flags)
        yield


@pytest.fixture
def newer_emitters(monkeypatch: pytest.MonkeyPatch) -> None:
    """What XLA uses by default makes the code in any case, for what its older emitters compute otherwise or not at all."""
    monkeypatch.setattr("conformance.xla.COMPILATION_FLAGS", _WITHOUT_LLVM_PASSES)
