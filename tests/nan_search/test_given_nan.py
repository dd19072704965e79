"""NaN that no instruction makes: those of the inputs have their place, and those of constants are blamed on the select
that takes them."""

from typing import Any

import numpy as np
import pytest

from tests.nan_search.programs import found, lowered
from tests.text.building import module, op

jax = pytest.importorskip("jax", reason="JAX lowers the programs")
jnp = pytest.importorskip("jax.numpy")

F32 = np.float32


def test_where_nan_is_in_the_inputs_is_said() -> None:
    text = op("f32[2,3] add(x, y)", x="f32[2,3]", y="f32[2,3]")
    values = np.ones((2, 3), F32)
    values[1, 1:] = np.nan
    (place,) = found(text, np.ones((2, 3), F32), values).nan_input_elements
    assert (place.parameter, place.leaf, place.devices, place.index) == ("y", (), (0,), (1, 1))
    assert (place.bad, place.count) == (2, 6)


CHOICE = """bad = f32[] constant(nan)
nans = f32[4] broadcast(bad), dimensions={}
zero = f32[] constant(0)
zeros = f32[4] broadcast(zero), dimensions={}
ok = pred[4] compare(x, zeros), direction=GE
chosen = f32[4] select(ok, x, nans)
"""


def test_nan_of_a_constant_is_blamed_on_the_select_that_takes_it() -> None:
    text = module(f"x = f32[4] parameter(0)\n{CHOICE}ROOT r = f32[4] add(chosen, chosen)")
    finding = found(text, np.array([1, 2, -3, 4], F32)).finding
    assert (finding.kind, finding.instruction, finding.bad) == ("literal", "chosen", 1)
    (element,) = finding.elements
    assert element.index == (2,) and element.operands[:2] == (False, -3.0)
    search = found(text, np.ones(4, F32))
    assert search.finding is None and not search.discarded and not search.nan_from_inputs


def test_nan_that_an_operand_has_already_is_not_that_of_a_constant() -> None:
    text = module(f"x = f32[4] parameter(0)\n{CHOICE}ROOT r = f32[4] add(chosen, x)")
    search = found(text, np.array([1, 2, np.nan, 4], F32))
    assert search.finding is None and search.nan_inputs == ("x",)


@pytest.mark.parametrize("optimized", [False, True])
def test_a_factorization_that_fails_in_a_loop_is_found_with_its_iteration(optimized: bool) -> None:
    """JAX puts a constant NaN in place of the factor of a matrix that is not positive definite."""

    def function(shifts: Any) -> Any:
        def step(total: Any, shift: Any) -> Any:
            factor = jnp.linalg.cholesky(jnp.eye(3, dtype=F32) + shift)
            return total + factor.sum(), factor[0, 0]

        return jax.lax.scan(step, F32(0), shifts)

    shifts = np.zeros((9, 3, 3), F32)
    shifts[5, 2, 2] = -4
    program = lowered(function, shifts, optimized=optimized)
    finding = found(program, shifts).finding
    assert finding.kind == "literal" and finding.iteration == 5
    assert finding.source[0].line == function.__code__.co_firstlineno + 2
    shifts[5] = 0
    assert found(program, shifts).finding is None


def test_marks_of_what_a_loop_has_not_filled_in_yet_are_not_blamed() -> None:
    """In iteration i the elements up to i are 7, the others NaN of a constant."""
    text = """HloModule m
body { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  places = s32[4] iota(), iota_dimension=0
  now = s32[4] broadcast(i), dimensions={}
  filled = pred[4] compare(places, now), direction=LE
  bad = f32[] constant(nan)
  nans = f32[4] broadcast(bad), dimensions={}
  seven = f32[] constant(7)
  sevens = f32[4] broadcast(seven), dimensions={}
  x = f32[4] select(filled, sevens, nans)
  ROOT t = (s32[], f32[4]) tuple(n, x) }
condition { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  most = s32[] parameter_count
  ROOT c = pred[] compare(i, most), direction=LT }
ENTRY e { zero = s32[] constant(0)
  start_x = f32[4] parameter(0)
  start = (s32[], f32[4]) tuple(zero, start_x)
  loop = (s32[], f32[4]) while(start), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(loop), index=1 }"""
    search = found(text.replace("parameter_count", "constant(4)"), np.zeros(4, F32))
    assert search.finding is None and not search.nan_from_inputs
    search = found(text.replace("parameter_count", "constant(3)"), np.zeros(4, F32))
    assert search.finding is not None and search.finding.kind == "literal" and search.finding.bad >= 1


def test_converts_that_make_integers_of_nan_are_named() -> None:
    text = module("x = f32[3] parameter(0)\nq = f32[3] divide(x, x)\nn = s8[3] convert(q)\nROOT r = f32[3] convert(n)")
    search = found(text, np.array([1, 0, 2], F32))
    assert search.finding is None and search.made_integers == ("n",)
    assert [finding.instruction for finding in search.discarded] == ["q"]
    assert not found(text, np.ones(3, F32)).made_integers
    assert not found(text, np.array([1, 0, 2], F32)).compared
    infinite = module("x = f32[1] parameter(0)\ny = f32[1] exponential(x)\nROOT r = s8[1] convert(y)")
    assert not found(infinite, np.array([1000], F32)).made_integers


def test_comparisons_that_take_nan_are_named() -> None:
    body = """x = f32[3] parameter(0)
        q = f32[3] divide(x, x)
        a = pred[3] compare(q, x), direction=DIRECTION
        ROOT r = f32[3] select(a, x, x)"""
    given = np.array([1, 0, 2], F32)
    for direction, expected in {"GT": ("a",), "LE": ("a",), "EQ": ("a",), "NE": ("a",)}.items():
        search = found(module(body.replace("DIRECTION", direction)), given)
        assert search.finding is None and search.compared == expected
    for direction in ("EQ", "NE"):
        assert not found(module(body.replace("q, x", "q, q").replace("DIRECTION", direction)), given).compared
    assert not found(module(body.replace("DIRECTION", "GT, type=TOTALORDER")), given).compared
    assert not found(module(body.replace("DIRECTION", "GT")), np.ones(3, F32)).compared


def test_constants_that_hold_nan_are_named() -> None:
    body = "x = f32[2] parameter(0)\nc = f32[2] constant({1, nan})\nROOT r = (f32[2], f32[2]) tuple(x, c)"
    search = found(module(body), np.ones(2, F32))
    assert search.finding is None and search.nan_from_inputs and search.nan_constants == ("c",)
    assert not found(module(body.replace("nan", "2")), np.ones(2, F32)).nan_constants
