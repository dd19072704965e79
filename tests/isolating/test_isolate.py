"""Isolating units of a module on a counterpart: which differ, and why the others do not."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.engine.options import Options
from hloexec.tools.counterparts.answers import Answer, Outcome
from hloexec.tools.isolating.elements import elements_of
from hloexec.tools.isolating.judging import Judge
from tests.command_line import CommandLine
from tests.report.needs import require_report_packages

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
  ROOT product = f32[8,8] dot(last, second), lhs_contracting_dims={1}, rhs_contracting_dims={1} }
"""
PARTITIONED = """HloModule m, num_partitions=2

sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }

ENTRY e { x = f32[4] parameter(0)
  n = f32[4] negate(x)
  r = f32[4] all-reduce(n), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
  ROOT y = f32[4] exponential(r) }
"""
FAULTY = """import os, time
import hloexec

def plain(text, inputs, numerics="reference"):
    return hloexec.run(hloexec.parse(text), *inputs[0], numerics=numerics)

def wrong(text, inputs):
    result = plain(text, inputs)
    if "tanh(" in text:
        result[3, 5] *= 1.001
    return result

def failing(text, inputs):
    if "dot(" in text:
        os._exit(3)
    if "compare(" in text:
        time.sleep(60)
    if "add(" in text:
        raise ValueError("no such unit here")
    return [plain(text, inputs)] * (1 + (text.count("parameter(") == 4))

def tf32(text, inputs):
    result = plain(text, inputs, "tf32")
    if "dot(" in text:
        result[2, 2] *= 1.01
    return result
"""
MOVED = """HloModule m
fused { a = f32[4,6] parameter(0)
  b = f32[6] parameter(1)
  s = f32[] parameter(2)
  t = f32[6,4] transpose(a), dimensions={1,0}
  c = f32[6,4] broadcast(b), dimensions={0}
  i = s32[6,4] iota(), iota_dimension=1
  f = f32[6,4] convert(i)
  n = f32[1] bitcast(s)
  r = f32[] reshape(n)
  limit = f32[6,4] broadcast(r), dimensions={}
  small = pred[6,4] compare(f, limit), direction=LT
  d = f32[6,4] subtract(t, c)
  e = f32[6,4] exponential(d)
  g = f32[6,4] select(small, e, t)
  h = f32[3,4] slice(g), slice={[1:6:2], [0:4]}
  ROOT r2 = (f32[3,4], f32[6,4]) tuple(h, d) }
ENTRY e { a = f32[4,6] parameter(0)
  b = f32[6] parameter(1)
  s = f32[] parameter(2)
  ROOT r = (f32[3,4], f32[6,4]) fusion(a, b, s), kind=kLoop, calls=fused }
"""
BODY = "loop[0]:body"


@pytest.fixture(autouse=True)
def _folder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("faulty.py").write_text(FAULTY)
    Path("m.hlo").write_text(MODULE)
    monkeypatch.syspath_prepend(str(empty_folder))


def _outcomes(isolation: hloexec.Isolation) -> dict[str, str]:
    return {unit.name: unit.outcome for unit in isolation.units}


def test_what_differs_is_named_once_for_all_that_are_alike_and_kept(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = cli.record("isolate m.hlo --against call:faulty:wrong -o units", code=1)
    assert record["counts"] == {"different": 3, "equal": 3}
    # The fusion of one array with itself has one parameter.
    assert record["unit_names"] == [["first", "second"], [f"{BODY}/step"]]
    assert [unit["same_as"] for unit in record["units"][:3]] == [None, "first", None]
    assert all(unit["outputs"][0]["mismatch_count"] == 1 for unit in record["units"][:3])
    assert sorted(path.name for path in Path("units").iterdir()) == ["first", "step"]
    ours, theirs = (np.load(f"units/first/{name}.npz")["value"] for name in ("expected", "actual"))
    assert np.argwhere(ours != theirs).tolist() == [[3, 5]]
    monkeypatch.chdir("units/first")
    assert main(shlex.split(Path("command.txt").read_text())[1:]) == 1


def test_what_does_not_answer_is_an_outcome_of_its_unit() -> None:
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="call:faulty:failing", timeout=8.0)
    assert _outcomes(isolation) == {
        "first": "mismatched", "second": "mismatched", "product": "crashed", "loop[0]:condition/goes": "timed out",
        f"{BODY}/next": "refused", f"{BODY}/step": "equal",
    }  # fmt: skip
    reasons = {unit.name: unit.reason for unit in isolation.units}
    assert "no such unit here" in reasons[f"{BODY}/next"] and "2 outputs" in reasons["first"]


