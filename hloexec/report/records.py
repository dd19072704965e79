"""The same data as the tables show, as what JSON can hold."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import attrs

from hloexec.ir import ArrayShape
from hloexec.numerics.statistics import LeafStatistics
from hloexec.ops.registry import Opcode
from hloexec.summary import ComputationSummary, Summary

__all__ = ["computation_records", "json_text", "leaf_records", "opcode_records", "summary_record"]


def json_text(record: object) -> str:
    """JSON that any reader takes: numbers that are not finite become null, what no terminal may see an escape."""
    text = json.dumps(_finite(record), indent=2, allow_nan=False, ensure_ascii=False)
    return re.sub(r"[^\n -~]", lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def _finite(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value


def leaf_records(rows: Sequence[tuple[str, LeafStatistics]]) -> list[dict[str, object]]:
    """One record per leaf of a value, with its label."""
    records = []
    for label, leaf in rows:
        fields = attrs.asdict(leaf, filter=lambda field, _: field.name not in ("element_type", "dimensions"))
        shape = str(ArrayShape(leaf.element_type, leaf.dimensions))
        records.append({"label": label, "shape": shape, **fields, "index": list(leaf.index)})
    return records


def summary_record(summary: Summary) -> dict[str, object]:
    """Everything `hloexec info` says."""
    return attrs.asdict(summary, recurse=False) | {
        "devices": summary.devices,
        "result_shape": str(summary.result_shape),
        "parameters": [
            {"number": entry.number, "name": entry.name, "shape": str(entry.shape), "byte_size": entry.byte_size}
            for entry in summary.parameters
        ],
        "parameter_bytes": summary.parameter_bytes,
        "contractions": [attrs.asdict(entry) for entry in summary.contractions],
        "flops": summary.flops,
        "unsupported": [attrs.asdict(entry) for entry in summary.unsupported],
        "notes": [str(note) for note in summary.notes],
    }


def computation_records(computations: Sequence[ComputationSummary]) -> list[dict[str, object]]:
    """One record per computation."""
    return [attrs.asdict(entry, recurse=False) | {"result_shape": str(entry.result_shape)} for entry in computations]


def opcode_records(opcodes: Sequence[Opcode]) -> list[dict[str, Any]]:
    """One record per opcode of the registry."""
    return [
        {
            "name": entry.name,
            "minimum_operands": entry.minimum_operands,
            "maximum_operands": entry.maximum_operands,
            "role": entry.role.name.lower(),
            "is_elementwise": entry.is_elementwise,
            "is_supported": entry.is_supported,
            "documentation": entry.documentation,
        }
        for entry in opcodes
    ]
