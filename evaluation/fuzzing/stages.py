"""What becomes of a text: each stage of hloexec that reads, checks, plans, runs or shows it."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import numpy as np

import hloexec
from hloexec.cli import main
from hloexec.core.ir import Module
from hloexec.core.tree import flat
from hloexec.engine.exec import plan_of
from hloexec.errors import HloError, HloWarning, OptimizationWarning, ParseError

_LIMITS = {"memory_limit": "1G", "max_iterations": 300, "timeout": 60.0, "unknown": "zeros"}
_MOST_INPUT_BYTES = 1 << 27
"""Drawing more takes seconds."""
_COMMANDS = (
    ["info"],
    ["info", "--json"],
    ["plan"],
    ["memory"],
    ["fmt"],
)
_RUNNING_COMMAND = ["nan", "--memory-limit", "1G", "--timeout", "3"]


def outcome(text: str, folder: Path) -> str:
    """How far a text goes: `unread`, `invalid`, `refused`, `large`, `failed` or `run`.

    Raises whatever is no HloError, and OptimizationWarnings; AssertionError where two ways disagree.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        warnings.simplefilter("error", OptimizationWarning)
        with contextlib.suppress(HloError):
            hloexec.parse(text, strict=True)
        try:
            module = hloexec.parse(text)
        except ParseError as error:
            assert error.message
            assert 1 <= error.line <= text.count("\n") + 1
            assert error.column >= 1
            return "unread"
        canonical = hloexec.format(module)
        assert hloexec.parse(canonical) == module
        assert hloexec.format(hloexec.parse(canonical)) == canonical
        is_large = sum(shape.byte_size for shape in module.entry.parameter_shapes) > _MOST_INPUT_BYTES
        _commands(text, folder, runs=not is_large)
        with contextlib.suppress(HloError):
            hloexec.verify(module, strict=True)
        try:
            hloexec.verify(module)
        except HloError as error:
            assert str(error)
            if not is_large:
                _run(module, verify=False)
            return "invalid"
        with contextlib.suppress(HloError):
            hloexec.memory_usage(module)
        try:
            plan_of(module, unknown="zeros", memory_limit="1G")
        except HloError:
            return "refused"
        if is_large:
            return "large"
        results = _run(module)
        if results is None:
            return "failed"
        for options in ({"planner": False}, {"check": True}):
            others = _run(module, **options)
            assert others is not None
            assert [_bits(value) for value in results] == [_bits(value) for value in others], options
        return "run"


def _run(module: Module, **options: bool) -> list[hloexec.Value] | None:
    try:
        return hloexec.run_devices(module, None, **_LIMITS, **options)  # type: ignore[arg-type]
    except HloError as error:
        assert str(error)
        return None


def _bits(value: hloexec.Value) -> list[object]:
    return [(leaf.dtype, leaf.shape, leaf.tobytes()) if isinstance(leaf, np.ndarray) else leaf for leaf in flat(value)]


def _commands(text: str, folder: Path, *, runs: bool) -> None:
    path = folder / "mutant.hlo"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    for command, *options in (*_COMMANDS, *[_RUNNING_COMMAND] * runs):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            code = main([command, str(path), *options])
        assert code in (0, 1, 2)
        if command != "fmt":
            assert all(character.isprintable() or character == "\n" for character in shown.getvalue())
