"""What is measured of the quick tests: which types an instruction counts for, what counts, and what is missing."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import hloexec
from hloexec import cli
from hloexec.engine.exec import running
from hloexec.ops.registry import OPCODES
from tests.docs import PAGES, ROOT, commands_of
from tests.families import Family, family_of
from tests.opcode_coverage import COMMAND, OPCODE, PAGE, Recorder, accepted, main, missing, own_types
from tests.ops import evaluation


@cache
def _everything() -> set[tuple[str, str]]:
    """What the quick tests are to execute, and all element types of it."""
    found = {(OPCODE, f"{opcode} {one.name}") for opcode in OPCODES for one in accepted(opcode)}
    found |= {(OPCODE, opcode) for opcode in OPCODES}
    found |= {(COMMAND, name) for name in cli.TOOLS}
    return found | {(PAGE, page.relative_to(ROOT).as_posix()) for page in PAGES if commands_of(page)}


@pytest.mark.parametrize(
    ("line", "types"),
    [
        ("f32[2] select(p, x, x)", ("f32",)),
        ("pred[2] compare(x, x), direction=LT", ("f32",)),
        ("s8[2] convert(x)", ("f32",)),
        ("f32[1] dynamic-slice(x, i), dynamic_slice_sizes={1}", ("f32",)),
        ("(pred[2], f32[2]) tuple(p, x)", ("pred", "f32", "pred", "f32")),
    ],
)
def test_an_instruction_counts_for_the_type_that_its_rule_is_about(line: str, types: tuple[str, ...]) -> None:
    text = "ENTRY e { x = f32[2] parameter(0) p = pred[2] parameter(1) i = s32[] parameter(2) ROOT r = "
    entry = hloexec.parse(f"{text}{line} }}").entry
    assert tuple(own_types(entry, entry.root)) == types


def test_called_computations_count_and_dead_code_does_not() -> None:
    module = hloexec.parse("""f { a = s4[2] parameter(0) ROOT b = s4[2] negate(a) }
    g { a = s4[2] parameter(0) ROOT b = s4[2] not(a) }
    ENTRY e {
      x = s4[2] parameter(0)
      dead = s4[2] call(x), to_apply=g
      ROOT y = s4[2] fusion(x), kind=kLoop, calls=f
    }""")
    recorder = Recorder()
    recorder._saw_run(module, "e")
    opcodes = {name for _, name in recorder.found}
    assert {"negate s4", "fusion s4", "parameter s4"} <= opcodes
    assert not opcodes & {"not", "call", "not s4", "call s4"}


def test_what_runs_through_the_api_or_the_evaluator_or_as_a_command_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for owner, name in [(running, "_outputs"), (cli, "_execute"), (evaluation._Evaluator, "run")]:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    recorder = Recorder()
    recorder.watch()
    recorder.is_on = True
    text = "ENTRY e { ROOT c = s4[] constant(1) }"
    hloexec.run(hloexec.parse(text))
    assert recorder.found == {(OPCODE, "constant"), (OPCODE, "constant s4")}
    evaluation.evaluate(text.replace("s4", "u8"))
    assert (OPCODE, "constant u8") in recorder.found
    file = tmp_path / "m.hlo"
    file.write_text("ENTRY e { ROOT c = s8[] constant(1) }")
    cli.main(["run", str(file)])
    assert "1" in capsys.readouterr().out
    assert {(COMMAND, "run"), (OPCODE, "constant s8")} <= recorder.found


@pytest.mark.slow
def test_a_family_of_which_nothing_ran_is_missing_and_no_other() -> None:
    everything = _everything()
    assert missing(everything) == []
    narrow = [one.name for one in accepted("add") if family_of(one) is Family.FLOAT_8]
    assert missing(everything - {(OPCODE, f"add {name}") for name in narrow[1:]}) == []
    assert missing(everything - {(OPCODE, f"add {name}") for name in narrow}) == ["opcode add: f4, f8"]
    assert missing(everything - {(COMMAND, "fmt"), (PAGE, "docs/step.md")}) == ["command fmt", "page docs/step.md"]


@pytest.mark.slow
def test_the_exit_code_says_whether_something_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "executed"
    everything = _everything()
    file.write_text("".join(f"{what}\t{name}\n" for what, name in everything))
    assert main(str(file)) == 0
    file.write_text("".join(f"{what}\t{name}\n" for what, name in everything if name != "partition-id u32"))
    assert main(str(file)) == 1
    assert "missing: opcode partition-id: u8–u64" in capsys.readouterr().out
