"""What is to blame where a run went another way: the decision, not what was computed on that way."""

import numpy as np

from hloexec.tools.diffing import Diff
from tests.diffing.texts import diff_texts

_LOOP = """HloModule m

body {
  state = (s32[], f32[8]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(count, one)
  x = f32[8] get-tuple-element(state), index=1
  y = f32[8] sine(x)
  z = f32[8] add(x, y)
  ROOT result = (s32[], f32[8]) tuple(next, z)
}

condition {
  state = (s32[], f32[8]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  bound = s32[] constant(BOUND)
  ROOT more = pred[] compare(count, bound), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  zero = s32[] constant(0)
  state = (s32[], f32[8]) tuple(zero, x)
  end = (s32[], f32[8]) while(state), condition=condition, body=body
  ROOT z = f32[8] get-tuple-element(end), index=1
}
"""

_CHOICE = """HloModule m

double {
  x = f32[8] parameter(0)
  y = f32[8] add(x, x)
  ROOT z = f32[8] multiply(y, x)
}

bend {
  x = f32[8] parameter(0)
  y = f32[8] sine(x)
  ROOT z = f32[8] subtract(y, x)
}

ENTRY main {
  x = f32[8] parameter(0)
  limit = f32[] parameter(1)
  zero = s32[] constant(0)
  first = f32[1] slice(x), slice={[0:1]}
  scalar = f32[] reshape(first)
  is_above = pred[] compare(scalar, limit), direction=GT
  chosen = f32[8] conditional(is_above, x, x), true_computation=double, false_computation=bend
  ROOT result = f32[8] exponential(chosen)
}
"""

_X = np.linspace(0.5, 2, 8, dtype=np.float32)


def _diff(before: str, after: str, *inputs: object) -> Diff:
    return diff_texts(before, after, inputs)


def test_loop_that_ends_too_soon() -> None:
    found = _diff(_LOOP.replace("BOUND", "5"), _LOOP.replace("BOUND", "4"), _X)
    assert found.verdict == "differ"
    assert found.findings[0].after.path == "end[4]:condition/more"
    assert found.findings[0].before is not None
    assert found.findings[0].before.path == "end[4]:condition/more"


def test_loop_that_goes_on_too_long() -> None:
    found = _diff(_LOOP.replace("BOUND", "4"), _LOOP.replace("BOUND", "4").replace("=LT", "=LE"), _X)
    assert found.findings[0].after.path == "end[4]:condition/more"


def test_predicate_that_comes_out_differently() -> None:
    found = _diff(_CHOICE, _CHOICE.replace("=GT", "=LT"), _X, np.float32(0.25))
    assert found.findings[0].after.instruction == "is_above"


def test_conditional_whose_branches_are_exchanged() -> None:
    exchanged = "true_computation=bend, false_computation=double"
    after = _CHOICE.replace("true_computation=double, false_computation=bend", exchanged)
    found = _diff(_CHOICE, after, _X, np.float32(0.25))
    assert found.findings[0].after.instruction == "chosen"


def test_fault_within_a_branch_is_not_the_conditional_s() -> None:
    found = _diff(_CHOICE, _CHOICE.replace("multiply(y, x)", "subtract(y, x)"), _X, np.float32(0.25))
    assert found.findings[0].after.path == "chosen:double/z"


def test_loop_that_starts_elsewhere() -> None:
    before = _LOOP.replace("BOUND", "5")
    found = _diff(before, before.replace("zero = s32[] constant(0)", "zero = s32[] constant(2)"), _X)
    assert found.verdict == "differ"
    assert found.findings[0].after.path == "zero"
