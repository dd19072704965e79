"""Isolating units of a module on a counterpart: which differ, and why the others do not."""

import shlex
from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from tests.command_line import CommandLine

MODULE = """HloModule m

scaled { a = f32[8,16] parameter(0)
  b = f32[8,16] parameter(1)
  c = f32[8,16] multiply(a, b)
  ROOT d = f32[8,16] tanh(c) }

scaled_again { p = f32[8,16] parameter(0)
  q = f32[8,16] parameter(1)
  r = f32[8,16] multiply(p, q)
  ROOT s = f32[8,16] tanh(r) }

body { t = (s32[], f32[8,16]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  v = f32[8,16] get-tuple-element(t), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  step = f32[8,16] fusion(v, v), kind=kLoop, calls=scaled
  ROOT u = (s32[], f32[8,16]) tuple(next, step) }

condition { t = (s32[], f32[8,16]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  end = s32[] constant(3)
  ROOT goes = pred[] compare(i, end), direction=LT }

ENTRY main { x = f32[8,16] parameter(0)
  y = f32[8,16] parameter(1)
  first = f32[8,16] fusion(x, y), kind=kLoop, calls=scaled
  second = f32[8,16] fusion(x, y), kind=kLoop, calls=scaled_again
  zero = s32[] constant(0)
  t = (s32[], f32[8,16]) tuple(zero, first)
  loop = (s32[], f32[8,16]) while(t), condition=condition, body=body
  last = f32[8,16] get-tuple-element(loop), index=1
  ROOT product = f32[8,8] dot(last, second), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}
"""
PARTITIONED = """HloModule m, num_partitions=2

sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }

ENTRY e { x = f32[4] parameter(0)
  n = f32[4] negate(x)
  r = f32[4] all-reduce(n), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
  ROOT y = f32[4] exponential(r)
}
"""
FAULTY = """
import os, time
import hloexec

calls = []

def run(text, inputs):
    calls.append(text)
    if "dot(" in text and "crash" in os.environ["FAULT"]:
        os._exit(3)
    if "compare(" in text and "hang" in os.environ["FAULT"]:
        time.sleep(60)
    if "add(" in text and "refuse" in os.environ["FAULT"]:
        raise ValueError("no such unit here")
    (row,) = inputs
    result = hloexec.run(hloexec.parse(text), *row)
    if "tanh(" in text and "wrong" in os.environ["FAULT"]:
        result[3, 5] *= 1.001
    return result

def with_more(text, inputs):
    return [run(text, inputs), inputs[0][0]]
"""


@pytest.fixture(autouse=True)
def _folder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("faulty.py").write_text(FAULTY)
    Path("m.hlo").write_text(MODULE)
    Path("p.hlo").write_text(PARTITIONED)
    monkeypatch.setenv("FAULT", "")
    monkeypatch.syspath_prepend(str(empty_folder))


def _outcomes(isolation: hloexec.Isolation) -> dict[str, str]:
    return {unit.name: unit.outcome for unit in isolation.units}


def test_what_differs_is_named_once_for_all_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "wrong")
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="call:faulty:run")
    assert _outcomes(isolation) == {
        "first": "different", "second": "different", "loop[0]:body/step": "different",
        "loop[0]:body/next": "equal", "loop[0]:condition/goes": "equal", "product": "equal",
    }  # fmt: skip
    same = {unit.name: unit.same_as for unit in isolation.units}
    assert same["second"] == "first" and same["loop[0]:body/step"] is None
    assert isolation.run_count == 5
    # The fusion of one array with itself has one parameter.
    assert [group.unit_names for group in isolation.groups] == [("first", "second"), ("loop[0]:body/step",)]
    assert all(unit.outputs[0].mismatch_count == 1 for unit in isolation.different)


def test_a_crash_a_hang_and_a_refusal_are_outcomes_of_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "crash hang refuse")
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="call:faulty:run", timeout=8.0)
    outcomes = _outcomes(isolation)
    assert (outcomes["product"], outcomes["loop[0]:condition/goes"]) == ("crashed", "timed out")
    assert (outcomes["loop[0]:body/next"], outcomes["first"]) == ("refused", "equal")
    reasons = {unit.name: unit.reason for unit in isolation.units}
    assert "no such unit here" in reasons["loop[0]:body/next"]
    assert [group.outcome for group in isolation.groups] == ["crashed", "timed out", "refused"]


