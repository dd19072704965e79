"""The forms of a SPEC, as errors and help list them."""

from __future__ import annotations

FORMS = "[hloexec:]POLICY, xla[:PLATFORM[:COUNT]], xla-cpu, python:PATH[:PLATFORM], call:MODULE:FUNCTION"
FILE = "a FILE (another module, a golden, or arrays)"


def forms(*, may_be_file: bool = True) -> str:
    """The forms as a list in a sentence."""
    return f"{FORMS} or {FILE}" if may_be_file else " or ".join(FORMS.rsplit(", ", 1))
