"""Examples of opcodes: small HLO files under docs/opcodes, one for each opcode, in the folder of the page it is on.

The comment before the module says what it shows, and gives its inputs and result as HLO literals:

    // What the example shows.
    //
    // x = {1, 2}
    // result = {2, 4}

If several devices hold different values, each has its own line, `x on device 0 = {1, 2}`. `infeed` and `outfeed` are
the values that an infeed receives and an outfeed sends; a module whose result is a token states no result.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

__all__ = ["FOLDER", "Example", "Given", "read_example", "read_examples"]

FOLDER = Path(__file__).resolve().parents[1] / "opcodes"
_GIVEN = re.compile(r"([\w.-]+)(?: on device (\d+))? = (.+)")


@attrs.frozen
class Given:
    """A value that an example states."""

    name: str
    """Of a parameter, or `result`, `infeed`, `outfeed`."""
    device: int | None
    """None where every device has it."""
    literal: str

    @property
    def label(self) -> str:
        """Whose value it is."""
        return self.name if self.device is None else f"{self.name} on device {self.device}"


@attrs.frozen
class Example:
    """One file."""

    path: Path
    description: str
    values: tuple[Given, ...]
    module: str
    """The file without its first comment."""

    @property
    def opcode(self) -> str:
        return self.path.stem

    @property
    def page(self) -> str:
        """The page that shows it: `arithmetic` for docs/opcodes/arithmetic.md."""
        return self.path.parent.name


def read_example(path: Path) -> Example:
    """Read a file; ValueError if its comment does not have this form."""
    comment, module = [], path.read_text(encoding="utf-8")
    while module.startswith("//"):
        line, _, module = module.partition("\n")
        comment.append(line.removeprefix("//").strip())
    if "" not in comment:
        raise ValueError(f"{path}: the comment lacks an empty line between what it says and the values")
    middle = comment.index("")
    values = []
    for line in comment[middle + 1 :]:
        match = _GIVEN.fullmatch(line)
        if match is None:
            raise ValueError(f"{path}: {line!r} is not of the form NAME = LITERAL")
        values.append(Given(match[1], None if match[2] is None else int(match[2]), match[3]))
    return Example(path, " ".join(comment[:middle]), tuple(values), module)


def read_examples(page: str = "*") -> list[Example]:
    """All examples, or those of one page, by their opcodes' names."""
    return sorted(map(read_example, FOLDER.glob(f"{page}/*.hlo")), key=lambda example: example.opcode)
