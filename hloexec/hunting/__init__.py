"""Finding the instruction at which numbers go bad: NaN, infinities, and what else loses them."""

from hloexec.hunting.findings import Element, Finding, Hunt, Link
from hloexec.hunting.running import find_nan

__all__ = ["Element", "Finding", "Hunt", "Link", "find_nan"]
