"""Denormal numbers under the `ftz` policy, against XLA:CPU."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.dtypes import element_type
from tests.ops.against_xla import Case, module_text

xla = pytest.importorskip("conformance.xla")

_TINY = {"f32": 2.0**-126, "f64": 2.0**-1022, "bf16": 2.0**-126, "f16": 2.0**-14}
_ONE_OPERAND = "abs ceil copy erf floor negate sign sine sqrt round-nearest-even".split()
_TWO_OPERANDS = "add divide maximum minimum multiply remainder subtract".split()


def _numbers(dtype: str) -> Any:
    tiny = _TINY[dtype]
    return np.array([tiny / 2, -tiny / 4, tiny * 1.5, -tiny, tiny, 0.0, -0.0], np.float64).astype(
        element_type(dtype).storage
    )


def _agree(*cases: Case) -> None:
    text, operands = module_text(cases), [operand for case in cases for operand in case.operands]
    for case, actual, expected in zip(
        cases, hloexec.run(hloexec.parse(text), *operands, numerics="ftz"), xla.run_hlo(text, *operands), strict=True
    ):
        assert actual.dtype == expected.dtype
        assert actual.tobytes() == np.asarray(expected).tobytes(), f"{case}: {actual} is not {expected}"


def _function(opcode: str, dtype: str) -> Case:
    operand = _numbers(dtype)
    operand = np.abs(operand) if opcode == "sqrt" else operand
    if opcode in ("erf", "sine") or (opcode, dtype) == ("sqrt", "f64"):
        # Of the others, the last bit may differ.
        operand = operand[[0, 1, 5, 6]]
    return Case(opcode, [operand], f"{dtype}[{operand.size}]")


def test_functions_flush_where_xla_does() -> None:
    # For erf of f64 XLA calls the C library, of which some versions flush and others do not.
    asked = ((opcode, dtype) for opcode in _ONE_OPERAND for dtype in ("f32", "f64", "bf16"))
    _agree(*(_function(*each) for each in asked if each != ("erf", "f64")))


@pytest.mark.parametrize("dtype", "f32 f64 bf16 f16".split())
def test_arithmetic_flushes_where_xla_does(dtype: str) -> None:
    operand = _numbers(dtype)
    other = np.resize(np.array([1.0, 0.5, 1.0], operand.dtype), operand.size)
    # From jaxlib 0.11 on, XLA chooses one of two numbers of bf16 as it is.
    choices = ("maximum", "minimum") if dtype == "bf16" and xla.jaxlib_version() >= (0, 11) else ()
    opcodes = [opcode for opcode in _TWO_OPERANDS if opcode not in choices]
    _agree(*(Case(opcode, [operand, other], f"{dtype}[{operand.size}]") for opcode in opcodes))


def test_conversions_flush_where_xla_does() -> None:
    types = ("f32", "f64", "bf16")
    _agree(*(Case("convert", [_numbers(source)], f"{target}[7]") for source in types for target in types))


def test_denormals_equal_zero_and_dots_flush_them() -> None:
    operand = _numbers("f32")
    matrix = np.stack([np.abs(operand)] * 3, axis=1)
    contraction = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    _agree(
        Case("compare", [operand, np.zeros(7, np.float32)], "pred[7]", "direction=EQ"),
        Case("dot", [matrix, np.ones((3, 2), np.float32)], "f32[7,2]", contraction),
    )


@pytest.mark.parametrize("watched", [False, True])
def test_conversions_between_f32_and_f64_flush_what_is_denormal_on_either_side(watched: bool) -> None:
    """1e-40 is denormal as an f32, 1e-310 as an f64; both are numbers of the wider type's, or of none."""
    narrow = "HloModule m\nENTRY e { x = f64[3] parameter(0)\n ROOT y = f32[3] convert(x) }"
    wide = "HloModule m\nENTRY e { x = f32[2] parameter(0)\n ROOT y = f64[2] convert(x) }"
    seen: list[Any] = []
    options: dict[str, Any] = {"observers": [_Seen(seen)]} if watched else {}
    down = hloexec.run(hloexec.parse(narrow), np.array([1e-40, -1e-310, 1e-30]), numerics="ftz", **options)
    up = hloexec.run(hloexec.parse(wide), np.array([1e-40, 1e-30], np.float32), numerics="ftz", **options)
    assert_array_equal(down, np.array([0.0, -0.0, 1e-30], np.float32))
    assert_array_equal(np.signbit(down), [False, True, False])
    assert_array_equal(up, [0.0, np.float64(np.float32(1e-30))])


class _Seen:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def on_instruction(self, event: Any) -> None:
        self._values.append(event.value)


_SORTS = """
HloModule m

less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT less = pred[] compare(a, b), direction=LT
}

ENTRY e {
  x = f32[7] parameter(0)
  i = s32[7] iota(), iota_dimension=0
  ROOT s = (f32[7], s32[7]) sort(x, i), dimensions={0}, is_stable=true, to_apply=less
}
"""


def test_sort_takes_denormals_for_equal_to_zero() -> None:
    operand = _numbers("f32")
    actual, expected = hloexec.run(hloexec.parse(_SORTS), operand, numerics="ftz"), xla.run_hlo(_SORTS, operand)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.tobytes() == np.asarray(theirs).tobytes()
