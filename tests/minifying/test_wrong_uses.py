"""Wrong uses of `hloexec minify`: each is refused with exit code 2 and a message that says what to do."""

from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.tools.minifying import Minified
from tests.command_line import CommandLine

MODULE = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  sum = f32[4] add(x, y)
  ROOT result = f32[4] tanh(sum)
}
"""


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    Path("m.hlo").write_text(MODULE)
    Path("less.hlo").write_text(MODULE.replace("add(x, y)", "subtract(x, y)"))
    Path("two.hlo").write_text(MODULE.replace("f32[4]", "f32[5]"))
    Path("many.hlo").write_text(MODULE.replace("HloModule m", "HloModule m, num_partitions=2"))
    Path("unknown.hlo").write_text(MODULE.replace("tanh(sum)", 'custom-call(sum), custom_call_target="nobody"'))
    Path("broken.hlo").write_text("HloModule m\nENTRY e {\n")
    Path("full").mkdir()
    Path("full/file").write_text("")
    x = np.ones(4, np.float32)
    hloexec.literals.save("right.npz", hloexec.run(hloexec.parse(MODULE), x, x))
    hloexec.literals.save("ones.npz", (x, x))
    hloexec.literals.save("bad.npz", (x * np.nan, x))
    hloexec.literals.save("short.npz", x[:3])
    return empty_folder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("m.hlo", "say what the failure is: give one of --check, --nan,"),
        ("m.hlo --nan --against tf32", "not --nan and --against at once"),
        ("m.hlo --nan", "makes no NaN or infinity that reaches a result"),
        ("m.hlo --nan --inputs bad.npz", "but --nan is about those that a module makes"),
        ("m.hlo --nan --says x", "--says is about a --check"),
        ("m.hlo --nan --jobs 2", "--jobs is about a --check"),
        ("m.hlo --nan --executor processes:2", "--executor is about a --check"),
        ("m.hlo --check true --executor nobody", "--executor 'nobody' is none of processes:N, dask:ADDRESS"),
        ("m.hlo --check true --executor processes:2 --jobs 2", "--jobs are processes of this machine; leave it out"),
        ("m.hlo --nan --outcome crash", "--outcome is about a --check"),
        ("m.hlo --check", "requires an argument"),
        ("m.hlo --check ''", "--check is empty"),
        ("m.hlo --check no-such-program", "--check names 'no-such-program', but there is no such program"),
        ('m.hlo --check "grep \'x"', "cannot be split into words"),
        ("m.hlo --check false", "must exit with 0 on the given module, but it exited with 1; --outcome says"),
        ("m.hlo --check true --outcome crash", "must crash on the given module, but it exited with 0"),
        ("m.hlo --check true --outcome maybe", "'maybe' is not one of"),
        ("m.hlo --check true --says thing", "--says is 'thing', which the command does not print"),
        ("m.hlo --check true --jobs 0", "0 is not in the range"),
        ("m.hlo --check true", "ends likewise on a module that only hands on its parameter"),
        (
            "m.hlo --check 'sh -c \"echo no file >&2; exit 3\"' --outcome fail",
            "parameter; the last that it printed: no file",
        ),
        ("m.hlo --check 'tail -f' --check-timeout 0.3", "but it did not end in time"),
        ("m.hlo --check true --budget 0", "range"),
        ("m.hlo --against nobody", "nobody"),
        ("m.hlo --against less.hlo", "--differs-from compares with a module"),
        ("m.hlo --differs-from missing.hlo", "cannot read missing.hlo"),
        ("m.hlo --differs-from m.hlo", "the results of m are as they should be (equal)"),
        ("m.hlo --differs-from right.npz", "give it as --expected"),
        ("m.hlo --differs-from two.hlo", "parameter"),
        ("m.hlo --expected right.npz --inputs ones.npz", "as they should be"),
        ("m.hlo --expected short.npz", "has dimensions [3], but the result has [4]"),
        ("many.hlo --expected right.npz", "one device"),
        ("unknown.hlo --nan", "nobody"),
        ("broken.hlo --nan", "broken.hlo"),
        ("m.hlo --differs-from less.hlo -o full", "is not empty"),
        ("m.hlo --differs-from less.hlo --inputs right.npz", "parameter"),
    ],
)
def test_a_wrong_use_says_what_is_wrong(line: str, message: str, cli: CommandLine) -> None:
    import shlex

    printed = cli.ended("minify", *shlex.split(line), code=2)
    assert message in " ".join(printed.err.split()), printed.err
    assert not printed.out


def test_the_record_is_of_its_schema(cli: CommandLine) -> None:

    record = cli.record("minify m.hlo --differs-from less.hlo -o small")
    assert record["instruction_count"] == 1 and record["is_confirmed"]
    assert Path("small/module.hlo").read_text() == record["hlo_text"]


def test_what_cannot_be_written_is_printed(monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    def refuse(found: Minified, folder: str) -> None:
        raise hloexec.InputError(f"cannot write {folder!r}: No space left on device")

    monkeypatch.setattr(Minified, "save", refuse)
    said = cli.ended("minify m.hlo --differs-from less.hlo -o new", code=2)
    assert "No space left" in said.err
    assert hloexec.parse(said.out).entry.root.opcode == "add"
