"""Goldens from Python: what is recorded, what passes, and what is said of those that are broken."""

import codecs
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.language import literals
from hloexec.tools.golden import find_goldens, read_golden, update_golden
from hloexec.tools.golden.checking import Outcome
from tests.exec.programs import COUNTING_LOOP
from tests.text.building import ADD, op

DOT = op("f32[4,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[4,50]", y="f32[50,3]")
TUPLE = op("(f32[3], bf16[3], s32[]) tuple(x, y, n)", x="f32[3]", y="bf16[3]", n="s32[]")
DEVICES = op("f32[3] all-reduce(x), replica_groups={}, to_apply=add_f32", ADD, ", replica_count=2", x="f32[3]")


def _recorded(tmp_path: Path, text: str = DOT, inputs: Any = None, **options: Any) -> Path:
    return hloexec.record_golden(hloexec.parse(text), inputs, tmp_path / "m.golden", **options).folder


def test_a_golden_is_four_files_that_numpy_and_json_open(tmp_path: Path) -> None:
    folder = _recorded(tmp_path, numerics="exact", seed=3)
    assert sorted(path.name for path in folder.iterdir()) == "expected.npz golden.json inputs.npz module.hlo".split()
    assert (folder / "module.hlo").read_text() == DOT
    record = json.loads((folder / "golden.json").read_text())
    assert (record["numerics"], record["inputs_source"], record["expected_source"]) == (
        "exact",
        "random, seed 3",
        "hloexec",
    )
    assert record["versions"]["numpy"] == np.__version__
    with np.load(folder / "inputs.npz") as inputs, np.load(folder / "expected.npz") as expected:
        # The exact product, rounded once: f64 holds it to 2⁻²⁹ of an f32 unit.
        assert_array_equal(expected["value"], (inputs["0"].astype(float) @ inputs["1"]).astype(np.float32))


def test_what_was_recorded_passes(tmp_path: Path) -> None:
    found = hloexec.check_golden(_recorded(tmp_path))
    assert (found.outcome, found.message) == (Outcome.PASSED, "equal") and found.seconds > 0


def test_a_golden_can_be_moved(tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere.golden"
    _recorded(tmp_path).rename(moved)
    assert hloexec.check_golden(moved).passed


@pytest.mark.parametrize("text", [TUPLE, DEVICES, op("s32[] constant(7)"), op("() tuple()")])
def test_tuples_devices_and_modules_without_parameters(text: str, tmp_path: Path) -> None:
    found = hloexec.check_golden(_recorded(tmp_path, text))
    assert found.passed, found.message


def test_devices_may_have_inputs_of_their_own(tmp_path: Path) -> None:
    inputs = [[np.array([1, 2, 3], np.float32)], [np.array([10, 20, 30], np.float32)]]
    folder = _recorded(tmp_path, DEVICES, inputs=inputs)
    assert hloexec.check_golden(folder).passed
    with np.load(folder / "expected.npz") as expected:
        assert_array_equal(expected["1"], [11, 22, 33])


def test_random_numbers_of_the_module_itself_repeat(tmp_path: Path) -> None:
    text = op("f32[9] rng(a, b), distribution=rng_uniform", a="f32[]", b="f32[]")
    assert hloexec.check_golden(_recorded(tmp_path, text, seed=5)).message == "equal"


def test_rounding_passes_but_not_under_exact(tmp_path: Path) -> None:
    for numerics, outcome in (("reference", Outcome.PASSED), ("exact", Outcome.FAILED)):
        folder = _recorded(tmp_path, numerics=numerics, replace=True)
        with np.load(folder / "expected.npz") as expected:
            literals.save(folder / "expected.npz", np.nextafter(expected["value"], np.float32(9)))
        found = hloexec.check_golden(folder)
        assert found.outcome is outcome
        assert found.message.startswith("rounding only")
    assert "every bit must be the same" in found.message


def test_results_from_elsewhere(tmp_path: Path) -> None:
    x, y = hloexec.random_inputs(hloexec.parse(DOT))
    exact = np.asarray(x).astype(float) @ np.asarray(y)
    for expected in (exact.astype(np.float32), {"value": exact.astype(ml_dtypes.bfloat16)}, {"0": exact}):
        folder = _recorded(tmp_path, expected=expected, expected_source="numpy", replace=True)
        assert read_golden(folder).expected_source == "numpy"
        assert hloexec.check_golden(folder).passed
    folder = _recorded(tmp_path, expected=(exact + 1e-3).astype(np.float32), replace=True)
    assert hloexec.check_golden(folder).outcome is Outcome.FAILED
    assert hloexec.check_golden(_recorded(tmp_path, expected=exact + 1e-3, atol=2e-3, replace=True)).passed


def test_another_module_on_the_same_inputs(tmp_path: Path) -> None:
    folder = _recorded(tmp_path, numerics="exact")
    body = "t = f32[50,4] transpose(x), dimensions={1,0}\n  ROOT root = f32[4,3] dot(t, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    same = hloexec.parse(DOT.replace(DOT[DOT.index("ROOT") : DOT.rindex("\n}")], body))
    assert hloexec.check_golden(folder, module=same).passed
    wrong = hloexec.parse(DOT.replace("dot(x, y)", "dot(x, z)").replace("ROOT", "z = f32[50,3] negate(y)\n  ROOT"))
    assert hloexec.check_golden(folder, module=wrong).outcome is Outcome.FAILED
    found = hloexec.check_golden(folder, module=hloexec.parse(TUPLE))
    assert found.outcome is Outcome.BROKEN and "does not take this golden's inputs" in found.message


