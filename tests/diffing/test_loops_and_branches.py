"""Faults in what loops hand on, in what ends them, and in which branch is taken, where numbers are few or alike."""

from typing import Any

import numpy as np
import pytest

from tests.diffing.texts import diff_texts

_X = np.linspace(-1.5, 2.0, 8, dtype=np.float32)
_Y = np.linspace(0.3, 1.2, 8, dtype=np.float32)[::-1].copy()

_CARRIED = """HloModule m

body {
  state = (s32[], f32[8], f32[8], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[8] get-tuple-element(state), index=1
  first = f32[8] get-tuple-element(state), index=2
  second = f32[8] get-tuple-element(state), index=3
  best = f32[8] get-tuple-element(state), index=4
  one = s32[] constant(1)
  next = s32[] add(i, one)
  scaled = f32[8] multiply(v, first)
  moved = f32[8] subtract(scaled, second)
  most = f32[8] maximum(best, moved)
  ROOT handed = (s32[], f32[8], f32[8], f32[8], f32[8]) tuple(next, moved, first, second, most)
}

condition {
  state = (s32[], f32[8], f32[8], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(4)
  ROOT goes_on = pred[] compare(i, limit), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  bent = f32[8] sine(x)
  start = s32[] constant(0)
  init = (s32[], f32[8], f32[8], f32[8], f32[8]) tuple(start, x, bent, y, y)
  loop = (s32[], f32[8], f32[8], f32[8], f32[8]) while(init), condition=condition, body=body
  last = f32[8] get-tuple-element(loop), index=1
  most_of_all = f32[8] get-tuple-element(loop), index=4
  ROOT r = (f32[8], f32[8]) tuple(last, most_of_all)
}
"""

_COLLATZ = """HloModule m

or {
  a = pred[] parameter(0)
  b = pred[] parameter(1)
  ROOT s = pred[] or(a, b)
}

body {
  state = (s32[9], s32[9]) parameter(0)
  n = s32[9] get-tuple-element(state), index=0
  steps = s32[9] get-tuple-element(state), index=1
  one = s32[] constant(1)
  ones = s32[9] broadcast(one), dimensions={}
  three = s32[] constant(3)
  threes = s32[9] broadcast(three), dimensions={}
PARITY
  half = s32[9] shift-right-logical(n, ones)
  tripled = s32[9] multiply(n, threes)
  more = s32[9] add(tripled, ones)
  stepped = s32[9] select(is_odd, more, half)
  is_open = pred[9] compare(n, ones), direction=GT
  now = s32[9] select(is_open, stepped, n)
  counted = s32[9] convert(is_open)
  total = s32[9] add(steps, counted)
  ROOT handed = (s32[9], s32[9]) tuple(now, total)
}

condition {
  state = (s32[9], s32[9]) parameter(0)
  n = s32[9] get-tuple-element(state), index=0
  one = s32[] constant(1)
  ones = s32[9] broadcast(one), dimensions={}
  is_open = pred[9] compare(n, ones), direction=GT
  no = pred[] constant(false)
  ROOT any = pred[] reduce(is_open, no), dimensions={0}, to_apply=or
}

ENTRY main {
  n = s32[9] parameter(0)
  zero = s32[] constant(0)
  zeros = s32[9] broadcast(zero), dimensions={}
  init = (s32[9], s32[9]) tuple(n, zeros)
  loop = (s32[9], s32[9]) while(init), condition=condition, body=body
  ROOT steps = s32[9] get-tuple-element(loop), index=1
}
"""
_BY_REMAINDER = """  two = s32[] constant(2)
  twos = s32[9] broadcast(two), dimensions={}
  parity = s32[9] remainder(n, twos)
  is_odd = pred[9] compare(parity, ones), direction=EQ"""
_BY_BITS = """  zero = s32[] constant(0)
  zeros = s32[9] broadcast(zero), dimensions={}
  parity = s32[9] and(n, ones)
  is_odd = pred[9] compare(parity, zeros), direction=NE"""

