"""`hloexec golden record` and `check`: what they print, their exit codes, and wrong uses of them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.language import literals
from tests.cli.test_run_values import _snapshot
from tests.command_line import CommandLine
from tests.records import read_record
from tests.text.building import op

DOT = op("f32[4,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[4,50]", y="f32[50,3]")


@pytest.fixture(autouse=True)
def _files(empty_folder: Path) -> None:
    Path("dot.hlo").write_text(DOT)
    Path("negated.hlo").write_text(
        DOT.replace("ROOT root", "d").replace("\n}", "\n  ROOT root = f32[4,3] negate(d)\n}")
    )
    Path("broken.hlo").write_text("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x) }\n")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two goldens of one module, and one whose result was given."""
    folder = tmp_path_factory.mktemp("recorded")
    module, result = hloexec.parse(DOT), np.ones((4, 3), np.float32)
    for name in ("m", "m2"):
        hloexec.record_golden(module, None, folder / f"{name}.golden")
    given = {"expected": result, "expected_source": "result.npz"}
    hloexec.record_golden(module, None, folder / "given.golden", **given)
    np.savez(folder / "result.npz", result)
    return folder


def test_recording_says_how_to_check(cli: CommandLine) -> None:
    out = cli("golden record dot.hlo -o goldens --numerics exact")
    first, *_, last = out.splitlines()
    assert first == "recorded  goldens/dot.golden  inputs: random (seed 0, normal); result: run under exact"
    first, _, line = cli(*last.split()[1:]).splitlines()
    assert first == "all agree  1 golden" and line.startswith("ok     dot.golden  equal (exact)")


def test_a_check_shows_what_failed(cli: CommandLine) -> None:
    cli("golden record dot.hlo -o goldens")
    cli("golden record dot.hlo -o goldens --name other --seed 4")
    literals.save("goldens/other.golden/expected.npz", np.zeros((4, 3), np.float32))
    shutil.copytree("goldens/dot.golden", "goldens/third.golden")
    Path("goldens/third.golden/inputs.npz").unlink()
    out = cli("golden check goldens", code=2)
    assert out.startswith("1 different, 1 broken  of 3 goldens\n\nok     dot.golden    equal (reference)")
    assert "FAILED other.golden  different: value: 12 of 12 elements beyond tolerance" in out
    assert "BROKEN third.golden  third.golden is not a complete golden: inputs.npz is missing; record it again" in out
    assert "value f32[4,3] different 12 12" in " ".join(out.split())
    out = cli("golden check goldens/dot.golden goldens/other.golden", code=1)
    assert out.endswith("  hloexec golden check --update goldens/other.golden\n")
    assert "updated; it was different" in cli("golden check --update goldens/other.golden")
    cli("golden check goldens/other.golden")


def test_json(cli: CommandLine) -> None:
    assert "module_hash" in read_record(cli("golden record dot.hlo -o m.golden --json"))
    literals.save("m.golden/expected.npz", np.zeros((4, 3), np.float32))
    (record,) = cli.record("golden check m.golden", code=1)["checks"]
    assert (record["outcome"], record["golden"]["numerics"]) == ("failed", "reference")
    assert record["comparison"]["leaves"][0]["measured"]["mismatches"] == 12


def test_results_of_other_backends(cli: CommandLine) -> None:
    cli("golden record dot.hlo -o given")
    with np.load("given/dot.golden/inputs.npz") as inputs:
        x, y = inputs["0"], inputs["1"]
    np.savez("x_and_y.npz", x=x, y=y)
    np.savez("tpu.npz", x @ y)
    out = cli("golden record dot.hlo -o m.golden --inputs x_and_y.npz --expected tpu.npz")
    assert "inputs: x_and_y.npz; result: tpu.npz" in out
    assert main(["golden", "check", "m.golden"]) == 0
    np.savez("tpu.npz", x @ y * np.float32(1.01))
    arguments = "dot.hlo -o m.golden --inputs x_and_y.npz --expected tpu.npz --force".split()
    assert "the module does not give this result: different: value: " in cli("golden record", *arguments, code=1)
    assert main(["golden", "check", "m.golden"]) == 1
    cli("golden record", *arguments, "--rtol", "0.02")
    assert main(["golden", "check", "m.golden"]) == 0


