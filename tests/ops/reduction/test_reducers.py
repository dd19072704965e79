"""Recognising reducers by structure."""

import pytest

from hloexec.language.text import parse
from hloexec.ops.reduction.reducers import chooses_by_order, recognise, recognise_components


def computation(body: str):
    """The computation `f` of the given lines, in a module that holds nothing else of interest."""
    module = parse(f"HloModule m\n\nf {{\n{body}\n}}\n\nENTRY e {{\n  ROOT r = f32[] constant(0)\n}}\n")
    return module.by_name["f"]


def binary(root: str, element: str = "f32") -> str:
    return f"  a = {element}[] parameter(0)\n  b = {element}[] parameter(1)\n  ROOT c = {root}"


@pytest.mark.parametrize("name", "add multiply minimum maximum and or xor".split())
@pytest.mark.parametrize("order", ["a, b", "b, a"])
def test_an_operation_on_both_parameters_is_recognised_in_either_order(name, order):
    element = "s32"
    assert recognise(computation(binary(f"s32[] {name}({order})", element))) == name


@pytest.mark.parametrize("root", ["f32[] subtract(a, b)", "f32[] add(a, a)", "f32[] add(b, b)", "f32[] negate(a)"])
def test_anything_else_is_not_recognised(root):
    assert recognise(computation(binary(root))) is None


def test_the_second_parameter_itself_is_recognised():
    assert recognise(computation("  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)")) == "second"


def test_the_first_parameter_itself_is_recognised_in_any_text_order():
    assert recognise(computation("  b = f32[] parameter(1)\n  ROOT a = f32[] parameter(0)")) == "first"


def test_parameters_are_told_apart_by_number_and_not_by_place_in_the_text():
    assert (
        recognise(computation("  b = f32[] parameter(1)\n  a = f32[] parameter(0)\n  ROOT c = f32[] copy(b)"))
        == "second"
    )


CONVERTED = """  a = {narrow}[] parameter(0)
  b = {narrow}[] parameter(1)
  wide_a = {wide}[] convert(a)
  wide_b = {wide}[] convert(b)
  sum = {wide}[] {operation}(wide_a, wide_b)
  ROOT c = {narrow}[] convert(sum)"""


@pytest.mark.parametrize(
    ("narrow", "wide", "operation"),
    [
        ("bf16", "f32", "add"),
        ("f16", "f32", "maximum"),
        ("s8", "s32", "add"),
        ("u8", "s32", "minimum"),
        ("f8e5m2", "f16", "add"),
    ],
)
def test_conversions_to_a_wider_type_and_back_are_looked_through(narrow, wide, operation):
    assert recognise(computation(CONVERTED.format(narrow=narrow, wide=wide, operation=operation))) == operation


@pytest.mark.parametrize(
    ("narrow", "wide"), [("f32", "bf16"), ("bf16", "f16"), ("s32", "u32"), ("s8", "u32"), ("s32", "f32")]
)
def test_conversions_that_lose_values_are_not_looked_through(narrow, wide):
    assert recognise(computation(CONVERTED.format(narrow=narrow, wide=wide, operation="maximum"))) is None


ANNOTATED = """  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  sum = bf16[] add(a, b)
  ROOT c = bf16[] custom-call(sum), custom_call_target="{target}", sharding={{replicated}}"""


@pytest.mark.parametrize("target", ["Sharding", "xla.sdy.PropagationBarrier"])
def test_annotations_are_looked_through(target):
    """As in the reducers of partly manual regions: 4096 ones of bf16 must add up to 4096."""
    assert recognise(computation(ANNOTATED.format(target=target))) == "add"


def test_other_custom_calls_are_not_looked_through():
    assert recognise(computation(ANNOTATED.format(target="SomeLibrary"))) is None


def test_one_converted_parameter_is_no_operation_on_one_type():
    body = "  a = f32[] parameter(0)\n  b = bf16[] parameter(1)\n  w = f32[] convert(b)\n  ROOT c = f32[] add(a, w)"
    assert recognise(computation(body)) is None


VARIADIC = """  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  c = f32[] maximum({first})
  k = s32[] add({second})
  ROOT t = (f32[], s32[]) tuple(c, k)"""


def test_each_component_of_a_variadic_reducer_is_recognised():
    body = VARIADIC.format(first="b, a", second="i, j")
    assert recognise_components(computation(body)) == ("maximum", "add")
    assert recognise(computation(body)) is None


def test_components_that_cross_are_not_recognised():
    body = VARIADIC.format(first="a, b", second="i, i")
    assert recognise_components(computation(body)) is None


def test_comparing_and_selecting_is_choosing_by_order():
    body = binary("f32[] select(p, a, b)").replace("  ROOT", "  p = pred[] compare(a, b), direction=GE\n  ROOT")
    assert chooses_by_order(computation(body))


@pytest.mark.parametrize(
    "line",
    [
        "  p = pred[] compare(a, b), direction=GE, type=TOTALORDER",
        "  k = f32[] constant(1)\n  p = pred[] compare(a, k), direction=GE",
        "  n = f32[] negate(b)\n  p = pred[] compare(a, n), direction=GE",
    ],
)
def test_total_order_constants_and_arithmetic_are_more_than_choosing_by_order(line):
    body = binary("f32[] select(p, a, b)").replace("  ROOT", f"{line}\n  ROOT")
    assert not chooses_by_order(computation(body))
