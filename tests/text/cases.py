"""The big table of HLO texts: what XLA accepts, what it rejects, and what it merely does not know."""

from tests.text.accepted_devices import DEVICES
from tests.text.accepted_modules import MODULES
from tests.text.accepted_opcodes import OPCODES
from tests.text.accepted_values import SHAPES, VALUES
from tests.text.rejected import REJECTED, TOLERATED
from tests.text.unknown import UNKNOWN

__all__ = ["ACCEPTED", "REJECTED", "TOLERATED", "UNKNOWN", "places_of", "without_marks"]

ACCEPTED: dict[str, str] = OPCODES | DEVICES | VALUES | MODULES | SHAPES

_MARK = "§"


def without_marks(text: str) -> str:
    """A text of `REJECTED` or `UNKNOWN` as it is parsed."""
    return text.replace(_MARK, "")


def places_of(text: str) -> set[tuple[int, int]]:
    """The lines and columns (from 1) at which the fault of a marked text may be reported.

    A mark before white space stands for the token behind it as well: what is missing there is noticed at that token.
    """
    plain = without_marks(text)
    places = set()
    position = -1
    for removed in range(text.count(_MARK)):
        position = text.index(_MARK, position + 1)
        offset = position - removed
        behind = len(plain) - len(plain[offset:].lstrip(" \t\r\n"))
        places |= {_line_and_column(plain, offset), _line_and_column(plain, behind)}
    return places


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
