"""Two small modules that show what a diff has found, and regions as graphs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing import ExtractedPair
from tests.diffing.partitioned import test_pairs
from tests.diffing.texts import diff_texts
from tests.drawing import normal

_HEAD = """HloModule small

ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] parameter(1)
"""
_BODY = """  difference = f32[4,6] subtract(x, y)
  product = f32[4,6] multiply(difference, x)
  ROOT both = (f32[4,6], f32[4,6]) tuple(product, difference)
}
"""

_LOOP = """HloModule loop

body {
  state = (s32[], f32[5]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  vector = f32[5] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(count, one)
  steps = f32[5] CHOSEN
  moved = f32[5] add(vector, steps)
  ROOT end = (s32[], f32[5]) tuple(next, moved)
}

condition {
  given = (s32[], f32[5]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(number, three), direction=LT
}

ENTRY main {
  zero = s32[] constant(0)
  x = f32[5] parameter(0)
  start = (s32[], f32[5]) tuple(zero, x)
  loop = (s32[], f32[5]) while(start), condition=condition, body=body
  ROOT found = f32[5] get-tuple-element(loop), index=1
}
"""

_EXCHANGE = """HloModule exchange, replica_count=2

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

largest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

ENTRY main {
  x = f32[5] parameter(0)
  turned = f32[5] negate(x)
  ROOT total = f32[5] all-reduce(turned), replica_groups={{0,1}}, to_apply=sum
}
"""


def _extracted(before: str, after: str, inputs: Any = None, **options: Any) -> ExtractedPair:
    """What shows the difference, which it has to."""
    found = diff_texts(before, after, inputs, **options)
    pair = found.extract()
    assert pair.before is not None
    hloexec.verify(pair.before)
    hloexec.verify(pair.after)
    assert hloexec.diff(pair.before, pair.after, pair.inputs, **options).verdict == "differ"
    return pair


def _results(pair: ExtractedPair) -> list[Any]:
    """On the first device, of `before` and of `after`."""
    assert pair.before is not None
    return [hloexec.run_devices(module, pair.inputs)[0] for module in (pair.before, pair.after)]


def _opcodes(module: hloexec.Module) -> list[str]:
    return [instruction.opcode for instruction in module.entry]


def test_the_instruction_and_its_counterpart_compute_from_the_same_inputs() -> None:
    x, y = normal(4, 6), normal(4, 6, seed=1)
    wrong = _BODY.replace("subtract(x, y)", "subtract(y, x)")
    pair = _extracted(_HEAD + _BODY, _HEAD + wrong, [x, y])
    assert [_opcodes(module) for module in (pair.before, pair.after) if module] == [
        ["parameter", "parameter", "subtract"]
    ] * 2
    before, after = _results(pair)
    assert np.array_equal(before, x - y) and np.array_equal(after, y - x)
    assert (pair.before_path, pair.after_path, pair.notes) == ("difference", "difference", ())


def test_what_stands_in_fusions_is_taken_out_of_them() -> None:
    fused = """HloModule fused

inner {
  p = f32[4,6] parameter(0)
  q = f32[4,6] parameter(1)
  r = f32[4,6] add(p, q)
  ROOT s = f32[4,6] multiply(r, p)
}

ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] parameter(1)
  difference = f32[4,6] subtract(x, y)
  product = f32[4,6] fusion(difference, x), kind=kLoop, calls=inner
  ROOT both = (f32[4,6], f32[4,6]) tuple(product, difference)
}
"""
    x, y = normal(4, 6), normal(4, 6, seed=1)
    pair = _extracted(_HEAD + _BODY, fused, [x, y])
    assert "fusion" not in _opcodes(pair.after)
    # The product would be right without the addition, of x alone.
    assert pair.after_path == "product/r"
    before, after = _results(pair)
    assert np.array_equal(before, x) and np.array_equal(after, (x - y) + x)


def test_inputs_are_those_of_the_iteration_that_is_named() -> None:
    right = _LOOP.replace("CHOSEN", "multiply(vector, vector)")
    # The square and the absolute value are the same of 1, but not of what comes after it.
    wrong = _LOOP.replace("CHOSEN", "abs(vector)")
    x = np.ones(5, np.float32)
    pair = _extracted(right, wrong, [x])
    assert pair.after_path == "loop[1]:body/steps"
    before, after = _results(pair)
    assert np.array_equal(before, np.full(5, 4, np.float32)) and np.array_equal(after, np.full(5, 2, np.float32))
    assert [len(values) for values in pair.inputs] == [1]


def test_another_arrangement_is_turned_so_that_the_results_can_be_compared() -> None:
    before = """HloModule m

ENTRY main {
  x = f32[4,6] parameter(0)
  e = f32[4,6] exponential(x)
  s = f32[4,6] sine(e)
  ROOT t = f32[6,4] transpose(s), dimensions={1,0}
}
"""
    after = """HloModule m

