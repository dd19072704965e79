"""`hloexec diff --sharded`: a function of JAX on one device and on a mesh."""

from __future__ import annotations

from typing import Any

import click

from hloexec.cli.inputs.loading import called_in, is_script
from hloexec.cli.reports import show_report
from hloexec.errors import InputError


def diff_sharded(where: str, top: int, as_json: bool) -> int:
    """Compare what the function `FILE.py:FUNCTION` returns, show the result, and return the exit code."""
    from hloexec.jax.sharded import compare_sharded
    from hloexec.report.json.printed import File
    from hloexec.report.judging.folder_diffs import sharded_view

    if not is_script(where):
        raise click.UsageError(f"--sharded expects FILE.py:FUNCTION, not {where}")
    path, _, name = where.rpartition(":")
    returned: Any = called_in(path, name, lambda function: function())
    if not isinstance(returned, (tuple, list)) or len(returned) < 2:
        raise InputError(f"{where} must return (step, mesh, *arguments), but returned {type(returned).__name__}")
    *arguments, last = returned
    keywords = last if _are_keywords(last) and len(arguments) > 1 else {}
    comparison = compare_sharded(*(arguments if keywords else returned), **keywords)
    show_report(
        "diff-sharded",
        as_json,
        lambda: [File(where), comparison],
        lambda: sharded_view(comparison, top),
        comparison.diff.after,
    )
    return 0 if comparison.agrees else 3 if comparison.verdict == "not decided" else 1


def _are_keywords(value: object) -> bool:
    """Whether the last of what was returned is keywords; other dicts are arguments."""
    return isinstance(value, dict) and callable(value.get("reference"))
