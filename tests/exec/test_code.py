"""Plans as Python do what the machine does: the same bits, the same errors, the same values overwritten."""

import re
import sys

import attrs
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import hloexec
from hloexec.core.tree import flat
from hloexec.engine.exec import machine, placement, running
from hloexec.engine.exec.code import compiling
from hloexec.engine.exec.code.compiling import code_of, sources
from hloexec.engine.exec.statistics import Statistics
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops import registry
from tests.drawing import examples

X = np.array([1, 2, 3, 4], np.float32)

LOOP = """HloModule m
body {{ s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  x = f32[4] get-tuple-element(s), index=1
  y = f32[4] get-tuple-element(s), index=2
{body}
  ROOT t = (s32[], f32[4], f32[4]) tuple(n, {next}) }}
condition {{ s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant({trips})
  ROOT less = pred[] compare(i, end), direction=LT }}
ENTRY e {{ x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  z = s32[] constant(0)
  s = (s32[], f32[4], f32[4]) tuple(z, x, y)
  ROOT w = (s32[], f32[4], f32[4]) while(s), condition=condition, body=body }}
"""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can be is made into Python when it first runs."""
    monkeypatch.setattr(machine, "RUNS_BEFORE_CODE", 0)
    monkeypatch.setattr(compiling, "RUNS_BEFORE_CODE", 0)


def require_same(module: hloexec.Module, *inputs: object, **options: object) -> list[np.ndarray]:
    """The result as Python, which must have the bits of the result without the planner."""
    expected = flat(hloexec.run(module, *inputs, planner=False))
    for _ in range(2):
        results = flat(hloexec.run(module, *inputs, **options))
        for result, other in zip(results, expected, strict=True):
            assert result.dtype == other.dtype and result.shape == other.shape
            assert result.tobytes() == other.tobytes()
    return expected


LOOPS = {
    "a sum": ("  a = f32[4] add(x, y)", "a, y"),
    "values that change places": ("  a = f32[4] add(x, y)", "y, a"),
    "both places the same": ("  a = f32[4] add(x, y)", "a, a"),
    "nothing but the counter": ("", "x, y"),
    "what does not depend on the iteration": ("  a = f32[4] multiply(y, y)\n  b = f32[4] add(x, a)", "b, y"),
    "a result that does not depend on the iteration": ("  a = f32[4] multiply(y, y)", "a, y"),
    "a constant result": ("  a = f32[4] constant({1,2,3,4})\n  b = f32[4] add(x, y)", "b, a"),
    "an update of what is carried": (
        "  u = f32[1] slice(y), slice={[1:2]}\n  a = f32[4] dynamic-update-slice(x, u, i)",
        "a, y",
    ),
    "an update of what does not change": (
        "  u = f32[1] slice(x), slice={[1:2]}\n  a = f32[4] dynamic-update-slice(y, u, i)\n  b = f32[4] add(a, x)",
        "b, y",
    ),
    "a name that is Python's": ("  lambda = f32[4] add(x, y)\n  state = f32[4] add(lambda, y)", "state, lambda"),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("trips", [0, 1, 2, 5, 40])
def test_loops(name: str, trips: int) -> None:
    body, following = LOOPS[name]
    module = hloexec.parse(LOOP.format(body=body, next=following, trips=trips))
    given = X.copy(), X[::-1].copy()
    (count, *_) = require_same(module, *given)
    assert count == trips
    np.testing.assert_array_equal(given, [X, X[::-1]])


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.usefixtures("at_once")
def test_loops_from_the_first_iteration_on(name: str) -> None:
    body, following = LOOPS[name]
    require_same(hloexec.parse(LOOP.format(body=body, next=following, trips=3)), X, X[::-1].copy())


NESTED = """HloModule m
grow { x = f32[4] parameter(0)
  ROOT y = f32[4] add(x, x) }
shrink { x = f32[4] parameter(0)
  h = f32[4] constant({0.5,0.5,0.5,0.5})
  ROOT y = f32[4] multiply(x, h) }
inner_body { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  two = s32[] constant(2)
  n = s32[] add(i, one)
  odd = s32[] remainder(i, two)
  y = f32[4] conditional(odd, x, x), branch_computations={grow, shrink}
  k = f32[4] sine(y)
  ROOT t = (s32[], f32[4]) tuple(n, k) }
