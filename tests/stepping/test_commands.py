"""`hloexec step`: its commands, what they print, exit codes, and wrong uses."""

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli.stepping.shell import Shell
from tests.command_line import CommandLine
from tests.stepping.programs import DEVICES, LOOP, SOURCES

INPUT = ("--input", "v0=v0.npy")


@pytest.fixture(autouse=True)
def folder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    for name, text in (("loop", LOOP), ("devices", DEVICES), ("sources", SOURCES)):
        Path(f"{name}.hlo").write_text(text)
    np.save("v0.npy", np.array([0.5, 0.25], np.float32))
    np.save("ones.npy", np.ones(2, np.float32))
    np.save("three.npy", np.ones(3, np.float32))
    np.save("doubles.npy", np.ones(2))
    Path("bad.txt").write_text("# a comment\n\nbreak last\nbrake w\n")
    Path("good.txt").write_text("break last\nrun\n")
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    return empty_folder


def printed(cli: CommandLine, *commands: str, module: str = "loop.hlo", code: int = 0) -> list[str]:
    """The lines that commands print; what they are behind the prompt is left out."""
    words = [word for command in commands for word in ("-x", command)]
    inputs = INPUT if module == "loop.hlo" else ()
    out = cli("step", module, *inputs, *words, code=code)
    return [line for line in out.splitlines() if not line.startswith("(hlo)")]


def test_a_script_prints_the_same_every_time(cli: CommandLine) -> None:
    words = ["step", "loop.hlo", *INPUT, "-x", "break c if max > 1", "--script", "good.txt"]
    first = cli(*words)
    assert cli(*words) == first
    assert first.startswith("(hlo) break c if max > 1\nbreakpoint 1: c if max > 1, 1 instruction\n(hlo) break last\n")
    # 0.5, 0.75, 1.3125: the second iteration is the first whose value exceeds 1.
    assert "\nbreakpoint 1 (c if max > 1): w[1]:body/f/c\n  %c = f32[2] add(%b, %a)\n" in first
    assert "f32[2]  min 0.4102  max 1.312" in first


def test_where_up_down_and_values(cli: CommandLine) -> None:
    lines = printed(
        cli,
        "break q iteration 1",
        "run",
        "where",
        "up 2",
        "print i",
        "stats v i",
        "down",
        "operands",
        "up 2",
        "print v0[1]",
    )
    assert lines[4:8] == [
        ">#0 %q in square",
        " #1 %b in inner",
        " #2 %f in body, iteration 1",
        " #3 %w in main",
    ]
    assert lines[8:] == [
        " #2 %f in body, iteration 1",
        "%i = s32[] 1",
        lines[10],
        "%i  s32[]  1  hash " + lines[11][-8:],
        " #1 %b in inner",
        lines[13],
        " #3 %w in main",
        "%v0[1] = f32[] 0.25",
        "no more commands; the run is left after %q",
    ]
    assert lines[10].startswith("%v  f32[2]  min 0.3125  max 0.75  mean 0.5312  std 0.2188  hash ")
    assert lines[13].startswith("%a  f32[2]  min 0.3125  max 0.75")


def test_lists_show_the_text_around_the_place(cli: CommandLine) -> None:
    lines = printed(cli, "break f iteration 0", "run", "list 1", "list one", "users next", "users t")
    assert lines[4:8] == [
        "body, 7 instructions",
        "   5  %next = s32[] add(%i, %one)",
        "-> 6  %f = f32[2] fusion(%v), kind=kLoop, calls=%inner",
        "   7  ROOT %t = (s32[], f32[2]) tuple(%next, %f)",
    ]
    assert lines[8:16] == [
        "body, 7 instructions",
        "   1  %s = (s32[], f32[2]) parameter(0)",
        "   2  %i = s32[] get-tuple-element(%s), index=0",
        "   3  %v = f32[2] get-tuple-element(%s), index=1",
        "   4  %one = s32[] constant(1)",
        "   5  %next = s32[] add(%i, %one)",
        "-> 6  %f = f32[2] fusion(%v), kind=kLoop, calls=%inner",
        "   7  ROOT %t = (s32[], f32[2]) tuple(%next, %f)",
    ]
    assert lines[16:18] == ["  %t = (s32[], f32[2]) tuple(%next, %f)", "%t is the result of body"]


