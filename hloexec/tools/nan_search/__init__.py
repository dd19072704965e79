"""Finding the instruction that first produces a NaN, an infinity or another loss of accuracy."""

from hloexec.tools.nan_search.findings import Element, Finding, Link, NanInput, NanSearch, Operand
from hloexec.tools.nan_search.running import find_nan

__all__ = ["Element", "Finding", "Link", "NanInput", "NanSearch", "Operand", "find_nan"]