_MACHINE = """HloModule m

push {
  state = (s32[3], s32[]) parameter(0)
  kept = s32[3] get-tuple-element(state), index=0
  pc = s32[] get-tuple-element(state), index=1
  seven = s32[] constant(7)
  ones = s32[1] reshape(seven)
  zero = s32[] constant(0)
  pushed = s32[3] dynamic-update-slice(kept, ones, zero)
  one = s32[] constant(1)
  next = s32[] add(pc, one)
  ROOT t = (s32[3], s32[]) tuple(pushed, next)
}

double {
  state = (s32[3], s32[]) parameter(0)
  kept = s32[3] get-tuple-element(state), index=0
  pc = s32[] get-tuple-element(state), index=1
  doubled = s32[3] add(kept, kept)
  one = s32[] constant(1)
  next = s32[] add(pc, one)
  ROOT t = (s32[3], s32[]) tuple(doubled, next)
}

body {
  state = (s32[3], s32[], s32[6]) parameter(0)
  kept = s32[3] get-tuple-element(state), index=0
  pc = s32[] get-tuple-element(state), index=1
  program = s32[6] get-tuple-element(state), index=2
  fetched = s32[1] dynamic-slice(program, pc), dynamic_slice_sizes={1}
  opcode = s32[] reshape(fetched)
  given = (s32[3], s32[]) tuple(kept, pc)
  ran = (s32[3], s32[]) conditional(opcode, given, given), branch_computations={push, double}
  now = s32[3] get-tuple-element(ran), index=0
  next = s32[] get-tuple-element(ran), index=1
  ROOT t = (s32[3], s32[], s32[6]) tuple(now, next, program)
}

condition {
  state = (s32[3], s32[], s32[6]) parameter(0)
  pc = s32[] get-tuple-element(state), index=1
  six = s32[] constant(6)
  ROOT goes_on = pred[] compare(pc, six), direction=LT
}

ENTRY main {
  program = s32[6] parameter(0)
  stack = s32[3] constant({3, 4, 5})
  zero = s32[] constant(0)
  init = (s32[3], s32[], s32[6]) tuple(stack, zero, program)
  loop = (s32[3], s32[], s32[6]) while(init), condition=condition, body=body
  ROOT kept = s32[3] get-tuple-element(loop), index=0
}
"""


def _first(before: str, after: str, *inputs: Any) -> str:
    """The path that is blamed first."""
    found = diff_texts(before, after, list(inputs))
    assert found.verdict == "differ"
    return found.findings[0].after.path


@pytest.mark.parametrize(
    ("handed", "path"),
    [
        ("tuple(next, moved, second, first, most)", "loop[0]:body/handed"),  # exchanged, though no step computes them
        ("tuple(next, moved, first, second, best)", "loop[0]:body/handed"),  # the loop gives what it was given
    ],
)
def test_what_a_loop_hands_on_is_blamed_on_the_root_of_its_body(handed: str, path: str) -> None:
    after = _CARRIED.replace("tuple(next, moved, first, second, most)", handed)
    assert _first(_CARRIED, after, _X, _Y) == path


def test_a_value_that_a_loop_keeps_is_not_what_its_condition_copies() -> None:
    """The copy shares its memory."""
    looks = """  best = f32[8] get-tuple-element(state), index=4
  same = f32[8] copy(best)
  some = f32[1] slice(same), slice={[0:1]}
  number = f32[] reshape(some)
  huge = f32[] constant(1e9)
  is_small = pred[] compare(number, huge), direction=LT
  limit = s32[] constant(4)
  is_early = pred[] compare(i, limit), direction=LT
  ROOT goes_on = pred[] and(is_early, is_small)"""
    plain = """  limit = s32[] constant(4)
  ROOT goes_on = pred[] compare(i, limit), direction=LT"""
    before = _CARRIED.replace(plain, looks)
    assert before != _CARRIED
    after = before.replace("tuple(next, moved, first, second, most)", "tuple(next, moved, first, second, best)")
    assert _first(before, after, _X, _Y) == "loop[0]:body/handed"
    stale = before.replace("tuple(next, moved, first, second, most)", "tuple(next, v, first, second, most)")
    assert _first(before, stale, _X, _Y).rpartition("/")[2] == "handed"


def test_a_loop_that_never_runs_is_found_behind_another_opcode() -> None:
    before = _CARRIED.replace(
        "ROOT r = (f32[8], f32[8]) tuple(last, most_of_all)",
        """lasts = f32[1,8] reshape(last)
  zero = f32[] constant(0)
  zeros = f32[1,8] broadcast(zero), dimensions={}
  ROOT r = f32[2,8] concatenate(lasts, zeros), dimensions={0}""",
    )
    after = _CARRIED.replace(
        "ROOT r = (f32[8], f32[8]) tuple(last, most_of_all)",
        """lasts = f32[1,8] reshape(last)
  zero = f32[] constant(0)
  ROOT r = f32[2,8] pad(lasts, zero), padding=0_1x0_0""",
    ).replace("direction=LT", "direction=GT")
    assert _first(before, after, _X, _Y) == "loop[0]:condition/goes_on"


