"""`hloexec run` on modules of several devices."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.cli import main
from hloexec.language import literals
from tests.records import read_record

STEP = str(Path(__file__).parents[2] / "examples" / "data_parallel_step.hlo")

NUMBERED = """HloModule numbered, num_partitions=3
ENTRY e { x = u32[2] parameter(0)
  p = u32[] partition-id()
  one = u32[] constant(1)
  first = u32[] minimum(p, one)
  b = u32[2] broadcast(first), dimensions={}
  ROOT r = u32[2] add(x, b) }
"""


Call = Callable[..., str]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command, which should exit with `code`, and gives what it prints (errors where it fails)."""

    def run(*arguments: str, code: int = 0) -> str:
        assert main([*arguments]) == code
        printed = capsys.readouterr()
        return printed.err or printed.out if code else printed.out

    return run


@pytest.fixture
def numbered(tmp_path: Path) -> str:
    path = tmp_path / "numbered.hlo"
    path.write_text(NUMBERED)
    return str(path)


def labels(output: str) -> list[str]:
    return [row["label"] for row in json.loads(output)["result"]]


def test_devices_that_agree_share_a_row(numbered: str, call: Call) -> None:
    found = labels(call("run", numbered, "--json"))
    assert found == ["value on device 0", "value on devices 1–2"]


def test_saved_results_have_the_device_in_front(numbered: str, tmp_path: Path, call: Call) -> None:
    inputs, saved = tmp_path / "in.npz", tmp_path / "out.npz"
    literals.save(inputs, (np.array([5, 6], np.uint32),))
    call("run", numbered, "--inputs", str(inputs), "--save", str(saved))
    values = literals.load(saved)
    assert isinstance(values, tuple)
    assert [np.asarray(value).tolist() for value in values] == [[5, 6], [6, 7], [6, 7]]


def test_each_device_may_have_a_file_of_its_own(numbered: str, tmp_path: Path, call: Call) -> None:
    options = []
    for device in range(3):
        path = tmp_path / f"{device}.npz"
        literals.save(path, (np.full(2, 10 * device, np.uint32),))
        options += ["--inputs", str(path)]
    saved = tmp_path / "out.npz"
    call("run", numbered, *options, "--save", str(saved))
    values = literals.load(saved)
    assert isinstance(values, tuple)
    assert [np.asarray(value).tolist() for value in values] == [[0, 0], [11, 11], [21, 21]]
    assert "--inputs must be given once for all devices" in call("run", numbered, *options[:4], code=2)


def test_whole_inputs_are_divided_and_whole_results_put_together(tmp_path: Path, call: Call) -> None:
    rng = np.random.default_rng(3)
    w, x, y = (rng.integers(-3, 4, size).astype(np.float32) for size in ((8, 16), (16, 8), (16, 16)))
    inputs, saved = tmp_path / "in.npz", tmp_path / "out.npz"
    literals.save(inputs, (w, x, y))
    call("run", STEP, "--global-inputs", str(inputs), "--save", str(saved))
    stored = literals.load(saved)
    assert isinstance(stored, tuple)
    new_w, loss = (np.asarray(value) for value in stored)
    error = x.astype(np.float64) @ w - y
    # Whole numbers below 2^24 are exact in f32 until the step: one product and one difference, each rounded once.
    assert loss == np.sum(error**2)
    step = x.T @ error
    bound = np.spacing(np.abs(step).astype(np.float32) * np.float32(0.001)) + np.spacing(np.abs(new_w))
    assert (np.abs(new_w - (w - step * np.float64(np.float32(0.001)))) <= bound).all()


def test_peak_memory_is_given_in_all_and_on_a_device(call: Call) -> None:
    output = call("run", STEP, "--different-inputs")
    assert "beyond the inputs in all, " in output
    record = read_record(call("run", STEP, "--different-inputs", "--json"))
    assert record["device_count"] == 4
    assert record["device_peak_bytes"] < record["peak_bytes"] <= 4 * record["device_peak_bytes"]


def test_the_numbers_of_devices_may_be_given(numbered: str, call: Call) -> None:
    found = labels(call("run", numbered, "--partitions", "9", "--json"))
    assert found == ["value on device 0", "value on devices 1–8"]
    assert "names device 2, but there are 2" in call("run", STEP, "--partitions", "2", code=2)


