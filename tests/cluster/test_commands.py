"""Commands on a module for eight devices under mpiexec: what they report, and write, is what one process does."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec import literals
from hloexec.engine.exec.lockstep import serving
from hloexec.engine.exec.lockstep.parcels import Parcel
from tests.cluster.test_mpi import ENDLESS, ENDLESS_NAME, HLOEXEC, ROOT, alone, content, ended, started
from tests.cluster.test_mpi import pytestmark as pytestmark
from tests.devices.test_random_control_flow import text_of

EIGHT = """HloModule eight, replica_count=8
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
ENTRY main {
  x = f32[8,16] parameter(0)
  id = u32[] replica-id()
  five = u32[] constant(5)
  is_five = pred[] compare(id, five), direction=EQ
  one = f32[] constant(1)
  planted = f32[] constant(1)
  sign = f32[] select(is_five, planted, one)
  signs = f32[8,16] broadcast(sign), dimensions={}
  square = f32[8,16] multiply(x, x)
  signed = f32[8,16] multiply(square, signs)
  root = f32[8,16] sqrt(signed)
  product = f32[8,8] dot(root, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  sum = f32[8,8] all-reduce(product), replica_groups={}, to_apply=add
  ROOT result = (f32[8,8], f32[8,16]) tuple(sum, root)
}
"""
WAYS = [
    ("sum", "teams", 0, True),
    ("loop", ("team", 1), [("mix",), ("sum", "teams", 1, False)]),
    ("if", ("team below", 2), [("call", [("add", 3)])], [("rotate", "teams"), ("mix",)]),
    ("transfer", "teams"),
]
"""Devices part in a loop and a branch, and meet again."""
DEADLOCK = [*WAYS, ("if", ("device below", 3), [("sum", "all", 0, False)], [("mix",)])]
NUMBERS = (1, 2, 3)
DIFFERENT = "--different-inputs"
LINES = [
    f"nan bad.hlo {DIFFERENT}",
    f"nan deadlock.hlo {DIFFERENT}",
    f"run bad.hlo {DIFFERENT}",
    "run deadlock.hlo",
    f"nan good.hlo {DIFFERENT} --also cancellation",
    f"nan bad.hlo {DIFFERENT} --first",
    "nan bad.hlo",
    *(f"trace {module}.hlo {DIFFERENT} -o {module}.ranksN" for module in ("bad", "ways", "deadlock")),
    "trace good.hlo --select dot -o some.ranksN",
    *(f"diff good.hlo {other}.hlo {DIFFERENT}" for other in ("wrong", "bad")),
    "diff ways.hlo deadlock.hlo",
    f"golden record good.hlo {DIFFERENT} -o goldens.ranksN",
    f"golden record deadlock.hlo {DIFFERENT} -o goldens.ranksN",
    "golden check goldens.ranksN",
    "golden check goldens.ranksN --module wrong.hlo",
    "compare good.npz wrong.npz --module good.hlo --inputs inputs.npz",
    f"run good.hlo {DIFFERENT} --print sum --against wrong.hlo",
]
WATCHING = ("nan", "trace", "diff")


def write_modules(folder: Path) -> None:
    modules = {"good": EIGHT} | {
        name: EIGHT.replace("planted = f32[] constant(1)", f"planted = f32[] constant({number})")
        for name, number in (("bad", -1), ("wrong", 2))
    }
    modules |= {name: text_of(list(nodes), 8) for name, nodes in (("ways", WAYS), ("deadlock", DEADLOCK))}
    for name, text in modules.items():
        (folder / f"{name}.hlo").write_text(text)
    inputs = hloexec.random_inputs(hloexec.parse(EIGHT))
    literals.save(folder / "inputs.npz", tuple(inputs))
    for name in ("good", "wrong"):
        outputs = hloexec.run_devices(hloexec.parse(modules[name]), inputs)
        literals.save(folder / f"{name}.npz", tuple(outputs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands have written, and what came of them."""
    folder = tmp_path_factory.mktemp("commands")
    write_modules(folder)
    (folder / "lines").write_text(json.dumps([line.split() for line in LINES]))
    for number in NUMBERS:
        script = [sys.executable, str(ROOT / "tests/cluster/commands.py"), str(folder / "lines")]
        code, output, errors = ended(started(number, script, folder))
        assert code == 0, output + errors
    return folder


def outcomes(folder: Path, number: int) -> list[tuple[int, str, int]]:
    return [(code, plain(text), count) for code, text, count in json.loads((folder / f"lines.{number}").read_text())]


def plain(text: str) -> str:
    """A text without times, and without what the ranks of a run have allocated."""
    return re.sub(r"  [0-9.]+ m?s$|^ran in .*|\"seconds\": [^,]*", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("number", NUMBERS[1:])
@pytest.mark.parametrize("place", range(len(LINES)), ids=[line.replace(" ", "_") for line in LINES])
def test_rank_0_reports_what_one_process_does(folder: Path, place: int, number: int) -> None:
    (code, text, _), (own_code, own_text, count) = outcomes(folder, 1)[place], outcomes(folder, number)[place]
    assert (own_code, own_text) == (code, text)
    assert text
    if LINES[place].startswith(WATCHING):
        assert count > 10


def test_the_commands_find_what_was_planted(folder: Path) -> None:
    texts = {line: text for line, (_, text, _) in zip(LINES, outcomes(folder, 3), strict=True)}
    assert re.search(r"root.*on device 5|device 5.*root", texts[f"nan bad.hlo {DIFFERENT}"], re.DOTALL)
    assert texts[f"diff good.hlo wrong.hlo {DIFFERENT}"].startswith("%sign is to blame: 1 of 1 element off")
    assert "--device 5" in texts[f"diff good.hlo wrong.hlo {DIFFERENT}"]
    for line in (f"nan deadlock.hlo {DIFFERENT}", f"trace deadlock.hlo {DIFFERENT} -o deadlock.ranksN"):
        assert texts[line].startswith(
            "error: no device can go on:\n  devices 0, 1, 2 wait for devices 3, 4, 5, 6, 7 at"
        ), texts[line]


@pytest.mark.parametrize("number", NUMBERS[1:])
def test_rank_0_writes_what_one_process_does(folder: Path, number: int) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and "ranks1" in str(path)]
    assert len(files) >= 4 * 3 + 5
    for path in files:
        own = Path(str(path).replace("ranks1", f"ranks{number}"))
        if path.suffix == ".jsonl":
            assert plain(own.read_text()) == plain(path.read_text())
        else:
            assert own.read_bytes() == path.read_bytes()


WRONG = [
    ("nan missing.hlo", "cannot read"),
    ("nan bad.hlo --replicas 4 --inputs bad.hlo", "'bad.hlo' holds no values"),
    ("nan bad.hlo --share 0.5", "--share applies to --also"),
    ("trace bad.hlo -o .", "is not empty"),
    ("trace bad.hlo -o new --select nothing", "nothing"),
    ("diff good.hlo", "give the module to compare it with"),
    ("golden record good.hlo -o new --elided missing.npz", "missing.npz"),
    ("golden check missing", "there is no folder 'missing'"),
    ("compare good.npz missing.npz", "cannot read 'missing.npz'"),
    ("compare good.npz wrong.npz --inputs inputs.npz", "--inputs needs --module"),
    ("nan bad.hlo --custom-call mine=missing:call", "missing:call cannot be imported"),
    ("nan bad.hlo --memory-limit 10", "10"),
]
"""Of these the last line says what is wrong."""


def test_a_wrong_use_is_one_clear_sentence(tmp_path: Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "lines").write_text(json.dumps([line.split() for line, _ in WRONG]))
    script = [sys.executable, str(ROOT / "tests/cluster/commands.py"), str(tmp_path / "lines")]
    code, output, errors = ended(started(2, script, tmp_path))
    assert code == 0, output + errors
    for (line, message), (code, text, _) in zip(WRONG, outcomes(tmp_path, 2), strict=True):
        assert code in (1, 2) and message in text and text.count("rror: ") == 1, (line, code, text)
    assert not (tmp_path / "new").exists()


def test_a_command_of_its_own_process_says_as_much(tmp_path: Path) -> None:
    write_modules(tmp_path)
    words = ["nan", "bad.hlo", DIFFERENT]
    expected = alone(*words, folder=tmp_path)
    code, output, errors = ended(started(3, [*HLOEXEC, *words], tmp_path))
    assert (code, output + errors) == (1, expected)


def test_of_a_file_that_is_mapped_the_place_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    values = (
        np.arange(1 << 19, dtype=np.float32).reshape(512, 1024),
        np.float32([1, 2]),
        np.ones((9, 1 << 17), np.int8),
    )
    literals.save(path, values)
    parcel = Parcel()
    sent = [serving._sent_leaf(parcel, value) for value in literals.load(path)]
    assert [entry[0] for entry in (sent[0], sent[2])] == [str(path)] * 2 and sent[1] == 0
    assert [array.nbytes for array in parcel.arrays] == [8]
    assert serving._sent_leaf(Parcel(), literals.load(path)[0], has_files=False) == 0
    for value, entry in zip(values, json.loads(json.dumps(sent)), strict=True):
        arriving: Any = SimpleNamespace(arrays=parcel.arrays)
        array = serving._leaf(arriving, entry)
        assert (array.dtype, array.shape, array.tobytes()) == (value.dtype, value.shape, value.tobytes())


def test_ranks_that_are_interrupted_end_and_say_so_once(tmp_path: Path) -> None:
    (tmp_path / ENDLESS_NAME).write_text(ENDLESS)
    process = started(3, [*HLOEXEC, "trace", ENDLESS_NAME, DIFFERENT, "-o", "endless"], tmp_path)
    events = tmp_path / "endless" / "events.jsonl"
    while not events.exists() or not events.stat().st_size:
        assert process.poll() is None
        time.sleep(0.1)
    for path in Path("/proc").glob("[0-9]*"):
        if b"PMI_RANK=" in content(path / "environ") and ENDLESS_NAME.encode() in content(path / "cmdline"):
            os.kill(int(path.name), signal.SIGINT)
    code, output, errors = ended(process, 60)
    assert code != 0 and (output + errors).count("interrupted") == 1, output + errors
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if ENDLESS_NAME.encode() in content(path)]
