"""The records that `--json` prints, and their JSON Schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from hloexec.report.json.deriving import Key, json_value, keys_of, name_of
from hloexec.tools.registration import TOOLS


def printed_records() -> Mapping[str, str]:
    """The records by their names, with the places of their classes."""
    records = {name: classes for tool in TOOLS.values() for name, classes in tool.records.items()}
    return {**records, "error": "hloexec.report.json.printed.Error"}


def classes_of(name: str) -> list[Any]:
    """The classes of what a record is made of that is printed."""
    places = [place.rpartition(".") for place in printed_records()[name].split()]
    return [getattr(import_module(module), cls) for module, _, cls in places]


VERSION = 2
"""Of all schemas: one more where a key is renamed, left out or given another meaning; not where one is added."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def printed_record(name: str, parts: Sequence[object], warnings: Sequence[str]) -> dict[str, object]:
    """A record as it is printed: with the name and the version of its schema in front, and with what was warned of.

    It is made of those of several results; of keys that are in two of them, the first one counts.
    """
    record: dict[str, object] = {"schema": f"hloexec.{name}", "version": VERSION}
    for part in parts:
        record |= {key: value for key, value in json_value(part).items() if key not in record}
    return record | {"warnings": list(warnings)}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a record that is printed, with those of its parts."""
    keys = printed_keys(name)
    parts = {part: _object_schema(keys_of(cls)) for part, cls in parts_of(keys).items()}
    title = f"hloexec.{name}"
    schema = _object_schema(keys)
    schema["properties"] = {
        "schema": {"const": title, "description": "Which record it is."},
        "version": {"const": VERSION, "description": "The version of its schema."},
        **schema["properties"],
        "warnings": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What was warned of, as on standard error.",
        },
    }
    schema["required"] = list(schema["properties"])
    return {"$schema": _DIALECT, "title": title, **schema, "$defs": parts}


def printed_keys(name: str) -> list[Key]:
    """The keys of a record that is printed, without those that say which it is."""
    keys: dict[str, Key] = {}
    for cls in classes_of(name):
        for key in keys_of(cls):
            keys.setdefault(key.name, key)
    return list(keys.values())


def parts_of(keys: Sequence[Key]) -> dict[str, type]:
    """The classes of the records that keys are made of, in the order in which these name them."""
    classes: dict[str, type] = {}
    waiting = [part for key in keys for part in key.parts]
    while waiting:
        part = waiting.pop(0)
        if classes.setdefault(name_of(part), part) is not part:
            raise TypeError(f"there are two classes {name_of(part)}")
        waiting += [
            part_class for key in keys_of(part) for part_class in key.parts if name_of(part_class) not in classes
        ]
    return classes


def _object_schema(keys: Sequence[Key]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key.name: {**key.schema, "description": key.meaning} for key in keys},
        "required": [key.name for key in keys],
        "additionalProperties": False,
    }
