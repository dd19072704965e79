"""The first of several versions whose result differs from that of the one before it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from tests.bisecting.test_passes import WINDOWS
from tests.command_line import CommandLine
from tests.text.building import op

TEXT = op("f32[4] multiply(x, x)", x="f32[4]")
VERSIONS = """
import numpy as np

def right(text, inputs): return inputs[0][0] ** 2
def also_right(text, inputs): return right(text, inputs) * np.float32(1 + 6e-8)
def wrong(text, inputs): return right(text, inputs) * np.float32(1.01)
def as_wrong(text, inputs): return wrong(text, inputs) * np.float32(1 + 6e-8)
def otherwise(text, inputs): return right(text, inputs) * np.float32(1.02)
def refuses(text, inputs): raise ValueError("there is no such unit")
"""
JAXLIBS = os.environ.get("HLOEXEC_JAXLIBS")


@pytest.fixture(autouse=True)
def _versions(empty_folder: Path) -> None:
    Path("versions.py").write_text(VERSIONS)
    Path("m.hlo").write_text(TEXT)


def specs(*names: str) -> list[str]:
    """Each of a module of its own, as one is not given twice."""
    for number, _ in enumerate(names):
        Path(f"v{number}.py").write_text(VERSIONS)
    return [f"call:v{number}:{name}" for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "tried", "first"),
    [
        ("right wrong", 2, 1),
        ("right also_right right wrong wrong wrong wrong wrong", 5, 3),
        ("right right right right right right right wrong", 5, 7),
        ("wrong as_wrong right", 3, 2),
        ("wrong as_wrong otherwise otherwise", 4, 2),
        ("right right refuses", 3, 2),
        ("refuses refuses right", 3, 2),
        ("right wrong right", 2, None),
        ("refuses refuses", 2, None),
    ],
)
def test_the_first_that_differs_is_found_by_halves(names: str, tried: int, first: int | None) -> None:
    versions = specs(*names.split())
    result = hloexec.bisect_versions(hloexec.parse(TEXT), versions=versions)
    assert result.first == (None if first is None else versions[first])
    assert len(result.trials) <= tried and result.is_monotone
    if first is not None:
        assert result.changes[0].reason.endswith("gives no optimized module")


def test_all_of_them_show_each_change_and_what_comes_back() -> None:
    versions = specs("right", "wrong", "wrong", "right", "otherwise")
    result = hloexec.bisect_versions(hloexec.parse(TEXT), versions=versions, try_all=True)
    assert [change.after for change in result.changes] == [versions[1], versions[3], versions[4]]
    assert not result.is_monotone
    assert [trial.outcome for trial in result.trials] == ["equal", "different", "different", "equal", "different"]


def test_the_command_says_what_came_of_each(cli: CommandLine) -> None:
    line = f"bisect m.hlo --versions {','.join(specs('right', 'refuses', 'right'))}"
    assert cli(line).startswith("no change between the versions that were tried; --all tries those between them\n")
    text = cli(f"{line} --all", code=1)
    assert text.startswith(
        "call:v1:refuses is the first that differs from the one before it, and 1 other change after it\n"
    )
    assert "more than one change" in text and "cannot run m: there is no such unit" in text
    record = cli.record(f"{line} --all", code=1)
    assert record["first"] == "call:v1:refuses" and len(record["changes"]) == 2


def test_optimized_modules_of_neighbours_are_compared(cli: CommandLine) -> None:
    pytest.importorskip("jax")
    Path("w.hlo").write_text(WINDOWS)
    np.savez("w.npz", x=np.arange(64, dtype=np.float32))
    result = hloexec.bisect_versions(hloexec.load("w.hlo"), [np.arange(64, dtype=np.float32)], ["hloexec", "xla:cpu"])
    assert result.first == "xla:cpu" and result.changes[0].reason == "policy:reference gives no optimized module"
    result = hloexec.bisect_versions(hloexec.parse(TEXT), versions=["xla:cpu", "xla:cpu:1"])
    assert not result.changes


REDUCED = """HloModule m
most { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] maximum(a, b) }
ENTRY e { x = f32[100,50] parameter(0)
  least = f32[] constant(-inf)
  ROOT r = f32[] reduce(x, least), dimensions={0,1}, to_apply=most }
"""
SINGULAR = op("f32[4,4] triangular-solve(x, x), left_side=true, lower=true, transpose_a=NO_TRANSPOSE", x="f32[4,4]")
ROOT = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  two = f32[] constant(2)
  twos = f32[4] broadcast(two), dimensions={}
  half = f32[] constant(0.5)
  halves = f32[4] broadcast(half), dimensions={}
  square = f32[4] power(x, twos)
  ROOT y = f32[4] power(square, halves) }
"""
NANS = np.where(np.arange(5000).reshape(100, 50) == 777, np.nan, 1).astype(np.float32)


@pytest.mark.slow
@pytest.mark.skipif(not JAXLIBS, reason="HLOEXEC_JAXLIBS names no folder with environments that have jaxlib")
@pytest.mark.parametrize(
    ("text", "inputs", "first", "has_finding"),
    [
        (REDUCED, [NANS], "newest", False),
        (SINGULAR, [np.zeros((4, 4), np.float32)], "0.6.2", True),
        (ROOT, [np.array([-3, 1e30, 1, 2], np.float32)], "0.6.2", True),
        (WINDOWS, [np.arange(64, dtype=np.float32)], "0.6.2", True),
        (op("c64[4] maximum(x, y)", x="c64[4]", y="c64[4]"), None, "0.8.0", None),
        (op("f8e8m0fnu[4] convert(x)", x="f32[4]"), [np.ones(4, np.float32)], "0.6.2", None),
        (op("s4[4] popcnt(x)", x="s4[4]"), None, "0.6.2", None),
    ],
    ids="nan-drops singular root windows complex-order f8e8 popcnt".split(),
)
@pytest.mark.parametrize("try_all", [False, True])
def test_versions_of_jaxlib_that_differ(
    text: str, inputs: list[Any] | None, first: str, has_finding: bool | None, try_all: bool
) -> None:
    """With jaxlib 0.4.30, 0.6.2, 0.8.0 and 0.10.2, in folders of these names but `newest`."""
    programs = {name: f"python:{JAXLIBS}/{name}/bin/python" for name in ("0.4.30", "0.6.2", "0.8.0", "newest")}
    result = hloexec.bisect_versions(hloexec.parse(text), inputs, [*programs.values()], try_all=try_all)
    assert result.first == programs[first] and len(result.changes) == 1 and result.is_monotone
    diff = result.changes[0].diff
    assert has_finding is (None if diff is None else bool(diff.findings))