def test_values_are_set_as_literals_numbers_elements_and_files(cli: CommandLine) -> None:
    for value, total in (("{1, 2}", 3), ("7", 14), ("ones.npy", 2)):
        lines = printed(cli, f"set last {value}", "run")
        assert lines[0] == "%last gives this value when it runs next"
        assert lines[-1].startswith(f"  result  f32[]  {total}  ")
    lines = printed(cli, "break last", "run", "set last 0", "set last[1] -2.5", "print", "run")
    assert "%last = f32[2] [ 0. , -2.5]" in lines and lines[-1].startswith("  result  f32[]  -2.5")


def test_saved_values_can_be_set(cli: CommandLine) -> None:
    lines = printed(cli, "break last", "run", "save last[:1] x.npy", "save start{1} s.npz", "restart", "delete")
    assert "wrote x.npy" in lines and lines[-1] == "the run begins again; `run` starts it"
    saved = hloexec.literals.load("x.npy")
    assert isinstance(saved, np.ndarray) and saved.shape == (1,)
    np.testing.assert_array_equal(hloexec.literals.load("s.npz"), np.array([0.5, 0.25], np.float32))
    assert printed(cli, "set v0 s.npz", "run")[-1] == printed(cli, "run")[-1]


def test_the_result_is_that_of_run(cli: CommandLine) -> None:
    (leaf,) = json.loads(cli("run loop.hlo", *INPUT, "--json"))["result"]
    assert printed(cli, "step 5", "next 3", "out", "run")[-1].endswith(leaf["hash"][:8])


def test_devices_are_shown_by_number(cli: CommandLine) -> None:
    lines = printed(
        cli,
        "break own device 3",
        "run",
        "print",
        "device 1",
        "print own",
        "device",
        "print",
        "run",
        module="devices.hlo",
    )
    three, one, again = (line for line in lines if line.startswith("%own = "))
    assert three == again != one
    assert lines[1] == "breakpoint 1 (own device 3): own on device 3"
    assert [line.split("  ")[1] for line in lines[-5:]] == [
        "result{0}",
        *(f"result{{1}} on device {number}" for number in range(4)),
    ]


def test_json_has_the_stops_and_what_was_printed(cli: CommandLine) -> None:
    record = cli.record("step loop.hlo", *INPUT, "-x", "break last", "-x", "run", "-x", "print")
    assert not record["has_ended"] and not record["has_failed"]
    (stop,) = record["stops"]
    assert (stop["reason"], stop["name"], stop["iteration"]) == ("breakpoint 1", "last", None)
    assert stop["leaves"][0]["shape"] == "f32[2]" and "(hlo) print" in record["printed_lines"]


def test_a_run_that_fails_exits_with_1_and_takes_commands_where_it_failed(cli: CommandLine) -> None:
    words = ["step", "loop.hlo", *INPUT, "--max-iterations", "2", "--post-mortem"]
    out = cli(*words, "-x", "where", "-x", "print v0", "-x", "run", code=1).splitlines()
    assert out[0] == "failed: w" and "--max-iterations 2 ends the loop" in out[1]
    assert ">#0 %w in main" in out and "%v0 = f32[2] [0.5 , 0.25]" in out
    assert any(line.startswith("the run has failed: %w in computation main") for line in out)
    assert cli.record(*words, code=1)["has_failed"]
    cli(*words, "-x", "step 9999999", "-x", "restart", "-x", "step")
    assert "the run has ended" in cli("step loop.hlo", *INPUT, "--post-mortem", "-x", "brake")


