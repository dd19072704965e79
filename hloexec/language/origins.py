"""Where an instruction comes from: its line of HLO, the source that its metadata names, the names frameworks gave it.

Source positions are in the metadata itself (`source_file`, `source_line`) or, in newer dumps, in the tables of stack
frames at the head of the module.
"""

from __future__ import annotations

from collections.abc import Mapping

from hloexec.core.ir import Computation, Instruction, Module, StackFrames
from hloexec.core.places import split_path
from hloexec.core.structs import frozen
from hloexec.core.wording import truncated
from hloexec.errors import HloError
from hloexec.ops.attributes import computation_names

_LINE_LENGTH = 400
_MOST_FRAMES = 64


@frozen
class SourceLine:
    """A line of the program that a module was generated from."""

    file: str
    line: int | None = None
    function: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} in {self.function}" if self.function else place


def advice_on_source_lines(module: Module) -> str | None:
    """How JAX prints a module with source lines, where its text has none; None for other texts."""
    if not module.name.startswith("jit_") or any(
        instruction.metadata for computation in module for instruction in computation
    ):
        return None
    return (
        "the text has no source lines; JAX prints them: lowered.as_text('hlo', debug_info=True), and lowered.compile()"
    )


def source_lines(module: Module, instruction: Instruction) -> tuple[SourceLine, ...]:
    """The source positions of an instruction, the innermost call first; empty where its metadata has none."""
    metadata = instruction.metadata
    if metadata is None:
        return ()
    if metadata.stack_frame_id and module.stack_frames is not None:
        lines = _frames(module.stack_frames, metadata.stack_frame_id)
        if lines:
            return lines
    if metadata.source_file:
        return (SourceLine(metadata.source_file, metadata.source_line),)
    return ()


def scope_of(module: Module, run_name: str) -> str:
    """The framework's names on the way to an instruction in a run, with iterations: `jit(step)/while[3]/body/log` for
    `while.2[3]:body/log.5`.

    In what JAX calls, names begin anew; in what XLA inlines, they are whole.
    """
    calls, instruction = split_path(run_name)
    iterations = [call.partition(":")[0].partition("[")[2] for call in run_name.split("/")]
    computation: Computation | None = module.entry
    whole, told = "", ""
    for (caller, callee), iteration in zip([*calls, (instruction, "")], iterations, strict=True):
        part = computation.by_name.get(caller) if computation is not None else None
        op_name = (part.op_name if part is not None else None) or ""
        if op_name.startswith(whole):
            told, whole = told + op_name[len(whole) :], op_name
        elif op_name:
            told, whole = f"{told}/{op_name}", f"{whole}/{op_name}"
        told += f"[{iteration}" if iteration else ""
        names = computation_names(part.attributes) if part is not None else ()
        computation = module.by_name.get(callee or next(iter(names), ""))
    return told


def sole_callers(module: Module) -> dict[str, tuple[Computation, Instruction]]:
    """By computation, the one instruction that calls it, and where that is; not of those that several call."""
    callers: dict[str, tuple[Computation, Instruction] | None] = {}
    for computation in module:
        for instruction in computation:
            for name in dict.fromkeys(computation_names(instruction.attributes)):
                callers[name] = None if name in callers else (computation, instruction)
    return {name: caller for name, caller in callers.items() if caller is not None}


def source_lines_around(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    callers: Mapping[str, tuple[Computation, Instruction]],
) -> tuple[SourceLine, ...]:
    """Its source lines, or those of the innermost instruction around it that has some; `callers` are the sole ones."""
    lines = source_lines(module, instruction)
    while not lines and computation.name in callers:
        computation, instruction = callers[computation.name]
        lines = source_lines(module, instruction)
    return lines


def source_text(module: Module, instruction: Instruction) -> str | None:
    """The innermost source position in one line, e.g. `train.py:12 in loss`; None where there is none."""
    lines = source_lines(module, instruction)
    return str(lines[0]) if lines else None


def hlo_line(instruction: Instruction) -> str:
    """An instruction as its line of HLO, without metadata, cut where it is very long."""
    # Imported late: printing needs every grammar, and most users of this module need only source lines.
    from hloexec.language.text import format_instruction

    try:
        text = format_instruction(instruction, metadata=False)
    except HloError:
        text = f"%{instruction.name} = {instruction.shape} {instruction.opcode}(…)"
    return truncated(text, _LINE_LENGTH)


def _frames(tables: StackFrames, frame_id: int) -> tuple[SourceLine, ...]:
    """The chain of stack frames from one of them outwards; wrong ids end it.

    XLA counts parents from 1 like everything else, and adds 1 to them where it makes the tables from MLIR: the first
    frame, which cannot have a parent, shows which of the two it is.
    """
    rows = tables.stack_frames
    shift = 1 if rows and rows[0].parent_frame_id == 1 else 0
    lines: list[SourceLine] = []
    while 1 <= frame_id <= len(rows) and len(lines) < _MOST_FRAMES:
        row = rows[frame_id - 1]
        if not 1 <= row.file_location_id <= len(tables.file_locations):
            break
        place = tables.file_locations[row.file_location_id - 1]
        file = _entry(tables.file_names, place.file_name_id)
        if file is not None:
            lines.append(SourceLine(file, place.line, _entry(tables.function_names, place.function_name_id)))
        parent = row.parent_frame_id - shift
        frame_id = parent if parent < frame_id else 0
    return tuple(lines)


def _entry(names: tuple[str, ...], number: int) -> str | None:
    return names[number - 1] if 1 <= number <= len(names) else None
