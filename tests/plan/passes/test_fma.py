"""Where the `xla-cpu` policy contracts a product and a sum, against XLA:CPU."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from tests.drawing import examples

xla = pytest.importorskip("conformance.xla")

pytestmark = pytest.mark.fused_multiply_add

_SIZE, _COUNT = 1003, 12
_PARAMETERS = "".join(f"  p{number} = f32[{_SIZE}] parameter({number})\n" for number in range(_COUNT))


def _operands() -> list[Any]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=_SIZE).astype(np.float32) for _ in range(_COUNT)]


def _module(*lines: str) -> str:
    """A module of lines like `v = add p0 p1`; the last one is the root."""
    written = []
    for line in lines:
        name, rest = line.split(" = ")
        opcode, *operands = rest.split()
        written.append(f"{name} = f32[{_SIZE}] {opcode}({', '.join(operands)})\n")
    return "HloModule m\n\nENTRY e {\n" + _PARAMETERS + "  " + "  ".join([*written[:-1], f"ROOT {written[-1]}"]) + "}\n"


def _results(text: str, *, is_optimized: bool = False) -> tuple[Any, Any]:
    """XLA's result and that of the policy, of the module or of what XLA makes of it."""
    compiled = xla.compile_hlo(text)
    operands = _operands()
    module = hloexec.parse(compiled.optimized_text if is_optimized else text)
    return compiled.run(*operands)[0], hloexec.run(module, *operands, numerics="xla-cpu")


# Lines, and whether anything in them is contracted.
_PROGRAMS = {
    "a product plus a number": (("m = multiply p0 p1", "r = add m p2"), True),
    "a number plus a product": (("m = multiply p0 p1", "r = add p2 m"), True),
    "a product less a number": (("m = multiply p0 p1", "r = subtract m p2"), True),
    "a number less a product": (("m = multiply p0 p1", "r = subtract p2 m"), True),
    "a negated product": (("m = multiply p0 p1", "n = negate m", "r = add n p2"), True),
    "a number less a negated product": (("m = multiply p0 p1", "n = negate m", "r = subtract p2 n"), True),
    "a sum of products": (("m = multiply p0 p1", "n = multiply p2 p3", "r = add m n"), True),
    "a difference of products": (("m = multiply p0 p1", "n = multiply p2 p3", "r = subtract m n"), True),
    "a polynomial": (("m = multiply p0 p1", "s = add m p2", "n = multiply s p1", "r = add n p3"), True),
    "a product used twice": (("m = multiply p0 p1", "s = add m p2", "r = multiply s m"), False),
    "a product added to itself": (("m = multiply p0 p1", "r = add m m"), False),
    "the product of a sum": (("s = add p0 p1", "r = multiply s p2"), False),
}


@pytest.mark.slow_cases(
    "a product less a number",
    "a number less a product",
    "a number less a negated product",
    "a difference of products",
    "the product of a sum",
)
@pytest.mark.parametrize("name", _PROGRAMS)
def test_sums_of_products_are_contracted_as_xla_does(name: str) -> None:
    lines, is_contracted = _PROGRAMS[name]
    text = _module(*lines)
    expected, actual = _results(text)
    assert actual.tobytes() == expected.tobytes()
    separate = hloexec.run(hloexec.parse(text), *_operands(), numerics="ftz")
    assert (actual.tobytes() != separate.tobytes()) == is_contracted


