"""Files that are none, and files that hurt: refused in a sentence, at once, with nothing written; and options given twice."""

import gzip
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hloexec.cli import main
from tests.command_line import CommandLine

ROOT = Path(__file__).parents[2]
GOOD = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n  ROOT y = f32[4] add(x, x) }\n"
X = np.arange(4, dtype=np.float32)
NAMED_PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.fixture(autouse=True)
def _files(empty_folder: Path) -> None:
    Path("good.hlo").write_text(GOOD)
    np.savez("x.npz", X)
    np.savez("y.npz", X + X)


def _refused(cli: CommandLine, message: str, *arguments: str) -> None:
    """The command exits with 2 within seconds, says one sentence, prints nothing else and writes nothing."""
    before = sorted(Path().rglob("*"))
    start = time.process_time()
    printed = cli.ended(*arguments, code=2)
    assert time.process_time() - start < 5  # of the processor, where it takes a second or less
    assert message in printed.err
    assert printed.err.lower().count("error:") == 1 and not printed.out
    assert sorted(Path().rglob("*")) == before


def _odd(kind: str) -> str:
    """A path that is no regular file, and why."""
    path = Path(f"odd.{kind}")
    if kind == "pipe":
        os.mkfifo(path)
        return "it is a named pipe, not a file"
    if kind == "socket":
        socket.socket(socket.AF_UNIX).bind(os.fspath(path))
        return "it is a socket, not a file"
    if kind == "link":
        path.symlink_to("nowhere")
        return "it is a link to a file that does not exist"
    path.symlink_to("/dev/zero")
    return "it is a device, not a file"


