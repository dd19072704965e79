"""Parsing and printing HLO text. The printer is imported where it is first used."""

from typing import TYPE_CHECKING, Any

from hloexec.language.text.parser import parse

if TYPE_CHECKING:
    from hloexec.language.text.printer import format, format_instruction, format_shape

__all__ = ["format", "format_instruction", "format_shape", "parse"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hloexec.language.text import printer

    return getattr(printer, name)