@pytest.mark.parametrize("result", [(), (np.ones(4, np.float32),) * 2, np.ones(3, np.float32)])
def test_what_is_not_shaped_as_the_unit_is_different(result: Any) -> None:
    class Other:
        name = "other"

        def require(self, module: hloexec.Module, *, is_divided: bool = False) -> None:
            """It takes any."""

        def run(self, module: hloexec.Module, inputs: Any, **options: Any) -> Answer:
            return Answer(Outcome.ANSWERED, result)

    module = hloexec.parse("HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n  ROOT r = f32[4] exponential(a)\n}\n")
    assert _outcomes(hloexec.isolate(module, against=Other())) == {"r": "different"}


def test_a_policy_explains_what_it_does_and_no_more() -> None:
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="tf32")
    ((unit,),) = isolation.groups
    assert (unit.name, unit.outcome, unit.cause) == ("product", "explained", "TF32")
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="call:faulty:tf32")
    assert [unit.name for unit in isolation.different] == ["product"]


@pytest.mark.parametrize(
    ("by", "names"), [("instruction", f"product first/d second/r {BODY}/next"), ("computation", f"product {BODY}/u")]
)
def test_xla_agrees_with_each_instruction_and_computation(by: str, names: str) -> None:
    pytest.importorskip("jaxlib")
    isolation = hloexec.isolate(hloexec.parse(MODULE), against="xla:cpu", by=by)
    assert {*isolation.counts} <= {"equal", "rounding only"} and {*names.split()} <= _outcomes(isolation).keys()


def test_a_later_iteration_is_looked_at_beside_the_first_and_shards_share_the_units() -> None:
    shards = [hloexec.isolate(hloexec.parse(MODULE), against="ftz", iteration=2, shard=f"{n}/2") for n in (1, 2)]
    names = sorted(unit.name for isolation in shards for unit in isolation.units)
    inside = [f"loop[{n}]:{name}" for n in (0, 2) for name in ("body/next", "body/step", "condition/goes")]
    assert names == ["first", *inside, "product", "second"]


def test_of_several_devices_each_value_is_looked_at_but_no_collective() -> None:
    inputs = [[np.arange(4, dtype=np.float32)], [np.full(4, 2, np.float32)]]
    isolation = hloexec.isolate(hloexec.parse(PARTITIONED), inputs, against="ftz")
    assert [(unit.name, unit.devices, unit.outcome, unit.reason, unit.same_as) for unit in isolation.units] == [
        ("r", (0, 1), "not isolated", "collective", None),
        ("n", (0,), "equal", "", None), ("n", (1,), "equal", "", None), ("y", (0, 1), "equal", "", None),
    ]  # fmt: skip


def test_the_page_has_the_units(cli: CommandLine) -> None:
    require_report_packages()
    assert "1 explained" in cli("isolate m.hlo --against tf32 --html m.html")
    assert "explained TF32" in Path("m.html").read_text(encoding="utf-8")


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
        ("--against tf32 --shard 3/2", "--shard must be I/N"),
        ("--against tf32 -o m.hlo", "'m.hlo'"),
        ("--against tf32 --html m.hlo", "--html"),
    ],
)
def test_wrong_uses_say_what_is_wrong(cli: CommandLine, words: str, complaint: str) -> None:
    assert complaint in cli.complaint(f"isolate m.hlo {words}")


def test_bounds_of_a_few_elements_are_those_of_all() -> None:
    module, random = hloexec.parse(MOVED), np.random.default_rng(0)
    inputs = [*(random.normal(size=size).astype(np.float32) for size in ((4, 6), (6,))), np.array(2, np.float32)]
    places = [np.array([0, 7, 11, 7]), np.array([23, 2])]
    part, taken = elements_of(module, inputs, places)
    assert [array.shape for array in hloexec.run(part, *taken)] == [(4,), (2,)]
    judge = Judge(hloexec.counterpart("ftz"), Options(), None)
    for rows, whole, few in zip(places, judge.bounded(module, [inputs]), judge.bounded(part, [taken]), strict=True):
        assert few[1].any() and all(map(np.array_equal, [array.reshape(-1)[rows] for array in whole], few))
    with pytest.raises(hloexec.UnsupportedError, match="dot is not elementwise"):
        elements_of(
            hloexec.parse(MODULE.replace("ROOT product", "ROOT p")), [np.ones((8, 16), np.float32)] * 2, places[:1]
        )
