"""Programs that `hx.jit` runs give what `jax.jit` gives: results, what is printed, and the calls of callbacks."""

import pytest

from tests.jax.comparing import assert_runs_as_on_xla
from tests.jax.programs import PROGRAMS


@pytest.mark.slow_cases("special_functions", "variational_inference")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_as_under_jax_jit(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_runs_as_on_xla(name, capsys)