_WHOLE = """HloModule m, num_partitions=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[5,6] parameter(0), sharding={devices=[2,1]0,1}
  zero = f32[] constant(0)
  sums = f32[6] reduce(x, zero), dimensions={0}, to_apply=add
  squares = f32[5,6] multiply(x, x), sharding={devices=[2,1]0,1}
  ROOT r = (f32[5,6], f32[6]) tuple(squares, sums)
}
"""
_SHARDS = (
    _WHOLE.replace("main", "main_spmd")
    .replace("[5,6]", "[3,6]")
    .replace(", sharding={devices=[2,1]0,1}", "")
    .replace("sums = f32[6] reduce", "part = f32[6] reduce")
    .replace(
        "  squares",
        "  sums = f32[6] all-reduce(part), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add\n  squares",
    )
)


def test_a_module_after_partitioning_takes_and_gives_shards(tmp_path: Path) -> None:
    folder = _recorded(tmp_path, _WHOLE)
    found = hloexec.check_golden(folder, module=hloexec.parse(_SHARDS))
    assert found.passed, found.message
    alone = _SHARDS.replace("{{0,1}}", "{{0},{1}}")
    found = hloexec.check_golden(folder, module=hloexec.parse(alone))
    assert found.outcome is Outcome.FAILED and "0.1" in found.message
    found = hloexec.check_golden(folder, module=hloexec.parse(_SHARDS.replace("[3,6]", "[2,6]")))
    assert found.outcome is Outcome.BROKEN and "does not take this golden's inputs" in found.message


def test_updating_keeps_the_new_result(tmp_path: Path) -> None:
    folder = _recorded(tmp_path)
    before = (folder / "expected.npz").read_bytes()
    literals.save(folder / "expected.npz", np.zeros((4, 3), np.float32))
    assert update_golden(folder).message.startswith("updated; it was different: value: 12 of 12 elements")
    assert (folder / "expected.npz").read_bytes() == before
    assert hloexec.check_golden(folder).message == "equal"


def test_a_result_from_elsewhere_is_not_updated(tmp_path: Path) -> None:
    folder = _recorded(tmp_path, expected=np.zeros((4, 3), np.float32), expected_source="tpu.npz")
    with pytest.raises(hloexec.InputError, match=r"its result comes from tpu\.npz, and is not replaced"):
        update_golden(folder)


def test_goldens_are_found_at_any_depth(tmp_path: Path) -> None:
    module = hloexec.parse(TUPLE)
    for name in ("b", "a/c", "a/d"):
        hloexec.record_golden(module, None, tmp_path / f"{name}.golden")
    assert [path.name for path in find_goldens(tmp_path)] == ["c.golden", "d.golden", "b.golden"]
    assert [path.name for path in find_goldens(tmp_path / "b.golden")] == ["b.golden"]


def _change(name: str, value: Any) -> Any:
    def change(folder: Path) -> None:
        record = json.loads((folder / "golden.json").read_text())
        record[name] = value
        (folder / "golden.json").write_text(json.dumps(record))

    return change


def _write(name: str, data: bytes | None) -> Any:
    def change(folder: Path) -> None:
        if data is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data)

    return change


