"""scan against folds written out. XLA:CPU cannot import the opcode, so the definition is the only truth."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.errors import ShapeError
from tests.ops.evaluation import evaluate


def module(is_reverse: bool) -> str:
    reverse = ", is_reverse=true" if is_reverse else ""
    return f"""HloModule m
step {{
  x = s32[6] parameter(0)
  n = s32[] parameter(1)
  sum = s32[6] parameter(2)
  count = s32[] parameter(3)
  one = s32[] constant(1)
  wide = s32[6] broadcast(n), dimensions={{}}
  product = s32[6] multiply(x, wide)
  next = s32[6] add(sum, product)
  more = s32[] add(count, one)
  ROOT t = (s32[6], s32[], s32[6], s32[]) tuple(sum, count, next, more)
}}
ENTRY e {{
  a = s32[4,6] parameter(0)
  n = s32[4] parameter(1)
  c = s32[6] parameter(2)
  k = s32[] parameter(3)
  ROOT r = (s32[4,6], s32[4], s32[6], s32[]) scan(a, n, c, k), dimensions={{0}}, num_carries=2{reverse}, to_apply=step
}}"""


@pytest.mark.parametrize("is_reverse", [False, True])
def test_scan_keeps_every_step_and_the_last_carries(is_reverse: bool) -> None:
    operand = np.arange(24, dtype=np.int32).reshape(4, 6)
    factors = np.array([3, -1, 2, 5], np.int32)
    start = np.arange(6, dtype=np.int32)
    outputs, counts, last, count = evaluate(module(is_reverse), operand, factors, start, np.int32(10))
    carry = start
    for number, row in enumerate(range(3, -1, -1) if is_reverse else range(4)):
        assert_array_equal(outputs[row], carry)
        assert counts[row] == 10 + number
        carry = carry + operand[row] * factors[row]
    assert_array_equal(last, carry)
    assert count == 14


SUMS = """HloModule m
step {
  x = f32[3] parameter(0)
  c = f32[3] parameter(1)
  s = f32[3] add(x, c)
  ROOT t = (f32[3], f32[3]) tuple(s, s)
}
ENTRY e {
  a = f32[3,5] parameter(0)
  c = f32[3] parameter(1)
  ROOT r = (f32[3,5], f32[3]) scan(a, c), dimensions={1}, num_carries=1, is_associative=true, to_apply=step
}"""


def test_outputs_are_stacked_along_the_scanned_dimension() -> None:
    operand = np.arange(15, dtype=np.float32).reshape(3, 5)
    outputs, last = evaluate(SUMS, operand, np.ones(3, np.float32))
    assert_array_equal(outputs, np.cumsum(operand, 1) + 1)
    assert_array_equal(last, operand.sum(1) + 1)


def test_no_steps_leave_the_carries_as_they_were() -> None:
    text = SUMS.replace("[3,5]", "[3,0]")
    outputs, last = evaluate(text, np.ones((3, 0), np.float32), np.full(3, 7, np.float32))
    assert outputs.shape == (3, 0)
    assert last.tolist() == [7, 7, 7]


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize(("dimensions", "dimension"), [((40,), 0), ((5, 300), 0), ((100, 40), 1), ((40, 7), 0)])
@pytest.mark.parametrize(
    ("element", "opcode", "fold"),
    [
        ("f32", "add", np.add),
        ("f32", "multiply", np.multiply),
        ("f32", "maximum", np.maximum),
        ("bf16", "add", np.add),
        ("s32", "add", np.add),
        ("s32", "multiply", np.multiply),
        ("u8", "minimum", np.minimum),
        ("s64", "xor", np.bitwise_xor),
        ("c64", "add", np.add),
    ],
)
def test_cumulative_folds_go_step_by_step(
    element: str, opcode: str, fold: np.ufunc, dimensions: tuple[int, ...], dimension: int, is_reverse: bool
) -> None:
    storage = ELEMENT_TYPES[element].storage
    generator = np.random.default_rng(0)
    operand = (generator.standard_normal(dimensions) * 100).astype(storage)
    rest = (*dimensions[:dimension], *dimensions[dimension + 1 :])
    carry = generator.integers(1, 100, rest).astype(storage)
    whole, slice_ = (f"{element}[{','.join(map(str, sizes))}]" for sizes in (dimensions, rest))
    reverse = ", is_reverse=true" if is_reverse else ""
    text = f"""HloModule m
step {{
  x = {slice_} parameter(0)
  c = {slice_} parameter(1)
  s = {slice_} {opcode}(x, c)
  ROOT t = ({slice_}, {slice_}) tuple(s, s)
}}
ENTRY e {{
  a = {whole} parameter(0)
  c = {slice_} parameter(1)
  ROOT r = ({whole}, {slice_}) scan(a, c), dimensions={{{dimension}}}, num_carries=1{reverse}, to_apply=step
}}"""
    outputs, last = evaluate(text, operand, carry)
    steps = range(dimensions[dimension])
    with np.errstate(all="ignore"):
        for number in reversed(steps) if is_reverse else steps:
            # ml_dtypes adds bf16 in f32 and rounds once, as an instruction does.
            carry = np.asarray(fold(operand.take(number, dimension), carry))
            assert_array_equal(outputs.take(number, dimension), carry)
    assert_array_equal(last, carry)
    assert last.shape == rest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dimensions={1}", "dimensions={2}", "dimension 2 of scan is out of range"),
        ("num_carries=1", "num_carries=2", "of which 2 cannot be carries"),
        ("num_carries=1", "num_carries=0", "parameter 1 of to_apply of scan|out of range"),
        (
            "  c = f32[3] parameter(1)\n  ROOT r",
            "  c = f32[4] parameter(1)\n  ROOT r",
            "parameter 1 of to_apply of scan",
        ),
        ("dimensions={1}", "dimensions={0}", "parameter 0 of to_apply of scan"),
    ],
)
def test_wrong_scans_are_refused(old: str, new: str, message: str) -> None:
    assert old in SUMS
    with pytest.raises(ShapeError, match=message):
        evaluate(SUMS.replace(old, new))
