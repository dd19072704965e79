"""Colours from a file: what `hloexec shadow`, `diff`, `nan` or `memory` printed with --json, or numbers by name."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from hloexec.core.arguments import require_module, require_path
from hloexec.core.files import opened
from hloexec.core.ir import Module
from hloexec.core.wording import quoted
from hloexec.errors import HloError, InputError, os_errors_named, warn
from hloexec.tools.extraction.naming import holding_computation
from hloexec.tools.graphing.colours import Colours, quantity
from hloexec.tools.graphing.flow import Place
from hloexec.tools.graphing.measures import blame_colours, loss_colours, size_colours


def read_colours(path: str | os.PathLike[str], module: Module) -> Colours:
    """Colours of a module's instructions, from a file of JSON.

    It is what `hloexec shadow`, `diff` (of the module AFTER), `nan` or `memory` printed with --json, or an object that
    has a number for each of some instructions, by name, or as `computation/name` where several have the name.

    Raises InputError where the file is neither, or names no instruction of the module; what it names besides is warned
    of.
    """
    require_path("path", path)
    require_module(module)
    named = repr(os.fspath(path))
    with os_errors_named(f"read {named}"), opened(path, from_shell=True) as file:
        text = file.read()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{named} is not JSON: {error}") from error
    if not isinstance(record, dict) or not record:
        raise InputError(f"{named} must be a JSON object: what a command printed with --json, or numbers by name")
    schema = record.get("schema")
    if schema is None:
        return _numbers(record, module, named)
    reader = _READERS.get(str(schema).removeprefix("hloexec."))
    if reader is None:
        known = ", ".join(f"hloexec.{name}" for name in _READERS)
        raise InputError(f"{named} is {quoted(schema)}, which has no colours; it must be one of {known}")
    try:
        found = reader(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{named} does not have what its schema {schema} says") from error
    _require_places(found, module, named)
    return found


def _numbers(record: Mapping[str, Any], module: Module, named: str) -> Colours:
    values: dict[Place, float] = {}
    unknown = []
    for key, value in record.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
            raise InputError(
                f"{named} must have a number from 0 on for each instruction, but has {quoted(value)} for {key!r}"
            )
        try:
            values[_place(key, module)] = float(value)
        except HloError as error:
            unknown.append(error)
        except OverflowError:
            values[_place(key, module)] = math.inf
    if not values:
        raise unknown[0]
    if unknown:
        warn(f"{len(unknown)} of the instructions that {named} names have no colour, such as: {unknown[0].message}")
    title = f"values of {named}"
    return quantity(title, values, lambda value: f"{value:.3g}")


def _place(key: str, module: Module) -> Place:
    computation, _, name = key.rpartition("/")
    found = module.by_name.get(computation.removeprefix("%"))
    if found is not None and name.removeprefix("%") in found.by_name:
        return found.name, name.removeprefix("%")
    return holding_computation(module, key).name, name.removeprefix("%")


def _require_places(found: Colours, module: Module, named: str) -> None:
    missing = [
        place
        for place in found.values
        if place[0] not in module.by_name or place[1] not in module.by_name[place[0]].by_name
    ]
    if not missing:
        return
    example = f"%{missing[0][1]} in {missing[0][0]}"
    if len(missing) == len(found.values):
        raise InputError(f"{named} is of another module: {module.name} has none of its instructions, such as {example}")
    warn(f"{module.name} does not have {len(missing)} of the instructions that {named} names, such as {example}")


def _shadow(record: Mapping[str, Any]) -> Colours:
    return loss_colours(
        {_at(each): (float(each["inherited"]), float(each["added"])) for each in record["instruction_errors"]},
        {
            _at(loss): (max(float(loss["share"]), float(loss["lost_share"])), str(loss["kind"]))
            for loss in record["losses"]
        },
    )


def _diff(record: Mapping[str, Any]) -> Colours:
    findings = record["findings"]
    return blame_colours(
        right=(_at(match["after"]) for match in record["matches"]),
        wrong=(_at(step["run"]) for finding in findings for step in finding["graph"] if step["role"] == "output"),
        blamed=(_at(finding["after"]) for finding in findings),
    )


def _nan(record: Mapping[str, Any]) -> Colours:
    finding = record["finding"]
    return blame_colours(
        right=(),
        wrong=(_at(event) for event in (*record["later"], *record["discarded"])),
        blamed=() if finding is None else (_at(finding),),
    )


def _memory(record: Mapping[str, Any]) -> Colours:
    return size_colours((_at(value), int(value["byte_size"])) for value in record["values"] if not value["is_phi"])


def _at(record: Mapping[str, Any]) -> Place:
    return str(record["computation"]), str(record["instruction"])


_READERS: dict[str, Callable[[Mapping[str, Any]], Colours]] = {
    "shadow": _shadow,
    "diff": _diff,
    "nan": _nan,
    "memory": _memory,
}
