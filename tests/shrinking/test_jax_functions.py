"""The functions of JAX's that hloexec is tested with, and small networks, shrink to modules that XLA accepts."""

from typing import Any

import pytest

jax: Any = pytest.importorskip("jax")

import hloexec  # noqa: E402
from conformance.xla import COMPILED_SOONEST  # noqa: E402
from tests.jax_functions.test_functions import CASES  # noqa: E402
from tests.models.programs import PROGRAMS  # noqa: E402
from tests.shrinking.smallest import assert_valid, shuffled, smallest  # noqa: E402

FUNCTIONS = {case.name: (case.function, case.arguments) for case in CASES}


def check(function: Any, arguments: Any, seed: int, *, optimized: bool) -> None:
    if optimized:
        # Code that is made of it is not run.
        compiled = jax.jit(function).lower(*arguments).compile({**COMPILED_SOONEST})
        module = hloexec.parse(compiled.as_text())
    else:
        module = hloexec.from_jax(function, *arguments)
    small = smallest(module)
    assert_valid(small)
    assert_valid(shuffled(module, seed))
    hloexec.run(small, *hloexec.random_inputs(small))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@pytest.mark.parametrize("name", sorted(FUNCTIONS)[::4])
def test_functions_shrink(name: str) -> None:
    check(*FUNCTIONS[name], seed=len(name), optimized=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("optimized", [False, True])
def test_models_shrink(name: str, optimized: bool) -> None:
    check(*PROGRAMS[name](), seed=len(name), optimized=optimized)