def test_nan_is_a_breakpoint_if_asked_for(cli: CommandLine) -> None:
    np.save("v0.npy", np.array([np.nan, 0], np.float32))
    assert "breakpoint 1 (if any nan): v0\n" in cli("step loop.hlo", *INPUT, "--nan", "-x", "run")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_commands_come_from_a_pipe(mark: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{mark}break last\nc\nquit\nrun\n"))
    assert cli("step loop.hlo", *INPUT).endswith("(hlo) quit\n")


def test_a_script_of_windows_is_read_as_any_other(cli: CommandLine) -> None:
    Path("windows.txt").write_bytes(b"\xef\xbb\xbfbreak last\r\nrun\r\n")
    found = []
    for name in ("good.txt", "windows.txt"):
        found.append(cli("step loop.hlo", *INPUT, "--script", name))
    assert found[0] == found[1]


def test_help_has_every_command(cli: CommandLine) -> None:
    lines = printed(cli, "help", "help set", "h b")
    assert [line.split()[0].strip("[],:") for line in lines[: len(Shell.names())]] == Shell.names()
    assert any("A condition is of the value: any nan" in line for line in lines)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("brake w", "there is no command 'brake'; did you mean 'break'?"),
        ("xyzzy", "there is no command 'xyzzy'; there are run, step"),
        ("st", "'st' may mean step or stats"),
        ("run fast", "run takes nothing more, but was given 'fast'"),
        ("step many", "step takes a number, not 'many'"),
        ("next 0", "next takes a number from 1, not 0"),
        ("break lst", "'lst' selects no instruction of loop; did you mean 'last'?"),
        ("break last if max >", "the condition 'max >' is none: a number is expected, but it ends there"),
        ("break last if", "a condition is expected after `if`"),
        ("break last device 9", "there is no device 9; there is one device, 0"),
        ("break last device x", "a number is expected after `device`, not 'x'"),
        ("break last device " + "9" * 5000, "a number is expected after `device`, not"),
        ("break last iteration", "a number is expected after `iteration`"),
        ("break last w", "a breakpoint says where it is ('last') once, but 'w' follows"),
        ("break device 0", "a breakpoint says where: an instruction's name"),
        ("break sum", "applies to many elements at once (reduce)"),
        ("watch", "watch takes an instruction's name"),
        ("delete 4", "there is no breakpoint 4"),
        ("delete x", "delete takes numbers of breakpoints, not 'x'"),
        ("print", "the run has not begun; `run` or `step` starts it"),
        ("where", "the run has not begun"),
        ("set last", "set takes a name and a value"),
        ("set lasst 0", "loop has no instruction %lasst that runs; did you mean %last?"),
        ("set last {1,2,3}", "the value for %last, which is f32[2], cannot be '{1,2,3}': "),
        ("set last x", "the value for %last, which is f32[2], cannot be 'x': "),
        ("set last three.npy", "f32[2]"),
        ("set last doubles.npy", "f32[2]"),
        ("set last nothing.npy", "nothing.npy"),
        ("set start{0} 1", "set takes whole tuples, not elements of them"),
        ("set last[0] 1", "elements can be set of what the run has stopped after"),
        ("device 1", "there is no device 1; there is one, 0"),
        ("help me", "there is no command 'me'"),
    ],
)
def test_wrong_commands_say_what_is_right(command: str, message: str, cli: CommandLine) -> None:
    err = cli.complaint("step loop.hlo", *INPUT, "-x", command)
    assert err.startswith(f"error: -x {command!r}: ") and message in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("print last", "%last in main has not run yet"),
        ("print body[", "'body[' is not of the form NAME, NAME{INDEX}, NAME[SLICES]"),
        ("print i", "main has no instruction %i"),
        ("print v0[2]", "index 2 is out of bounds for dimension 0 of %v0, of size 2"),
        ("print v0[0,0]", "%v0 has 1 dimensions, but 2 are indexed"),
        ("print v0[a]", "an index that is no integer"),
        ("print v0{0}", "%v0 has no element {0}: it is no tuple there"),
        ("print start{2}", "%start has no element {2}: it is a tuple of 2 there"),
        ("print start[0]", "%start is no array; choose an element of a tuple with braces, as in start{0}"),
        ("set v0 0", "%v0 has run, and others may have used its value; restart, break at v0 and set it there"),
        ("set start 0", "cannot be '0'"),
        ("up", "this is the entry computation"),
        ("down", "this is the innermost computation"),
        ("list nowhere", "main has no instruction %nowhere"),
        ("save v0", "save takes a name and a file"),
        ("save v0 v0.txt", "its name should end in .npz or .npy"),
        ("device 3", "there is no device 3"),
    ],
)
def test_wrong_commands_at_a_stop_say_what_is_right(command: str, message: str, cli: CommandLine) -> None:
    assert message in cli.complaint("step loop.hlo", *INPUT, "-x", "break start", "-x", "run", "-x", command)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--script bad.txt", "bad.txt:4: there is no command 'brake'"),
        ("--script missing.txt", "cannot read the script 'missing.txt': No such file"),
        ("--script binary.txt", "the script 'binary.txt' is not text in UTF-8"),
        ("--interactive -x run", "--interactive needs a terminal; standard input is none"),
        ("--json", "--json is for commands that are not typed"),
        ("--keep much", "is not a number of bytes"),
        ("-x", "requires an argument"),
    ],
)
def test_wrong_options_say_what_is_right(line: str, message: str, cli: CommandLine) -> None:
    assert message in cli.complaint("step loop.hlo", *INPUT, *line.split())


