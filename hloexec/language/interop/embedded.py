"""StableHLO that stands in another text: in an issue, a page of Markdown or a log."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from hloexec.core.wording import listing
from hloexec.errors import InputError

_MODULE = re.compile(
    r'^[ \t]*((?:builtin\.)?module\b(?:[ \t]+@("[^"\n]*"|[\w.$-]+))?[ \t]*(?:attributes[ \t]*)?\{)', re.M
)
_FUNCTION = re.compile(r"^[ \t]*(func\.func\b[^\n@]*@([\w.$-]+))", re.M)
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[(){}]')
_ATTRIBUTES = re.compile(r"\battributes\s*\Z")
_PLACE = re.compile(r"[ \t]*loc\([^\n]*\)")
_ALIAS = re.compile(r"^[ \t]*[#!][\w.]+ = [^\n]*", re.M)
"""What a module names outside of its braces."""
_VISIBLE = re.compile(r"\S")
_ENTITY = re.compile(r"&(?:lt|gt|quot);")
_COMMENTS = re.compile(r"(?:\s|//[^\n]*)*")


def embedded_mlir(text: str, filename: str) -> tuple[str, list[str]] | None:
    """The only module of MLIR in a text, and what was done to get it, as sentences; None where none is whole.

    Functions that follow one another are a module, too. Lines keep their numbers. Raises InputError where there are
    several modules.
    """
    done = []
    if _ENTITY.search(text):
        text = html.unescape(text)
        done.append("entities of HTML stand for their characters")
    spans = list(_spans(text, _MODULE))
    if not spans and not _MODULE.search(text):
        spans = _joined(text, list(_spans(text, _FUNCTION)))
    if len(spans) > 1:
        places = (f"'{name}' on line {text.count(chr(10), 0, start) + 1}" for start, _, name in spans)
        raise InputError(
            f"{filename} holds {len(spans)} modules of MLIR, {listing(places, 4)}: give each a file of its own"
        )
    if not spans:
        return None
    start, end, _ = spans[0]
    before, behind = text[:start], text[end:]
    prose = len(_without_aliases(before).rstrip())
    if prose:
        alias = _ALIAS.search(text, prose, start)
        first = start if alias is None else alias.start()
        done.append(f"what stands before line {text.count(chr(10), 0, first) + 1} is ignored")
    left = _VISIBLE.search(_without_aliases(behind))
    if left is not None:
        line = text.count("\n", 0, end + left.start()) + 1
        done.append(f"what follows the module, from line {line} on, is ignored")
    return (_aliases(before) + text[start:end] + _aliases(behind), done) if done else None


def _without_aliases(text: str) -> str:
    return _ALIAS.sub(lambda match: " " * len(match[0]), text)


def _aliases(text: str) -> str:
    return "\n".join(line if _ALIAS.match(line) else "" for line in text.split("\n"))


def _spans(text: str, begins: re.Pattern[str]) -> Iterator[tuple[int, int, str]]:
    """Where what begins so is whole: its ends, and its name."""
    position = 0
    while (match := begins.search(text, position)) is not None:
        end = _end(text, match.start(1))
        if end is not None:
            yield match.start(1), end, (match[2] or "module").strip('"')
        position = match.end() if end is None else end


def _end(text: str, start: int) -> int | None:
    """Behind the body of what begins there; None where it does not end."""
    depth, is_body = 0, False
    for token in _TOKEN.finditer(text, start):
        if token[0] in ("{", "("):
            if depth == 0:
                is_body = token[0] == "{" and not _ATTRIBUTES.search(
                    text, max(start, token.start() - 40), token.start()
                )
            depth += 1
        elif token[0] in ("}", ")"):
            depth -= 1
            if depth < 0:
                return None
            if depth == 0 and is_body:
                place = _PLACE.match(text, token.end())
                return token.end() if place is None else place.end()
    return None


def _joined(text: str, spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """The spans with those as one that nothing but comments is between."""
    joined_spans: list[tuple[int, int, str]] = []
    for start, end, name in spans:
        if joined_spans:
            between = _COMMENTS.match(text, joined_spans[-1][1])
            if between is not None and between.end() >= start:
                joined_spans[-1] = (joined_spans[-1][0], end, joined_spans[-1][2])
                continue
        joined_spans.append((start, end, name))
    return joined_spans
