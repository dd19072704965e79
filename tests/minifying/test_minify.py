"""`minify`: small modules that still fail, and by the same cause. The truth is that they fail when run by themselves."""

import itertools
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from evaluation.minifying import crashing
from evaluation.minifying.crashing import has_pattern
from hloexec.engine.exec.observers import Stage
from hloexec.engine.options import Options
from hloexec.tools.executing.engines import opened_engine
from hloexec.tools.minifying import oracles
from hloexec.tools.minifying.case import Case, counted
from hloexec.tools.minifying.checking import Check
from hloexec.tools.minifying.pairs import is_entangled
from tests.command_line import CommandLine
from tests.minifying.packages import needs_scipy

CRASHING = Path(crashing.__file__)
SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}
"""
LOGARITHM = f"""HloModule losses
{SUM}
body {{
  state = (s32[], f32[12,20]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  x = f32[12,20] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(count, one)
  half = f32[] constant(0.5)
  halves = f32[12,20] broadcast(half), dimensions={{}}
  lower = f32[12,20] subtract(x, halves)
  root = f32[12,20] sqrt(lower)
  ROOT end = (s32[], f32[12,20]) tuple(next, root)
}}

condition {{
  given = (s32[], f32[12,20]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(number, three), direction=LT
}}

ENTRY main {{
  x = f32[12,20] parameter(0)
  y = f32[12,20] parameter(1)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  product = f32[12,20] multiply(x, y)
  positive = f32[12,20] exponential(product)
  start = (s32[], f32[12,20]) tuple(zero, positive)
  loop = (s32[], f32[12,20]) while(start), condition=condition, body=body
  found = f32[12,20] get-tuple-element(loop), index=1
  loss = f32[12] reduce(found, nothing), dimensions={{1}}, to_apply=sum
  other = f32[12] reduce(y, nothing), dimensions={{1}}, to_apply=sum
  ROOT result = (f32[12], f32[12]) tuple(loss, other)
}}
"""
BEFORE = f"""HloModule before
{SUM}
fused {{
  p = f32[16,24] parameter(0)
  q = f32[16,24] parameter(1)
  difference = f32[16,24] subtract(p, q)
  ROOT scaled = f32[16,24] multiply(difference, p)
}}

ENTRY main {{
  x = f32[16,24] parameter(0)
  y = f32[24,8] parameter(1)
  nothing = f32[] constant(0)
  turned = f32[16,24] sine(x)
  fusion = f32[16,24] fusion(turned, x), kind=kLoop, calls=fused
  dot = f32[16,8] dot(fusion, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  bounded = f32[16,8] tanh(dot)
  total = f32[16] reduce(bounded, nothing), dimensions={{1}}, to_apply=sum
  ROOT result = (f32[16], f32[24,8]) tuple(total, y)
}}
"""
AFTER = BEFORE.replace("subtract(p, q)", "subtract(q, p)").replace("HloModule before", "HloModule after")
FOUR = f"""HloModule four, num_partitions=4
{SUM}
ENTRY main {{
  x = f32[8,6] parameter(0)
  doubled = f32[8,6] add(x, x)
  shared = f32[8,6] all-reduce(doubled), channel_id=1, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, to_apply=sum
  ROOT scaled = f32[8,6] multiply(shared, x)
}}
"""
FOUR_WRONG = FOUR.replace("{{0,1,2,3}}", "{{0,1},{2,3}}")


def _positive(*shape: int) -> Any:
    return np.random.default_rng(1).uniform(0.1, 1, shape).astype(np.float32)


def _check(pattern: str) -> str:
    return shlex.join([sys.executable, "-I", "-S", str(CRASHING), pattern])


def _loss_inputs() -> list[Any]:
    return [-_positive(12, 20), _positive(12, 20)]


@needs_scipy
def test_a_nan_out_of_a_loop_is_one_instruction_on_finite_inputs() -> None:
    found = hloexec.minify(hloexec.parse(LOGARITHM), _loss_inputs(), nan=True)
    assert [each.opcode for each in found.module.entry if each.opcode != "parameter"] == ["sqrt"]
    assert found.inputs is not None and found.largest_dimension == 1
    assert np.isfinite(found.inputs[0][0]).all()  # type: ignore[arg-type]
    assert np.isnan(hloexec.run(found.module, *found.inputs[0])).any()  # type: ignore[arg-type]
    assert found.is_confirmed and found.is_complete


def test_no_clock_decides_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hloexec.minify(hloexec.parse(LOGARITHM), _loss_inputs(), nan=True)
    clock = itertools.count(0.0, 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    late = hloexec.minify(hloexec.parse(LOGARITHM), _loss_inputs(), nan=True)
    assert (hloexec.format(late.module), late.trial_count) == (hloexec.format(found.module), found.trial_count)


_COUNTS = """HloModule m
body {
  state = (s32[], s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] get-tuple-element(state), index=1
  v = f32[2] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  w = f32[2] sqrt(v)
  ROOT t = (s32[], s32[], f32[2]) tuple(next, n, w)
}
condition {
  state = (s32[], s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] get-tuple-element(state), index=1
  ROOT unlike = pred[] compare(i, n), direction=NE
}
ENTRY e {
  x = f32[2] parameter(0)
  n = s32[] parameter(1)
  zero = s32[] constant(0)
  start = (s32[], s32[], f32[2]) tuple(zero, n, x)
  loop = (s32[], s32[], f32[2]) while(start), condition=condition, body=body
  last = f32[2] get-tuple-element(loop), index=2
  y = f32[2] negate(x)
  z = f32[2] add(last, y)
  ROOT r = f32[2] log(z)
}
"""


def test_a_candidate_whose_loop_would_not_end_is_left_after_some_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    most: list[int | None] = []
    run_with = oracles.run_with

    def noted(module: hloexec.Module, inputs: hloexec.Inputs, options: Options) -> Any:
        most.append(options.max_iterations)
        return run_with(module, inputs, options)

    monkeypatch.setattr(oracles, "run_with", noted)
    inputs = [np.array([3, 4], np.float32), np.int32(3)]
    found = hloexec.minify(hloexec.parse(_COUNTS), inputs, expected=np.zeros(2, np.float32))
    assert found.is_complete
    assert {entry for entry in most if entry is not None} == {16}


def test_a_nan_stays_that_of_the_same_opcode_although_zeros_would_make_another() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  quotient = f32[4] divide(x, y)
  shifted = f32[4] subtract(quotient, y)
  ROOT result = f32[4] log(shifted)
}
"""
    found = hloexec.minify(hloexec.parse(text), [_positive(4), 2 + _positive(4)], nan=True)
    assert [each.opcode for each in found.module.entry if each.opcode != "parameter"] == ["log"]


@needs_scipy
def test_two_modules_that_differ_are_both_cut_to_the_fault() -> None:
    before, after = hloexec.parse(BEFORE), hloexec.parse(AFTER)
    found = hloexec.minify(after, differs_from=before)
    assert [each.name for each in found.module.entry if each.opcode != "parameter"] == ["difference"]
    assert found.other is not None and counted(found.other) == 1 and found.largest_dimension == 1
    assert found.inputs is not None
    ours, theirs = (hloexec.run(each, *found.inputs[0]) for each in (found.module, found.other))
    assert_array_equal(ours, np.negative(theirs))  # type: ignore[arg-type]
    assert np.any(np.asarray(ours) != 0)


@needs_scipy
def test_a_collective_over_other_groups_stays_one_of_several_devices() -> None:
    inputs = [[(1 + device) * _positive(8, 6)] for device in range(4)]
    found = hloexec.minify(hloexec.parse(FOUR_WRONG), inputs, differs_from=hloexec.parse(FOUR))
    assert [each.opcode for each in found.module.entry if each.opcode != "parameter"] == ["all-reduce"]
    assert found.inputs is not None and found.other is not None
    assert len(found.input_files) == len(found.inputs) == found.module.num_partitions == 2
    ours, theirs = (hloexec.run_devices(each, found.inputs) for each in (found.module, found.other))
    first, second = (np.asarray(row[0], np.float64) for row in found.inputs)
    # A sum of two is rounded once.
    assert_array_equal(np.asarray(theirs[0]), (first + second).astype(np.float32))
    assert_array_equal(np.asarray(ours[0]), first)


def test_a_fault_beside_collectives_needs_no_devices_any_more() -> None:
    inputs = [[(1 + device) * _positive(8, 6)] for device in range(4)]
    wrong = FOUR.replace("multiply(shared, x)", "divide(shared, x)")
    found = hloexec.minify(hloexec.parse(wrong), inputs, differs_from=hloexec.parse(FOUR))
    assert found.module.num_partitions == 1 and found.instruction_count == 1


SHARDED = """HloModule sharded

ENTRY main {
  x = f32[8] parameter(0), sharding={devices=[4]<=[4]}
  y = f32[8] exponential(x)
  zero = f32[] constant(0)
  zeros = f32[8] broadcast(zero), dimensions={}
  none = f32[8] multiply(y, zeros)
  bad = f32[8] divide(none, zeros), sharding={devices=[4]<=[4]}
  ROOT s = f32[8] add(bad, y), sharding={devices=[4]<=[4]}
}
"""


def test_shardings_of_a_module_that_says_nothing_else_of_its_devices_go_with_them() -> None:
    found = hloexec.minify(hloexec.parse(SHARDED), nan=True)
    assert [each.opcode for each in found.module.entry if each.opcode != "parameter"] == ["divide"]
    assert found.module.num_partitions == 1 and found.inputs is not None and len(found.inputs) == 1


FAILING = """HloModule failing

ENTRY main {
  x = f32[4,4] parameter(0)
  y = f32[4,4] negate(x)
  low = f32[4,4] subtract(y, x)
  one = f32[] constant(1)
  ones = f32[4,4] broadcast(one), dimensions={}
  limit = pred[4,4] compare(low, ones), direction=LT
  bad = f32[] constant(nan)
  bads = f32[4,4] broadcast(bad), dimensions={}
  chosen = f32[4,4] select(limit, bads, y)
  ROOT r = f32[4,4] add(chosen, chosen)
}
"""


def test_nan_of_a_constant_keeps_what_chooses_it() -> None:
    found = hloexec.minify(hloexec.parse(FAILING), [[np.ones((4, 4), np.float32)]], nan=True)
    opcodes = [each.opcode for each in found.module.entry]
    assert "select" in opcodes and "compare" in opcodes and "add" not in opcodes
    result = hloexec.run(found.module, *(found.inputs or [[]])[0])
    assert np.isnan(np.asarray(result)).all()


@needs_scipy
def test_another_policy_leaves_the_instruction_that_rounds_otherwise() -> None:
    found = hloexec.minify(hloexec.parse(BEFORE), against="bf16")
    assert [each.opcode for each in found.module.entry if each.opcode != "parameter"] == ["dot"]
    assert found.expected is not None and found.inputs is not None
    x, y = (np.asarray(value, np.float64) for value in found.inputs[0])
    assert abs(np.asarray(found.expected) - x * y).max() > 2.0**-12 * abs(x * y).max()


def test_recorded_results_keep_what_is_computed() -> None:
    module = hloexec.parse(BEFORE)
    inputs = hloexec.random_inputs(module)
    total, passed = hloexec.run(module, *inputs)
    found = hloexec.minify(module, inputs, expected=(np.asarray(total) + 1, passed))
    assert_array_equal(hloexec.run(found.module, *(found.inputs or [[]])[0]), total)  # type: ignore[arg-type]
    assert "fusion" not in {each.opcode for each in found.module.entry}


@needs_scipy
@pytest.mark.sampled(3)
@pytest.mark.parametrize("pattern", ["tanh<-dot:f32", "reduce<-tanh", "multiply<-subtract:f32"])
def test_a_crash_keeps_the_pattern_alone_for_any_number_of_jobs(pattern: str) -> None:
    module = hloexec.parse(BEFORE)
    found = [hloexec.minify(module, command=_check(pattern), outcome="crash", jobs=jobs) for jobs in (1, 3)]
    assert hloexec.format(found[0].module) == hloexec.format(found[1].module)
    text = hloexec.format(found[0].module)
    assert has_pattern(text, pattern)
    # The reducer's addition counts, too.
    assert found[0].instruction_count == pattern.count("<-") + 1 + text.count("to_apply")
    assert found[0].largest_dimension == 1
    assert set(found[0].outcomes) == {"crash", "pass"}
    assert (found[0].outcomes, found[0].trial_count) == (found[1].outcomes, found[1].trial_count)


def test_a_module_that_cannot_run_here_is_minified_by_a_check() -> None:
    text = BEFORE.replace("tanh(dot)", 'custom-call(dot), custom_call_target="nobody"')
    found = hloexec.minify(hloexec.parse(text), command=_check("custom-call<-dot"), outcome="crash", says="")
    assert [each.opcode for each in found.module.entry if each.opcode != "parameter"] == ["dot", "custom-call"]


@pytest.mark.parametrize(
    ("parameter", "result"),
    [("f32[1000000,1000000]", "f32[1000000,1000000]"), ("f32[8]", "f32[8,1000000,1000000]")],
    ids=["inputs", "values"],
)
def test_a_module_that_is_too_large_to_run_is_minified_by_a_check(
    parameter: str, result: str, empty_folder: Path, cli: CommandLine
) -> None:

    same = "0,1" if parameter == result else "0"
    Path("large.hlo").write_text(
        f"HloModule m\nENTRY e {{ x = {parameter} parameter(0)\n y = {parameter} tanh(x)\n"
        f" z = {result} broadcast(y), dimensions={{{same}}}\n ROOT a = {result} sine(z) }}\n"
    )
    cli("minify large.hlo --check", "grep -q 1000000.*sine", "-o", "small")
    assert [each.opcode for each in hloexec.load("small/module.hlo").entry] == ["parameter", "sine"]
    assert not Path("small/inputs.npz").exists()
    assert "memory" in cli.complaint("minify large.hlo --nan")


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("tail -f", "hang"),
        ("sh -c 'sleep 60 & wait'", "hang"),
        ("sh -c 'kill -SEGV $$'", "crash"),
        ("sh -c 'exit 134'", "crash"),
        ("sh -c 'exit 3'", "fail"),
        ("grep -q sine", "pass"),
    ],
)
def test_hangs_crashes_and_failures_are_told_apart(command: str, outcome: str) -> None:
    module = hloexec.parse("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT a = f32[4] sine(x) }\n")
    with opened_engine(None) as engine:
        check = Check(command, engine, timeout=0.3 if outcome == "hang" else 60.0)
        assert check.run(Case(module, None)).outcome == outcome


def test_a_command_is_not_given_to_a_shell(tmp_path: Path) -> None:
    module = hloexec.parse("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT a = f32[4] sine(x) }\n")
    with pytest.raises(hloexec.InputError, match="extra argument"):
        hloexec.minify(module, command=f"test -f {{}} ; touch {tmp_path / 'made'}", outcome="fail")
    assert not (tmp_path / "made").exists()


def test_ctrl_c_gives_the_best_so_far() -> None:
    class Impatient:
        def on_progress(self, progress: object) -> None: ...

        def on_stage(self, stage: Stage) -> None:
            if stage.name.startswith("dimensions"):
                raise KeyboardInterrupt

    found = hloexec.minify(hloexec.parse(AFTER), differs_from=hloexec.parse(BEFORE), observers=[Impatient()])
    assert not found.is_complete and found.is_confirmed
    assert found.instruction_count < counted(hloexec.parse(AFTER))


def test_a_saved_folder_has_a_command_that_shows_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:

    found = hloexec.minify(hloexec.parse(AFTER), differs_from=hloexec.parse(BEFORE))
    found.save(tmp_path / "small")
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert names >= {"module.hlo", "other.hlo", "inputs.npz", "expected.npz", "README.md"}
    monkeypatch.chdir(tmp_path / "small")
    readme = Path("README.md").read_text()
    (line,) = (line for line in readme.splitlines() if line.startswith("hloexec "))
    assert "differ" in cli(*shlex.split(line)[1:], code=1)


def test_the_same_arguments_give_the_same_module() -> None:
    texts = {
        hloexec.format(hloexec.minify(hloexec.parse(LOGARITHM), _loss_inputs(), nan=True).module) for _ in range(2)
    }
    assert len(texts) == 1


def test_values_of_elided_constants_become_parameters() -> None:
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n c = f32[4] constant({...})\n s = f32[4] add(x, c)\n ROOT r = f32[4] sqrt(s) }\n"
    given = {"c": np.full(4, -3, np.float32)}
    found = hloexec.minify(hloexec.parse(text), [_positive(4)], nan=True, elided=given)
    assert "constant" not in hloexec.format(found.module)
    assert np.isnan(np.asarray(hloexec.run(found.module, *(found.inputs or [[]])[0]))).all()


