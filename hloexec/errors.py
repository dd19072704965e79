"""Errors and warnings of hloexec.

Every error that a user can encounter is an `HloError`: a sentence that says what is wrong, where it is (a position in
the text, or a computation and an instruction), and what was expected. Code below the command line never lets other
Python exceptions of its own escape.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_PACKAGE = os.path.join(os.path.dirname(__file__), "")
_EXCERPT = 160
"""How many characters of a line errors show."""


class HloError(Exception):
    """Base class of all errors that hloexec raises deliberately."""

    @property
    def message(self) -> str:
        """What is wrong, without the place."""
        return str(self.args[0]) if self.args else ""


class ParseError(HloError):
    """The text is not valid HLO.

    `str()` gives the whole message: `file:line:column: message`, the source line, and a caret below the offending
    character. `line` and `column` count from 1.
    """

    def __init__(self, message: str, *, line: int, column: int, source_line: str, filename: str = "<string>") -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.source_line = source_line
        self.filename = filename

    def __str__(self) -> str:
        excerpt, caret = _excerpt(self.source_line, self.column)
        return f"{self.filename}:{self.line}:{self.column}: {self.message}\n  {excerpt}\n  {caret}"


class ShapeError(HloError):
    """A shape rule is violated. Raised by `ops`, which does not know the instruction; the verifier adds it."""


class VerificationError(HloError):
    """A module is well-formed text but not a well-formed program."""


class UnsupportedError(HloError):
    """The module needs an operation, a library call or an option that hloexec does not have."""


class InputError(HloError):
    """An argument of a function is invalid, values do not fit the parameters of a module, or a file cannot be read."""


class LiteralError(InputError):
    """A file of literals cannot be read or written."""


class EvaluationError(HloError):
    """Running the module failed at an instruction."""


class DeadlockError(EvaluationError):
    """Devices wait for one another and none can make progress, or a send is never received."""


class ResourceError(HloError):
    """Running the module needs more memory, loop iterations or time than it may take."""

    smallest: Any = None
    """Of `shrink`, what becomes of the module at its smallest, a Shrinkage, which needs more still."""


class HloWarning(UserWarning):
    """Something was kept, guessed or ignored; the run continues."""


class OptimizationWarning(HloWarning):
    """An optimization has failed; the run continues without it, and gives the same result."""


def warn(message: str, category: type[HloWarning] = HloWarning) -> None:
    """Warn the user of hloexec: the warning points at the line that called into it, however deep this one stands."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and not _is_outside(frame):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "<string>")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


@contextmanager
def unwarned() -> Iterator[None]:
    """No warnings of hloexec's come out of what is within: another run gives them, or nobody could act on them."""
    with warnings.catch_warnings(action="ignore", category=HloWarning):
        yield


def _is_outside(frame: FrameType) -> bool:
    """Whether a frame is the user's: neither hloexec's nor that of a function that hloexec or attrs has written."""
    return not frame.f_code.co_filename.startswith((_PACKAGE, "<plan of ", "<attrs "))


@contextmanager
def os_errors_named(action: str) -> Iterator[None]:
    """What the system refuses within comes out as InputError: `cannot read 'x': No such file or directory`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot {action}: {error.strerror or error}") from error


def printable(text: str) -> str:
    """A text of a file as a terminal may show it: what could steer the terminal is a `·`; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character == "\n" else "·" for character in text)


def _excerpt(source_line: str, column: int) -> tuple[str, str]:
    """The part of a line around `column`, and the caret to place below it."""
    start = max(0, column - 1 - _EXCERPT // 2) if len(source_line) > _EXCERPT else 0
    window = source_line[start : start + _EXCERPT]
    prefix = "…" if start else ""
    suffix = "…" if start + _EXCERPT < len(source_line) else ""
    return f"{prefix}{printable(window)}{suffix}", " " * (len(prefix) + column - 1 - start) + "^"
