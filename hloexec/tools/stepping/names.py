"""Names of instructions as people type them, and those that come near a wrong one."""

from __future__ import annotations

from collections.abc import Iterable

from hloexec.core.errors import InputError
from hloexec.core.ir import Computation, Instruction
from hloexec.core.wording import suggestion


def near_name(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that asks for a name which comes near; nothing where none does."""
    return suggestion(name, dict.fromkeys(known), text="%{}".format)


def found_instruction(computation: Computation, name: str, others: Iterable[Computation]) -> Instruction:
    """The instruction of a computation; InputError where there is none, which says which of the others has it."""
    own = name.removeprefix("%")
    found = computation.by_name.get(own)
    if found is None:
        elsewhere = next((other.name for other in others if own in other.by_name), None)
        hint = near_name(own, computation.by_name) if elsewhere is None else f"; {elsewhere} has one"
        raise InputError(f"{computation.name} has no instruction %{own}{hint}")
    return found
