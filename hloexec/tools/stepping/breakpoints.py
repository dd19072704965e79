"""Breakpoints: where a run stops, the texts that say so, and what these may name.

What breakpoints may name: the instructions that a run shows one by one, by patterns or source lines, and devices.

Computations that an instruction applies to many elements at once (reducers, comparators) run as a part of it, and their
instructions are not shown.

Breakpoints: where a run stops, and the texts that say so.

    breakpoint = [ where ] [ "iteration" N ] [ "device" N ] [ "if" condition ]
    where      = pattern | file ":" line

A pattern selects instructions by name, opcode, op_name or path, as in `hloexec.tracing.Selection`; a source line those
whose metadata name it, in any of the calls that led to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import TypedDict

import attrs
import numpy as np

from hloexec.analysis.calls import applied_computations, entered_computations
from hloexec.core.ir import Computation, Module
from hloexec.core.places import CallPath
from hloexec.core.structs import define
from hloexec.core.tree import flat
from hloexec.core.values import Described, Value
from hloexec.core.wording import natural_number
from hloexec.engine.exec.observers import Event, path_of
from hloexec.engine.plan.program import Program
from hloexec.errors import InputError
from hloexec.language.origins import source_lines
from hloexec.ops.registry import operation_name
from hloexec.tools.stepping.conditions import Condition, condition
from hloexec.tools.tracing.recording import Selection

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
        self.instructions = [
            (computation, instruction) for computation in self.computations for instruction in computation
        ]

    def selected(self, where: str) -> tuple[frozenset[int], Selection | None]:
        """The instructions that a text selects, and how; InputError where there are none."""
        line = _LINE.fullmatch(where)
        if line is not None:
            return self._at_line(line[1], int(line[2])), None
        selection = Selection.of([where])
        selected = frozenset(id(instruction) for _, instruction in self.instructions if selection.has(instruction))
        if not selected:
            self._refuse(selection)
        return selected, selection if where.startswith("path:") else None

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
        instructions = set()
        for _, instruction in self.instructions:
            for source in source_lines(self.module, instruction):
                lines.setdefault(source.file, set()).add(source.line or 0)
                if source.line == line and _is_file(source.file, file):
                    instructions.add(id(instruction))
        if instructions:
            return frozenset(instructions)
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


@define(eq=False)
class Breakpoint(Described):
    """Where a run stops; `str` says where."""

    number: int
    text: str
    instructions: frozenset[int] | None
    """By identity; None for any."""
    selection: Selection | None
    iteration: int | None
    device: int | None
    condition: Condition | None
    is_watch: bool = False
    """Whether it stops only where a value differs from the one before."""
    hits: int = 0
    """How often the run has stopped here."""
    _before: dict[tuple[int, int], Value] = attrs.field(init=False, factory=dict)
    """What instructions gave last, by identity and device."""
    _begun: CallPath | None = None
    """The iteration in which it has stopped, where it stops once in each."""

    def __str__(self) -> str:
        return self.text

    def forget(self) -> None:
        """Another run begins."""
        self.hits = 0
        self._before.clear()
        self._begun = None

    def is_met(self, event: Event) -> bool:
        """Whether a run stops after this instruction; its value is remembered for a watch."""
        if self.instructions is not None and id(event.instruction) not in self.instructions:
            return False
        if self.iteration is not None and event.iteration != self.iteration:
            return False
        if self.device is not None and self.device not in event.devices:
            return False
        if self.selection is not None and not self.selection.has(event.instruction, event.name):
            return False
        if self.is_watch and not self._has_changed(event):
            return False
        if self.condition is not None and not self.condition.holds(event.value):
            return False
        return self.instructions is not None or self.condition is not None or self._begins(event)

    def _has_changed(self, event: Event) -> bool:
        key = id(event.instruction), event.devices[0]
        before = self._before.get(key)
        for device in event.devices:
            self._before[id(event.instruction), device] = event.value
        return before is not None and not _is_same(before, event.value)

    def _begins(self, event: Event) -> bool:
        """Whether it is the first instruction of an iteration; otherwise the run would stop at each."""
        path = path_of(event)
        while path.calls and path.calls[-1].iteration is None:
            path = path.outer
        is_new, self._begun = path != self._begun, path
        return is_new


def _is_same(one: Value, other: Value) -> bool:
    """Whether two values of one instruction have the same bits."""
    pairs = zip(flat(one), flat(other), strict=True)
    return all(
        a is b or not isinstance(a, np.ndarray) or (a.shape == b.shape and a.tobytes() == b.tobytes()) for a, b in pairs
    )


class BreakpointText(TypedDict, total=False):
    """What the text of a breakpoint says, as `Stepper.break_at` takes it."""

    where: str
    iteration: int
    device: int
    condition: str | None


def parsed(text: str) -> BreakpointText:
    """The parts of a breakpoint's text, as `Stepper.break_at` takes them; InputError where it is none."""
    head, has_condition, rest = f" {text} ".partition(" if ")
    fields: BreakpointText = {"condition": rest.strip() if has_condition else None}
    if has_condition and not rest.strip():
        raise InputError("a condition is expected after `if`, such as `if any nan`")
    words = iter(head.split())
    for word in words:
        if word in ("iteration", "device"):
            following = next(words, "")
            number = natural_number(following)
            if number is None:
                suffix = f", not {following!r}" if following else ""
                raise InputError(f"a number is expected after `{word}`{suffix}")
            _require_new(fields, word, number)
            if word == "device":
                fields["device"] = number
            else:
                fields["iteration"] = number
        else:
            _require_new(fields, "where", word)
            fields["where"] = word
    return fields


def _require_new(fields: Mapping[str, object], key: str, value: object) -> None:
    if key in fields:
        subject = f"where it is ({fields[key]!r})" if key == "where" else f"the {key}"
        raise InputError(f"a breakpoint says {subject} once, but {value!r} follows")


def _text(where: str | None, iteration: int | None, device: int | None, condition: Condition | None) -> str:
    """A breakpoint as a text that `parsed` reads."""
    parts = [where] if where else []
    parts += [f"iteration {iteration}"] if iteration is not None else []
    parts += [f"device {device}"] if device is not None else []
    parts += [f"if {condition}"] if condition is not None else []
    return " ".join(parts)


def made(
    targets: Targets,
    number: int,
    where: str | None,
    iteration: int | None,
    device: int | None,
    condition_text: str | None,
    *,
    is_watch: bool = False,
) -> Breakpoint:
    """A new breakpoint; InputError where it can never be met."""
    if where is None and iteration is None and condition_text is None:
        raise InputError(
            "a breakpoint says where: an instruction's name, opcode or op_name (with * and ?), FILE:LINE, "
            "`iteration N` or `if CONDITION`"
        )
    targets.require_device(device)
    wanted = None if condition_text is None else condition(condition_text)
    instructions, selection = (None, None) if where is None else targets.selected(where.removeprefix("%"))
    text = _text(where, iteration, device, wanted)
    return Breakpoint(number, text, instructions, selection, iteration, device, wanted, is_watch)
