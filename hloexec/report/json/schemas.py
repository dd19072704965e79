"""The JSON Schemas of what `--json` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hloexec.report.json.keys import KEYS
from hloexec.report.json.records import RECORDS

VERSION = 1
"""Of all schemas: one more where a key is renamed, left out or given another meaning; not where one is added."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORD: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]},
    "flag": {"type": "boolean"},
}
"""The types that are no records; JSON has no infinities and no NaN, which are texts."""


def identified(name: str, record: Mapping[str, object], warnings: Sequence[str]) -> dict[str, object]:
    """A record as it is printed: with the name and the version of its schema in front, and with what was warned of."""
    return {"schema": f"hloexec.{name}", "version": VERSION, **record, "warnings": list(warnings)}


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a record that is printed, with those of its parts."""
    schema = _object_schema(RECORDS[name])
    schema["properties"] = {
        "schema": {"const": f"hloexec.{name}", "description": KEYS["schema"][1]},
        "version": {"const": VERSION, "description": KEYS["version"][1]},
        **schema["properties"],
        "warnings": {**_type_schema(KEYS["warnings"][0]), "description": KEYS["warnings"][1]},
    }
    schema["required"] = list(schema["properties"])
    parts = {part: _object_schema(RECORDS[part]) for part in _parts(name, {})}
    parts["element"] = {"anyOf": [_WORD["number"], _WORD["flag"], _COMPLEX]}
    return {"$schema": _DIALECT, "title": f"hloexec.{name}", **schema, "$defs": parts}


_COMPLEX = {"type": "array", "prefixItems": [_WORD["number"]] * 2, "items": False, "minItems": 2}
"""A complex number is the list of its real and its imaginary part."""


def _object_schema(keys: str) -> dict[str, Any]:
    properties = {}
    for word in keys.split():
        key = word.removesuffix("?")
        kind, meaning = KEYS[key]
        schema = _type_schema(kind)
        if key != word:
            schema = {"anyOf": [schema, {"type": "null"}]}
        properties[key] = {**schema, "description": meaning}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _type_schema(kind: str) -> dict[str, Any]:
    if kind.startswith("["):
        return {"type": "array", "items": _type_schema(kind[1:-1])}
    if kind.startswith("{"):
        return {"type": "object", "additionalProperties": _type_schema(kind[1:-1])}
    if "|" in kind:
        return {"enum": kind.split("|")}
    return dict(_WORD.get(kind, {"$ref": f"#/$defs/{kind}"}))


def _parts(name: str, found: dict[str, None]) -> Iterator[str]:
    """The records that a record is made of, in the order in which its keys name them."""
    for word in RECORDS[name].split():
        part = re.sub(r"[^\w|]", "", KEYS[word.removesuffix("?")][0])
        if part in RECORDS and part not in found:
            found[part] = None
            yield part
            yield from _parts(part, found)
