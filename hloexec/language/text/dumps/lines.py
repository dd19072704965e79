"""Lines of XLA's dumps that are not HLO, matched as a whole, with the position of every error."""

from __future__ import annotations

import re
from typing import NoReturn

from hloexec.core.ir import Shape
from hloexec.core.values import Ints
from hloexec.core.wording import braced
from hloexec.errors import ParseError
from hloexec.language.text.lexer import Lexer
from hloexec.language.text.shapes import parse_shape

_LARGEST = (1 << 63) - 1
_SHOWN = 60


class DumpLines:
    """A text and the current line in it."""

    def __init__(self, text: str, filename: str) -> None:
        self._text = text
        self._filename = filename
        self._shapes: dict[str, Shape] = {}
        self._start = 0
        self._end = self._line_end()

    def _line_end(self) -> int:
        newline = self._text.find("\n", self._start)
        end = len(self._text) if newline < 0 else newline
        return end - 1 if end > self._start and self._text[end - 1] == "\r" else end

    @property
    def is_at_end(self) -> bool:
        return self._start >= len(self._text)

    @property
    def line(self) -> str:
        return self._text[self._start : self._end]

    def advance(self) -> None:
        """Move to the next line."""
        newline = self._text.find("\n", self._start)
        self._start = len(self._text) if newline < 0 else newline + 1
        self._end = self._line_end()

    def skip_blank(self) -> None:
        while not self.is_at_end and not self.line.strip():
            self.advance()

    def at(self, pattern: re.Pattern[str]) -> bool:
        """Whether the whole current line is of this form."""
        return pattern.fullmatch(self._text, self._start, self._end) is not None

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move past the current line if all of it is of this form."""
        if self.is_at_end:
            return None
        match = pattern.fullmatch(self._text, self._start, self._end)
        if match is not None:
            self.advance()
        return match

    def expect(self, pattern: re.Pattern[str], subject: str) -> re.Match[str]:
        """Move past the current line, which must be of this form; `subject` says what it should have been."""
        match = self.take(pattern)
        if match is None:
            self.fail(f"expected {subject}, found {self.describe()}")
        return match

    def number(self, match: re.Match[str], group: str, subject: str) -> int:
        """A group of digits as a number of 63 bits."""
        digits = match[group].replace(" ", "")
        if len(digits) > 19 or int(digits) > _LARGEST:
            self.fail(f"{subject} {digits[:_SHOWN]} does not fit 63 bits", match.start(group))
        return int(digits)

    def shape(self, match: re.Match[str], group: str) -> Shape:
        """A group of a match as a shape, all of it."""
        text = match[group]
        cached = self._shapes.get(text)
        if cached is not None:
            return cached
        try:
            shape = parse_shape(text)
        except ParseError as error:
            self.fail(error.message, match.start(group) + error.column - 1)
        self._shapes[text] = shape
        return shape

    def describe(self) -> str:
        """The current line in words, for "found …"."""
        if self.is_at_end:
            return "the end of the text"
        line = self.line.strip()
        if not line:
            return "an empty line"
        return f"'{line}'" if len(line) <= _SHOWN else f"'{line[:_SHOWN]}…'"

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise a ParseError at `position`, or at the first word of the current line."""
        if position is None:
            line = self.line
            position = self._start + len(line) - len(line.lstrip())
        raise Lexer(self._text, self._filename).error(message, position)


def index_of(text: str | None) -> Ints | None:
    """`{1,0}` as a tuple, None for nothing."""
    if text is None:
        return None
    return tuple(map(int, text[1:-1].split(","))) if len(text) > 2 else ()


def index_text(index: Ints | None) -> str:
    return "" if index is None else braced(index)


def rounded_bytes(count: int) -> str:
    """A number of bytes as XLA rounds it: `12B`, `20.2KiB`, `2.69GiB`."""
    if count < 1 << 10:
        return f"{count}B"
    unit = 1
    while unit < 6 and count >= 1 << 10 * (unit + 1):
        unit += 1
    return f"{count / (1 << 10 * unit):.{1 if unit == 1 else 2}f}{'KMGTPE'[unit - 1]}iB"
