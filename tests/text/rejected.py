"""Texts that XLA rejects.

A `§` stands before each character at which the error may be reported: the offending token, and where the fault is that
something is missing or does not fit, also where the construct begins. It is removed before parsing.
"""

from tests.text.rejected_attributes import ATTRIBUTES
from tests.text.rejected_structure import FORMS, STRUCTURE, VALUES

REJECTED: dict[str, str] = STRUCTURE | ATTRIBUTES | VALUES | FORMS
"""Rejected texts by a name that says what is wrong."""

TOLERATED = (
    "metadata with a profile unknown",
    "operand that comes later",
    "computation that comes later",
    "result accuracy of negate",
    "sharding of a mesh with bare axes",
    "literal of a tuple elided",
    "global device numbers without a channel",
    "global device numbers without a channel of a start",
    "global device numbers without a channel of reduce-scatter",
    "layout constraint of another width",
    "channel of recv-done left out",
    "channel of send-done that send leaves out",
    "token with a layout",
)
"""Names of rejected texts that the default mode reads: what is merely unknown, what other versions of XLA wrote, and what
XLA prints but cannot read."""
