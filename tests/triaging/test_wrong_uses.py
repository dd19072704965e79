"""Wrong uses of `hloexec triage`: each is refused before anything runs, with exit code 2 and what to do."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from tests.command_line import CommandLine

MODULE = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x, x) }\n"


def _write(folder: str, *names: str) -> None:
    for name in names:
        Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        Path(folder, name).write_text(MODULE)


@pytest.fixture(autouse=True)
def _folder(empty_folder: Path) -> None:
    _write("pairs", "a.before.hlo", "a.after.hlo")
    _write("single", "a.hlo")
    _write("widow", "a.before.hlo", "a.after.hlo", "deep/b.before.hlo")
    _write("twice", "a.hlo", "a.mlir")
    _write("both", "a.hlo", "a.before.hlo", "a.after.hlo")
    _write("one", "a.hlo", "b.hlo")
    _write("two", "a.hlo")
    _write("other", "z.hlo")
    Path("empty").mkdir()
    Path("notes").mkdir()
    Path("notes/readme.md").write_text("nothing")
    Path("notes/log.txt").write_text("nothing")
    Path("dangling").mkdir()
    Path("dangling/a.hlo").symlink_to("nowhere.hlo")
    _write("packed", "b.hlo")
    Path("packed/a.txt.gz").write_bytes(b"\x1f\x8bnonsense")
    _write("orphans", "a.before.hlo", "a.after.hlo")
    np.savez("orphans/b.expected.npz", np.ones(4, np.float32))
    _write("recorded", "a.before.hlo", "a.after.hlo")
    np.savez("recorded/a.inputs.npz", np.ones(4, np.float32))
    Path("used").mkdir()
    Path("used/letter.txt").write_text("mine")
    settings = {
        "against": None, "distribution": "normal", "elided": "zeros", "memory": 1 << 32, "numerics": "reference", "seed": 0, "timeout": 120.0,
        "unknown": "error",
    }  # fmt: skip
    known = {"schema": "hloexec.triage-folder", "hloexec": hloexec.__version__, "settings": settings}
    for name, record in (
        ("seeded", known | {"settings": settings | {"seed": 7}}),
        ("older", known | {"hloexec": "0.0.1"}),
        ("strange", {"schema": "something else"}),
        ("listed", ["nothing"]),
        ("kept", known),
    ):
        Path(name).mkdir()
        Path(name, "triage.json").write_text(json.dumps(record))
    Path("damaged").mkdir()
    Path("damaged/triage.json").write_text('{"schema": ')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("missing", "cannot read 'missing': there is no such folder"),
        ("single/a.hlo", "cannot read 'single/a.hlo': it is a file, not a folder"),
        ("empty", "there is no module in 'empty'"),
        ("notes", "there is no module in 'notes'"),
        ("pairs missing", "cannot read 'missing': there is no such folder"),
        ("pairs pairs", "the same folder"),
        ("widow", "lacks its partner: there is no deep/b.after.hlo"),
        ("one two", "b is in 'one', but lacks its partner in 'two'"),
        ("two one", "b is in 'one', but lacks its partner in 'two'"),
        ("two other", "lacks its partner"),
        ("twice --against tf32", "have the same name, a"),
        ("both --against tf32", "there are both a pair and a module of the name a"),
        ("orphans", "b.expected.npz has no module beside it"),
        ("dangling --against tf32", "'dangling/a.hlo' is passed over: it is a link to a file that does not exist"),
        ("packed --against tf32", "cannot read 'packed/a.txt.gz'"),
        ("single", "a has nothing to be compared with"),
        ("single --against nobody", "nobody"),
        ("single --against reference", "nothing could differ"),
        ("pairs --against tf32", "each module has something else to be compared with"),
        ("pairs --numerics nobody", "nobody"),
        ("pairs --select 'b*'", "no pattern that fits a module; there are a"),
        ("pairs --jobs 0", "0 is not in the range"),
        ("pairs --timeout 0", "0 is not in the range"),
        ("pairs --memory much", "'much' is not a number of bytes"),
        ("pairs --seed -1", "-1 is not in the range"),
        ("pairs --distribution odd", "'odd' is not one of 'normal', 'uniform'"),
        ("recorded --distribution special", "each module has its inputs beside it"),
        ("pairs -o kept --distribution large", "results of other options: distribution was 'normal'"),
        ("pairs -o pairs", "lies in 'pairs'"),
        ("pairs -o pairs/found", "lies in 'pairs'"),
        ("pairs -o ''", "is empty"),
        ("pairs -o single/a.hlo", "is a file, not a folder"),
        ("pairs -o used", "'used' is not empty"),
        ("pairs -o seeded", "results of other options: seed was 7"),
        ("pairs -o older", "is of hloexec 0.0.1"),
        ("pairs -o strange", "no file of a triage"),
        ("pairs -o listed", "no file of a triage"),
        ("pairs -o damaged", "is damaged"),
        ("", "Missing argument"),
    ],
)
def test_a_wrong_use_says_what_is_wrong(line: str, message: str, cli: CommandLine) -> None:
    printed = cli.ended("triage", *shlex.split(line), code=2)
    assert message in " ".join(printed.err.split()), printed.err
    assert not printed.out


def test_a_damaged_result_is_named(cli: CommandLine) -> None:
    from hloexec.tools.triaging.collecting import Settings, Store, cases_of

    settings = Settings(**json.loads(Path("kept/triage.json").read_text())["settings"])
    store = Store.opened(Path("kept"), settings)
    (case,) = cases_of(Path("pairs"), None, ())
    for text in ("{", "[]", "{}", '{"module": {"name": "a"}, "timeout": 1, "memory": 1}'):
        (store.modules / f"{store.key(case)}.json").write_text(text)
        assert "remove it to have it made again" in " ".join(cli.complaint("triage pairs -o kept").split())


def test_a_refused_call_writes_nothing() -> None:
    before = sorted(Path().rglob("*"))
    assert main("triage widow -o found".split()) == 2
    assert sorted(Path().rglob("*")) == before