def test_other_outputs_than_the_unit_has_are_a_difference() -> None:
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="call:faulty:with_more", shard="1/6")
    (unit,) = isolation.units
    assert unit.outcome == "mismatched" and "2 outputs" in unit.reason


def test_a_policy_explains_what_it_does_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="tf32")
    (unit,) = (unit for unit in isolation.units if unit.outcome != "equal")
    assert (unit.name, unit.outcome, unit.explained and unit.explained.words) == ("product", "explained", "TF32")
    Path("both.py").write_text(
        "import hloexec\ndef run(text, inputs):\n"
        "    result = hloexec.run(hloexec.parse(text), *inputs[0], numerics='tf32')\n"
        "    if 'dot(' in text:\n        result[2, 2] *= 1.01\n    return result\n"
    )
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="call:both:run")
    assert [unit.name for unit in isolation.different] == ["product"]


def test_xla_agrees_with_each_instruction_and_computation() -> None:
    pytest.importorskip("jaxlib")
    module = hloexec.parse(MODULE)
    for by, names in (("instruction", "product first/d second/r loop[0]:body/next"), ("computation", "product")):
        isolation = hloexec.isolate(module, against="xla:cpu", by=by)
        assert {*isolation.counts} <= {"equal", "rounding only"} and {*names.split()} <= _outcomes(isolation).keys()
    assert "loop[0]:body/u" in _outcomes(isolation)


def test_a_later_iteration_is_looked_at_beside_the_first() -> None:
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="call:faulty:run", iteration=2)
    names = [unit.name for unit in isolation.units if unit.instruction == "step"]
    assert sorted(names) == ["loop[0]:body/step", "loop[2]:body/step"]


def test_of_several_devices_each_value_is_looked_at_but_no_collective() -> None:
    module = hloexec.parse(PARTITIONED)
    inputs = [[np.arange(4, dtype=np.float32)], [np.full(4, 2, np.float32)]]
    isolation = hloexec.isolate(module, inputs, against="call:faulty:run")
    assert [(unit.name, unit.devices, unit.outcome) for unit in isolation.units] == [
        ("r", (0, 1), "not isolated"), ("n", (0,), "equal"), ("n", (1,), "equal"), ("y", (0, 1), "equal"),
    ]  # fmt: skip
    assert isolation.units[0].reason == "collective"


def test_what_is_kept_reproduces_the_difference(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "wrong")
    printed = cli("isolate m.hlo --against call:faulty:run -o units", code=1)
    assert "3 different" in printed and "tanh" not in printed and "units/first" in printed
    assert sorted(path.name for path in Path("units").iterdir()) == ["first", "step"]
    folder = Path("units/first").resolve()
    ours, theirs = (np.load(folder / f"{name}.npz")["value"] for name in ("expected", "actual"))
    assert np.argwhere(ours != theirs).tolist() == [[3, 5]]
    monkeypatch.chdir(folder)
    assert main(shlex.split(Path("command.txt").read_text())[1:]) == 1


def test_the_record_and_the_page_have_the_units(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "wrong")
    record = cli.record("isolate m.hlo --against call:faulty:run --shard 1/2", code=1)
    assert record["counts"] == {"different": 1, "equal": 2} and record["run_count"] == 3
    assert record["groups"][0]["unit_names"] and record["units"][0]["outputs"][0]["mismatch_count"] == 1
    jinja = pytest.importorskip("jinja2")
    assert jinja and main("isolate m.hlo --against call:faulty:run --html m.html".split()) == 1
    assert "How many units each cause has" in Path("m.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("", "--against says what units are run on"),
        ("--against nothing", "unknown numerics policy 'nothing'"),
        ("--against m.hlo", "units are modules of their own"),
        ("--against xla:quantum:0", "'0' is no number of devices"),
        ("--against call:faulty", "is no MODULE:FUNCTION"),
        ("--against tf32 --by kernel", "'kernel' is not one of"),
        ("--against tf32 --iteration -1", "-1 is not in the range"),
        ("--against tf32 --shard 3", "--shard must be I/N"),
        ("--against tf32 --shard 3/2", "--shard must be I/N"),
        ("--against tf32 -o m.hlo", "m.hlo"),
        ("--against tf32 --html m.hlo", "--html"),
        ("--against tf32 --top -1", "-1 is not in the range"),
    ],
)
def test_wrong_uses_say_what_is_wrong(cli: CommandLine, words: str, complaint: str) -> None:
    assert complaint in cli.complaint(f"isolate m.hlo {words}")