def test_a_module_from_standard_input_leaves_none_for_commands(cli: CommandLine) -> None:
    assert "standard input has the module, so give the commands with --script or -x" in cli.complaint("step -")


def test_a_terminal_is_talked_to_and_interrupted(folder: Path) -> None:
    endless = LOOP.replace("direction=LT", "direction=NE").replace("constant(4)", "constant(-1)")
    Path("endless.hlo").write_text(endless)
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"there is no terminal to be had: {error}")
    process = subprocess.Popen(
        [sys.executable, "-m", "hloexec", "step", "endless.hlo", *INPUT],
        env={**os.environ, "PYTHONPATH": str(Path(hloexec.__file__).parents[1]), "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=folder,
    )
    os.close(theirs)
    said = b""

    def until(text: bytes) -> None:
        nonlocal said
        deadline = time.monotonic() + 60
        while text not in said:
            assert time.monotonic() < deadline, said
            said += os.read(ours, 4096)

    try:
        until(b"(hlo) ")
        os.write(ours, b"brake\n")
        until(b"did you mean 'break'?")
        os.write(ours, b"run\n")
        time.sleep(0.1)
        process.send_signal(2)
        until(b"interrupted: w[")
        os.write(ours, b"where\n")
        until(b"%w in main")
        os.write(ours, b"quit\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(ours)


def test_the_shell_completes_commands_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    with hloexec.step(hloexec.parse(LOOP), [np.zeros(2, np.float32)]) as stepper:
        shell: Any = Shell(stepper)
        assert shell.completenames("b") == ["break", "breakpoints"]
        assert shell.completedefault("la") == ["last"]
        assert not shell.onecmd("brake") and "error: there is no command" in capsys.readouterr().out
        assert shell.onecmd("EOF")


def test_the_run_stops_in_what_a_library_call_runs(cli: CommandLine) -> None:
    Path("call.hlo").write_text(
        "HloModule m\nkernel { x = f32[3] parameter(0)\n ROOT inner = f32[3] negate(x) }\n"
        "ENTRY e { v = f32[3] parameter(0)\n"
        ' ROOT c = f32[3] custom-call(v), custom_call_target="__triton", called_computations={kernel} }\n'
    )
    assert "#0 %inner in kernel" in cli("step call.hlo -x", "break inner", "-x", "run", "-x", "where")
