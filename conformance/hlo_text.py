"""XLA's printed form of a module, read and rewritten line by line.

One instruction is one line, `[ROOT ]%name = shape opcode(operands), attributes`, with operands printed without their
shapes. This is deliberately not hloexec's parser: the oracle must not share its mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Instruction:
    """One printed line: `[ROOT ]%name = shape opcode(operands)attributes`."""

    name: str
    shape: str
    opcode: str
    operands: str
    attributes: str
    root: bool = False

    def __str__(self) -> str:
        root = "ROOT " if self.root else ""
        return f"  {root}%{self.name} = {self.shape} {self.opcode}({self.operands}){self.attributes}"

    @property
    def operand_names(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.operands)

    def attribute(self, name: str) -> str:
        """The raw text of an attribute, "" where the instruction has none of that name."""
        for item in split(self.attributes):
            key, _, value = item.partition("=")
            if key == name:
                return value
        return ""

    def without(self, *names: str) -> Instruction:
        kept = [item for item in split(self.attributes) if item and item.partition("=")[0] not in names]
        return replace(self, attributes="".join(f", {item}" for item in kept))


@dataclass
class Computation:
    """The lines being written for one computation, and every instruction read so far."""

    read: dict[str, Instruction] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def emit(self, instruction: Instruction) -> str:
        self.lines.append(str(instruction))
        return instruction.name


Rule = Callable[[Instruction, Computation], None]
"""Writes what stands for one instruction into the computation."""

_LINE = re.compile(r"\s+(ROOT )?%([\w.\-]+) = ")
_OPENING, _CLOSING = "([{", ")]}"


def _close(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`; strings are skipped over."""
    depth, position = 0, start
    while position < len(text):
        character = text[position]
        if character == '"':
            position = _string_end(text, position) - 1
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    raise ValueError(f"unbalanced brackets in {text[start : start + 60]!r}")


def split(text: str) -> list[str]:
    """Splits at the commas that stand outside brackets and strings; comments are dropped."""
    parts, start, position = [], 0, 0
    while position < len(text):
        if text[position] in _OPENING:
            position = _close(text, position)
        elif text[position] == '"':
            position = _string_end(text, position)
        elif text[position] == ",":
            parts.append(text[start:position])
            position += 1
            start = position
        else:
            position += 1
    parts.append(text[start:])
    return [re.sub(r"/\*.*?\*/", "", part).strip() for part in parts]


def _string_end(text: str, start: int) -> int:
    position = start + 1
    while text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return position + 1


def read_instruction(line: str) -> Instruction | None:
    match = _LINE.match(line)
    if match is None:
        return None
    start = match.end()
    shape_end = _close(line, start) if line[start] == "(" else line.index(" ", start)
    opening = line.index("(", shape_end)
    closing = _close(line, opening)
    return Instruction(
        name=match[2],
        shape=line[start:shape_end],
        opcode=line[shape_end:opening].strip(),
        operands=line[opening + 1 : closing - 1],
        attributes=line[closing:],
        root=match[1] is not None,
    )


def without_header_fields(printed: str, *names: str) -> str:
    """The module with these attributes of its first line left out."""
    header, newline, rest = printed.partition("\n")
    kept = [item for item in split(header) if item.partition("=")[0] not in names]
    return ", ".join(kept) + newline + rest


def rewrite(printed: str, rules: dict[str, Rule]) -> str:
    """Applies the rule of each opcode that has one; all other lines pass unchanged."""
    computation, output = Computation(), []
    for line in printed.splitlines():
        instruction = read_instruction(line)
        if instruction is None:
            output += [*computation.lines, line]
            if line.startswith("}"):
                computation = Computation()
            computation.lines = []
            continue
        computation.read[instruction.name] = instruction
        rule = rules.get(instruction.opcode)
        if rule is None:
            computation.lines.append(line)
        else:
            rule(instruction, computation)
    return "\n".join(output + computation.lines) + "\n"


def elements(shape: str) -> list[str]:
    """The element shapes of a printed tuple shape."""
    return [element for element in split(shape[1:-1]) if element]