def test_a_snapshot_is_recorded_with_its_values(tmp_path: Path, cli: CommandLine) -> None:
    snapshot = _snapshot(tmp_path, [1.0, 2.0, 3.0], [10.0, 20.0, 30.0], result=[11.0, 22.0, 33.5])
    out = cli("golden record", snapshot, "-o", ".", code=1)
    assert f"inputs: {snapshot}; result: {snapshot}" in out
    assert "33.0, expected 33.5" in cli("golden check snapshot.golden", code=1)


def test_another_module_in_its_place(cli: CommandLine) -> None:
    cli("golden record dot.hlo -o m.golden")
    cli("golden check m.golden --module dot.hlo")
    said = cli("golden check m.golden --module negated.hlo", code=1).split("where to look:\n  ")[1].splitlines()
    assert said[0].startswith("%") and " is to blame: " in said[0]
    command = "hloexec diff m.golden/module.hlo negated.hlo --inputs m.golden/inputs.npz"
    assert said[1].strip() == command
    cli(*command.split()[1:], code=1)


def test_a_result_from_elsewhere(cli: CommandLine) -> None:
    cli("golden record dot.hlo -o m.golden")
    expected = np.asarray(literals.load("m.golden/expected.npz"))
    nearest = np.nextafter(expected, np.float32(9))
    far = expected.copy()
    far[1, 2] += 0.5
    for name, array, code, said in (
        ("same", expected, 0, "equal"),
        ("near", nearest, 0, "rounding only"),
        ("far", far, 1, "1 of 12 elements beyond tolerance, the worst at [1, 2]"),
        ("small", far[:1], 1, "f32[1,3]"),
    ):
        np.save(f"{name}.npy", array)
        assert said in cli("golden check m.golden --result", f"{name}.npy", code=code)
        assert bool(hloexec.check_golden("m.golden", actual=array)) is (code == 0)
    with pytest.raises(hloexec.InputError, match="give one of them"):
        hloexec.check_golden("m.golden", module=hloexec.load("dot.hlo"), actual=expected)


def test_another_module_on_the_inputs_of_several_goldens(cli: CommandLine) -> None:
    cli("golden record dot.hlo -o goldens --name first")
    cli("golden record dot.hlo -o goldens --name second --seed 7")
    assert "all agree  2 goldens" in cli("golden check goldens --module dot.hlo")
    Path("other.hlo").write_text(op("f32[7] negate(x)", x="f32[7]"))
    cli("golden record other.hlo -o goldens --name a_different_module")
    out = cli("golden check goldens --module negated.hlo", code=2)
    assert "FAILED first.golden" in out and "FAILED second.golden" in out
    assert "hloexec diff goldens/first.golden/module.hlo negated.hlo --inputs goldens/first.golden/inputs.npz" in out


def test_a_golden_that_cannot_be_updated_keeps_no_other_from_it(cli: CommandLine) -> None:
    np.savez("ones.npz", np.ones((4, 3), np.float32))
    cli("golden record dot.hlo -o goldens --name elsewhere --expected ones.npz", code=1)
    cli("golden record dot.hlo -o goldens --name own")
    literals.save("goldens/own.golden/expected.npz", np.zeros((4, 3), np.float32))
    out = cli("golden check goldens --update", code=2)
    assert "elsewhere.golden: its result comes from ones.npz, and is not replaced" in out
    assert "own.golden        updated; it was different" in out
    cli("golden check goldens/own.golden")