def test_a_deadlock_is_reported(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "lost.hlo"
    path.write_text(
        """HloModule lost, num_partitions=2
ENTRY e { x = f32[2] parameter(0)
  t = token[] after-all()
  r = (f32[2], u32[], token[]) recv(t), channel_id=7, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}}
  rd = (f32[2], token[]) recv-done(r), channel_id=7
  ROOT g = f32[2] get-tuple-element(rd), index=0 }
"""
    )
    output = call("run", str(path), code=1)
    assert "no device can go on" in output
    assert "device 1 waits for data on channel 7 from device 0" in output


def test_global_inputs_stand_alone(numbered: str, tmp_path: Path, call: Call) -> None:
    path = tmp_path / "in.npz"
    literals.save(path, (np.zeros(2, np.uint32),))
    output = call("run", numbered, "--global-inputs", str(path), "--different-inputs", code=2)
    assert "--global-inputs replaces" in output
    as_tuple = call("run", numbered, "--global-inputs", str(path), code=2)
    literals.save(path, np.zeros(2, np.uint32))  # a lone parameter's
    assert call("run", numbered, "--global-inputs", str(path), code=2) == as_tuple


def test_the_module_before_partitioning_says_how_whole_arrays_are_divided(tmp_path: Path, call: Call) -> None:
    after, before, inputs, saved = (str(tmp_path / name) for name in "after.hlo before.hlo in.npz out.npz".split())
    text = "HloModule m, num_partitions=2\n\nENTRY {} {{\n  p = f32[{},4] parameter(0){}\n  ROOT r = f32[{},4] negate(p){}\n}}\n"
    sharding = ", sharding={mesh['x'=2], [{'x'}, {}]}"
    Path(after).write_text(text.format("e_spmd", 2, "", 2, ""))
    Path(before).write_text(text.format("e", 4, sharding, 4, sharding))
    whole = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.savez(inputs, whole)
    call("run", after, "--global-inputs", inputs, "--before", before, "--save", saved)
    assert_array_equal(np.asarray(literals.load(saved)), -whole)
    for option, value in (("--before", before), ("--result-sharding", "{replicated}")):
        found = call("run", after, option, value, code=2)
        assert f"{option} says how whole arrays are divided; give --global-inputs, too" in found


def test_a_sharding_of_the_result_may_be_given(tmp_path: Path, call: Call) -> None:
    after, inputs, saved = (str(tmp_path / name) for name in ("after.hlo", "in.npz", "out.npz"))
    Path(after).write_text(
        "HloModule m, num_partitions=2\n\nENTRY e_spmd {\n"
        "  p = f32[2,4] parameter(0), sharding={devices=[2,1]<=[2]}\n  ROOT r = f32[2,4] negate(p)\n}\n"
    )
    whole = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.savez(inputs, whole)
    sharding = "{devices=[2,1]<=[2]}"
    call("run", after, "--global-inputs", inputs, "--result-sharding", sharding, "--save", saved)
    assert_array_equal(np.asarray(literals.load(saved)), -whole)
    assert "error: " in call("run", after, "--global-inputs", inputs, "--result-sharding", "{devices=", code=2)


def test_a_result_that_nothing_puts_together_is_that_of_each_device(tmp_path: Path, call: Call) -> None:
    after, inputs, saved = (str(tmp_path / name) for name in ("after.hlo", "in.npz", "out.npz"))
    sharding = "sharding={devices=[2,1]<=[2]}"
    Path(after).write_text(
        f"HloModule m, num_partitions=2\n\nENTRY e_spmd {{\n  p = f32[2,4] parameter(0), {sharding}\n"
        "  ROOT r = f32[2,4] negate(p)\n}\n"
    )
    whole = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.savez(inputs, whole)
    found = call("run", after, "--global-inputs", inputs, "--save", saved, code=2)
    assert "(give --result-sharding, or as --before a module before partitioning whose result has one, " in found
    devices = literals.load(saved)
    assert isinstance(devices, tuple) and len(devices) == 2
    assert_array_equal(np.concatenate([np.asarray(value) for value in devices]), -whole)


def test_a_whole_result_to_compare_with_is_divided_as_that_of_the_run_is(tmp_path: Path, call: Call) -> None:
    """The last shard ends in padding, where the devices hold what the whole lacks."""
    after, before, inputs, expected = (str(tmp_path / name) for name in "after.hlo before.hlo in.npz out.npz".split())
    text = """HloModule m, num_partitions=2

ENTRY {} {{
  p = f32[{},4] parameter(0){}
  s = f32[{},4] exponential(p){}
  t = f32[] constant(3)
  ROOT r = (f32[{},4], f32[]) tuple(s, t)
}}
"""
    sharding = ", sharding={mesh['x'=2], [{'x'}, {}]}"
    Path(after).write_text(text.format("e_spmd", 2, "", 2, "", 2))
    Path(before).write_text(text.format("e", 3, sharding, 3, sharding, 3))
    whole = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    exact = np.exp(whole.astype(np.float64))
    np.savez(inputs, whole)
    for change, code, verdict in ((0.0, 0, "rounding only  4 arrays"), (1e-3, 1, "different  1 of 4 arrays")):
        exact[2, 3] += change
        np.savez(expected, exact, np.float32(3))
        output = call("run", after, "--global-inputs", inputs, "--before", before, "--against", expected, code=code)
        assert verdict in output
        assert ("1.0  f32[2,4], expected f64[2,4]  different" in output) == bool(change)


def test_compare_says_how_whole_results_of_many_devices_are_measured(tmp_path: Path, call: Call) -> None:
    module, actual, expected = (str(tmp_path / name) for name in ("a module.hlo", "a.npz", "b.npz"))
    Path(module).write_text(
        "HloModule m, num_partitions=2\n\nENTRY e_spmd {\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] exponential(p)\n}\n"
    )
    np.savez(actual, np.ones(4, np.float32))
    np.savez(expected, np.full(4, 2, np.float32))
    output = call("compare", actual, expected, "--module", module, code=1)
    assert shlex.join(["hloexec", "run", module, "--global-inputs", "FILE", "--against", expected]) in output


def test_devices_that_take_the_same_step_hold_one_array() -> None:
    module = hloexec.load(STEP)
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal(size, np.float32) for size in ((8, 16), (16, 8), (16, 16))]
    outputs = hloexec.run_devices(module, hloexec.shard_inputs(module, whole))
    assert all(output[0] is outputs[0][0] for output in outputs)


