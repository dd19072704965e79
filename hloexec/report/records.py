"""The data of the tables, as JSON values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from hloexec.analysis.numerics.statistics import LeafStatistics
from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Shape
from hloexec.ops.registry import Opcode
from hloexec.tools.summary import ComputationSummary, Summary


def json_text(record: object) -> str:
    """JSON that any reader takes: numbers that are not finite become texts, complex ones pairs; what no terminal may
    see an escape."""
    text = json.dumps(json_value(record), indent=2, allow_nan=False, ensure_ascii=False)
    return re.sub(r"[^\n -~]", lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def json_value(value: object) -> Any:
    """A value as JSON has it: texts for numbers that are not finite, pairs for complex ones."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, complex):
        return [json_value(value.real), json_value(value.imag)]
    if isinstance(value, dict):
        return {key: json_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(entry) for entry in value]
    return value


_TOLD_OTHERWISE = ("element_type", "dimensions", "byte_size")
"""Fields of LeafStatistics that records have under other keys."""


def leaf_records(rows: Sequence[tuple[str, LeafStatistics]]) -> list[dict[str, object]]:
    """One record per leaf of a value, with its label."""
    records = []
    for label, leaf in rows:
        fields = attrs.asdict(leaf, filter=lambda field, _: field.name not in _TOLD_OTHERWISE)
        shape = str(ArrayShape(leaf.element_type, leaf.dimensions))
        records.append({"label": label, "shape": shape, "bytes": leaf.byte_size, **fields})
    return records


def parameter_records(shapes: Iterable[tuple[str, Shape]]) -> list[dict[str, object]]:
    """One record per parameter, from their names and shapes."""
    return [
        {"number": number, "name": name, "shape": str(shape), "bytes": shape.byte_size}
        for number, (name, shape) in enumerate(shapes)
    ]


def summary_record(summary: Summary, computations: Sequence[ComputationSummary] | None) -> dict[str, object]:
    """Everything `hloexec info` says of a module, with its computations where they are listed."""
    return {
        "module": summary.name,
        "device_count": summary.devices,
        "instruction_count": summary.instructions,
        "computation_count": summary.computations,
        "replica_count": summary.replica_count,
        "num_partitions": summary.num_partitions,
        "is_scheduled": summary.is_scheduled,
        "entry": summary.entry_name,
        "parameters": parameter_records((entry.name, entry.shape) for entry in summary.parameters),
        "parameter_bytes": summary.parameter_bytes,
        "result_shape": str(summary.result_shape),
        "opcode_counts": summary.opcodes,
        "custom_call_counts": summary.custom_calls,
        "element_type_counts": summary.element_types,
        "contractions": [
            {
                "kind": entry.kind,
                "instruction_count": entry.instructions,
                "run_count": entry.runs,
                "flops": entry.flops,
                "bytes": entry.byte_count,
            }
            for entry in summary.contractions
        ],
        "flops": summary.flops,
        "loop_count": summary.loops,
        "loops_without_trip_count": summary.loops_without_trip_count,
        "constant_count": summary.constants,
        "elided_constant_count": summary.elided_constants,
        "unsupported": [
            {
                "kind": entry.kind,
                "name": entry.name,
                "reason": entry.reason,
                "instruction_count": entry.count,
                "computation": entry.computation,
                "instruction": entry.instruction,
                "is_conditional": entry.is_conditional,
            }
            for entry in summary.unsupported
        ],
        "notes": [str(note) for note in summary.notes],
        "computations": None if computations is None else [_computation_record(entry) for entry in computations],
    }


def _computation_record(entry: ComputationSummary) -> dict[str, object]:
    return {
        "computation": entry.name,
        "calling_computation": entry.calling_computation,
        "calling_instruction": entry.calling_instruction,
        "calling_opcode": entry.calling_opcode,
        "instruction_count": entry.instructions,
        "run_count": entry.runs,
        "flops": entry.flops,
        "parameter_bytes": entry.parameter_bytes,
        "result_shape": str(entry.result_shape),
    }


def opcode_records(
    opcodes: Sequence[Opcode], accepted: Mapping[str, tuple[ElementType, ...] | None]
) -> list[dict[str, object]]:
    """One record per opcode of the registry, with the element types that it takes where they are known."""
    return [
        {
            "opcode": entry.name,
            "minimum_operands": entry.minimum_operands,
            "maximum_operands": entry.maximum_operands,
            "role": entry.role.name.lower(),
            "is_elementwise": entry.is_elementwise,
            "is_supported": entry.is_supported,
            "documentation": entry.documentation,
            "element_types": None if types is None else [element_type.name for element_type in types],
        }
        for entry, types in ((entry, accepted.get(entry.name)) for entry in opcodes)
    ]
