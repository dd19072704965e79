"""Denormal numbers under the `ftz` policy, against XLA:CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.dtypes import element_type

xla = pytest.importorskip("conformance.xla")

_TINY = {"f32": 2.0**-126, "f64": 2.0**-1022, "bf16": 2.0**-126, "f16": 2.0**-14}
_ONE_OPERAND = ("abs", "ceil", "copy", "erf", "floor", "negate", "sign", "sine", "sqrt", "round-nearest-even")
_TWO_OPERANDS = ("add", "divide", "maximum", "minimum", "multiply", "remainder", "subtract")


def _numbers(dtype: str) -> Any:
    tiny = _TINY[dtype]
    return np.array([tiny / 2, -tiny / 4, tiny * 1.5, -tiny, tiny, 0.0, -0.0], np.float64).astype(
        element_type(dtype).storage
    )


def _agree(text: str, *operands: Any) -> None:
    (expected,) = xla.run_hlo(text, *operands)
    actual = hloexec.run(hloexec.parse(text), *operands, numerics="ftz")
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == np.asarray(expected).tobytes(), f"{actual} is not {expected}"


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("opcode", _ONE_OPERAND)
def test_functions_flush_where_xla_does(opcode: str, dtype: str) -> None:
    operand = _numbers(dtype)
    operand = np.abs(operand) if opcode == "sqrt" else operand
    if opcode in ("erf", "sine") or (opcode, dtype) == ("sqrt", "f64"):
        # Of the others, the last bit may differ.
        operand = operand[[0, 1, 5, 6]]
    shape = f"{dtype}[{operand.size}]"
    _agree(f"HloModule m\n\nENTRY e {{\n  p = {shape} parameter(0)\n  ROOT r = {shape} {opcode}(p)\n}}\n", operand)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize("opcode", _TWO_OPERANDS)
def test_arithmetic_flushes_where_xla_does(opcode: str, dtype: str) -> None:
    operand = _numbers(dtype)
    other = np.resize(np.array([1.0, 0.5, 1.0], operand.dtype), operand.size)
    shape = f"{dtype}[{operand.size}]"
    parameters = f"  p = {shape} parameter(0)\n  q = {shape} parameter(1)"
    _agree(f"HloModule m\n\nENTRY e {{\n{parameters}\n  ROOT r = {shape} {opcode}(p, q)\n}}\n", operand, other)


@pytest.mark.parametrize("source", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("target", ["f32", "f64", "bf16"])
def test_conversions_flush_where_xla_does(source: str, target: str) -> None:
    operand = _numbers(source)
    root = f"  ROOT r = {target}[{operand.size}] convert(p)"
    _agree(f"HloModule m\n\nENTRY e {{\n  p = {source}[{operand.size}] parameter(0)\n{root}\n}}\n", operand)


def test_denormals_equal_zero_and_dots_flush_them() -> None:
    operand = _numbers("f32")
    parameters = "  p = f32[7] parameter(0)\n  q = f32[7] parameter(1)"
    root = "  ROOT r = pred[7] compare(p, q), direction=EQ"
    _agree(f"HloModule m\n\nENTRY e {{\n{parameters}\n{root}\n}}\n", operand, np.zeros(7, np.float32))
    root = "  ROOT r = f32[7,2] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    parameters = "  p = f32[7,3] parameter(0)\n  q = f32[3,2] parameter(1)"
    matrix = np.stack([np.abs(operand)] * 3, axis=1)
    _agree(f"HloModule m\n\nENTRY e {{\n{parameters}\n{root}\n}}\n", matrix, np.ones((3, 2), np.float32))


@pytest.mark.parametrize("watched", [False, True])
def test_conversions_between_f32_and_f64_flush_what_is_denormal_on_either_side(watched: bool) -> None:
    """1e-40 is denormal as an f32, 1e-310 as an f64; both are numbers of the wider type's, or of none."""
    narrow = "HloModule m\nENTRY e { x = f64[3] parameter(0)\n ROOT y = f32[3] convert(x) }"
    wide = "HloModule m\nENTRY e { x = f32[2] parameter(0)\n ROOT y = f64[2] convert(x) }"
    seen: list[Any] = []
    options: dict[str, Any] = {"observers": [_Seen(seen)]} if watched else {}
    down = hloexec.run(hloexec.parse(narrow), np.array([1e-40, -1e-310, 1e-30]), numerics="ftz", **options)
    up = hloexec.run(hloexec.parse(wide), np.array([1e-40, 1e-30], np.float32), numerics="ftz", **options)
    np.testing.assert_array_equal(down, np.array([0.0, -0.0, 1e-30], np.float32))
    np.testing.assert_array_equal(np.signbit(down), [False, True, False])
    np.testing.assert_array_equal(up, [0.0, np.float64(np.float32(1e-30))])


class _Seen:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def on_instruction(self, event: Any) -> None:
        self._values.append(event.value)