_ALIKE = """HloModule alike, num_partitions=8
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
ENTRY e { x = f32[3] parameter(0)
  sum = f32[3] all-reduce(x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=add
  minus = f32[3] negate(sum)
  root = f32[3] sqrt(minus)
  ROOT both = (f32[3], f32[3]) tuple(root, sum) }
"""
"""A result that is the same on all devices, and NaN for positive inputs."""


def test_what_is_alike_on_all_devices_is_said_once(tmp_path: Path, call: Call) -> None:
    path, inputs, expected = (str(tmp_path / name) for name in ("m.hlo", "in.npz", "expected.npz"))
    Path(path).write_text(_ALIKE)
    np.savez(inputs, np.float32([1, 2, 3]))
    assert "on devices 0–7: " in call("nan", path, "--inputs", inputs, code=1)
    wrong = np.float32([8, 16, 25])
    np.savez(expected, **{f"{d}.{k}": wrong for d in range(8) for k in range(2)})
    table = call("run", path, "--inputs", inputs, "--against", expected, code=1).partition("verdict")[2]
    rows = [line.split()[0] for line in table.split("leaf")[0].splitlines()[1:] if "different" in line]
    assert sorted(rows) == ["0–7.0", "0–7.1"]


@pytest.mark.parametrize("against", ["whole.npz", "one.golden"])
def test_what_has_one_result_is_refused_for_several_devices_before_the_run(
    against: str, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(_ALIKE)
    Path("one.hlo").write_text(_ALIKE.replace("num_partitions=8", "num_partitions=1").replace("0,1,2,3,4,5,6,7", "0"))
    np.savez("whole.npz", np.zeros(3, np.float32), np.zeros(3, np.float32))
    call("golden", "record", "one.hlo", "-o", "one.golden")
    output = call("run", "m.hlo", "--against", against, "--save", "out.npz", code=2)
    assert "on each of 8 devices; --global-inputs puts those together" in output
    assert "ran in" not in output and not Path("out.npz").exists()


LOOP = """HloModule loop, num_partitions=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

goes_on {
  s = (s32[], s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT less = pred[] compare(i, n), direction=LT
}

step {
  s = (s32[], s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  x = f32[4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  sum = f32[4] all-reduce(x), channel_id=1, replica_groups={}, to_apply=add
  ROOT t = (s32[], s32[], f32[4]) tuple(next, n, sum)
}

ENTRY main {
  x = f32[4] parameter(0)
  key = u32[2] parameter(1)
  other = s32[] parameter(2)
  first = u32[1] slice(key), slice={[0:1]}
  bits = u32[] reshape(first)
  seven = u32[] constant(7)
  some = u32[] and(bits, seven)
  count = s32[] convert(some)
  zero = s32[] constant(0)
  t = (s32[], s32[], f32[4]) tuple(zero, count, x)
  w = (s32[], s32[], f32[4]) while(t), condition=goes_on, body=step
  y = f32[4] get-tuple-element(w), index=2
  ROOT r = (f32[4], s32[]) tuple(y, other)
}
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_different_inputs_agree_in_what_says_how_often_devices_communicate(
    seed: int, tmp_path: Path, call: Call
) -> None:
    path = tmp_path / "loop.hlo"
    path.write_text(LOOP, encoding="utf-8")
    output = call("run", str(path), "--different-inputs", "--seed", str(seed))
    assert "\n1 key " in output and "\n2 other on device " in output and "\n0 x on device " in output


def test_what_all_devices_compute_alike_may_say_so_with_different_inputs(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "loop.hlo"
    summed = "total = u32[] all-reduce(bits), channel_id=2, replica_groups={}, to_apply=add_u32\n  some = u32[] and(total, seven)"
    text = LOOP.replace("some = u32[] and(bits, seven)", summed)
    path.write_text(
        text.replace(
            "add {",
            "add_u32 {\n  a = u32[] parameter(0)\n  b = u32[] parameter(1)\n  ROOT c = u32[] add(a, b)\n}\n\nadd {",
            1,
        ),
        encoding="utf-8",
    )
    assert "\n1 key on device 0 " in call("run", str(path), "--different-inputs")
