"""Texts that XLA rejects.

A `§` stands before each character at which the error may be reported: the offending token, and where the fault is that
something is missing or does not fit, also where the construct begins. It is removed before parsing.
"""

from __future__ import annotations

from tests.text.rejected_attributes import ATTRIBUTES
from tests.text.rejected_forms import FORMS
from tests.text.rejected_structure import STRUCTURE
from tests.text.rejected_values import VALUES

__all__ = ["ACCEPTED_SINCE_0_12", "REJECTED", "TOLERATED"]

REJECTED: dict[str, str] = STRUCTURE | ATTRIBUTES | VALUES | FORMS
"""Rejected texts by a name that says what is wrong."""

TOLERATED = (
    "metadata with a profile unknown",
    "operand that comes later",
    "computation that comes later",
    "result accuracy of negate",
    "sharding of a mesh with bare axes",
    "literal of a tuple elided",
    "async-update of another width",
    "async-update of another layout",
    "global device numbers without a channel",
    "global device numbers without a channel of a start",
    "global device numbers without a channel of reduce-scatter",
    "layout constraint of another width",
    "token with a layout",
)
"""Names of rejected texts that the default mode reads: what is merely unknown, what other versions of XLA wrote, and what
XLA prints but cannot read."""

ACCEPTED_SINCE_0_12 = frozenset(
    REJECTED[name]
    for name in (
        "async-done of what is not asynchronous",
        "async-update of another shape",
        "async-update of another width",
        "async-update of another layout",
        "async-update of another state",
        "async-update of a parameter",
        "async-done of a parameter",
        "asynchronous opcode's done of a parameter",
    )
)
"""Rejected texts that XLA's parser accepts since jaxlib 0.12: it no longer looks where an asynchronous operation began."""
