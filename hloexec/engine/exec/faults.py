"""Errors at a step, with their location: the instruction, the call path, and its source line."""

from __future__ import annotations

from collections.abc import Sequence

from hloexec.core.ir import Instruction
from hloexec.core.wording import on_devices, truncated
from hloexec.engine.exec.observers import call_path
from hloexec.engine.plan.steps import Context, PartError, Step
from hloexec.errors import EvaluationError, HloError, InputError, ResourceError, UnsupportedError

_TEXT_LENGTH = 300


def with_place(error: Exception, step: Step, context: Context | None, devices: Sequence[int] = ()) -> HloError:
    """The error of a kernel, with the instruction, the way to it, where its source is, and the devices it ran for."""
    if isinstance(error, PartError) and isinstance(error.__cause__, Exception):
        step, error = error.step, error.__cause__
    instruction = step.instruction
    text = str(error) if isinstance(error, HloError) else f"{type(error).__name__}: {error}".rstrip(": ")
    lines = [
        f"%{instruction.name} {computation_text(step, context)} failed{on_devices(devices)}: {text}",
        f"  {instruction_text(instruction, step)}",
    ]
    metadata = instruction.metadata
    if metadata is not None and metadata.source_file:
        lines.append(f"  from {metadata.source_file}:{metadata.source_line or '?'}")
    kind: type[HloError] = EvaluationError
    if isinstance(error, (InputError, UnsupportedError, ResourceError)):
        kind = type(error)
    elif isinstance(error, MemoryError):
        kind = ResourceError
    return kind("\n".join(lines))


def computation_text(step: Step, context: Context | None) -> str:
    """The computation that a step was written in, and the way to it."""
    calls = call_path(step.scope, context).calls
    return f"in computation {step.scope.computation.name}" + (
        f", reached through {' / '.join(map(str, calls))}" if calls else ""
    )


def instruction_text(instruction: Instruction, step: Step | None = None) -> str:
    """One line for an instruction: name, shape, opcode and operands with their shapes, shortened."""
    by_name = step.scope.computation.by_name if step is not None else {}
    operands = ", ".join(
        f"{by_name[name].shape} %{name}" if name in by_name else f"%{name}" for name in instruction.operands
    )
    text = f"%{instruction.name} = {instruction.shape} {instruction.opcode}({operands})"
    return truncated(text, _TEXT_LENGTH)
