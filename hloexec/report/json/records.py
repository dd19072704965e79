"""The records that `--json` prints, each with the classes of what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hloexec.tools.registration import TOOLS


def printed_records() -> Mapping[str, str]:
    """The records by their names, with the places of their classes."""
    found = {name: classes for tool in TOOLS.values() for name, classes in tool.records.items()}
    return {**found, "error": "hloexec.report.json.printed.Error"}


def classes_of(name: str) -> list[Any]:
    """The classes of what a record is made of that is printed."""
    places = [place.rpartition(".") for place in printed_records()[name].split()]
    return [getattr(import_module(module), cls) for module, _, cls in places]