inner_condition { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(5)
  ROOT less = pred[] compare(i, end), direction=LT }
body { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  z = s32[] constant(0)
  u = (s32[], f32[4]) tuple(z, x)
  w = (s32[], f32[4]) while(u), condition=inner_condition, body=inner_body
  v = f32[4] get-tuple-element(w), index=1
  ROOT t = (s32[], f32[4]) tuple(n, v) }
condition { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(20)
  ROOT less = pred[] compare(i, end), direction=LT }
ENTRY e { x = f32[4] parameter(0)
  z = s32[] constant(0)
  s = (s32[], f32[4]) tuple(z, x)
  w = (s32[], f32[4]) while(s), condition=condition, body=body
  v = f32[4] get-tuple-element(w), index=1
  p = pred[] constant(false)
  ROOT r = f32[4] conditional(p, v, v), true_computation=grow, false_computation=shrink }
"""


def test_loops_and_branches_within_loops() -> None:
    require_same(hloexec.parse(NESTED), X)


@pytest.mark.usefixtures("at_once")
def test_programs_of_loops_and_branches_at_once() -> None:
    require_same(hloexec.parse(NESTED), X)


def test_a_loop_is_counted_and_reported_as_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reporter:
        def __init__(self) -> None:
            self.iterations: list[int | None] = []

        def on_progress(self, progress: hloexec.Progress) -> None:
            self.iterations.append(progress.iteration)

    body, following = LOOPS["an update of what is carried"]
    module = hloexec.parse(LOOP.format(body=body, next=following, trips=300))
    counted, walked = Statistics(), Statistics()
    hloexec.run(module, X, X, statistics=counted, observers=[Reporter()])
    monkeypatch.setattr(machine, "can_be_code", lambda *_: False)
    hloexec.run(module, X, X, statistics=walked)
    assert counted.steps == walked.steps
    assert counted.live_bytes == walked.live_bytes == 0
    assert 0 < counted.peak_bytes <= walked.peak_bytes


@pytest.mark.skipif(placement.UNSHARED_VARIABLE < 0, reason="this Python does not count references")
@pytest.mark.usefixtures("at_once")
def test_a_carried_buffer_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    body, following = LOOPS["an update of what is carried"]
    module = hloexec.parse(LOOP.format(body=body, next=following, trips=4))
    copies = []
    entry = registry.OPCODES["dynamic-update-slice"]
    evaluate = entry.evaluate

    def noted(
        *operands: np.ndarray, shape: object, operand_shapes: object, out: np.ndarray | None = None
    ) -> np.ndarray:
        if out is None:
            copies.append(operands[0])
        return evaluate(*operands, shape=shape, operand_shapes=operand_shapes, out=out)  # type: ignore[misc]

    monkeypatch.setitem(
        registry.OPCODES, "dynamic-update-slice", attrs.evolve(entry, evaluate=registry.Rule(noted), fast_in=None)
    )
    hloexec.run(module, X, X)
    assert len(copies) == 1


def failing(monkeypatch: pytest.MonkeyPatch, opcode: str, error: type[Exception] = ValueError) -> None:
    def fails(*operands: np.ndarray) -> np.ndarray:
        if operands[0].max() > 100:
            raise error("boom")
        return operands[0] + operands[-1]

    entry = registry.OPCODES[opcode]
    changed = attrs.evolve(entry, evaluate=registry.Rule(fails), fast_in=None, is_elementwise=False)
    monkeypatch.setitem(registry.OPCODES, opcode, changed)


@pytest.mark.parametrize("runs", [0, 16])
def test_errors_name_the_instruction_its_iteration_and_the_way(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """A loop that runs as Python from its second or its 17th iteration on fails in iteration 24, where x is 25 · 4."""
    monkeypatch.setattr(machine, "RUNS_BEFORE_CODE", runs)
    monkeypatch.setattr(compiling, "RUNS_BEFORE_CODE", runs)
    failing(monkeypatch, "atan2")
    module = hloexec.parse(LOOP.format(body="  a = f32[4] atan2(x, y)", next="a, y", trips=100))
    with pytest.raises(EvaluationError, match=r"%a in computation body, reached through w\[25\]:body failed: ValueErr"):
        hloexec.run(module, np.array([4, 0, 0, 0], np.float32), np.array([4, 0, 0, 0], np.float32))


@pytest.mark.usefixtures("at_once")
def test_errors_name_the_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "sine")
    text = NESTED.replace("k = f32[4] sine(y)", "k = f32[4] copy(y)").replace(
        "y = f32[4] add(x, x)", "y = f32[4] sine(x)"
    )
    module = hloexec.parse(text)
    with pytest.raises(EvaluationError) as caught:
        hloexec.run(module, np.array([101, 0, 0, 0], np.float32))
    assert "%y in computation grow, reached through w[0]:body / w[0]:inner_body / y:grow failed" in str(caught.value)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("branch", range(3))
def test_errors_name_the_branch_that_was_taken(monkeypatch: pytest.MonkeyPatch, branch: int) -> None:
    # Of an error that a kernel raises on purpose, the run is not repeated as it is written.
    failing(monkeypatch, "sine", UnsupportedError)
    branches = "\n".join(f"b{k} {{ x = f32[4] parameter(0)\n  ROOT y = f32[4] sine(x) }}" for k in range(3))
    text = f"""HloModule m
{branches}
ENTRY e {{ n = s32[] parameter(0)
  x = f32[4] parameter(1)
  ROOT c = f32[4] conditional(n, x, x, x), branch_computations={{b0, b1, b2}} }}