@NAMED_PIPES
@pytest.mark.parametrize("kind", "pipe socket link device".split())
@pytest.mark.parametrize(
    "command",
    [
        "run {}",
        "run good.hlo --inputs {}",
        "run good.hlo --input x={}",
        "run good.hlo --global-inputs {}",
        "info {}",
        "fmt {}",
        "diff good.hlo {}",
        "compare {} x.npz",
        "compare x.npz {}",
        "golden record good.hlo --expected {} -o goldens",
        "explain good.hlo --expected {}",
        "minify good.hlo --expected {} -o smaller",
        "memory good.hlo --assignment {}",
        "graph good.hlo --values {}",
        "step good.hlo --script {}",
    ],
)
def test_what_is_no_regular_file_is_not_read(command: str, kind: str, cli: CommandLine) -> None:
    message = _odd(kind)
    _refused(cli, message, *command.format(f"odd.{kind}").split())


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="the shell needs /dev/fd")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        "fmt <(gzip -c good.hlo)",
        "run good.hlo --seed 1 --against <(cat good.hlo)",
        "fmt /dev/stdin < good.hlo",
        "fmt - < good.hlo",
        "info <(cat good.hlo)",
    ],
)
def test_standard_input_and_what_a_shell_hands_over_is_read(words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    line = f"{sys.executable} -m hloexec {words}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, env=environment, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr


@NAMED_PIPES
def test_folders_are_walked_past_what_is_no_file(cli: CommandLine) -> None:
    Path("modules").mkdir()
    Path("modules/good.hlo").write_text(GOOD)
    np.savez("modules/good.inputs.npz", X)
    np.savez("modules/good.expected.npz", X + X)
    os.mkfifo("modules/waits.txt")
    os.mkfifo("modules/waits.inputs.npz")
    Path("modules/gone.hlo").symlink_to("nowhere")
    Path("modules/notes.md").symlink_to("nowhere")  # which nobody asks for
    printed = cli.ended("triage modules --no-minify")
    assert "1 module: 1 agree" in printed.out
    assert printed.err.count("is passed over") == 3 and "notes" not in printed.err
    assert "gone.hlo' is passed over: it is a link to a file that does not exist" in printed.err


def test_all_that_lack_a_partner_are_named(cli: CommandLine) -> None:
    for folder, names in (("a", "xyz"), ("b", "x")):
        Path(folder).mkdir()
        for name in names:
            Path(folder, f"{name}.hlo").write_text(GOOD)
    _refused(cli, "y, z are in 'a', but lack their partners in 'b'", "triage", "a", "b")


def _bomb(path: str, layers: int) -> None:
    """Zeros, of which 300 MiB are packed once or twice."""
    data = gzip.compress(bytes(1 << 20), 9) * 300
    for _ in range(layers - 1):
        data = gzip.compress(data, 9)
    Path(path).write_bytes(data)


def _packed(path: str, sizes: Sequence[int]) -> None:
    """A .npz of arrays of f32 zeros, of so many MiB each."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, size in enumerate(sizes):
            with archive.open(f"{number}.npy", "w", force_zip64=True) as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": (size << 18,)}
                np.lib.format.write_array_header_1_0(file, header)
                for _ in range(size):
                    file.write(bytes(1 << 20))


@pytest.mark.parametrize("command", ["info bomb.npz", "run good.hlo --inputs bomb.npz", "compare bomb.npz bomb.npz"])
@pytest.mark.parametrize("sizes", [(300,), (100, 100, 100)], ids=["one", "several"])
def test_arrays_that_unpack_to_far_more_are_refused(sizes: Sequence[int], command: str, cli: CommandLine) -> None:
    _packed("bomb.npz", sizes)
    _refused(cli, "bomb.npz holds more than 268.4 MB, 50 times what it holds packed", *command.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("nan missing.hlo --html x.pdf", "'x.pdf' ends like a file of another format: a page of HTML is written"),
        ("diff missing.hlo missing.hlo --html x.PNG", "so name it 'x.html'"),
        ("fmt missing.hlo -o x.pb", "'x.pb' ends like a file of another format: HLO text is written"),
        ("shrink missing.hlo --max-bytes 1000 -o x.npz", "so name it 'x.hlo'"),
        ("precision missing.hlo --tolerance 1e-2 -o x.json", "so name it 'x.hlo'"),
    ],
)
def test_names_that_end_like_another_format_are_refused_before_anything_runs(
    command: str, message: str, cli: CommandLine
) -> None:
    # The module is missing: what is said of its name would come first if it were read first.
    _refused(cli, message, *command.split())


@pytest.mark.parametrize("name", "x.hlo x.txt x x.v2 x.after_opt".split())
def test_other_endings_of_a_text_are_written(name: str) -> None:
    assert main(["fmt", "good.hlo", "-o", name]) == 0 and Path(name).read_text().startswith("HloModule")


def test_small_arrays_may_be_packed_as_they_like(cli: CommandLine) -> None:
    _packed("zeros.npz", (20, 20))
    assert "f32[5242880]" in cli("info zeros.npz")


@pytest.mark.parametrize("end", [")", ", s32[])", ""])
def test_tuples_nested_too_deep_are_refused_with_their_place(end: str, cli: CommandLine) -> None:
    text = "HloModule m\nENTRY e {\n  ROOT p = " + "(" * 100_000 + "f32[]" + end * 100_000 + " parameter(0)\n}\n"
    Path("deep.hlo").write_text(text)
    # Eleven characters stand before the first of the tuples.
    _refused(cli, "deep.hlo:3:10012: a tuple shape nests deeper than 10000 tuples", "info", "deep.hlo")


@pytest.mark.slow_cases("once-run bomb.gz", "twice-diff good.hlo bomb.gz", "once-diff good.hlo bomb.gz")
@pytest.mark.parametrize("command", ["run bomb.gz", "diff good.hlo bomb.gz"])
@pytest.mark.parametrize("layers", [1, 2], ids=["once", "twice"])
def test_a_bomb_is_refused_before_it_is_unpacked(layers: int, command: str, cli: CommandLine) -> None:
    _bomb("bomb.gz", layers)
    _refused(cli, "bomb.gz holds more than 268.4 MB, 50 times what it holds packed", *command.split())


def test_a_small_file_of_many_zeros_is_none() -> None:
    text = f"HloModule m\nENTRY e {{ ROOT c = s8[200000] constant({{{', '.join(['0'] * 200000)}}}) }}\n"
    Path("zeros.gz").write_bytes(gzip.compress(text.encode(), 9))
    assert len(Path("zeros.gz").read_bytes()) * 300 < len(text)
    assert main(["info", "zeros.gz"]) == 0


def test_a_file_that_is_larger_than_any_module_is_not_read(cli: CommandLine) -> None:
    with open("sparse.hlo", "wb") as file:
        file.truncate(20 << 30)
    _refused(cli, "sparse.hlo holds more than 4.3 GB, more than any module", "run", "sparse.hlo")


def test_what_a_result_alone_takes_is_listed(cli: CommandLine) -> None:
    shape = f"f32[{(1 << 63) - 1},{(1 << 63) - 1}]"
    Path("huge.hlo").write_text(f"HloModule m\nENTRY e {{ ROOT p = {shape} parameter(0) }}\n")
    error = cli.complaint("run huge.hlo", code=1)
    assert "would take about 3.4e+20 EB" in error
    assert f"The largest buffers then:\n  3.4e+20 EB  {shape} of the result, a copy\n" in error


def test_arrays_that_do_not_fit_into_memory_are_refused(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("0.npy", "w") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 25,)}
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
        for _ in range(128):
            file.write(bytes(1 << 20))
    monkeypatch.setattr("hloexec.language.literals.npz.memory_limit_bytes", lambda _: 1 << 26)
    for command in ("info bomb.npz", "compare bomb.npz bomb.npz", "run good.hlo --global-inputs bomb.npz"):
        _refused(cli, "does not fit into memory", *command.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run good.hlo --numerics tf32 --numerics bf16", "--numerics is given twice, as tf32 and bf16"),
        ("run good.hlo --seed 1 --save a.npz --seed=2", "--seed is given twice, as 1 and 2"),
        ("golden record good.hlo -o a --output b", "--output is given twice, as a and b"),
        ("triage . --jobs 1 --jobs 2", "--jobs is given twice, as 1 and 2"),
        ("triage . --minify --no-minify", "--minify and --no-minify cannot be combined"),
        ("info good.hlo --no-such", "No such option"),
    ],
)
def test_an_option_of_one_value_is_given_one(command: str, message: str, cli: CommandLine) -> None:
    _refused(cli, message, *command.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run good.hlo --inputs x.npz --distribution edges", "each parameter of e is given a value"),
        ("nan good.hlo --input x=x.npy --distribution special", "each parameter of e is given a value"),
        ("diff good.hlo good.hlo --inputs x.npz --distribution large", "each parameter of e is given a value"),
        ("run good.hlo --global-inputs x.npz --distribution ones", "--global-inputs gives them all"),
    ],
)
def test_a_distribution_that_no_input_is_drawn_from_is_refused(command: str, message: str, cli: CommandLine) -> None:
    np.save("x.npy", X)
    _refused(cli, f"is for random inputs, but {message}", *command.split())


@pytest.mark.parametrize("command", ["run none.hlo --distribution edges", "run good.hlo --distribution normal"])
def test_a_distribution_may_be_given_where_it_contradicts_nothing(command: str) -> None:
    Path("none.hlo").write_text("HloModule m\nENTRY e { ROOT c = f32[] constant(1) }\n")
    assert main(command.split()) == 0


@pytest.mark.parametrize(
    "command",
    [
        "run good.hlo --numerics tf32 --numerics tf32",
        "run good.hlo --json --json",
        "run good.hlo --range x=0:1 --print x --print y",
        "run --seed 1 -- good.hlo",
    ],
)
def test_the_same_value_and_options_of_several_values_may_stand_twice(command: str) -> None:
    assert main(command.split()) == 0


@pytest.mark.parametrize(
    ("values", "code"),
    [({"y": 1, "\ud800": 2}, 0), ({"\udc80": 1}, 2), ({"y": "\ud800"}, 2), ({"schema": "hloexec.\udfff"}, 2)],
)
@pytest.mark.sampled(8)
@pytest.mark.parametrize("form", ["--json", "-o=graph.dot"])
def test_lone_surrogates_in_json_are_no_traceback(values: dict[str, object], code: int, form: str) -> None:
    Path("values.json").write_text(json.dumps(values))
    line = [sys.executable, "-m", "hloexec", "graph", "good.hlo", "--values", "values.json", *form.split("=")]
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT), "PYTHONUTF8": "1"}
    done = subprocess.run(line, capture_output=True, env=environment, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr.decode()
    if form == "--json" and (code or done.stdout.startswith(b"{")):
        json.loads(done.stdout.decode())


def test_lone_surrogates_in_a_config_are_no_traceback(cli: CommandLine) -> None:
    config = r'{"alpha_real": 1, "epilogue": "\ud800", "\udc80": 1}'
    call = f'custom-call(x, x), custom_call_target="__cublas$gemm", backend_config={config}'
    Path("gemm.hlo").write_text(f"HloModule m\nENTRY e {{ x = f32[4,4] parameter(0)\n  ROOT y = f32[4,4] {call} }}\n")
    printed = cli.ended("run gemm.hlo --json", code=1)
    printed.err.encode()
    assert json.loads(printed.out.encode())["error"]["kind"] == "unsupported"
