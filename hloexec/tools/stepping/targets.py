"""What breakpoints may name: the instructions that a run shows one by one, by patterns or source lines, and devices.

Computations that an instruction applies to many elements at once (reducers, comparators) run as a part of it, and their
instructions are not shown.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import PurePosixPath

from hloexec.analysis.calls import applied_computations, entered_computations
from hloexec.core.ir import Computation, Module
from hloexec.engine.plan.program import Program
from hloexec.errors import InputError
from hloexec.language.origins import source_lines
from hloexec.ops.registry import operation_name
from hloexec.tools.tracing.selection import Selection

_LINE = re.compile(r"(?!(?:name|opcode|op_name|path):)(.+):(\d+)")
_LISTED = 8


class Targets:
    """What breakpoints may name in a module: the instructions that a run shows, and devices."""

    def __init__(self, module: Module, entry: Computation, device_count: int) -> None:
        self.module = module
        self.device_count = device_count
        self.program = Program(module, entry)
        self.computations = entered_computations(module, entry, self.program.schedule)
        """Those whose instructions are shown, the entry first."""
        self.instructions = [(computation, each) for computation in self.computations for each in computation]

    def selected(self, where: str) -> tuple[frozenset[int], Selection | None]:
        """The instructions that a text selects, and how; InputError where there are none."""
        line = _LINE.fullmatch(where)
        if line is not None:
            return self._at_line(line[1], int(line[2])), None
        selection = Selection.of([where])
        found = frozenset(id(each) for _, each in self.instructions if selection.has(each))
        if not found:
            self._refuse(selection)
        return found, selection if where.startswith("path:") else None

    def _refuse(self, selection: Selection) -> None:
        """InputError: no instruction that is shown is selected."""
        selection.require_some(self.module)
        homes = {
            computation.name: instruction
            for computation in self.module
            for instruction in computation
            if selection.has(instruction)
        }
        name, instruction = next(iter(homes.items()))
        for computation, caller in self.instructions:
            if name in applied_computations(caller):
                raise InputError(
                    f"%{instruction.name} is in computation {name}, which %{caller.name} in {computation.name} applies "
                    f"to many elements at once ({operation_name(caller)}); its instructions are not shown one by one, "
                    f"so break at {caller.name}"
                )
        raise InputError(f"%{instruction.name} is in computation {name}, which does not run")

    def _at_line(self, file: str, line: int) -> frozenset[int]:
        lines: dict[str, set[int]] = {}
        found = set()
        for _, instruction in self.instructions:
            for source in source_lines(self.module, instruction):
                lines.setdefault(source.file, set()).add(source.line or 0)
                if source.line == line and _is_file(source.file, file):
                    found.add(id(instruction))
        if found:
            return frozenset(found)
        if not lines:
            raise InputError(f"no instruction is known to be from {file}:{line}: the module has no source lines")
        named = [numbers for name, numbers in lines.items() if _is_file(name, file)]
        if not named:
            names = sorted({PurePosixPath(name).name for name in lines})
            close = get_close_matches(file, names, 1) or names[:_LISTED]
            raise InputError(f"no instruction is from a file {file!r}; there are some from {', '.join(close)}")
        near = sorted(set().union(*named), key=lambda number: (abs(number - line), number))[:_LISTED]
        raise InputError(
            f"no instruction is from {file}:{line}; the nearest lines with some are {', '.join(map(str, sorted(near)))}"
        )

    def require_device(self, device: int | None) -> None:
        """InputError where there is no such device."""
        if device is not None and not 0 <= device < self.device_count:
            there = "is one device, 0" if self.device_count == 1 else f"are devices 0 to {self.device_count - 1}"
            raise InputError(f"there is no device {device}; there {there}")


def _is_file(known: str, given: str) -> bool:
    """Whether a path ends with the parts of a given one."""
    parts = PurePosixPath(given).parts
    return PurePosixPath(known).parts[-len(parts) :] == parts
