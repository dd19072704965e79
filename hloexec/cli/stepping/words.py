"""The words behind a command of the debugger: numbers, names of values, and what is set."""

from __future__ import annotations

from hloexec.core.errors import InputError
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Value
from hloexec.core.wording import natural_number, quoted
from hloexec.tools.stepping.expressions import value_of_text


def require_nothing(name: str, rest: str) -> None:
    """InputError where a command that takes nothing is given something."""
    if rest:
        raise InputError(f"{name} takes nothing more, but was given {quoted(rest)}")


def number_of(complaint: str, text: str) -> int:
    """A natural number; InputError with the complaint for any other text."""
    number = natural_number(text)
    if number is None:
        raise InputError(complaint)
    return number


def count_of(name: str, rest: str) -> int:
    """How often a command is to be done, at least once; once if nothing says so."""
    number = 1 if not rest else number_of(f"{name} takes a number, not {quoted(rest)}", rest)
    if not number:
        raise InputError(f"{name} takes a number from 1, not 0")
    return number


def split_expression(text: str, complaint: str) -> tuple[str, str]:
    """The expression at the start of a text, which may have blanks in brackets, and the rest; else InputError."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "[{") - (character in "]}")
        if character == " " and depth <= 0:
            return text[:position], text[position:].strip()
    raise InputError(complaint)


def scalar_of_text(text: str, shape: object, what: str) -> Value:
    """A number for one element of an array of a shape; InputError where the shape is none, or the text no number."""
    if not isinstance(shape, ArrayShape):
        raise InputError(f"{what} is no array")
    return value_of_text(text, ArrayShape(shape.element_type, ()), what)