ENTRY main {
  x = f32[4,6] parameter(0)
  e = f32[4,6] exponential(x)
  t = f32[6,4] transpose(e), dimensions={1,0}
  ROOT s = f32[6,4] cosine(t)
}
"""
    x = normal(4, 6)
    pair = _extracted(before, after, [x])
    assert pair.after.entry.root.opcode == "cosine"
    assert pair.before is not None
    assert len({str(module.entry.root.shape) for module in (pair.before, pair.after)}) == 1
    results = _results(pair)
    # exp is off by two units of roundoff at most, which moves a sine by as much of eˣ; its own two are of at most 1.
    exponential = np.exp(x.astype(np.float64)).T
    allowed = 2 * 2.0**-24 * (exponential + 1)
    assert (np.abs(results[0] - np.sin(exponential)) <= allowed).all()
    assert (np.abs(results[1] - np.cos(exponential)) <= allowed).all()


def test_results_of_another_type_are_converted_to_the_wider_one() -> None:
    narrow = """  a = bf16[4,6] convert(x)
  b = bf16[4,6] convert(y)
  d = bf16[4,6] subtract(a, b)
  difference = f32[4,6] convert(d)
  product = f32[4,6] multiply(difference, x)
  ROOT both = (f32[4,6], f32[4,6]) tuple(product, difference)
}
"""
    pair = _extracted(_HEAD + _BODY, _HEAD + narrow)
    assert str(pair.after.entry.root.shape).startswith("f32[4,6]")


def test_a_collective_is_extracted_for_all_devices() -> None:
    inputs = [[normal(5)], [normal(5, seed=1)]]
    pair = _extracted(_EXCHANGE, _EXCHANGE.replace("to_apply=sum", "to_apply=largest"), inputs)
    assert pair.after.replica_count == 2
    assert [[value.shape for value in values] for values in pair.inputs] == [[(5,)], [(5,)]]
    before, after = _results(pair)
    first, second = (-values[0] for values in inputs)
    assert np.array_equal(before, first + second) and np.array_equal(after, np.maximum(first, second))
    assert pair.input_files == ("inputs.0.npz", "inputs.1.npz")


def test_on_one_of_several_devices_the_values_are_those_of_that_device() -> None:
    wrong = _EXCHANGE.replace("negate(x)", "abs(x)")
    inputs = [[np.full(5, -3, np.float32)], [np.full(5, 2, np.float32)]]
    # On device 0, both give 3.
    pair = _extracted(_EXCHANGE, wrong, inputs)
    assert (pair.after_path, pair.device, pair.after.replica_count) == ("turned", 1, 1)
    assert np.array_equal(pair.inputs[0][0], inputs[1][0])


def test_a_shard_is_extracted_with_the_tile_that_it_should_be() -> None:
    after = test_pairs.AFTER.replace("multiply(out, twos)", "add(out, twos)")
    pair = _extracted(test_pairs.BEFORE, after)
    assert pair.after.entry.root.opcode == "add"
    assert pair.before is not None and pair.before.entry.root.shape.dimensions == (4, 4)


def test_of_a_collective_on_another_value_neither_operand_is_followed() -> None:
    """What the other devices compute their operands from is not at hand."""
    text = """HloModule m, replica_count=2
ENTRY main {
  x = f32[4,3] parameter(0)
  bent = f32[4,3] sine(x)
  more = f32[4,3] multiply(bent, x)
  exchanged = f32[4,3] all-to-all(OPERAND), replica_groups={{0,1}}, dimensions={0}
  ROOT r = f32[4,3] tanh(exchanged)
}
"""
    before, after = (hloexec.parse(text.replace("OPERAND", name)) for name in ("more", "x"))
    given = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    found = hloexec.diff(before, after, [[array] for array in given])
    assert found.findings[0].after.instruction == "exchanged"
    pair = found.extract()
    assert pair.after.entry.root.opcode == "all-to-all"


def test_a_collective_of_which_before_has_no_counterpart_is_extracted_alone() -> None:
    right = "channel_id=2, replica_groups={{0,2},{1,3}}"
    after = test_pairs.AFTER.replace(right, right.replace("{0,2},{1,3}", "{0,1},{2,3}"))
    found = hloexec.diff(hloexec.parse(test_pairs.BEFORE), hloexec.parse(after))
    pair = found.extract()
    assert pair.before is None and pair.before_path is None
    assert any("exchanges values between devices" in note for note in pair.notes)
    assert len(hloexec.run_devices(pair.after, pair.inputs)) == len(pair.inputs) == 4


def test_what_nothing_computes_is_an_input_and_a_note_says_so() -> None:
    wrong = _BODY.replace("tuple(product, difference)", "tuple(product, x)")
    pair = _extracted(_HEAD + _BODY, _HEAD + wrong)
    assert pair.after.entry.root.opcode == "parameter"
    assert any("%x of after comes from outside" in note for note in pair.notes)


def test_policies_belong_to_what_is_extracted() -> None:
    module = """HloModule m