def test_values_exchanged_by_a_loop_are_found_where_its_condition_takes_other_steps() -> None:
    """What uses them first computes otherwise than `before` does."""
    looks = """  v = f32[8] get-tuple-element(state), index=1
  SUM
  some = f32[1] slice(total), slice={[0:1]}
  number = f32[] reshape(some)
  huge = f32[] constant(1e3)
  is_small = pred[] compare(number, huge), direction=LT
  limit = s32[] constant(4)
  is_early = pred[] compare(i, limit), direction=LT
  ROOT goes_on = pred[] and(is_early, is_small)"""
    plain = """  limit = s32[] constant(4)
  ROOT goes_on = pred[] compare(i, limit), direction=LT"""
    start = "fixed = f32[8] get-tuple-element(state), index=2\n  "
    before = _CARRIED.replace(plain, looks.replace("SUM", start + "total = f32[8] subtract(v, fixed)"))
    after = _CARRIED.replace(
        plain, looks.replace("SUM", start + "minus = f32[8] negate(fixed)\n  total = f32[8] add(minus, v)")
    )
    after = after.replace("tuple(next, moved, first, second, most)", "tuple(next, most, first, second, moved)")
    assert _first(before, after, _X, _Y) == "loop[0]:body/handed"


def test_a_step_that_ends_a_loop_otherwise_is_found_among_steps_without_counterparts() -> None:
    numbers = np.array([3, 8, 5, 6, 7, 1, 12, 10, 9], np.int32)
    before = _COLLATZ.replace("PARITY", _BY_REMAINDER)
    after = _COLLATZ.replace("PARITY", _BY_BITS)
    assert diff_texts(before, after, [numbers]).verdict == "agree"
    # Another connective; the trip counts differ, and no value of the other side is what `or` gives.
    wrong = after.replace("parity = s32[9] and(n, ones)", "parity = s32[9] xor(n, ones)")
    assert _first(before, wrong, numbers).rpartition("/")[2] in ("parity", "is_odd")


def test_exchanged_branches_are_found_by_all_that_the_conditional_gives() -> None:
    program = np.array([0, 1, 1, 0, 1, 0], np.int32)
    after = _MACHINE.replace("branch_computations={push, double}", "branch_computations={double, push}")
    assert _first(_MACHINE, after, program) == "loop[0]:body/ran"


@pytest.mark.parametrize(
    "handed",
    [
        "tuple(next, moved, first, second, best)",
        "tuple(next, v, first, second, most)",
        "tuple(next, most, first, second, moved)",
        "tuple(next, moved, second, first, most)",
    ],
)
def test_values_that_a_loop_hands_on_pair_up_by_what_it_was_given(handed: str) -> None:
    """Whatever the steps; what nothing uses any more is not computed."""
    after = (
        _CARRIED.replace("tuple(next, moved, first, second, most)", handed)
        .replace("subtract(scaled, second)", "add(scaled, minus)")
        .replace("  scaled =", "  minus = f32[8] negate(second)\n  scaled =")
    )
    assert _first(_CARRIED, after, _X, _Y) == "loop[0]:body/handed"


_RECURRENCE = """HloModule m

body {
  state = (s32[], f32[8], f32[8], f32[8], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  last = f32[8] get-tuple-element(state), index=1
  now = f32[8] get-tuple-element(state), index=2
  factor = f32[8] get-tuple-element(state), index=3
  noted = f32[6] get-tuple-element(state), index=4
  one = s32[] constant(1)
  next = s32[] add(i, one)
  scaled = f32[8] multiply(factor, now)
  following = f32[8] subtract(scaled, last)
  part = f32[1] slice(following), slice={[2:3]}
  place = s32[] copy(i)
  written = f32[6] dynamic-update-slice(noted, part, place)
  ROOT handed = (s32[], f32[8], f32[8], f32[8], f32[6]) tuple(next, now, following, factor, written)
}

condition {
  state = (s32[], f32[8], f32[8], f32[8], f32[6]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(5)
  ROOT goes_on = pred[] compare(i, limit), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  first = f32[8] multiply(x, y)
  start = s32[] constant(0)
  zero = f32[] constant(0)
  zeros = f32[6] broadcast(zero), dimensions={}
  init = (s32[], f32[8], f32[8], f32[8], f32[6]) tuple(start, x, first, y, zeros)
  loop = (s32[], f32[8], f32[8], f32[8], f32[6]) while(init), condition=condition, body=body
  last = f32[8] get-tuple-element(loop), index=2
  noted = f32[6] get-tuple-element(loop), index=4
  ROOT r = (f32[8], f32[6]) tuple(last, noted)
}
"""


