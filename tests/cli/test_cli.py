"""The command line as its users meet it: output, exit codes, errors on standard error without a traceback."""

import gzip
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec.language.literals
from hloexec.cli import main
from hloexec.ops.library_calls.user_calls import unregister_custom_call
from tests.command_line import CommandLine
from tests.docs import run_here
from tests.records import read_record
from tests.text.building import op

ROOT = Path(__file__).parents[2]
ADD = op("f32[2,3] add(x, y)", x="f32[2,3]", y="f32[2,3]")


@pytest.fixture
def add(tmp_path: Path) -> str:
    (tmp_path / "add.hlo").write_text(ADD)
    return str(tmp_path / "add.hlo")


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "module.hlo").write_text(text)
    return str(tmp_path / "module.hlo")


def test_run_shows_the_module_its_inputs_its_result_and_what_it_took(add: str, cli: CommandLine) -> None:
    out = cli("run", add)
    assert "m  3 instructions in 1 computation, for one device" in out
    assert "inputs  2 arrays, 48 B" in out and "0 x" in out and "1 y" in out
    assert "result  1 array, 24 B" in out and "ran in " in out
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_what_run_saves_numpy_opens_and_run_reads_again(
    add: str, tmp_path: Path, cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, output = str(tmp_path / "in.npz"), str(tmp_path / "out.npz")
    assert main(["run", add, "--seed", "3", "--save-inputs", inputs, "--save", output]) == 0
    with np.load(inputs) as given, np.load(output) as result:
        assert (given["0"] + given["1"] == result["value"]).all()
    capsys.readouterr()
    again = cli.record("run", add, "--inputs", inputs)
    other = cli.record("run", add, "--seed", "3")
    assert again["inputs"] == other["inputs"] and again["result"] == other["result"]


def test_json_holds_what_the_tables_show(add: str, cli: CommandLine) -> None:
    record = cli.record("run", add, "--distribution", "ones")
    (result,) = record["result"]
    assert (result["shape"], result["minimum"], result["mean"], result["maximum"]) == ("f32[2,3]", 2, 2, 2)
    assert record["module"] == "m" and record["instruction_count"] == 3 and record["seconds"] > 0


def test_json_has_no_numbers_that_are_not_finite(tmp_path: Path, cli: CommandLine) -> None:
    path = write(tmp_path, op("f64[2] multiply(x, x)", x="f64[2]"))
    np.save(tmp_path / "x.npy", np.array([1e154, -1e154]))
    assert "Infinity" not in (out := cli("run", path, "--input", f"0={tmp_path / 'x.npy'}", "--json")) and json.loads(
        out
    )


def test_single_parameters_are_given_by_number_or_by_name(add: str, tmp_path: Path, cli: CommandLine) -> None:
    np.save(tmp_path / "five.npy", np.full((2, 3), 5, np.float32))
    np.save(tmp_path / "one.npy", np.full((2, 3), 1, np.float32))
    record = cli.record("run", add, "--input", f"0={tmp_path / 'five.npy'}", "--input", f"y={tmp_path / 'one.npy'}")
    assert record["result"][0]["minimum"] == record["result"][0]["maximum"] == 6


def test_an_override_wins_over_the_file_of_inputs(add: str, tmp_path: Path, cli: CommandLine) -> None:
    np.savez(tmp_path / "in.npz", **{"0": np.zeros((2, 3), np.float32)})
    np.save(tmp_path / "one.npy", np.full((2, 3), 1, np.float32))
    arguments = ["--inputs", str(tmp_path / "in.npz"), "--input", f"1={tmp_path / 'one.npy'}"]
    assert cli.record("run", add, *arguments)["result"][0]["mean"] == 1


def test_narrow_tuples_are_saved_with_their_types(tmp_path: Path) -> None:
    text = op("(bf16[2], (s32[])) tuple(x, t)", x="bf16[2]", t="(s32[])")
    assert main(["run", write(tmp_path, text), "--save", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as file:
        assert sorted(file.files) == ["0:bf16", "1.0"]
        assert file["0:bf16"].view(ml_dtypes.bfloat16).shape == (2,)


def test_elided_constants_can_be_given_by_name(tmp_path: Path, cli: CommandLine) -> None:
    text = "HloModule m\nENTRY main {\n  x = f32[3] parameter(0)\n  c = f32[3] constant({...})\n  ROOT y = f32[3] add(x, c)\n}\n"
    np.savez(tmp_path / "c.npz", c=np.full(3, 4, np.float32))
    path = write(tmp_path, text)
    arguments = ["--distribution", "ones", "--elided", str(tmp_path / "c.npz")]
    assert cli.record("run", path, *arguments)["result"][0]["mean"] == 5
    assert "constant %c is elided" in cli.complaint("run", path, "--elided", "error", code=1)


def test_a_library_call_can_be_implemented_in_the_working_folder(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    Path("my_calls.py").write_text("def triple(operand):\n    return 3 * operand\n")
    path = write(empty_folder, op('f32[2] custom-call(x), custom_call_target="test_triple"', x="f32[2]"))
    assert 'custom call "test_triple"' in cli.complaint("run", path, code=1)
    arguments = "--distribution ones --custom-call test_triple=my_calls:triple".split()
    assert cli.record("run", path, *arguments)["result"][0]["mean"] == 3
    unregister_custom_call("test_triple")


def test_gzip_and_standard_input_are_read(
    add: str, tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "add.gz").write_bytes(gzip.compress(ADD.encode(), mtime=0))
    plain = cli.record("run", add)["result"]
    assert cli.record("run", str(tmp_path / "add.gz"))["result"] == plain
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ADD.encode())))
    assert cli.record("run -")["result"] == plain


def test_fmt_prints_text_that_it_prints_again(add: str, tmp_path: Path, cli: CommandLine) -> None:
    first = cli("fmt", add)
    assert (
        cli("fmt", write(tmp_path, first), "-o", tmp_path / "again.hlo") == ""
        and (tmp_path / "again.hlo").read_text() == first
    )


def test_fmt_leaves_out_what_it_is_told_to(tmp_path: Path, cli: CommandLine) -> None:
    text = op('f32[2]{0} negate(x), metadata={op_name="secret"}, backend_config={"a":1}', x="f32[2]{0}")
    out = cli("fmt", write(tmp_path, text), "--no-metadata", "--no-layouts", "--no-backend-config")
    assert "secret" not in out and "{0}" not in out and "backend_config" not in out


@pytest.mark.parametrize("flag", [[], ["--json"], ["--unsupported"]])
def test_ops_lists_the_registry(flag: list[str], cli: CommandLine) -> None:
    out = cli("ops", *flag)
    assert ("dynamic-slice" in out) == (flag != ["--unsupported"])
    if flag == ["--json"]:
        assert any(entry["name"] == "add" and entry["is_supported"] for entry in read_record(out)["opcodes"])


def test_ops_shows_the_element_types_that_an_opcode_takes(cli: CommandLine) -> None:
    opcodes = cli.record("ops --types")["opcodes"]
    records = {record["name"]: record["element_types"] for record in opcodes}
    assert "f32" in records["exponential"] and "s32" not in records["exponential"]
    assert records["xor"] == [name for name in records["add"] if name[0] in "psu"] and records["tuple"] is None
    out = cli("ops --types")
    assert next(line for line in out.splitlines() if line.startswith("xor")).count("●") == len(records["xor"])


def test_info_counts_what_a_module_is_made_of(tmp_path: Path, cli: CommandLine) -> None:
    text = op("f32[4,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[4,5]", y="f32[5,6]")
    path = write(tmp_path, text)
    record = cli.record("info", path)
    assert record["opcodes"] == {"parameter": 2, "dot": 1} and record["flops"] == 2 * 4 * 5 * 6
    assert "dot" in cli("info", path)


RNG = """HloModule m
ENTRY e {
  zero = f32[] constant(0)
  one = f32[] constant(1)
  ROOT r = f32[16] rng(zero, one), distribution=rng_uniform
}
"""


def test_the_seed_decides_the_numbers_that_a_module_draws(tmp_path: Path, cli: CommandLine) -> None:
    path = write(tmp_path, RNG)
    first, again, other = (cli.record("run", path, "--seed", seed)["result"] for seed in ("3", "3", "4"))
    assert first == again != other


FEEDS = """HloModule m
ENTRY e {
  t = token[] after-all()
  i = ((bf16[2], s32[]), token[]) infeed(t)
  t1 = token[] get-tuple-element(i), index=1
  j = (f32[2], token[]) infeed(t1)
  d = (bf16[2], s32[]) get-tuple-element(i), index=0
  t2 = token[] get-tuple-element(j), index=1
  o = token[] outfeed(d, t2)
  x = f32[2] get-tuple-element(j), index=0
  p = token[] outfeed(x, o)
  ROOT y = f32[2] add(x, x)
}
"""


def test_feeds_are_read_from_and_written_to_files(tmp_path: Path, cli: CommandLine) -> None:
    path, out = write(tmp_path, FEEDS), str(tmp_path / "out.npz")
    ones = np.ones(2, ml_dtypes.bfloat16)
    given = str(tmp_path / "in.npz")
    hloexec.literals.save(given, ((ones, np.array(5, np.int32)), np.full(2, 3, np.float32)))
    assert cli.record("run", path, "--infeed", given, "--outfeed", out)["result"][0]["mean"] == 6
    with np.load(out) as file:
        assert sorted(file.files) == ["0.0:bf16", "0.1", "1"]
        assert file["0.1"] == 5 and (file["1"] == 3).all()
    # What was handed over is what may be fed in again.
    assert cli.record("run", path, "--infeed", out, "--outfeed", out)["result"][0]["mean"] == 6


def test_a_run_that_fails_leaves_the_file_of_the_outfeed_alone(tmp_path: Path, cli: CommandLine) -> None:
    path, out = write(tmp_path, FEEDS), tmp_path / "out.npz"
    np.savez(tmp_path / "in.npz", **{"0.0": np.zeros(2, np.float32), "0.1": np.zeros((), np.int32)})
    out.write_bytes(b"before")
    err = cli.complaint("run", path, "--infeed", tmp_path / "in.npz", "--outfeed", out)
    assert "%i in computation e failed: element 0 of value 0 of the infeed must be bf16[2]" in err
    assert out.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 3


BAD_COMMANDS = [
    ("run no.hlo", 2, "error: cannot read no.hlo: No such file or directory"),
    ("run .", 2, "error: . is a folder; name a file in it"),
    ("run empty.hlo", 2, "error: empty.hlo is empty"),
    ("run zeros.bin", 2, "error: zeros.bin is "),
    ("run broken.hlo", 2, "error: broken.hlo:4:3: "),
    ("run cut.hlo", 2, "error: cut.hlo:"),
    ("run opaque.hlo", 2, "error: parameter a is opaque[], of which no value can be made"),
    ("run huge.hlo", 1, "error: the parameters of e take 4.0 TB, more than"),
    ("info broken.hlo", 2, "add is declared f32[3], but its operands give f32[2]"),
    ("fmt cut.hlo", 2, "error: cut.hlo:"),
    ("fmt add.hlo -o no/where", 2, "error: cannot write 'no/where': No such file or directory"),
    ("run add.hlo --inputs no.npz", 2, "error: cannot read 'no.npz'"),
    ("run add.hlo --inputs add.hlo", 2, "error: 'add.hlo' holds no values: it is no .npz or .npy file"),
    ("run add.hlo --inputs wide.npz", 2, "key '0' holds f64 values, but f32[2,3] is expected"),
    ("run add.hlo --inputs object.npz", 2, "holds Python objects (pickled)"),
    ("run add.hlo --inputs part.npz", 2, "lacks '1'; the module's 2 parameters are keyed by number"),
    ("run add.hlo --inputs array.npy", 2, "'array.npy' belongs to no parameter"),
    ("run add.hlo --input 2=array.npy", 2, "main has no parameter '2', but 2, numbered from 0"),
    ("run add.hlo --input z=array.npy", 2, "main has no parameter 'z'"),
    ("run add.hlo --input 0=array.npy --input x=array.npy", 2, "parameter 0 is given twice"),
    ("run add.hlo --save no/out.npz", 2, "error: cannot write 'no/out.npz': there is no folder"),
    ("run add.hlo --save out.txt", 2, "its name should end in .npz or .npy"),
    ("run add.hlo --infeed no.npz", 2, "error: cannot read 'no.npz'"),
    ("run add.hlo --infeed array.npy", 2, "must hold the values for infeeds under the keys 0, 1"),
    ("run add.hlo --infeed wide.npz", 2, "values for the infeed were given, but main takes none"),
    ("run feeds.hlo", 2, "%i in computation e takes values of shape (bf16[2], s32[]) from the infeed"),
    ("run feeds.hlo --infeed wide.npz", 2, "value 0 of the infeed must be a tuple of 2 values"),
    ("run add.hlo --outfeed no/out.npz", 2, "error: cannot write 'no/out.npz': there is no folder"),
    (
        "run add.hlo --outfeed out.npy",
        2,
        "'out.npy' must be a .npz file, because there may be several values",
    ),
    ("run add.hlo --computation none", 2, "module m has no computation none; there are main"),
    ("run add.hlo --memory-limit 1", 1, "error: running main would take about 24 B"),
    ("run add.hlo --memory-limit 5X", 2, "'5X' is not a number of bytes, such as 500M or 8G"),
    ("run add.hlo --numerics tf23", 2, "; did you mean tf32?"),
    ("run add.hlo --numerics loose", 2, "unknown numerics policy 'loose'; the policies are reference"),
    ("run add.hlo --elided maybe", 2, "'maybe' is not one of zeros, random, error and FILE.npz"),
    ("run add.hlo --input array.npy", 2, "'array.npy' is not of the form PARAMETER=FILE"),
    ("run add.hlo --seed -1", 2, "-1 is not in the range"),
    ("run add.hlo --distribution gauss", 2, "'gauss' is not one of"),
    ("run add.hlo --custom-call t=module", 2, "'module' names no function"),
    ("run add.hlo --custom-call t=os:nothing", 2, "os:nothing cannot be imported"),
    ("run add.hlo --custom-call t=os:sep", 2, "os:sep is not a function"),
    ("run", 2, "Missing argument 'FILE'"),
    ("dance", 2, "No such command 'dance'"),
    ("rnu", 2, "No such command 'rnu'; did you mean run?"),
    ("run add.hlo --bogus", 2, "No such option"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD_COMMANDS, ids=lambda entry: str(entry)[:60])
def test_what_is_wrong_is_said_in_one_block_without_a_traceback(
    arguments: str,
    code: int,
    message: str,
    empty_folder: Path,
    cli: CommandLine,
) -> None:
    entry = "HloModule c\nENTRY e {{\n  a = {} parameter(0)\n  ROOT b = f32[3] {}\n}}\n"
    files = {
        "add.hlo": ADD,
        "empty.hlo": "",
        "broken.hlo": entry.format("f32[2]", "add(a, a)"),
        "cut.hlo": ADD[: len(ADD) // 2],
        "opaque.hlo": entry.format("opaque[]", "constant({1,2,3})"),
        "huge.hlo": entry.format("f32[1000000,1000000]", "constant({1,2,3})"),
        "feeds.hlo": FEEDS,
        "zeros.bin": "\0" * 100,
    }
    for name, content in files.items():
        Path(name).write_text(content)
    np.savez("wide.npz", **{"0": np.zeros((2, 3)), "1": np.zeros((2, 3))})
    np.savez("object.npz", **{"0": np.array([None])})
    np.savez("part.npz", **{"0": np.zeros((2, 3), np.float32)})
    np.save("array.npy", np.zeros((2, 3), np.float32))
    captured = cli.ended(arguments, code=code)
    assert message in captured.err
    assert "Traceback" not in captured.err and message not in captured.out


@pytest.mark.parametrize(
    "command",
    [
        "run FILE",
        "trace FILE -o new",
        "nan FILE",
        "extract FILE --instruction x -o new",
        "compare FILE FILE",
        "golden record FILE -o new",
        "golden check FILE",
        "info FILE",
        "plan FILE",
        "memory FILE",
        "fmt FILE",
    ],
)
def test_a_file_that_is_missing_or_broken_exits_with_2_in_every_command(
    command: str, empty_folder: Path, cli: CommandLine
) -> None:
    Path("broken.hlo").write_text("HloModule broken\nENTRY e {\n")
    for name in "missing.hlo", "broken.hlo":
        error = cli.complaint(command.replace("FILE", name))
        assert error.startswith("error: ") and name in error
    assert not Path("new").exists()


DEADLOCK = """HloModule lost, num_partitions=2
ENTRY e {
  x = f32[2] parameter(0)
  t = token[] after-all()
  r = (f32[2], u32[], token[]) recv(t), channel_id=7, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}}
  rd = (f32[2], token[]) recv-done(r), channel_id=7
  ROOT g = f32[2] get-tuple-element(rd), index=0
}
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run FILE", 1),
        ("trace FILE -o new", 1),
        ("nan FILE", 2),
        ("golden record FILE -o new", 2),
    ],
)
@pytest.mark.parametrize("fault", ["deadlock", "memory", "library call"])
def test_a_run_that_fails_is_never_taken_for_a_verdict(
    command: str, code: int, fault: str, tmp_path: Path, cli: CommandLine
) -> None:
    call = op('f32[2] custom-call(x), custom_call_target="unheard_of"', x="f32[2]")
    path = write(tmp_path, {"deadlock": DEADLOCK, "memory": ADD, "library call": call}[fault])
    words = [{"new": str(tmp_path / "new"), "FILE": path}.get(word, word) for word in command.split()]
    limit = ["--memory-limit", "1"] if fault == "memory" else []
    error = cli.complaint(*words, *limit, code=code)
    expected = {"deadlock": "no device can go on", "memory": "limit that was given", "library call": "unheard_of"}
    assert expected[fault] in error and "Traceback" not in error


def test_a_refusal_for_want_of_memory_names_no_arguments_of_functions(
    add: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", add, "--memory-limit", "1"])
    error = " ".join(capsys.readouterr().err.split())
    assert "raise the memory limit" in error
    assert "memory_limit" not in error and "computation=" not in error


def test_warnings_come_as_one_line_each(tmp_path: Path, cli: CommandLine) -> None:
    path = write(tmp_path, op("f32[2] shiny(x), gloss={1}", x="f32[2]"))
    err = cli.complaint("fmt", path, code=0)
    assert err.startswith("warning: ") and "shiny" in err and "HloWarning" not in err


def test_errors_cannot_steer_the_terminal(tmp_path: Path, cli: CommandLine) -> None:
    assert "\x1b" not in cli.complaint("run", write(tmp_path, "HloModule m \x1b[2J\n"))


HOSTILE = r"""HloModule m
ENTRY e {
  x = f32[2] parameter(0), metadata={op_name="\033[2J\302\233x\007" source_file="\033]0;x\007.py" source_line=3}
  n = f32[2] constant({-1, -2})
  l = f32[2] log(n), metadata={op_name="\033[2J\302\233l\r" source_file="\033]0;l\007.py" source_line=3}
  ROOT c = f32[2] custom-call(l), custom_call_target="\033[31m\302\233\177", metadata={op_name="\033[2J"}
}
"""


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        "info",
        "run --unknown zeros",
        "nan --unknown zeros",
        "memory",
        "plan",
        "diff {file} --unknown zeros",
        "trace --unknown zeros --output {folder}",
        "extract --instruction l --unknown zeros -o {folder}",
    ],
)
def test_what_a_file_holds_cannot_steer_the_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    is_terminal: bool,
    options: list[str],
) -> None:
    """Escapes of terminals begin with a control character; colours, which a terminal gets, are ours."""
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    path = write(tmp_path, HOSTILE)
    name, *more = (word.format(file=path, folder=tmp_path / "folder") for word in command.split())
    assert main([name, path, *more, *options]) in (0, 1)
    shown = capsys.readouterr()
    text = re.sub("\x1b\\[[0-9;]*m", "", shown.out) if is_terminal else shown.out
    assert all(character.isprintable() or character == "\n" for character in text + shown.err)
    assert text


def test_an_interrupt_exits_with_130(add: str, monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hloexec.language.loading.load_with_values", interrupt)
    assert cli.complaint("run", add, code=130).strip() == "interrupted"


@pytest.mark.parametrize(("cause", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)], ids=str)
def test_a_signal_while_a_class_is_made_ends_the_command(
    cause: BaseException, code: int, add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise RuntimeError("Error calling __set_name__") from cause  # as Python 3.11 does

    monkeypatch.setattr("hloexec.language.loading.load_with_values", interrupted)
    try:
        found = main(["run", add])
    except SystemExit as stop:
        found = int(str(stop.code))
    assert found == code


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(add: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m hloexec ops | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.stdout


def test_without_a_terminal_there_are_no_colours(add: str) -> None:
    ran = run_here(["run", add], ROOT, TERM="xterm-256color")
    assert "\x1b" not in ran.out and "result" in ran.out


def test_the_version_is_said(cli: CommandLine) -> None:
    assert cli("--version").startswith("hloexec ")


@pytest.mark.parametrize("name", ["", "run", "info", "memory", "fmt", "ops"])
def test_help_is_there(name: str, cli: CommandLine) -> None:
    assert "Usage: hloexec" in cli(*([name] if name else []), "--help")


def test_importing_the_package_imports_neither_click_nor_rich() -> None:
    code = "import sys, hloexec, hloexec.engine.exec; print(any(name in sys.modules for name in ('click', 'rich')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