"""
    with pytest.raises(UnsupportedError, match=rf"%y in computation b{branch}, reached through c:b{branch} failed"):
        hloexec.run(hloexec.parse(text), np.array(branch, np.int32), np.full(4, 101, np.float32))


def test_code_is_readable_and_says_what_is_hoisted() -> None:
    body, following = LOOPS["what does not depend on the iteration"]
    module = hloexec.parse(LOOP.format(body=body, next=following, trips=3))
    (loop, entry) = sources(code_of(running.plan_of(module)))
    assert re.search(r"a = multiply\((\w+), \1\)  # f32\[4\]", entry)
    assert "multiply" not in loop
    assert re.search(r"add\((\w+), a, \1\)  # b: f32\[4\]\n +count \+= 1\n", loop)
    assert entry.startswith("def e(arguments):\n    x, y = arguments\n    arguments.clear()\n")


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "multiply", "subtract", "maximum"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=8,
)


@hypothesis.settings(max_examples=examples(60), deadline=None)
@hypothesis.given(OPERATIONS, st.integers(0, 9), st.integers(0, 9), st.integers(0, 90))
def test_random_loops(operations: list[tuple[str, int, int]], first: int, second: int, trips: int) -> None:
    """Each operation takes two of the values before it: x, y, an update of x, and the results of the operations."""
    names = ["x", "y", "u"]
    lines = ["  p = f32[1] slice(y), slice={[2:3]}", "  u = f32[4] dynamic-update-slice(x, p, i)"]
    for number, (opcode, left, right) in enumerate(operations):
        lines.append(f"  v{number} = f32[4] {opcode}({names[left % len(names)]}, {names[right % len(names)]})")
        names.append(f"v{number}")
    following = f"{names[first % len(names)]}, {names[second % len(names)]}"
    module = hloexec.parse(LOOP.format(body="\n".join(lines), next=following, trips=trips))
    require_same(module, X / 7, X[::-1] / 5)


COUNTERS = {
    "s32, less": ("s32", "0", "1", "compare(i, end), direction=LT", "37"),
    "s32, greater": ("s32", "0", "1", "compare(end, i), direction=GT", "37"),
    "u8 by three": ("u8", "1", "3", "compare(i, end), direction=LT", "250"),
    "s64 from below zero": ("s64", "-20", "2", "compare(i, end), direction=LT", "21"),
    "not equal": ("s32", "0", "1", "compare(i, end), direction=NE", "37"),
    "at most": ("s32", "0", "1", "compare(i, end), direction=LE", "37"),
    "that wraps around": ("s8", "0", "100", "compare(i, end), direction=LT", "127"),
    "an equal limit": ("u32", "7", "1", "compare(i, end), direction=LT", "7"),
}


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.usefixtures("at_once")
def test_counters(name: str, is_read: bool) -> None:
    """A loop stops after 60 iterations at the latest, so that wrapping around may go on for a while."""
    kind, start, increment, comparison, end = COUNTERS[name]
    convert = "convert(i)" if is_read else "convert(j)"
    text = f"""HloModule m
