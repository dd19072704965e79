"""Writing a result as a page of HTML."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Unpack

from hloexec.core.arguments import require_integer, require_module, require_path, wrong
from hloexec.core.files import open_atomically, require_ending, require_writable
from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.errors import InputError, os_errors_named
from hloexec.report.html.building import Subject, page_of
from hloexec.report.html.drawing import require_extra
from hloexec.report.registry import module_of, ranked, report_of
from hloexec.tools.diffing import Diff
from hloexec.tools.watching.recording import Watched, watched

MOST_DETAILS = 20
"""Instructions of which a page has plots, unless it is told otherwise."""


def write_html(
    result: object,
    path: str | os.PathLike[str],
    *,
    module: Module | None = None,
    inputs: Inputs | None = None,
    top: int = MOST_DETAILS,
    **options: Unpack[RunOptions],
) -> None:
    """Write a result as one file of HTML that needs no network: its verdict, tables and plots, and all instructions.

    `result` is what `compare`, `diff`, `diff_folders`, `explain`, `find_nan`, `shadow`, `memory_usage`,
    `compare_memory`, `check_golden` or `triage` returns, or a module. With the `module` that it is about (a diff has
    its modules itself), the page has a table of all instructions, and details of the `top` foremost ones. With
    `inputs`, too, those that the result was made from, the module runs once more, and the page has the values of these
    instructions as histograms and heat maps, and their sizes or errors along the data flow. `options` are those of
    `run_devices` that the result was made with (`hloexec.RunOptions`). Of a module, `inputs` are what it runs on.

    The verdict is that of the result. The file is written under a temporary name and renamed. Needs Jinja2 and
    Matplotlib (`pip install 'hloexec[report]'`): UnsupportedError without them. Raises InputError where there is no
    page of the result, the inputs do not fit, or the file cannot be written.
    """
    from hloexec.report.notebook import view_of

    require_page(path)
    if module is not None:
        require_module(module)
    require_integer("top", top, 0)
    policies: Any = options.get("numerics", "reference")
    given = [
        resolve_options("write_html", {**options, "numerics": policy})
        for policy in (policies if isinstance(policies, tuple) and isinstance(result, Diff) else (policies,))
    ]
    view = view_of(result)
    if view is None:
        raise wrong(
            "result", "what compare, diff, shadow or another function of this kind returns, or a module", result
        )
    about = module_of(result) or module
    if inputs is not None and about is None:
        raise InputError("inputs need the module that they are for: module=…")
    if inputs is None and options:
        raise InputError(f"{next(iter(options))} is an option of a run, for which write_html needs the inputs, too")
    values = None
    if inputs is not None and about is not None:
        values = inputs_by_device((result.before if isinstance(result, Diff) else about).entry, inputs)
    subject = Subject(result, view, module, values, given, is_tried=False)
    write_page(path, subject, top)


def write_page(path: str | os.PathLike[str], subject: Subject, most: int = MOST_DETAILS) -> None:
    """Write the page of a subject; InputError where the file cannot be written."""
    from hloexec.report.html.rendering import render

    text = render(page_of(subject, _values(subject, most), most))
    with os_errors_named(f"write {os.fspath(path)!r}"), open_atomically(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _values(subject: Subject, most: int) -> Watched:
    """What is known of values: from the result where it has it, else of another run on the same inputs."""
    report, module = report_of(subject.result), subject.module or module_of(subject.result)
    if report is not None and report.values is not None:
        return report.values(subject.result)
    if report is None or not report.watch or module is None or subject.inputs is None:
        return Watched()
    package, _, name = report.watch.rpartition(".")
    wanted = [each.key for each in ranked(subject.result, module_of(subject.result) or module, most)]
    given = subject.result, module, subject.inputs, subject.options, wanted, most
    return watched(getattr(import_module(package), name), *given, is_tried=subject.is_tried)


def require_page(path: str | os.PathLike[str]) -> None:
    """Raise, before a long run instead of after it, where a page could not be written to `path`: InputError, or
    UnsupportedError without what pages are made with."""
    require_path("path", path)
    require_ending(path, "a page of HTML", ("html", "htm"))
    require_writable(path)
    require_extra()