def test_a_loop_that_never_runs_is_found_where_its_constants_are_used() -> None:
    before = _RECURRENCE.replace(
        "ROOT r = (f32[8], f32[6]) tuple(last, noted)", "ROOT r = f32[6] multiply(noted, noted)"
    )
    after = before.replace("direction=LT", "direction=GT")
    assert _first(before, after, _X, _Y) == "loop[0]:condition/goes_on"


def test_a_loop_that_shifts_what_it_was_given_wrong_is_not_to_blame() -> None:
    """One value moves to the place of another in each iteration, as it should; but it is wrong from the start."""
    after = _RECURRENCE.replace("first = f32[8] multiply(x, y)", "first = f32[8] add(x, y)")
    assert _first(_RECURRENCE, after, _X, _Y) == "first"


def test_a_value_that_counts_iterations_is_put_right_in_all_of_them() -> None:
    after = _RECURRENCE.replace("place = s32[] copy(i)", "place = s32[] add(i, one)")
    assert _first(_RECURRENCE, after, _X, _Y).rpartition("/")[2] in ("place", "written")
    found = diff_texts(_RECURRENCE, after, [_X, _Y])
    # All is right with another place, or without the sum that gives it: either may be meant.
    assert not found.findings[0].is_certain
    assert len(found.findings) == 1


def test_a_number_that_a_loop_keeps_is_no_counter_that_another_one_increases() -> None:
    """Both modules carry two numbers that start at 0: the one counts twice, the other once beside a constant."""
    wider = _RECURRENCE.replace("f32[8], f32[6])", "f32[8], f32[6], s32[])").replace(
        "tuple(start, x, first, y, zeros)", "tuple(start, x, first, y, zeros, start)"
    )
    wider = wider.replace("ROOT r = (f32[8], f32[6], s32[])", "ROOT r = (f32[8], f32[6])")
    twice = wider.replace(
        "  ROOT handed =",
        "  also = s32[] get-tuple-element(state), index=5\n  more = s32[] add(also, one)\n  ROOT handed =",
    ).replace("factor, written)", "factor, written, more)")
    once = wider.replace(
        "  ROOT handed =", "  also = s32[] get-tuple-element(state), index=5\n  ROOT handed ="
    ).replace("factor, written)", "factor, written, also)")
    assert diff_texts(twice, once, [_X, _Y]).verdict == "agree"
    assert _first(twice, once.replace("subtract(scaled, last)", "add(scaled, last)"), _X, _Y).endswith("following")


_STATE = "(s32[], f32[8], f32[8])"
_GOES_ON = f"""goes_on {{
  state = {_STATE} parameter(0)
  count = s32[] get-tuple-element(state), index=0
  most = s32[] constant(4)
  ROOT is_less = pred[] compare(count, most), direction=LT
}}
"""


def _body(name: str, steps: str, result: str) -> str:
    """The body of a loop that counts, and hands on a result of `x` and of `scale`, which it carries unchanged."""
    return f"""{name} {{
  state = {_STATE} parameter(0)
  count = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(count, one)
  x = f32[8] get-tuple-element(state), index=1
  scale = f32[8] get-tuple-element(state), index=2
  {steps}
  ROOT handed = {_STATE} tuple(next, {result}, scale)
}}
"""


_CHOICE = """scaled = f32[8] multiply(x, scale)
  bound = f32[] constant(0)
  bounds = f32[8] broadcast(bound), dimensions={}
  is_positive = pred[8] compare(x, bounds), direction=GT
  chosen = f32[8] select(is_positive, scaled, x)"""
_HALVED = f"""HloModule m
{_body("step", _CHOICE, "chosen")}{_GOES_ON}ENTRY main {{
  a = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = {_STATE} tuple(zero, a, a)
  end = {_STATE} while(init), condition=goes_on, body=step
  ROOT r = f32[8] get-tuple-element(end), index=1
}}
"""


def test_what_hands_on_a_value_is_right_where_a_select_chooses_what_the_loop_was_given() -> None:
    """In the first iteration, the select gives what the loop carries unchanged beside it."""
    after = _HALVED.replace("select(is_positive, scaled, x)", "select(is_positive, x, scaled)")
    x = np.random.default_rng(0).uniform(0.5, 2, 8).astype(np.float32)
    first = diff_texts(_HALVED, after, [x]).findings[0]
    assert (first.after.instruction, first.is_certain) == ("chosen", True)