body {{ s = ({kind}[], f32[], s32[]) parameter(0)
  i = {kind}[] get-tuple-element(s), index=0
  x = f32[] get-tuple-element(s), index=1
  j = s32[] get-tuple-element(s), index=2
  step = {kind}[] constant({increment})
  one = s32[] constant(1)
  n = {kind}[] add(step, i)
  c = f32[] {convert}
  k = s32[] add(j, one)
  y = f32[] subtract(c, x)
  ROOT t = ({kind}[], f32[], s32[]) tuple(n, y, k) }}
condition {{ s = ({kind}[], f32[], s32[]) parameter(0)
  i = {kind}[] get-tuple-element(s), index=0
  end = {kind}[] constant({end})
  LIMIT
}}
ENTRY e {{ x = f32[] parameter(0)
  z = s32[] constant(0)
  f = {kind}[] constant({start})
  s = ({kind}[], f32[], s32[]) tuple(f, x, z)
  ROOT w = ({kind}[], f32[], s32[]) while(s), condition=condition, body=body }}
"""
    plain = text.replace("LIMIT", f"ROOT p = pred[] {comparison}")
    limited = text.replace(
        "LIMIT",
        f"""j = s32[] get-tuple-element(s), index=2
  most = s32[] constant(60)
  q = pred[] compare(j, most), direction=LT
  p = pred[] {comparison}
  ROOT b = pred[] and(p, q)""",
    )
    for variant in (limited,) if name in ("that wraps around",) else (plain, limited):
        require_same(hloexec.parse(variant), np.float32(0.25))


def test_a_counter_that_wraps_around_is_no_counter() -> None:
    """From 100, 100 more is -56 in s8, and the loop goes on."""
    text = LOOP.format(body="  a = f32[4] add(x, y)", next="a, y", trips=127).replace("s32", "s8")
    text = text.replace("one = s8[] constant(1)", "one = s8[] constant(100)")
    (loop, _) = sources(code_of(running.plan_of(hloexec.parse(text))))
    assert "count" not in loop


def test_values_that_are_only_computed_with_lie_in_buffers() -> None:
    """Three values a step, of which two are alive at once, beside the two that are carried and change places."""
    body = "  a = f32[4] add(x, y)\n  b = f32[4] multiply(a, y)\n  c = f32[4] subtract(a, b)\n  d = f32[4] add(c, x)"
    module = hloexec.parse(LOOP.format(body=body, next="c, d", trips=50))
    (loop, _) = sources(code_of(running.plan_of(module)))
    before, within = loop.split("while iteration != until:")
    assert before.count("empty((4,), 'float32')") == 1
    assert " = add(" not in within and " = multiply(" not in within
    given = X / 64, X[::-1] / 64
    require_same(module, *given)
    np.testing.assert_array_equal(given[0], X / 64)


@pytest.mark.parametrize(
    "copied",
    ["dynamic-update-slice(y, b, i)", "concatenate(b, b), dimensions={0}", "concatenate(b, g), dimensions={0}"],
)
def test_values_that_are_copied_into_others_lie_in_buffers(copied: str) -> None:
    body = (
        "  h = f32[2] slice(y), slice={[0:2]}\n  g = f32[2] slice(x), slice={[2:4]}\n"
        f"  b = f32[2] multiply(h, g)\n  w = f32[4] {copied}"
    )
    module = hloexec.parse(LOOP.format(body=body, next="w, x", trips=30))
    (loop, _) = sources(code_of(running.plan_of(module)))
    before, within = loop.split("while iteration != until:")
    assert "empty((2,), 'float32')" in before
    assert " = multiply(" not in within
    require_same(module, X / 2, X[::-1] / 2)


ROWS = """HloModule m
body { s = (s32[], f32[4], f32[50,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  x = f32[4] get-tuple-element(s), index=1
  rows = f32[50,4] get-tuple-element(s), index=2
  a = f32[4] sine(x)
  row = f32[1,4] reshape(a)
  zero = s32[] constant(0)
  w = f32[50,4] dynamic-update-slice(rows, row, i, zero)
  ROOT t = (s32[], f32[4], f32[50,4]) tuple(n, a, w) }
condition { s = (s32[], f32[4], f32[50,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(50)
  ROOT less = pred[] compare(i, end), direction=LT }
ENTRY e { x = f32[4] parameter(0)
  rows = f32[50,4] parameter(1)
  start = s32[] parameter(2)
  s = (s32[], f32[4], f32[50,4]) tuple(start, x, rows)
  ROOT w = (s32[], f32[4], f32[50,4]) while(s), condition=condition, body=body }
"""


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("start = s32[] parameter(2)", "start = s32[] constant(2)"),
        ("constant(50)", "constant(49)"),
        ("row = f32[1,4] reshape(a)", "row = f32[1,4] slice(rows), slice={[3:4], [0:4]}"),
        ("slice(rows, row, i, zero)", "slice(rows, row, zero, zero)"),
        ("slice(rows, row, i, zero)", "slice(rows, row, n, zero)"),
    ],
)
def test_rows_are_written_to_a_copy_of_what_the_caller_gives(old: str, new: str) -> None:
    module = hloexec.parse(ROWS.replace(old, new))
    rows = np.arange(200, dtype=np.float32).reshape(50, 4)
    inputs = [X, rows.copy(), np.int32(0)][: 2 if "constant(2)" in new else 3]
    require_same(module, *inputs)
    np.testing.assert_array_equal(inputs[1], rows)


def test_values_that_are_carried_twice_are_left_alone() -> None:
    body = "  a = f32[4] add(x, y)\n  b = f32[4] add(a, x)"
    module = hloexec.parse(LOOP.format(body=body, next="b, b", trips=50))
    (loop, _) = sources(code_of(running.plan_of(module)))
    assert ".copy()" not in loop
    require_same(module, X / 1e20, X / 1e20)


CIRCLES = {
    "a fixed point": "  h = f32[4] constant({0.5, 0.5, 0.5, 0.5})\n  a = f32[4] multiply(x, h)\n  b = f32[4] add(a, h)",
    "signs that alternate": "  a = f32[4] negate(x)\n  b = f32[4] add(a, y)",
    "not a number": "  a = f32[4] subtract(x, y)\n  c = f32[4] log(a)\n  b = f32[4] add(c, x)",
    "a circle of three": (
        "  p = f32[3] slice(x), slice={[0:3]}\n  q = f32[1] slice(p), slice={[0:1]}\n  r = f32[2] slice(p), slice={[1:3]}\n"
        "  l = f32[1] slice(x), slice={[3:4]}\n  b = f32[4] concatenate(r, q, l), dimensions={0}"
    ),
    "a circle of eight": (
        "  k = f32[4] constant({3, 3, 3, 3})\n  m = f32[4] constant({32, 32, 32, 32})\n"
        "  a = f32[4] multiply(x, k)\n  b = f32[4] remainder(a, m)"
    ),
    "no circle": "  k = f32[4] constant({3.9, 3.8, 3.7, 3.99})\n  a = f32[4] multiply(x, x)\n  c = f32[4] subtract(x, a)\n"
    "  b = f32[4] multiply(c, k)",
    "a circle but for the counter": (
        "  c = f32[] convert(i)\n  d = f32[4] broadcast(c), dimensions={}\n  e = f32[4] constant({99, 99, 99, 99})\n"
        "  f = f32[4] subtract(d, e)\n  g = f32[4] sign(f)\n  b = f32[4] multiply(x, g)"
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("trips", [*range(14, 20), 33, 47, 48, 49, 100, 127, 1000])
@pytest.mark.parametrize("name", CIRCLES)
def test_loops_that_go_round_in_circles(name: str, trips: int) -> None:
    module = hloexec.parse(LOOP.format(body=CIRCLES[name], next="b, y", trips=trips))
    require_same(module, X / 8, X)
    if name in ("a fixed point", "a circle of eight"):
        counted = Statistics()
        hloexec.run(module, X / 8, X, statistics=counted)
        (loop, _) = sources(code_of(running.plan_of(module)))
        assert "skipped" in loop


def test_a_loop_that_draws_random_numbers_goes_on() -> None:
    """The largest of many draws never falls, and so stays the same for a while; that is no circle."""
    body = (
        "  l = f32[] constant(0)\n  h = f32[] constant(1)\n  d = f32[4] rng(l, h), distribution=rng_uniform\n"
        "  b = f32[4] maximum(x, d)"
    )
    text = LOOP.format(body=body, next="b, y", trips=300)
    (loop, _) = sources(code_of(running.plan_of(hloexec.parse(text))))
    assert "skipped" not in loop
    require_same(hloexec.parse(text), 0 * X, X)


@pytest.mark.parametrize("trips", [0, 1, 15, 40, 1000])
def test_further_counters_that_nothing_reads_wrap_around(trips: int) -> None:
    text = f"""HloModule m
body {{ s = (s32[], s8[], u16[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  j = s8[] get-tuple-element(s), index=1
  k = u16[] get-tuple-element(s), index=2
  x = f32[4] get-tuple-element(s), index=3
  one = s32[] constant(1)
  two = s8[] constant(-3)
  many = u16[] constant(9999)
  n = s32[] add(i, one)
  m = s8[] add(j, two)
  l = u16[] add(many, k)
  y = f32[4] cosine(x)
  ROOT t = (s32[], s8[], u16[], f32[4]) tuple(n, m, l, y) }}
condition {{ s = (s32[], s8[], u16[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant({trips})
  ROOT less = pred[] compare(i, end), direction=LT }}
ENTRY e {{ x = f32[4] parameter(0)
  z = s32[] constant(0)
  j = s8[] constant(100)
  k = u16[] constant(5)
  s = (s32[], s8[], u16[], f32[4]) tuple(z, j, k, x)
  ROOT w = (s32[], s8[], u16[], f32[4]) while(s), condition=condition, body=body }}
"""
    (n, m, k, _) = require_same(hloexec.parse(text), X)
    assert (n, m, k) == (trips, (100 - 3 * trips + 128) % 256 - 128, (5 + 9999 * trips) % 65536)


@pytest.mark.usefixtures("at_once")
def test_errors_in_code_name_the_way_to_it_where_the_program_around_it_is_walked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that exchanges values with other devices is walked, and the branches of its conditionals are not."""
    failing(monkeypatch, "sine", UnsupportedError)
    text = """HloModule m, replica_count=2
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
first { x = f32[4] parameter(0)
  ROOT y = f32[4] sine(x) }
second { x = f32[4] parameter(0)
  ROOT y = f32[4] negate(x) }
outer { x = f32[4] parameter(0)
  t = pred[] constant(true)
  ROOT c = f32[4] conditional(t, x, x), true_computation=first, false_computation=second }
ENTRY e { x = f32[4] parameter(0)
  p = pred[] parameter(1)
  y = f32[4] all-reduce(x), replica_groups={{0,1}}, to_apply=sum
  ROOT d = f32[4] conditional(p, y, y), true_computation=outer, false_computation=second }
"""
    given = [np.full(4, 101, np.float32), np.array(True)]
    with pytest.raises(UnsupportedError, match="%y in computation first, reached through d:outer / c:first failed"):
        hloexec.run_devices(hloexec.parse(text), [given])


@pytest.mark.usefixtures("at_once")
def test_plans_that_nest_deeper_than_pythons_stack_are_walked() -> None:
    deepest = sys.getrecursionlimit() + 50
    text = "HloModule m\n" + "".join(
        f"b{depth} {{ s = (pred[], f32[4]) parameter(0)\n  p = pred[] get-tuple-element(s), index=0\n"
        "  x = f32[4] get-tuple-element(s), index=1\n  y = f32[4] add(x, x)\n  q = pred[] not(p)\n"
        "  t = (pred[], f32[4]) tuple(q, y)\n"
        + ("  ROOT r = f32[4] negate(y) }\n" if depth == deepest else
           f"  ROOT r = f32[4] conditional(p, t, t), true_computation=b{depth + 1}, false_computation=b{depth + 1} }}\n")
        for depth in range(deepest, -1, -1)
    )  # fmt: skip
    text += (
        "ENTRY e { p = pred[] parameter(0)\n  x = f32[4] parameter(1)\n  s = (pred[], f32[4]) tuple(p, x)\n"
        "  ROOT r = f32[4] conditional(p, s, s), true_computation=b0, false_computation=b0 }\n"
    )
    (result,) = require_same(hloexec.parse(text), np.array(True), X)
    np.testing.assert_array_equal(result, np.full(4, -np.inf, np.float32))
