"""The lines of a trace's index, and what they say of an array."""

from __future__ import annotations

import math
from typing import Any

import attrs

from hloexec.exec.observers import Event
from hloexec.ir import ArrayShape, Instruction, Module
from hloexec.numerics.statistics import LeafStatistics
from hloexec.ops.registry import Role, role_of
from hloexec.origins import source_text

__all__ = ["VERSION", "array_fields", "event_fields", "is_renaming"]

VERSION = 1


def is_renaming(instruction: Instruction) -> bool:
    """Whether what an instruction gives was there before: given to the module, or made by others that are traced."""
    return role_of(instruction) not in (None, Role.KERNEL, Role.CUSTOM_CALL)


def event_fields(number: int, event: Event, module: Module) -> dict[str, Any]:
    """What the index says of an event, its arrays left out."""
    instruction = event.instruction
    metadata = instruction.metadata
    return {
        "number": number,
        "name": event.name,
        "instruction": instruction.name,
        "opcode": instruction.opcode,
        "computation": event.computation.name,
        "path": [
            {"caller": entry.instruction.name, "computation": entry.computation, "iteration": entry.iteration}
            for entry in event.path
        ],
        "iteration": event.iteration,
        "devices": list(event.devices),
        "op_name": metadata.op_name if metadata is not None else None,
        "source": source_text(module, instruction),
        "seconds": round(event.seconds, 9),
    }


def array_fields(leaf: LeafStatistics, index: tuple[int, ...], offset: int | None) -> dict[str, object]:
    """What the index says of an array: the place in the instruction's value, shape, statistics, and where it is."""
    fields: dict[str, Any] = attrs.asdict(
        leaf, filter=lambda field, _: field.name not in ("element_type", "dimensions", "index")
    )
    for name in ("mean", "standard_deviation"):
        # Of large f64 values they may overflow, and JSON has no infinities.
        if fields[name] is not None and not math.isfinite(fields[name]):
            fields[name] = None
    shape = str(ArrayShape(leaf.element_type, leaf.dimensions))
    return {"index": list(index), "shape": shape, **fields, "offset": offset}
