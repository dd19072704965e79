"""Pages and notebook fragments as HTML: templates that escape all they are given, and a policy that forbids the rest.

The content security policy of a page allows its one script and its one style sheet, by their hashes, and images within
the page. Data for the script is JSON without a `<`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from rich.console import RenderableType

from hloexec.report.html.building import Page, fragment_blocks
from hloexec.report.html.content import Figure, Lines, Paragraph, Section, Table
from hloexec.report.json.deriving import json_value

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

    found = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for kind in (Figure, Lines, Paragraph, Section, Table):
        found.tests[kind.__name__.lower()] = lambda value, kind=kind: isinstance(value, kind)
    return found
