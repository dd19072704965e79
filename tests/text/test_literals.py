"""Literals that are not as XLA prints them, read as XLA reads them."""

import re
import tracemalloc
from unittest import mock

import numpy as np
import pytest

import hloexec
from hloexec.analysis.buffers.usage import RunEstimate, run_estimate
from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Literal
from hloexec.errors import HloWarning, ParseError, ResourceError
from hloexec.language.text.shapes import literal_text
from hloexec.tools.summary import summarize
from tests.text import oracle
from tests.text.building import op

SCALARS = [("f32[3]", "5", [5, 0, 0]), ("pred[2,2]", "true", [[1, 0], [0, 0]]), ("s8[1]", "-3", [-3])]


@pytest.mark.parametrize(("shape", "scalar", "elements"), SCALARS)
def test_a_single_value_for_an_array_is_its_first_element(shape: str, scalar: str, elements: list[object]) -> None:
    text = f"HloModule m\nENTRY e {{ ROOT c = {shape} constant({scalar}) }}"
    if np.size(elements) > 1:
        with pytest.warns(HloWarning, match=r"2:\d+: a single value is given"):
            module = hloexec.parse(text)
    else:
        module = hloexec.parse(text)
    assert hloexec.run(module).tolist() == elements
    assert hloexec.run(hloexec.parse(str(oracle.parse(text).to_string()))).tolist() == elements


@pytest.mark.parametrize(("shape", "scalar"), [("f32[0]", "5"), ("c64[3]", "(1, 2)")])
def test_a_single_value_that_xla_refuses(shape: str, scalar: str) -> None:
    text = f"HloModule m\nENTRY e {{ ROOT c = {shape} constant({scalar}) }}"
    with pytest.raises(ParseError):
        hloexec.parse(text)
    with pytest.raises(RuntimeError, match="Syntax error"):
        oracle.parse(text)


def test_a_single_value_behind_a_shape_of_its_own_is_printed_with_a_layout() -> None:
    text = op('f32[2] custom-call(a), custom_call_target="f", literal=(f32[2] 1, s32[] 2)', a="f32[2]")
    with pytest.warns(HloWarning, match="a single value is given"):
        module = hloexec.parse(text)
    printed = hloexec.format(module)
    assert "literal=(f32[2]{0} {1, 0}, s32[] 2)" in printed
    assert hloexec.parse(printed) == module
    assert oracle.canonical_text(printed) == oracle.canonical_text(text)


LARGE = "f32[32,39295,64,128]"


def test_a_single_value_for_a_large_array_takes_no_memory() -> None:
    text = f"HloModule m\nENTRY e {{\n  c = {LARGE} constant(2)\n  ROOT r = f32[1,1,1,2] slice(c), slice={{[0:1],[0:1],[0:1],[0:2]}}\n}}"
    tracemalloc.start()
    with pytest.warns(HloWarning, match="a single value is given"):
        module = hloexec.parse(text)
    assert f"%c = {LARGE} constant(2)\n" in hloexec.format(module)
    with pytest.warns(HloWarning):
        assert hloexec.parse(hloexec.format(module)) == module
    with pytest.warns(HloWarning):
        assert hloexec.parse(text.replace("(2)", "(3)")) != module
    hloexec.verify(module)
    assert summarize(module).elided_constants == 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000
    limit = mock.patch("hloexec.core.ir.literal.memory_limit_bytes", return_value=1 << 30)
    with limit, pytest.raises(ResourceError, match=rf"a constant {re.escape(LARGE)} takes 41\.2 GB, more than"):
        hloexec.run(module)


def test_a_module_with_a_large_constant_is_estimated_and_shrinks() -> None:
    lines = f"x = {LARGE} parameter(0)", f"c = {LARGE} constant(2)", f"ROOT y = {LARGE} add(x, c)"
    text = "HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}"
    with pytest.warns(HloWarning, match="a single value is given"):
        module = hloexec.parse(text)
    with mock.patch("hloexec.core.ir.literal.memory_limit_bytes", return_value=1 << 30):
        estimate = run_estimate(module)
        small = hloexec.shrink(module, max_bytes="2M").module
    assert estimate == RunEstimate(32 * 39295 * 64 * 128 * 4, "c")
    result = hloexec.run(small, np.zeros(small.entry.result_shape.dimensions, np.float32))
    assert result.flat[0] == 2 and np.count_nonzero(result) == 1


@pytest.mark.parametrize("value", ["-1.5", "nan", "-0.0"])
def test_a_single_value_for_a_large_array_is_its_first_element(value: str) -> None:
    text = f"HloModule m\nENTRY e {{\n  ROOT c = bf16[1000,1001]{{0,1}} constant({value})\n}}"
    with pytest.warns(HloWarning, match="a single value is given"):
        module = hloexec.parse(text)
    result, bits = hloexec.run(module), np.zeros((1000, 1001), np.uint16)
    bits[0, 0] = np.float32(value).view(np.uint32) >> 16
    assert result.view(np.uint16).tobytes() == bits.tobytes()
    with pytest.warns(HloWarning):
        assert hloexec.parse(hloexec.format(module)) == module
    array = Literal.from_array(result, module.entry.root.shape)
    assert array == module.entry.root.attributes.literal != Literal.from_array(np.ones_like(result), array.shape)


@pytest.mark.slow
@pytest.mark.parametrize("element_type", ["f32", "s32"])
def test_a_large_literal_takes_little_more_than_its_text(element_type: str) -> None:
    row = "{" + ", ".join(str(1_000_000 + number) for number in range(1000)) + "}"
    text = (
        f"HloModule m\nENTRY e {{\n  ROOT c = {element_type}[200,1000] constant({{ {', '.join([row] * 200)} }})\n}}\n"
    )
    hloexec.parse(text)
    tracemalloc.start()
    try:
        module = hloexec.parse(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert hloexec.run(module).sum(dtype=np.int64) == 200 * (1000 * 1_000_000 + 499_500)
    assert peak < 3 * len(text)


def test_the_largest_parts_of_complex_numbers_are_printed_so_that_xla_reads_them() -> None:
    largest = np.finfo(np.float32).max
    module = hloexec.parse("HloModule m\nENTRY e { ROOT c = c64[] constant((3.4028234663852886e+38, -3.4028235e+38)) }")
    assert hloexec.run(module) == np.complex64(complex(largest, -largest))
    printed = hloexec.format(module)
    assert hloexec.parse(printed) == module
    oracle.parse(printed)


def test_all_scales_are_printed_so_that_xla_reads_them() -> None:
    """XLA's own text of each, as a power of two that is exact in f64, is the truth."""
    module = hloexec.parse(
        "HloModule m\nENTRY e { p = u8[255] iota(), iota_dimension=0 ROOT c = f8e8m0fnu[255] bitcast-convert(p) }"
    )
    scales = hloexec.run(module)
    printed = literal_text(Literal.from_array(scales, ArrayShape(element_type("f8e8m0fnu"), (255,))))
    exact = ", ".join(repr(2.0**power) for power in range(-127, 128))
    read, expected = (
        oracle.canonical_text(f"HloModule m\nENTRY e {{ ROOT c = f8e8m0fnu[255] constant({words}) }}")
        for words in (printed, f"{{{exact}}}")
    )
    assert read == expected
    assert len(set(expected[expected.index("constant({") :].split(", "))) >= 255
