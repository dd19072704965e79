"""A deliberately faulty library call: it aborts on modules that have a pattern of instructions.

Run as a program with a pattern and the path of a module, it reads the HLO text with nothing of hloexec's. A pattern is
opcodes from a user back along its operands, each with an element type or not: `dot:f32<-transpose`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

_LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\S+|\(.*?\)) ([\w\-]+)\((.*)$")
_ENDS = re.compile(r"^(?:ENTRY )?%?[\w.\-]+ .*\{$")


def has_pattern(text: str, pattern: str) -> bool:
    """Whether instructions of one computation form a chain like the pattern."""
    links = pattern.split("<-")
    return any(_matches(computation, name, links) for computation in _computations(text) for name in computation)


def _computations(text: str) -> Iterator[dict[str, tuple[str, str, list[str]]]]:
    current: dict[str, tuple[str, str, list[str]]] = {}
    for line in text.splitlines():
        if _ENDS.match(line) and " = " not in line:
            yield current
            current = {}
        found = _LINE.match(line)
        if found is not None:
            operands = re.findall(r"%([\w.\-]+)", found[4].partition(")")[0])
            current[found[1]] = (found[3], found[2], operands)
    yield current


def _matches(computation: dict[str, tuple[str, str, list[str]]], name: str, links: list[str]) -> bool:
    if name not in computation:
        return False
    opcode, shape, operands = computation[name]
    wanted, _, element_type = links[0].partition(":")
    if opcode != wanted or not shape.startswith(element_type):
        return False
    return len(links) == 1 or any(_matches(computation, each, links[1:]) for each in operands)


def main() -> None:
    pattern, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        if has_pattern(file.read(), pattern):
            os.abort()


if __name__ == "__main__":
    main()