@st.composite
def _programs(draw: st.DrawFn) -> str:
    """Arithmetic that uses each value once, parameters included, and adds no two products: LLVM orders those."""
    lines: list[str] = []
    unused: list[str] = []
    products: set[str] = set()
    parameters = [f"p{number}" for number in range(_COUNT)]

    def append(left: str, right: str) -> None:
        opcode = draw(st.sampled_from(["multiply", "subtract" if {left, right} <= products else "add", "subtract"]))
        name = f"v{len(lines)}"
        lines.append(f"{name} = {opcode} {left} {right}")
        unused.append(name)
        if opcode == "multiply":
            products.add(name)

    for _ in range(draw(st.integers(2, _COUNT // 2))):
        append(*((unused if unused and draw(st.booleans()) else parameters).pop() for _ in range(2)))
    while len(unused) > 1:
        append(unused.pop(), unused.pop())
    return _module(*lines)


@settings(max_examples=examples(40), deadline=None)
@given(_programs(), st.booleans())
def test_programs_that_use_each_value_once_have_the_bits_of_xla(text: str, is_optimized: bool) -> None:
    expected, actual = _results(text, is_optimized=is_optimized)
    assert actual.tobytes() == expected.tobytes()


_MOVES = {
    "reshape": ("s = f32[30,20] reshape(m)", "d = f32[30,20] reshape(c)"),
    "transpose": ("s = f32[30,20] transpose(m), dimensions={1,0}", "d = f32[30,20] reshape(c)"),
    "slice": ("s = f32[10,20] slice(m), slice={[0:10],[0:20]}", "d = f32[10,20] slice(c), slice={[5:15],[10:30]}"),
    "reverse": ("s = f32[20,30] reverse(m), dimensions={0}", "d = f32[20,30] negate(c)"),
    "twice": (
        "left = f32[20,15] slice(m), slice={[0:20],[0:15]}\n  s = f32[300] reshape(left)",
        "right = f32[20,15] slice(c), slice={[0:20],[15:30]}\n  d = f32[300] reshape(right)",
    ),
}


@pytest.mark.slow_cases("transpose")
@pytest.mark.parametrize("name", _MOVES)
def test_products_are_contracted_wherever_their_elements_are_moved(name: str) -> None:
    moved, addend = _MOVES[name]
    shape = addend.rsplit(" = ")[-1].split()[0]
    text = f"""HloModule m
ENTRY e {{ a = f32[20,30] parameter(0)
  b = f32[20,30] parameter(1)
  c = f32[20,30] parameter(2)
  m = f32[20,30] multiply(a, b)
  {moved}
  {addend}
  ROOT r = {shape} subtract(s, d) }}
"""
    generator = np.random.default_rng(0)
    operands = [generator.normal(size=(20, 30)).astype(np.float32) for _ in range(3)]
    compiled = xla.compile_hlo(text)
    expected = compiled.run(*operands)[0]
    for module in map(hloexec.parse, (text, compiled.optimized_text)):
        assert hloexec.run(module, *operands, numerics="xla-cpu").tobytes() == expected.tobytes()
        assert hloexec.run(module, *operands, numerics="ftz").tobytes() != expected.tobytes()


_MULTIPLIED = f"""multiplied {{ a = f32[{_SIZE}] parameter(0)
  b = f32[{_SIZE}] parameter(1)
  ROOT m = f32[{_SIZE}] multiply(a, b) }}
"""


def test_an_optimized_module_is_contracted_within_its_fusions_only() -> None:
    """Fusions, the product in one and the sum in another or in none; and the sum of a product outside of any."""
    text = f"""HloModule m, is_scheduled=true
{_MULTIPLIED}added {{ a = f32[{_SIZE}] parameter(0)
  b = f32[{_SIZE}] parameter(1)
  c = f32[{_SIZE}] parameter(2)
  m = f32[{_SIZE}] multiply(a, b)
  ROOT r = f32[{_SIZE}] add(m, c) }}
summed {{ m = f32[{_SIZE}] parameter(0)
  c = f32[{_SIZE}] parameter(1)
  ROOT s = f32[{_SIZE}] add(m, c) }}
ENTRY e {{ a = f32[{_SIZE}] parameter(0)
  b = f32[{_SIZE}] parameter(1)
  c = f32[{_SIZE}] parameter(2)
  m = f32[{_SIZE}] fusion(a, b), kind=kLoop, calls=multiplied
  k = f32[{_SIZE}] fusion(a, b), kind=kLoop, calls=multiplied
  u = f32[{_SIZE}] fusion(k, c), kind=kLoop, calls=summed
  n = f32[{_SIZE}] multiply(a, c)
  s = f32[{_SIZE}] add(m, c)
  t = f32[{_SIZE}] add(n, b)
  r = f32[{_SIZE}] fusion(a, b, c), kind=kLoop, calls=added
  ROOT q = (f32[{_SIZE}], f32[{_SIZE}], f32[{_SIZE}], f32[{_SIZE}]) tuple(s, t, r, u) }}
"""
    a, b, c, *_ = _operands()
    separate, outside, together, between = hloexec.run(hloexec.parse(text), a, b, c, numerics="xla-cpu")
    assert_array_equal(separate, a * b + c)
    assert_array_equal(between, a * b + c)
    assert_array_equal(outside, a * c + b)
    exact = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    assert (np.abs(together - exact) <= np.spacing(np.abs(together)) / 2).all()
    assert (together != separate).any()


def test_denormals_are_flushed_before_and_behind_a_contracted_sum() -> None:
    text = """HloModule m
ENTRY e { a = f32[6] parameter(0)
  b = f32[6] parameter(1)
  c = f32[6] parameter(2)
  m = f32[6] multiply(a, b)
  ROOT r = f32[6] add(m, c) }
"""
    a = np.array([1e-20, 1e-40, 1e-20, 3e-39, 1, 1e-30], np.float32)
    b = np.array([1e-20, 1e30, 1e-25, 1e10, 1e-40, 1e-8], np.float32)
    c = np.array([0, 1, 1e-40, 1e-38, 2e-38, -1e-38], np.float32)
    expected = xla.compile_hlo(text).run(a, b, c)[0]
    assert hloexec.run(hloexec.parse(text), a, b, c, numerics="xla-cpu").tobytes() == expected.tobytes()


class _Recorder:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def on_instruction(self, event: Any) -> None:
        self.values[event.name] = event.value


def test_observers_see_the_product_and_change_nothing() -> None:
    module = hloexec.parse(_module("m = multiply p0 p1", "n = negate m", "r = add n p2"))
    operands = _operands()
    recorder = _Recorder()
    seen = hloexec.run(module, *operands, numerics="xla-cpu", observers=[recorder])
    assert seen.tobytes() == hloexec.run(module, *operands, numerics="xla-cpu").tobytes()
    assert_array_equal(recorder.values["m"], operands[0] * operands[1])
    assert_array_equal(recorder.values["n"], -operands[0] * operands[1])
    assert_array_equal(recorder.values["r"], seen)


def test_a_reducer_that_multiplies_is_evaluated_on_whole_arrays() -> None:
    """Σ x² as a fold: the reducer's sum of a product is contracted, and takes its operands in a batch."""
    text = """HloModule m
fold { s = f32[] parameter(0)
  x = f32[] parameter(1)
  y = f32[] multiply(x, x)
  ROOT r = f32[] add(y, s) }
ENTRY e { x = f32[1000,3] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[1000] reduce(x, z), dimensions={1}, to_apply=fold }
"""
    operand = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
    result = hloexec.run(hloexec.parse(text), operand, numerics="xla-cpu")
    assert_allclose(result, (operand.astype(np.float64) ** 2).sum(axis=1), rtol=3 * 2.0**-24)


def test_plain_runs_contract_the_same_sums() -> None:
    module = hloexec.parse(_module("m = multiply p0 p1", "r = add m p2"))
    operands = _operands()
    planned = hloexec.run(module, *operands, numerics="xla-cpu")
    assert hloexec.run(module, *operands, numerics="xla-cpu", planner=False).tobytes() == planned.tobytes()
    assert hloexec.run(module, *operands, numerics="ftz", planner=False).tobytes() != planned.tobytes()


def test_a_fusion_within_a_fusion_is_part_of_its_loop() -> None:
    """The product in a fusion within the one that adds to it: with the bits of a single fusion."""
    nested = f"""HloModule m, is_scheduled=true
{_MULTIPLIED}added {{ a = f32[{_SIZE}] parameter(0)
  b = f32[{_SIZE}] parameter(1)
  c = f32[{_SIZE}] parameter(2)
  m = f32[{_SIZE}] fusion(a, b), kind=kLoop, calls=multiplied
  ROOT r = f32[{_SIZE}] add(m, c) }}
ENTRY e {{ a = f32[{_SIZE}] parameter(0)
  b = f32[{_SIZE}] parameter(1)
  c = f32[{_SIZE}] parameter(2)
  ROOT f = f32[{_SIZE}] fusion(a, b, c), kind=kLoop, calls=added }}
"""
    single = nested.replace("fusion(a, b), kind=kLoop, calls=multiplied", "multiply(a, b)")
    results = [
        hloexec.run(hloexec.parse(text), *_operands()[:3], numerics=numerics).tobytes()
        for text, numerics in ((nested, "xla-cpu"), (single, "xla-cpu"), (single, "ftz"))
    ]
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("times", [2, 3])
def test_a_product_that_is_negated_several_times_keeps_its_sign(times: int) -> None:
    negations = [f"n{number + 1} = negate n{number}" for number in range(times)]
    text = _module("n0 = multiply p0 p1", *negations, f"r = add n{times} p2")
    expected, actual = _results(text)
    assert actual.tobytes() == expected.tobytes()
    assert actual.tobytes() != hloexec.run(hloexec.parse(text), *_operands(), numerics="ftz").tobytes()
