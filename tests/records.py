"""Reads what commands print under `--json`, and holds it against the schema that it names."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from hloexec.report.json.schemas import json_schema


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = json_schema(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def read_record(printed: str) -> Any:
    """The record that is printed; fails where it has other keys or types than its schema, or where there are several."""
    record = json.loads(printed)
    _validator(record["schema"].removeprefix("hloexec.")).validate(record)
    return record
