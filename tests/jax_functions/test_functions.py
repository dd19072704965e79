"""Everything `jax.jit(f).lower(...)` gives for the functions of the tables runs on hloexec, and gives what XLA gives."""

from __future__ import annotations

import pytest

from tests.jax_functions import comparing, lax_table, linear_algebra_table, numpy_table, science_table
from tests.jax_functions.cases import Case, names

TABLES = (lax_table, numpy_table, science_table, linear_algebra_table)
CASES = [case for table in TABLES for case in table.CASES]


@pytest.mark.parametrize(
    ("case", "type_name"),
    [pytest.param(case, name, id=f"{case.name}-{name}") for case in CASES for name in case.types],
)
def test_runs_as_on_xla(case: Case, type_name: str) -> None:
    comparing.assert_runs_as_on_xla(case, type_name)


@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_text_round_trips(case: Case) -> None:
    comparing.assert_text_round_trips(case, case.types[-1])
