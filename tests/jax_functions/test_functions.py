"""Everything `jax.jit(f).lower(...)` gives for the functions of the tables runs on hloexec, and gives what XLA gives."""

import pytest

from tests.jax_functions import comparing, lax_table, linear_algebra_table, numpy_table, science_table
from tests.jax_functions.cases import Case

TABLES = (lax_table, numpy_table, science_table, linear_algebra_table)
CASES = [case for table in TABLES for case in table.CASES]


@pytest.mark.slow_cases(
    "lax.pow-bf16",
    "lax.cumlogsumexp-f32",
    "lax.conv_dilated-bf16",
    "jax.checkpoint-bf16",
    "jnp.mean-f32",
    "jnp.cov-f32",
    "jnp.roll-f32",
    "nn.relu-bf16",
    "nn.mish-bf16",
    "nn.standardize-bf16",
    "nn.max_pool-f32",
    "linalg.lstsq-f32",
)
@pytest.mark.sampled(50)
@pytest.mark.parametrize(
    ("case", "type_name"),
    [pytest.param(case, name, id=f"{case.name}-{name}") for case in CASES for name in case.types],
)
def test_runs_as_on_xla_and_survives_printing(case: Case, type_name: str) -> None:
    comparing.assert_runs_as_on_xla(case, type_name)
    if type_name == case.types[-1]:
        comparing.assert_text_round_trips(case, type_name)


def test_names_are_unique_as_arguments_are_drawn_from_them() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