ENTRY main {
  x = f32[8,64] parameter(0)
  y = f32[64,8] parameter(1)
  s = f32[8,64] sine(x)
  ROOT d = f32[8,8] dot(s, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    pair = _extracted(module, module, numerics=("reference", "tf32"))
    assert [policy.name for policy in pair.numerics] == ["reference", "tf32"]


_FILLED = """  two = f32[] constant(2)
  twos = f32[4,6] broadcast(two), dimensions={}
  doubled = f32[4,6] multiply(x, twos)
  ROOT sum = f32[4,6] add(doubled, y)
}
"""


def test_a_region_is_a_graph_from_the_last_right_values_to_the_wrong_one() -> None:
    wrong = _HEAD + _FILLED.replace("constant(2)", "constant(3)")
    found = hloexec.diff(hloexec.parse(_HEAD + _FILLED), hloexec.parse(wrong))
    (finding,) = found.findings
    assert [step.run for step in finding.graph if step.role != "input"] == list(finding.region)
    assert [(step.run.instruction, step.role) for step in finding.graph] == [
        ("x", "input"),
        ("two", "step"),
        ("twos", "step"),
        ("doubled", "output"),
    ]
    last = finding.graph[-1]
    assert [run.instruction for run in last.operands] == ["x", "twos"]
    given = finding.graph[0].before
    assert given is not None and given.instruction == "x"
    pair = found.extract()
    assert len(pair.inputs[0]) == 1
    assert [module.entry.root.name for module in (pair.before, pair.after) if module] == ["doubled"] * 2


def test_where_one_instruction_is_to_blame_there_is_no_graph() -> None:
    wrong = _BODY.replace("subtract(x, y)", "subtract(y, x)")
    found = hloexec.diff(hloexec.parse(_HEAD + _BODY), hloexec.parse(_HEAD + wrong))
    assert found.findings[0].graph == () == found.findings[0].region


def test_files_hold_what_was_extracted(tmp_path: Path) -> None:
    wrong = _BODY.replace("subtract(x, y)", "subtract(y, x)")
    pair = _extracted(_HEAD + _BODY, _HEAD + wrong)
    folder = tmp_path / "new" / "part"
    pair.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == "after.hlo before.hlo inputs.npz origin.json".split()
    after = hloexec.load(folder / "after.hlo")
    values = hloexec.literals.load_inputs(folder / "inputs.npz", after.entry.parameters)
    assert np.array_equal(hloexec.run(after, *(values[n] for n in range(2))), _results(pair)[1])
    assert json.loads((folder / "origin.json").read_text())["after_path"] == "difference"
    assert str(pair) == "difference of after, difference of before"


def test_a_folder_must_be_new(tmp_path: Path) -> None:
    wrong = _BODY.replace("subtract(x, y)", "subtract(y, x)")
    pair = _extracted(_HEAD + _BODY, _HEAD + wrong)
    file = tmp_path / "file"
    file.write_text("")
    for path, message in (
        (tmp_path, "is not empty"),
        (file, "is a file"),
        (file / "part", "cannot be written"),
        ("", "empty"),
    ):
        with pytest.raises(hloexec.InputError, match=message):
            pair.save(path)
    assert list(tmp_path.iterdir()) == [file]
    for wrong_path in (None, 3, b"part"):
        with pytest.raises(hloexec.InputError, match="folder"):
            pair.save(wrong_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "body",
    [
        _BODY,
        _BODY.replace("subtract(x, y)", "add(x, minus)").replace(
            "  difference", "  minus = f32[4,6] negate(y)\n  difference", 1
        ),
    ],
)
def test_of_modules_that_agree_nothing_is_extracted(body: str) -> None:
    found = hloexec.diff(hloexec.parse(_HEAD + _BODY), hloexec.parse(_HEAD + body))
    with pytest.raises(hloexec.InputError, match="nothing is to blame"):
        found.extract()


def test_stages_are_reported_to_observers_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Watch:
        def __init__(self) -> None:
            self.stages: list[Any] = []

        def on_stage(self, stage: Any) -> None:
            self.stages.append(stage)

        def on_progress(self, progress: Any) -> None:
            pass

    watch = Watch()
    wrong = _BODY.replace("subtract(x, y)", "subtract(y, x)")
    hloexec.diff(hloexec.parse(_HEAD + _BODY), hloexec.parse(_HEAD + wrong), observers=[watch])
    names = list(dict.fromkeys(stage.name for stage in watch.stages))
    assert [names[0], names[1], *names[-2:]] == ["recording before", "recording after", "replay", "search"]
    totals = {stage.name: stage.total for stage in watch.stages}
    # The parameters, a subtract and a multiply; a tuple computes nothing.
    assert (totals["replay"], totals["search"]) == (4, None)
    assert capsys.readouterr() == ("", "")
