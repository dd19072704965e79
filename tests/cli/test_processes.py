"""The command line as a process: outputs that cannot be written, signals, and several processes at once."""

import ctypes
import errno
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from hloexec.cli import main
from hloexec.cli.process import libraries_print_to_stderr
from hloexec.core.files import require_new_folder
from hloexec.tools.golden import check_golden
from tests.docs import run_here
from tests.text.building import op

ROOT = Path(__file__).parents[2]
HLOEXEC = f"{shlex.quote(sys.executable)} -m hloexec"
ENDLESS = """HloModule endless
c {
  x = s32[] parameter(0)
  ROOT l = pred[] constant(true)
}
b {
  x = s32[] parameter(0)
  o = s32[] constant(1)
  ROOT a = s32[] add(x, o)
}
ENTRY e {
  z = s32[] custom-call(), custom_call_target="begin"
  ROOT w = s32[] while(z), condition=c, body=b
}
"""
BEGIN = """
import sys
import numpy

def begin():
    print("begun", flush=True)
    return numpy.int32(0)
"""


def shell(command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """PYTHONUNBUFFERED, which would make what is printed fail earlier, is not set."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = str(ROOT)
    words = ["bash", "-c", command]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A module whose result takes more than what a pipe holds."""
    path = tmp_path / "wide.hlo"
    path.write_text(op("f32[300,300] iota(), iota_dimension=0"))
    return path


@pytest.mark.sampled(6)
@pytest.mark.parametrize("command", ["run {}", "fmt {}", "ops", "--help", "run --help", "ops --json"])
def test_a_pipe_that_nobody_reads_is_quiet_and_141(command: str, wide: Path) -> None:
    done = shell(f"{HLOEXEC} {command.format(wide.name)} | true; exit ${{PIPESTATUS[0]}}", wide.parent)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.sampled(5)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["fmt {}", "run {}", "--version", "ops --json", "run --help"])
def test_an_output_that_takes_nothing_is_an_error(command: str, wide: Path) -> None:
    done = shell(f"{HLOEXEC} {command.format(wide.name)} > /dev/full", wide.parent)
    assert (done.returncode, done.stderr) == (2, "error: cannot write the output: No space left on device\n")


def test_a_closed_output_is_an_error(wide: Path) -> None:
    done = shell(f"{HLOEXEC} run {wide.name} >&-", wide.parent)
    assert (done.returncode, done.stderr) == (2, "error: cannot write the output: standard output is closed\n")


def test_an_output_without_a_file_that_takes_nothing_is_an_error() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    messages = io.StringIO()
    with redirect_stdout(Full()), redirect_stderr(messages):
        code = main(["ops"])
    assert (code, messages.getvalue()) == (2, "error: cannot write the output: No space left on device\n")