@pytest.mark.parametrize(
    ("ours", "theirs", "is_so"),
    [("negate(x)", "negate(y)", True), ("negate(x)", "add(x, y)", False), ("add(x, y)", "subtract(x, y)", False)],
)
def test_modules_with_a_parameter_each_of_their_own_are_entangled(ours: str, theirs: str, is_so: bool) -> None:
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n y = f32[4] parameter(1)\n ROOT r = f32[4] %s }\n"
    case = Case(hloexec.parse(text % ours), None, hloexec.parse(text % theirs))
    assert is_entangled(case) == is_so


def test_inputs_stay_as_they_are_where_others_would_make_a_difference() -> None:
    text = "HloModule m\nENTRY e { x = f32[9] parameter(0)\n y = f32[9] parameter(1)\n ROOT r = f32[9] %s }\n"
    x = _positive(9)
    wrong = x.copy()
    wrong[4] += 1
    found = hloexec.minify(
        hloexec.parse(text % "negate(x)"), [x, wrong], differs_from=hloexec.parse(text % "negate(y)")
    )
    assert found.inputs is not None
    assert_array_equal(found.inputs[0][0], x)  # type: ignore[arg-type]
    assert_array_equal(found.inputs[0][1], wrong)  # type: ignore[arg-type]


def test_what_may_be_the_fault_is_not_cut_off() -> None:
    # `diff` names the slice, or what is in front of it: nothing in `other` corresponds to the sums.
    before = """HloModule m
add { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b) }
ENTRY e { x = s32[8,24] parameter(0)
  y = s32[8,1] parameter(1)
  zero = s32[] constant(0)
  SUMS
  row = s32[8] reshape(part)
  column = s32[8,1] broadcast(row), dimensions={0}
  p = s32[8,1] multiply(y, column)
  q = s32[8,1] subtract(y, p)
  s = s32[8,1] add(q, y)
  f = f32[8,1] convert(s)
  z = f32[8,1] parameter(2)
  t = f32[8,1] multiply(f, z)
  ROOT r = f32[8,1] multiply(t, z) }"""
    right = "sums = s32[8] reduce(x, zero), dimensions={1}, to_apply=add\n  part = s32[8,1] reshape(sums)"
    wrong = """sums = s32[24] reduce(x, zero), dimensions={0}, to_apply=add
  tall = s32[24,1] reshape(sums)
  part = s32[8,1] slice(tall), slice={[0:8], [0:1]}"""
    ours, theirs = (hloexec.parse(before.replace("SUMS", sums)) for sums in (wrong, right))
    found = hloexec.minify(ours, differs_from=theirs)
    assert "reduce(" in hloexec.format(found.module)
    assert found.other is not None and not is_entangled(Case(found.module, None, found.other))