def test_a_golden_that_git_or_an_editor_of_windows_has_touched_passes(tmp_path: Path) -> None:
    def touch(path: Path) -> None:
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().replace(b"\n", b"\r\n"))

    folder = _recorded(tmp_path)
    for name in ("module.hlo", "golden.json"):
        touch(folder / name)
    assert hloexec.check_golden(folder).passed
    # A module that is itself from Windows is recorded as it would be elsewhere.
    touched = hloexec.record_golden(hloexec.load(folder / "module.hlo"), None, tmp_path / "touched.golden").folder
    assert (touched / "module.hlo").read_bytes() == DOT.encode()


def _cut(name: str) -> Any:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-30])


def _save(name: str, *arrays: Any) -> Any:
    return lambda folder: literals.save(folder / name, arrays if len(arrays) > 1 else arrays[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_write("golden.json", None), "m.golden is not a complete golden: golden.json is missing; record it again"),
        (_write("expected.npz", None), "expected.npz is missing"),
        (_write("inputs.npz", None), "inputs.npz is missing"),
        (_write("module.hlo", None), "module.hlo is missing"),
        (_write("golden.json", b'{"format": 1'), "golden.json is damaged"),
        (_write("golden.json", b"\xff\xfe"), "golden.json is damaged"),
        (_write("golden.json", b"[" * 100_000), "golden.json is damaged"),
        (_write("golden.json", b"[]"), "is not that of a golden: it names no format"),
        (_write("golden.json", b'{"format": 1}'), "does not say module_name"),
        (_change("format", 2), "has format 2, unknown to this version of hloexec; it reads format 1"),
        (_change("numerics", "sloppy"), "unknown numerics policy 'sloppy'; the policies are reference, exact"),
        (_change("replicas", "two"), "says replicas is 'two', which it cannot be"),
        (_change("atol", -1), "says atol is '-1'"),
        (_change("elided", "/etc/passwd"), "says elided is"),
        (_change("inputs_per_device", 2), "but 2 were given"),
        (_change("inputs_per_device", 3), "does not hold the inputs of 3 devices"),
        (_write("module.hlo", TUPLE.encode()), "module.hlo is not the module that was recorded"),
        (_cut("expected.npz"), "is not a complete .npz file"),
        (_cut("inputs.npz"), "is not a complete .npz file"),
        (_write("inputs.npz", b"hello"), "is neither a .npz nor a .npy file"),
        (_save("inputs.npz", np.zeros((4, 49), np.float32), np.zeros((49, 3), np.float32)), "f32[4,49]"),
        (_save("inputs.npz", np.zeros((4, 50), np.float32)), "belongs to no parameter"),
    ],
)
def test_what_is_broken_is_said(change: Any, message: str, tmp_path: Path) -> None:
    folder = _recorded(tmp_path)
    change(folder)
    found = hloexec.check_golden(folder)
    assert found.outcome is Outcome.BROKEN and message in found.message, found.message


def test_another_shape_of_the_result_is_different(tmp_path: Path) -> None:
    folder = _recorded(tmp_path)
    literals.save(folder / "expected.npz", np.zeros((4, 4), np.float32))
    found = hloexec.check_golden(folder)
    assert found.outcome is Outcome.FAILED
    assert "the dimensions differ (actual f32[4,3], expected f32[4,4])" in found.message


