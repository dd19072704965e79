"""The choice of matrix kernels before a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hloexec.cli import kernels

WIDE = frozenset({"sse2", "avx2", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What the process was replaced by, instead of being replaced."""
    found: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda path, arguments, environment: found.append((arguments, environment)))
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    return found


@pytest.mark.parametrize(
    ("name", "flags", "is_misjudged"),
    [
        ("Haswell", WIDE, True),
        ("Zen", WIDE, True),
        ("SkylakeX", WIDE, False),
        ("Cooperlake", WIDE, False),
        ("Haswell", WIDE - {"avx512vl"}, False),
        ("", WIDE, False),
    ],
)
def test_kernels_without_avx512_are_wrong_for_a_processor_that_has_it(
    name: str, flags: frozenset[str], is_misjudged: bool
) -> None:
    assert kernels.is_misjudged(name, flags) is is_misjudged


def test_a_misjudged_processor_makes_the_command_start_over(
    started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_processor_flags", lambda: WIDE)
    monkeypatch.setattr(kernels, "_kernels", lambda: "Haswell")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "hloexec", "run", "x.hlo"])
    kernels.start_over_with_better_kernels()
    ((arguments, environment),) = started
    assert arguments == [sys.executable, "-m", "hloexec", "run", "x.hlo"]
    assert environment["OPENBLAS_CORETYPE"] == "SkylakeX"


def test_the_users_choice_stands(
    started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_processor_flags", lambda: WIDE)
    monkeypatch.setattr(kernels, "_kernels", lambda: "Haswell")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    kernels.start_over_with_better_kernels()
    assert not started


def test_the_kernels_of_numpy_are_known_by_name() -> None:
    maps = Path("/proc/self/maps")
    name = kernels._kernels()
    loaded = maps.read_text().splitlines() if maps.exists() else []
    assert bool(name) == any("openblas" in line.rpartition("/")[2] for line in loaded)