def test_errors_that_cannot_be_shown_still_count() -> None:
    assert shell(f"{HLOEXEC} fmt missing.hlo 2>/dev/full").returncode == 2
    assert shell(f"{HLOEXEC} fmt missing.hlo 2>&-").returncode == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", b"1 replica ? 1 partition"), ("latin-1", b"1 replica \xd7 1 partition")]
)
def test_what_an_encoding_lacks_becomes_a_question_mark(encoding: str, shown: bytes, wide: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    words = [sys.executable, "-m", "hloexec", "info", str(wide)]
    assert shown in subprocess.run(words, env=environment, capture_output=True, check=True, timeout=120).stdout


def test_names_of_files_that_are_no_text_are_printed_as_they_are(tmp_path: Path) -> None:
    name = b"caf\xe9.hlo"
    try:
        (tmp_path / os.fsdecode(name)).write_text(op("f32[2] sqrt(x)", x="f32[2]"))
    except (OSError, UnicodeError):
        pytest.skip("file names are text here")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8:strict"}
    words = [sys.executable.encode(), b"-m", b"hloexec", b"golden", b"record", name, b"-o", b"."]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=True, timeout=120)
    assert b"recorded  caf\xe9.golden" in done.stdout and done.stderr == b""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")]
)
def test_signals_end_a_run_without_a_traceback(number: int, code: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text(ENDLESS)
    (tmp_path / "calls.py").write_text(BEGIN)
    options = "--custom-call begin=calls:begin --save out.npz".split()
    command = [sys.executable, "-B", "-m", "hloexec", "run", "m.hlo", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Where the tests run in the background of a shell, it has told them to ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    try:
        assert process.stdout is not None and "begun\n" in process.stdout
        time.sleep(0.1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors.lstrip()) == (code, words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls.py", "m.hlo"]


def test_ctrl_c_before_the_command_line_is_there_ends_the_process_in_silence() -> None:
    code = """
import signal, sys, types
command_line = types.ModuleType("hloexec.cli")
command_line.main = lambda: signal.getsignal(signal.SIGINT) is signal.SIG_DFL
sys.modules["hloexec.cli"] = command_line
from hloexec.__main__ import main
print("numpy" in sys.modules, main())
"""
    # Where the tests run in the background of a shell, it has told them to ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    signal.signal(signal.SIGINT, before)
    assert done.stdout == "False True\n"


def test_ctrl_c_while_numpy_is_imported_ends_the_process_in_silence(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(
        """
import os, signal, time
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt as error:
    raise ImportError("what NumPy makes of it") from error
"""
    )
    code = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv.pop())
from hloexec.__main__ import main
main()
"""
    words = [sys.executable, "-c", code, "fmt", "examples/attention.hlo", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files have names from the start on this system")
def test_of_a_killed_process_nothing_stays(tmp_path: Path) -> None:
    code = f"""
import os, signal
from hloexec.core.files import open_atomically
with open_atomically({str(tmp_path / "out")!r}) as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("command", "name", "files"),
    [
        ("trace m.hlo -o out", "out", {"trace.json", "events.jsonl", "values.npy"}),
        ("extract m.hlo --instruction root -o out", "out", {"module.hlo", "inputs.npz", "expected.npz", "origin.json"}),
    ],
)
def test_of_simultaneous_writers_of_a_folder_the_first_wins(
    command: str, name: str, files: set[str], tmp_path: Path
) -> None:
    (tmp_path / "m.hlo").write_text(op("f32[4] negate(x)", x="f32[4]"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "hloexec", *command.split()]
    running = [subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate(timeout=120)[1].decode() for process in running]
    assert sorted(process.returncode for process in running) == [0, 2, 2, 2]
    assert all(
        "process has written it" in text or "is not empty" in text or "is being written" in text
        for text in errors
        if text
    )
    assert {path.name for path in tmp_path.iterdir()} == {"m.hlo", name}
    assert {path.name for path in (tmp_path / name).iterdir()} == files


def test_a_folder_that_appears_meanwhile_is_not_taken_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dir = Path.is_dir

    def looked_at(path: Path) -> bool:
        found = is_dir(path)
        if path.name == "out":
            path.mkdir(exist_ok=True)
        return found

    monkeypatch.setattr(Path, "is_dir", looked_at)
    require_new_folder(tmp_path / "out")


@pytest.mark.sampled(6)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="files have no largest size on this system")
@pytest.mark.parametrize(
    "command",
    [
        "run m.hlo --save out.npz",
        "run m.hlo --save-inputs out.npz",
        "golden record m.hlo -o .",
        "golden record m.hlo -o . --name old --force",
        "extract m.hlo --instruction root -o out",
        "fmt m.hlo -o out.hlo",
    ],
)
def test_a_file_that_cannot_grow_is_an_error_and_leaves_all_as_it_was(command: str, tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text(op("f32[4] negate(x)", x="f32[4]"))
    assert run_here("golden record m.hlo -o . --name old".split(), tmp_path).code == 0
    if not command.startswith("fmt"):
        (tmp_path / "m.hlo").write_text(op("f32[3000] negate(x)", x="f32[3000]"))
    else:
        (tmp_path / "m.hlo").write_text(
            op("f32[4] negate(x)" + ', metadata={op_name="' + "a" * 9000 + '"}', x="f32[4]")
        )
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = shell(f"trap '' XFSZ; ulimit -f 4; {HLOEXEC} {command}", tmp_path)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert ".tmp" not in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.hlo", "old.golden"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="folders change names one after the other on this system")
def test_a_golden_that_is_recorded_again_is_there_at_every_moment(tmp_path: Path) -> None:
    """The process is killed when the folder is about to go."""
    (tmp_path / "m.hlo").write_text(op("f32[4] negate(x)", x="f32[4]"))
    assert shell(f"{HLOEXEC} golden record m.hlo -o .", tmp_path).returncode == 0
    code = """
import os, pathlib, shutil, signal
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
shutil.rmtree = killed
rename = pathlib.Path.rename
def renamed(path, target):
    rename(path, target)
    if path.name == "m.golden":
        killed()
pathlib.Path.rename = renamed
from hloexec.cli import main
main(["golden", "record", "m.hlo", "-o", ".", "--seed", "7", "--force"])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert check_golden(tmp_path / "m.golden").golden.seed == 7


@pytest.mark.slow
def test_of_simultaneous_records_the_first_wins(tmp_path: Path) -> None:
    (tmp_path / "m.hlo").write_text(op("f32[4] negate(x)", x="f32[4]"))
    command = [sys.executable, "-m", "hloexec", "golden", "record", "m.hlo", "-o", "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen([*command, "--seed", str(seed)], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        for seed in range(4)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in running]
    codes = [process.returncode for process in running]
    assert sorted(codes) == [0, 2, 2, 2]
    for code, message in zip(codes, errors, strict=True):
        assert code == 0 or "it is kept" in message or "--force" in message, message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.golden", "m.hlo"]
    assert check_golden(tmp_path / "m.golden").golden.seed == codes.index(0)


def test_what_a_c_library_prints_is_no_part_of_the_commands_output(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    with libraries_print_to_stderr():
        libc.puts(b"difficulties")
    print("result")
    written = capfd.readouterr()
    assert (written.out, written.err) == ("result\n", "difficulties\n")
