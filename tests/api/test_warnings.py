"""Warnings point at the line that called hloexec, whatever of hloexec lies between."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.engine.plan import planner
from tests.plan.test_failing_optimizations import TEXT

NEWER = "HloModule m, colour=red\nENTRY e { ROOT x = f32[2] parameter(0) }\n"
ELIDED = "ENTRY e { c = f32[4] constant({...})\n ROOT y = f32[4] negate(c) }\n"
UNKNOWN = 'ENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] custom-call(x), custom_call_target="nobody" }\n'
OUTFEED = """ENTRY e { x = f32[4] parameter(0)
  t = token[] after-all()
  ROOT o = token[] outfeed(x, t) }
"""
ADD = "ENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x, x) }\n"
ASSIGNMENT = """BufferAssignment:
allocation 0: size 16, pinned, maybe-live-out:
 value: <0 x @0> (size=16,offset=0): f32[4]{0}

Total bytes used: 16 (16B)
"""
X = np.ones(4, np.float32)


def _elided() -> hloexec.Module:
    return hloexec.parse(ELIDED)


def _file(folder: Path) -> Path:
    path = folder / "module.hlo"
    path.write_text(NEWER)
    return path


CALLS: dict[str, Callable[[Path], Any]] = {
    "parse": lambda _: hloexec.parse(NEWER),
    "load": lambda folder: hloexec.load(_file(folder)),
    "parse_buffer_assignment": lambda _: hloexec.parse_buffer_assignment(ASSIGNMENT),
    "run, elided": lambda _: hloexec.run(_elided()),
    "run_devices, elided": lambda _: hloexec.run_devices(_elided(), [[]], replicas=2),
    "run, unknown call": lambda _: hloexec.run(hloexec.parse(UNKNOWN), X, unknown="zeros"),
    "run, outfeed": lambda _: hloexec.run(hloexec.parse(OUTFEED), X),
    "trace, elided": lambda folder: hloexec.trace(_elided(), [[]], folder / "trace"),
    "find_nan, elided": lambda _: hloexec.find_nan(_elided(), [[]]),
    "extract, elided": lambda _: hloexec.extract(_elided(), [[]], "y"),
    "diff, elided": lambda _: hloexec.diff(_elided(), _elided(), []),
    "record_golden, elided": lambda folder: hloexec.record_golden(_elided(), [], folder / "m.golden"),
}
"""Calls that warn, each on a line of its own."""


@pytest.mark.parametrize("name", CALLS)
def test_a_warning_points_at_the_line_of_the_caller(tmp_path: Path, name: str) -> None:
    call = CALLS[name]
    with pytest.warns(hloexec.HloWarning) as caught:
        call(tmp_path)
    assert {(entry.filename, entry.lineno) for entry in caught} == {(__file__, call.__code__.co_firstlineno)}


def test_the_warning_of_a_trace_that_was_cut_off_points_at_the_caller(tmp_path: Path) -> None:
    class Failing:
        def on_instruction(self, event: hloexec.Event) -> None:
            if event.instruction.opcode == "add":
                raise ValueError("enough")

    with pytest.raises(hloexec.HloError):
        hloexec.trace(hloexec.parse(ADD), [[X]], tmp_path / "trace", observers=[Failing()])
    with pytest.warns(hloexec.HloWarning, match="did not finish") as caught:
        hloexec.read_trace(tmp_path / "trace")
    assert caught[0].filename == __file__


def test_the_warning_of_an_optimization_that_failed_points_at_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a fault")

    module = hloexec.parse(TEXT)
    monkeypatch.setattr(planner, "_PASSES", tuple(attrs.evolve(entry, run=fail) for entry in planner._PASSES))
    with pytest.warns(hloexec.OptimizationWarning) as caught:
        hloexec.run(module, np.ones((300, 200), np.float32))
    assert {entry.filename for entry in caught} == {__file__}


def test_a_line_warns_once_and_another_line_again() -> None:
    program = f"import hloexec\nfor _ in range(3):\n    hloexec.parse({NEWER!r})\nhloexec.parse({NEWER!r})\n"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    places = [line.split(": HloWarning")[0] for line in run.stderr.splitlines() if "HloWarning" in line]
    assert places == ["<string>:3", "<string>:4"]
