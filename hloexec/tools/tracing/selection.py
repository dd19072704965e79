"""Selecting instructions by name, opcode or op_name."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from hloexec.core.ir import Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.wording import suggestion
from hloexec.errors import InputError

_FIELDS = ("name", "opcode", "op_name", "path")


@frozen
class Selection:
    """Patterns, of which an instruction has to match one; without any, every instruction is selected.

    A pattern with `*`, `?` or `[…]` matches as file names do, any other exactly, against the instruction's name, its
    opcode and its metadata's op_name. `name:`, `opcode:`, `op_name:` in front of it leave the others out. `path:`
    matches the path of each run of an instruction, such as `loop[2]:body/fusion.1/add.3`; brackets are literal
    there.
    """

    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Selection:
        """The selection of these patterns; InputError for one that says nothing."""
        found = tuple([patterns] if isinstance(patterns, str) else patterns)
        for pattern in found:
            if not _split(pattern)[1]:
                raise InputError(f"{pattern!r} selects nothing; give a name, an opcode or an op_name")
        return cls(found)

    def has(self, instruction: Instruction, path: str | None = None) -> bool:
        """Whether the run of an instruction with this path and name is selected; without one, whether some may be."""
        return not self.patterns or any(_matches(pattern, instruction, path) for pattern in self.patterns)

    def require_some(self, module: Module) -> None:
        """Raise InputError for a pattern that no instruction of the module matches, with what comes close."""
        instructions = [instruction for computation in module for instruction in computation]
        for pattern in self.patterns:
            if not any(_matches(pattern, instruction) for instruction in instructions):
                known = {word for instruction in instructions for word in (instruction.opcode, instruction.name)}
                hint = suggestion(_split(pattern)[1].removeprefix("%"), sorted(known), 3, repr)
                raise InputError(f"{pattern!r} selects no instruction of {module.name}{hint}")


def _split(pattern: str) -> tuple[str | None, str]:
    field, colon, rest = pattern.partition(":")
    return (field, rest) if colon and field in _FIELDS else (None, pattern)


def _matches(pattern: str, instruction: Instruction, path: str | None = None) -> bool:
    field, text = _split(pattern)
    if field == "path":
        # Iterations are in brackets, which would otherwise be character sets.
        return path is None or fnmatchcase(path, text.replace("[", "[[]"))
    values = {"name": instruction.name, "opcode": instruction.opcode, "op_name": instruction.op_name}
    text = text.removeprefix("%")
    return any(
        value is not None and fnmatchcase(value, text) for name, value in values.items() if field in (None, name)
    )