def test_of_a_condition_that_is_to_blame_the_elements_that_are_off_are_shown() -> None:
    after = _HALVED.replace("compare(count, most), direction=LT", "compare(count, most), direction=GT")
    x = np.random.default_rng(0).uniform(0.5, 2, 8).astype(np.float32)
    first = diff_texts(_HALVED, after, [x]).findings[0]
    assert first.after.instruction == "is_less"
    assert first.comparison is not None
    assert first.comparison.leaves[0].mismatches == 1


_SHIFT = """moved = f32[8] add(x, scale)
  shifted = f32[8] cosine(moved)"""
_TWO_LOOPS = f"""HloModule m, is_scheduled=true
{_body("grow", "grown = f32[8] multiply(x, scale)", "grown")}{_body("shift", _SHIFT, "shifted")}{_GOES_ON}ENTRY main {{
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  zero = s32[] constant(0)
  LOOPS
  grown = f32[8] get-tuple-element(first), index=1
  shifted = f32[8] get-tuple-element(second), index=1
  ROOT r = (f32[8], f32[8]) tuple(grown, shifted)
}}
"""
_FIRST = f"""start = {_STATE} tuple(zero, a, b)
  first = {_STATE} while(start), condition=goes_on, body=grow
"""
_SECOND = f"""other = {_STATE} tuple(zero, b, a)
  second = {_STATE} while(other), condition=goes_on, body=shift
"""


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [("add(x, scale)", "subtract(x, scale)", "moved"), ("constant(4)", "constant(5)", "is_less")],
)
def test_loops_that_run_in_another_order_are_paired_by_what_they_are_given(right: str, wrong: str, name: str) -> None:
    before = _TWO_LOOPS.replace("LOOPS", _FIRST + _SECOND)
    after = _TWO_LOOPS.replace("LOOPS", _SECOND + _FIRST).replace(right, wrong)
    random = np.random.default_rng(0)
    inputs = [random.uniform(0.5, 1.5, 8).astype(np.float32) for _ in range(2)]
    first = diff_texts(before, after, inputs).findings[0]
    assert (first.after.instruction, first.is_certain) == (name, True)


_STACKS = """HloModule m

body {
  state = (s32[], f32[4], f32[6,4], f32[6,4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4] get-tuple-element(state), index=1
  first = f32[6,4] get-tuple-element(state), index=2
  second = f32[6,4] get-tuple-element(state), index=3
  zero = s32[] constant(0)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  s = f32[4] sine(x)
  c = f32[4] cosine(x)
  sines = f32[1,4] reshape(s)
  cosines = f32[1,4] reshape(c)
  with_sines = f32[6,4] dynamic-update-slice(first, sines, i, zero)
  with_cosines = f32[6,4] dynamic-update-slice(second, cosines, i, zero)
  ROOT t = (s32[], f32[4], f32[6,4], f32[6,4]) tuple(j, s, HANDED)
}

condition {
  state = (s32[], f32[4], f32[6,4], f32[6,4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(6)
  ROOT below = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  nought = f32[] constant(0)
  noughts = f32[6,4] broadcast(nought), dimensions={}
  start = (s32[], f32[4], f32[6,4], f32[6,4]) tuple(zero, x, noughts, noughts)
  loop = (s32[], f32[4], f32[6,4], f32[6,4]) while(start), condition=condition, body=body
  a = f32[6,4] get-tuple-element(loop), index=2
  b = f32[6,4] get-tuple-element(loop), index=3
  p = f32[6,4] multiply(a, b)
  ROOT r = (f32[6,4], f32[6,4]) tuple(p, b)
}
"""


def test_a_loop_that_hands_on_the_zeros_that_it_was_given_is_where_it_begins() -> None:
    """Both stacks start as zeros; one is not written to."""
    before, after = (_STACKS.replace("HANDED", names) for names in ("with_sines, with_cosines", "first, with_cosines"))
    x = np.linspace(0.2, 1.4, 4, dtype=np.float32)
    found = diff_texts(before, after, [x]).findings[0]
    assert (found.after.instruction, found.after.path) == ("t", "loop[0]:body/t")


def test_a_copy_of_what_a_loop_was_given_is_where_it_begins() -> None:
    """It stands where the stack was written to."""
    before = _STACKS.replace("HANDED", "with_sines, with_cosines")
    after = before.replace("dynamic-update-slice(first, sines, i, zero)", "copy(first)")
    found = diff_texts(before, after, [np.linspace(0.2, 1.4, 4, dtype=np.float32)])
    assert found.findings[0].after.instruction == "with_sines"