def _number(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("text", "name", "options", "message"),
    [
        (DOT, "m", {}, r"a golden's folder is called NAME\.golden"),
        (DOT, "m.golden", {"expected": _number(4, 4)}, r"has dimensions \[4, 4\], but the module gives f32\[4,3\]"),
        (DOT, "m.golden", {"expected": (_number(4, 3), _number(1))}, "lacks leaf value, .*; it has 0, 1"),
        (TUPLE, "m.golden", {"expected": (_number(3), _number(3))}, r"lacks leaf 2, s32\[\]"),
        (TUPLE, "m.golden", {"expected": {"0": _number(3), "2": _number()}}, "lacks leaf 1, but has later ones"),
        (TUPLE, "m.golden", {"expected": {"loss": _number(3)}}, "'loss' is not a leaf of the result"),
        (DOT, "m.golden", {"inputs": [_number(4, 50)]}, "takes 2 inputs .*, but 1 were given"),
        (DOT, "m.golden", {"inputs": [[_number(4, 50), _number(50, 3)]] * 2}, "one list of inputs per device, 1"),
        (DOT, "nowhere/\0/m.golden", {}, "cannot write"),
    ],
)
def test_what_cannot_be_recorded_is_refused(text: str, name: str, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(hloexec.InputError, match=message):
        hloexec.record_golden(hloexec.parse(text), **{"inputs": None, "folder": f"{tmp_path}/{name}", **options})
    assert list(tmp_path.rglob("*.npz")) == []


def test_names_of_files_that_are_no_text_are_recorded(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9/\xc3\xa9.npz")
    hloexec.record_golden(hloexec.parse(ADD), None, tmp_path / "m.golden", inputs_source=name)
    assert read_golden(tmp_path / "m.golden").inputs_source == name


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloexec.tools.golden.recording.run_golden", lambda *_, **__: pytest.fail("it has run"))
    (tmp_path / "file").touch()
    module = hloexec.parse(op("f32[2] negate(x)", x="f32[2]"))
    with pytest.raises(hloexec.InputError, match="file' cannot be written to"):
        hloexec.record_golden(module, None, tmp_path / "file" / "a" / "m.golden")


def test_limits_end_a_run_that_is_to_be_recorded(tmp_path: Path) -> None:
    with pytest.raises(hloexec.ResourceError, match="max_iterations=3 ends the loop"):
        _recorded(tmp_path, COUNTING_LOOP, max_iterations=3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("root", "warning"),
    [
        ("(f32[4], f32[4]) tuple(lost, x)", None),
        ("(f32[4], f32[4]) tuple(nans, x)", "leaf 0 of the result is NaN throughout, .* other inputs may give numbers"),
        ("f32[4] negate(noise)", "t: the result may change by its own size through rounding alone"),
        ("f32[0] slice(x), slice={[0:0]}", "t has no element in its result"),
    ],
)
def test_what_tests_hardly_anything_is_said(root: str, warning: str | None, tmp_path: Path) -> None:
    """The sum of x and 3e8 is rounded to multiples of 32; what is left of x < 32 without 3e8 is 0 or 32."""
    text = (
        "HloModule m\nENTRY e { x = f32[4] parameter(0)\n big = f32[] constant(3e8)\n c = f32[4] broadcast(big), "
        "dimensions={}\n s = f32[4] add(x, c)\n noise = f32[4] subtract(s, c)\n n = f32[] constant(nan)\n"
        " d = f32[4] broadcast(n), dimensions={}\n nans = f32[4] add(x, d)\n k = pred[4] compare(x, c), direction=LT\n"
        f" lost = f32[4] select(k, x, nans)\n ROOT r = {root} }}"
    )
    x = np.array([10, 20, np.nan, 14], np.float32)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        hloexec.record_golden(hloexec.parse(text), [x], tmp_path / "t.golden")
    messages = [str(entry.message) for entry in found]
    assert len(messages) == (warning is not None) and all(re.search(warning or "", message) for message in messages)


def test_a_golden_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = op("f32[3] negate(x)", x="f32[3]")
    folder = _recorded(tmp_path, text)
    load_inputs = literals.load_inputs

    def replaced(*given: Any) -> Any:
        found = load_inputs(*given)
        monkeypatch.undo()
        _recorded(tmp_path, text, seed=1, replace=True)
        return found

    monkeypatch.setattr(literals, "load_inputs", replaced)
    found = hloexec.check_golden(folder)
    assert found.passed and found.comparison is not None and found.comparison.verdict.value == "equal"


def test_what_a_killed_process_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    ours, other, recent = f"m.golden.{process.pid}-00ff", f"b.golden.{process.pid}-00ff", f"m.golden.{process.pid}-1111"
    running = f"m.golden.{os.getpid()}-00ff"
    for name in (ours, other, running):
        (tmp_path / f".{name}.tmp").mkdir()
        os.utime(tmp_path / f".{name}.tmp", (0, 0))
    (tmp_path / f".{recent}.tmp").mkdir()
    _recorded(tmp_path)
    kept = {f".{name}.tmp" for name in (other, running, recent)}
    assert {path.name for path in tmp_path.iterdir()} == {"m.golden", *kept}


def test_nothing_is_replaced_unless_it_is_a_golden_and_meant(tmp_path: Path) -> None:
    folder = _recorded(tmp_path)
    with pytest.raises(hloexec.InputError, match="is there already; replace=True"):
        _recorded(tmp_path)
    _recorded(tmp_path, numerics="exact", replace=True)
    assert read_golden(folder).numerics == "exact"
    (folder / "golden.json").unlink()
    with pytest.raises(hloexec.InputError, match=r"exists already, and is not a golden"):
        _recorded(tmp_path, replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.golden"]