def test_ctrl_c_shows_what_has_been_checked(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "b", "c"]
    for name in names:
        cli("golden record dot.hlo -o goldens --name", name)
    check = hloexec.check_golden

    def interrupted(folder: Path, **more: Any) -> Any:
        if folder.name == f"{names[-1]}.golden":
            raise KeyboardInterrupt
        return check(folder, **more)

    monkeypatch.setattr(hloexec, "check_golden", interrupted)
    out = cli("golden check goldens", code=130)
    assert out.startswith("all agree  2 of 3 goldens\n\nok     a.golden") and "interrupted after 2 of 3 goldens" in out
    record = cli.record("golden check goldens", code=130)
    assert [len(record["checks"]), record["is_complete"]] == [2, False]
    names[-1] = "a"
    assert cli("golden check goldens", code=130) == ""


def test_library_calls_of_ones_own(cli: CommandLine) -> None:
    Path("twice.py").write_text("def twice(x):\n    return x + x\n")
    Path("call.hlo").write_text(op('f32[3] custom-call(x), custom_call_target="golden_twice"', x="f32[3]"))
    calls = ["--custom-call", "golden_twice=twice:twice"]
    out = cli("golden record call.hlo -o m.golden", *calls)
    assert out.endswith(f"\n  hloexec golden check m.golden {' '.join(calls)}\n")
    hloexec.unregister_custom_call("golden_twice")
    assert "golden_twice" in cli("golden check m.golden", code=2)
    cli("golden check m.golden", *calls)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("record dot.hlo", 2, "Missing option '-o'"),
        ("record missing.hlo -o d", 2, "cannot read missing.hlo"),
        ("record broken.hlo -o d", 2, "broken.hlo:3"),
        ("record dot.hlo -o m.golden", 2, "is there already; --force"),
        (
            "record dot.hlo -o dot.hlo/m.golden",
            2,
            "cannot write 'dot.hlo/m.golden': 'dot.hlo' is not a folder",
        ),
        ("record dot.hlo -o /proc/nowhere", 2, "cannot write '/proc/nowhere/dot.golden'"),
        ("record dot.hlo -o d --numerics sloppy", 2, "unknown numerics policy 'sloppy'"),
        ("record dot.hlo -o d --inputs missing.npz", 2, "cannot read 'missing.npz'"),
        ("record dot.hlo -o d --inputs result.npz", 2, "result.npz"),
        ("record dot.hlo -o d --expected missing.npz", 2, "--from: there is no file 'missing.npz'"),
        ("record dot.hlo -o d --expected small.npz", 2, "has dimensions [2], but the module gives"),
        ("record dot.hlo -o d --rtol -1", 2, "rtol must not be negative"),
        ("record dot.hlo -o d --elided result.npz", 2, "must be zeros, random or error for a golden"),
        ("record dot.hlo -o d --seed first", 2, "'first' is not a valid integer"),
        ("check", 2, "Missing argument 'DIR...'"),
        ("check nowhere", 2, "there is no folder 'nowhere'"),
        ("check dot.hlo", 2, "'dot.hlo' is a file; a golden is a folder"),
        ("check empty", 2, "there is no .golden folder in 'empty'; `hloexec golden record` makes one"),
        ("check nowhere.golden", 2, "there is no folder 'nowhere.golden'"),
        ("check m.golden --module missing.hlo", 2, "cannot read missing.hlo"),
        ("check m.golden --update --module dot.hlo", 2, "leave out --module"),
        ("check m.golden --update --result ones.npz", 2, "without --module and --update"),
        ("check m.golden m2.golden --result ones.npz", 2, "checked against one golden"),
        ("check m.golden --result missing.npz", 2, "cannot read 'missing.npz'"),
        ("check given.golden --update", 2, "its result comes from result.npz, and is not replaced"),
        ("chekc", 2, "No such command 'chekc'; did you mean check?"),
    ],
)
def test_wrong_uses(arguments: str, code: int, message: str, recorded: Path, cli: CommandLine, tmp_path: Path) -> None:
    Path("empty").mkdir()
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    np.savez("small.npz", np.ones(2, np.float32))
    captured = cli.ended(f"golden {arguments}", code=code)
    assert message in captured.out + captured.err
    assert sorted(path.name for path in tmp_path.glob("*.golden")) == ["given.golden", "m.golden", "m2.golden"]
    assert not Path("d").exists()