@needs_scipy
def test_pairs_whose_parameters_have_other_layouts_are_cut() -> None:
    before = """HloModule m
    ENTRY main {
      x = s4[6,4]{1,0} parameter(0)
      three = s4[] constant(3)
      threes = s4[6,4]{1,0} broadcast(three), dimensions={}
      mixed = s4[6,4]{1,0} xor(x, threes)
      number = f32[6,4]{1,0} convert(mixed)
      size = f32[6,4]{1,0} exponential(number)
      less = f32[6,4]{1,0} negate(number)
      own = f32[6,4]{1,0} convert(x)
      ROOT all = (f32[6,4]{1,0}, f32[6,4]{1,0}, f32[6,4]{1,0}) tuple(size, less, own)
    }
    """
    after = before.replace("x = s4[6,4]{1,0}", "x = s4[6,4]{1,0:E(4)}")
    after = after.replace("three = s4[]", "three = s8[]").replace("threes = s4", "threes = s8")
    wide = """wide = s8[6,4]{1,0} convert(x)
      joined = s8[6,4]{1,0} or(wide, threes)
      mixed = s4[6,4]{1,0:E(4)} convert(joined)"""
    after = after.replace("mixed = s4[6,4]{1,0} xor(x, threes)", wide)
    found = hloexec.minify(hloexec.parse(after), differs_from=hloexec.parse(before))
    assert found.is_confirmed and found.other is not None
    assert counted(found.module) <= 4 and counted(found.other) <= 4
    assert {shape.array_shape.element_count for shape in found.module.entry.parameter_shapes} == {1}
    assert found.inputs is not None
    ours, theirs = (hloexec.run(each, *found.inputs[0]) for each in (found.module, found.other))
    assert found.failure.startswith("differs: different: value: 1 of 1 element") and not np.array_equal(ours, theirs)


