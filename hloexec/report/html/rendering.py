"""Pages as HTML: templates that escape all they are given, and writing a result.

The content security policy of a page allows its one script and its one style sheet, by their hashes, and images within
the page. Data for the script is JSON without a `<`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, Unpack

from rich.console import RenderableType

from hloexec.core.arguments import require_integer, require_module, require_path, wrong
from hloexec.core.files import open_atomically, require_ending, require_writable
from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.running import RunOptions, resolve_options
from hloexec.errors import InputError, os_errors_named
from hloexec.report.html.building import Page, Subject, fragment_blocks, page_of
from hloexec.report.html.content import Figure, Lines, Paragraph, Section, Table
from hloexec.report.html.drawing import require_extra
from hloexec.report.json.deriving import json_value
from hloexec.report.registry import module_of, ranked, report_of
from hloexec.tools.diffing import Diff
from hloexec.tools.watching.recording import Watched, watched

if TYPE_CHECKING:
    from jinja2 import Environment


_TEMPLATES = resources.files("hloexec.report.html") / "templates"


def render(page: Page) -> str:
    """A page as one file."""
    script, style = _text("page.js"), _text("page.css")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    data = None if page.data is None else json_data(page.data)
    template = _environment().get_template("page.html.j2")
    return str(template.render(page=page, policy=policy, script=script, style=style, data=data))


def fragment(view: RenderableType, result: object) -> str:
    """What a notebook shows of a result."""
    headline, blocks, figures = fragment_blocks(view, result)
    template = _environment().get_template("fragment.html.j2")
    return str(template.render(headline=headline, blocks=blocks, figures=figures, style=_text("fragment.css")))


def json_data(value: object) -> str:
    """JSON that can stand in a page: it holds no markup, and numbers that are not finite are texts."""
    text = json.dumps(json_value(value), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for kind in (Figure, Lines, Paragraph, Section, Table):
        environment.tests[kind.__name__.lower()] = lambda value, kind=kind: isinstance(value, kind)
    return environment


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
    wanted = [entry.key for entry in ranked(subject.result, module_of(subject.result) or module, most)]
    arguments = subject.result, module, subject.inputs, subject.options, wanted, most
    return watched(getattr(import_module(package), name), *arguments, is_tried=subject.is_tried)


def require_page(path: str | os.PathLike[str]) -> None:
    """Raise, before a long run instead of after it, where a page could not be written to `path`: InputError, or
    UnsupportedError without what pages are made with."""
    require_path("path", path)
    require_ending(path, "a page of HTML", ("html", "htm"))
    require_writable(path)
    require_extra()
