"""The choice of matrix kernels before a run."""

import os
import sys

import pytest

from hloexec.cli.process import restart_with_better_kernels
from hloexec.core import process

WIDE = frozenset({"sse2", "avx2", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What the process was replaced by, instead of being replaced."""
    found: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda path, arguments, environment: found.append((arguments, environment)))
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    return found


@pytest.mark.parametrize(
    ("name", "flags", "lacks_avx512_kernels"),
    [
        ("haswell", WIDE, True),
        ("zen", WIDE, True),
        ("skylakex", WIDE, False),
        ("cooperlake", WIDE, False),
        ("haswell", WIDE - {"avx512vl"}, False),
        ("", WIDE, False),
    ],
)
def test_kernels_without_avx512_are_wrong_for_a_processor_that_has_it(
    name: str, flags: frozenset[str], lacks_avx512_kernels: bool
) -> None:
    assert process.lacks_avx512_kernels(name, flags) is lacks_avx512_kernels


def test_a_misjudged_processor_makes_the_command_start_over(
    started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_processor_flags", lambda: WIDE)
    monkeypatch.setattr(process, "openblas_kernels", lambda: "haswell")
    monkeypatch.setattr(sys, "orig_argv", "python -m hloexec run x.hlo".split())
    restart_with_better_kernels()
    ((arguments, environment),) = started
    assert arguments == [sys.executable, "-m", "hloexec", "run", "x.hlo"]
    assert environment["OPENBLAS_CORETYPE"] == "SkylakeX"


def test_the_users_choice_stands(
    started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_processor_flags", lambda: WIDE)
    monkeypatch.setattr(process, "openblas_kernels", lambda: "haswell")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    restart_with_better_kernels()
    assert not started