@needs_scipy
def test_the_largest_of_numbers_that_overflow_is_kept_beside_a_larger_negative_one() -> None:
    text = "HloModule m\nENTRY main {\n  x = f32[7,7] parameter(0)\n  ROOT e = f32[7,7] exponential(x)\n}\n"
    x = np.zeros((7, 7), np.float32)
    x[1, 5], x[5, 1] = 300, -500
    found = hloexec.minify(hloexec.parse(text), [x], nan=True)
    assert [shape.dimensions for shape in found.module.entry.parameter_shapes] == [(1, 1)]


def test_without_scipy_dimensions_stay_and_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setattr("hloexec.tools.minifying.running.find_spec", lambda name: None)
    module = hloexec.parse("HloModule m\n\nENTRY e {\n  x = f32[3] parameter(0)\n  ROOT y = f32[3] log(x)\n}\n")
    with pytest.warns(hloexec.HloWarning, match="SciPy is not installed"):
        found = hloexec.minify(module, [np.full(3, -1, np.float32)], nan=True)
    assert found.largest_dimension == 3


def test_a_command_names_files_from_the_folder_of_the_module(empty_folder: Path) -> None:
    Path("check.py").write_text("import sys\nsys.exit('log' not in open(sys.argv[1]).read())\n")
    module = hloexec.parse("HloModule m\n\nENTRY e {\n  x = f32[3] parameter(0)\n  ROOT y = f32[3] log(x)\n}\n")
    found = hloexec.minify(module, command=f"{shlex.quote(sys.executable)} check.py", outcome="pass")
    found.save("small")
    words = found.command_in("small")
    assert words[1:] == ("../check.py", "module.hlo")
    assert subprocess.run(words, cwd="small", check=False).returncode == 0
    assert shlex.join(words) in Path("small/README.md").read_text()


def test_a_computation_is_not_held_to_what_the_header_says_of_the_entry() -> None:
    module = hloexec.parse("""HloModule m, input_output_alias={ {}: (1, {}, may-alias) }, buffer_donor={ (1, {}) }
inner { a = f32[4] parameter(0)
  ROOT b = f32[4] sqrt(a) }
ENTRY e { x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  c = f32[4] call(x), to_apply=inner
  ROOT r = f32[4] add(c, y) }
""")
    found = hloexec.minify(module, [np.full(4, -1, np.float32)], computation="inner", nan=True)
    assert found.module.entry.root.opcode == "sqrt"
    assert not found.module.input_output_alias and not found.module.buffer_donor
