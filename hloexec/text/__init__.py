"""Parsing and printing HLO text."""

from hloexec.text.parser import parse
from hloexec.text.printer import format, format_instruction, format_shape

__all__ = ["format", "format_instruction", "format_shape", "parse"]
