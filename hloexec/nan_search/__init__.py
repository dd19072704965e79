"""Finding the instruction at which numbers go bad: NaN, infinities, and what else loses them."""

from hloexec.nan_search.findings import Element, Finding, Link, NanSearch, Operand
from hloexec.nan_search.running import find_nan

__all__ = ["Element", "Finding", "Link", "NanSearch", "Operand", "find_nan"]
