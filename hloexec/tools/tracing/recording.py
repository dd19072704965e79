"""The observer that writes a trace, event by event, of the instructions that are selected.

Caching what has been computed for arrays that occur repeatedly.

The same array object passes through parameters, tuples, fusions and loops, each of which is an event of its own. In an
observed run, no array that an observer has seen is overwritten, so cached results stay valid.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import LeafStatistics, statistics
from hloexec.core.files import free_bytes
from hloexec.core.ir import ArrayShape, Instruction, Module
from hloexec.core.structs import define, frozen
from hloexec.core.tree import leaves
from hloexec.core.values import Array
from hloexec.core.wording import argument, suggestion
from hloexec.engine.exec.observers import Event
from hloexec.errors import InputError, ResourceError, os_errors_named
from hloexec.language.literals.npz import encode
from hloexec.language.origins import source_text
from hloexec.ops.registry import Role, role_of

_FIELDS = ("name", "opcode", "op_name", "path")


@frozen
class Selection:
    """Patterns, of which an instruction has to match one; without any, every instruction is selected.

    A pattern with `*`, `?` or `[…]` matches as file names do, any other exactly, against the instruction's name, its
    opcode and its metadata's op_name. `name:`, `opcode:`, `op_name:` in front of it leave the others out. `path:`
    matches the path of each run of an instruction, such as `loop[2]:body/fusion.1/add.3`; brackets are literal
    there.
    """

    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Selection:
        """The selection of these patterns; InputError for one that says nothing."""
        texts = tuple([patterns] if isinstance(patterns, str) else patterns)
        for pattern in texts:
            if not _split(pattern)[1]:
                raise InputError(f"{pattern!r} selects nothing; give a name, an opcode or an op_name")
        return cls(texts)

    def has(self, instruction: Instruction, path: str | None = None) -> bool:
        """Whether the run of an instruction with this path and name is selected; without one, whether some may be."""
        return not self.patterns or any(_matches(pattern, instruction, path) for pattern in self.patterns)

    def require_some(self, module: Module) -> None:
        """Raise InputError for a pattern that no instruction of the module matches, with what comes close."""
        instructions = [instruction for computation in module for instruction in computation]
        for pattern in self.patterns:
            if not any(_matches(pattern, instruction) for instruction in instructions):
                words = {word for instruction in instructions for word in (instruction.opcode, instruction.name)}
                hint = suggestion(_split(pattern)[1].removeprefix("%"), sorted(words), 3, repr)
                raise InputError(f"{pattern!r} selects no instruction of {module.name}{hint}")


def _split(pattern: str) -> tuple[str | None, str]:
    field, colon, rest = pattern.partition(":")
    return (field, rest) if colon and field in _FIELDS else (None, pattern)


def _matches(pattern: str, instruction: Instruction, path: str | None = None) -> bool:
    field, text = _split(pattern)
    if field == "path":
        # Iterations are in brackets, which would otherwise be character sets.
        return path is None or fnmatchcase(path, text.replace("[", "[[]"))
    values = {"name": instruction.name, "opcode": instruction.opcode, "op_name": instruction.op_name}
    text = text.removeprefix("%")
    return any(
        value is not None and fnmatchcase(value, text) for name, value in values.items() if field in (None, name)
    )


_T = TypeVar("_T")


class KnownArrays(Generic[_T]):
    """The latest results of a function of arrays, by the array's identity; no array is kept alive."""

    def __init__(self, function: Callable[[Array], _T], most: int = 4096) -> None:
        self._function = function
        self._most = most
        self._results: OrderedDict[int, tuple[weakref.ref[Array], _T]] = OrderedDict()

    def __call__(self, array: Array) -> _T:
        entry = self._results.get(id(array))
        if entry is not None and entry[0]() is array:
            self._results.move_to_end(id(array))
            return entry[1]
        result = self._function(array)
        self._results[id(array)] = (weakref.ref(array), result)
        if len(self._results) > self._most:
            self._results.popitem(last=False)
        return result


VERSION = 1
"""Of the format."""
_RECENT = 65536
"""Stored arrays that a later one of the same bytes may refer to."""
_ROOM_CHECK_BYTES = 256 << 20
"""Bytes that may be written before free disk space is checked again."""
_MOST_REMARKABLE = 1000


def advice() -> str:
    """What makes a trace smaller."""
    fewer, less = argument("select", "PATTERN"), argument("statistics_only", True)
    return f"select fewer instructions ({fewer}), or record statistics only ({less})"


"""To whom a trace takes too much room."""


@frozen
class Remarkable:
    """A notable event."""

    name: str
    """Path and instruction."""
    devices: tuple[int, ...]
    leaf: LeafStatistics
    """What the instruction gave."""


@define(eq=False)
class Recorder:
    """Writes the index and the values of a trace into a folder."""

    _folder: Path
    _index: BinaryIO
    _values: BinaryIO | None
    _module: Module
    _selection: Selection
    _limit: int | None
    _top: int
    event_count: int = 0
    value_bytes: int = 0
    instructions: set[tuple[str, str]] = attrs.field(init=False, factory=set)
    _known: KnownArrays[tuple[LeafStatistics, int | None]] = attrs.field(init=False)
    _offsets: OrderedDict[tuple[object, ...], int] = attrs.field(init=False, factory=OrderedDict)
    _index_bytes: int = 0
    _unchecked: int = _ROOM_CHECK_BYTES
    _not_finite: dict[tuple[str, str], Remarkable] = attrs.field(init=False, factory=dict)
    _largest: dict[tuple[str, str], tuple[float, Remarkable]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._known = KnownArrays(self._kept)
        self._top = min(self._top, _MOST_REMARKABLE)

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        if not self._selection.has(event.instruction) or not self._selection.has(event.instruction, event.name):
            return
        fields = _event_fields(self.event_count, event, self._module)
        arrays = []
        for index, leaf in leaves(event.value):
            if isinstance(leaf, np.ndarray):
                leaf_statistics, offset = self._known(leaf)
                arrays.append(_array_fields(leaf_statistics, index, offset))
                self._notice(event, fields["name"], leaf_statistics)
        line = json.dumps(fields | {"arrays": arrays}, ensure_ascii=False).encode() + b"\n"
        self._require_room(len(line))
        self._index_bytes += len(line)
        with os_errors_named(self._writing):
            self._index.write(line)
        self.event_count += 1
        self.instructions.add((event.computation.name, event.instruction.name))

    def remarkable(self) -> list[Remarkable]:
        """The first events with NaN or infinities, then those with the largest magnitudes, one per instruction."""
        entries = list(self._not_finite.values())
        # Values that are only passed on come once, where they come first.
        hashes = {entry.leaf.hash for entry in entries}
        for key, (_, entry) in sorted(self._largest.items(), key=lambda item: -item[1][0]):
            if key not in self._not_finite and entry.leaf.hash not in hashes:
                hashes.add(entry.leaf.hash)
                entries.append(entry)
        return entries[: self._top]

    def _kept(self, array: Array) -> tuple[LeafStatistics, int | None]:
        (leaf_statistics,) = statistics(array)
        return leaf_statistics, None if self._values is None else self._stored(array, leaf_statistics)

    def _stored(self, array: Array, statistics: LeafStatistics) -> int:
        """The offset at which the array's record begins."""
        assert self._values is not None
        # A hash of 48 bits alone would eventually collide; together with the moments in f64 it does not.
        key = attrs.astuple(statistics, recurse=False)
        known_offset = self._offsets.get(key)
        if known_offset is not None:
            self._offsets.move_to_end(key)
            return known_offset
        self._require_room(array.nbytes)
        with os_errors_named(self._writing):
            offset = self._values.tell()
            _, stored = encode("value", array)
            np.lib.format.write_array(self._values, stored, allow_pickle=False)
            # The index must never speak of what is not there.
            self._values.flush()
        self.value_bytes += array.nbytes
        self._offsets[key] = offset
        if len(self._offsets) > _RECENT:
            self._offsets.popitem(last=False)
        return offset

    def _require_room(self, size: int) -> None:
        if self._limit is not None and self.value_bytes + self._index_bytes + size > self._limit:
            fewer = f"select fewer instructions ({argument('select', 'PATTERN')})"
            remedy = advice() if self._values is not None else fewer
            raise ResourceError(f"the trace exceeds the limit of {self._limit} bytes; {remedy}")
        self._unchecked += size
        if self._unchecked >= _ROOM_CHECK_BYTES:
            if free_bytes(self._folder) < size:
                raise ResourceError(f"the disk of {os.fspath(self._folder)!r} is full; {advice()}")
            self._unchecked = 0

    @property
    def _writing(self) -> str:
        return f"write to {os.fspath(self._folder)!r}"

    def _notice(self, event: Event, name: str, leaf: LeafStatistics) -> None:
        key = (event.computation.name, event.instruction.name)
        if leaf.nan_count or leaf.infinity_count:
            if len(self._not_finite) < self._top:
                self._not_finite.setdefault(key, Remarkable(name, event.devices, leaf))
        elif leaf.maximum is not None and leaf.minimum is not None and leaf.element_type.is_floating and self._top:
            if is_renaming(event.instruction):
                return
            size = float(max(abs(leaf.maximum), abs(leaf.minimum)))
            largest_entry = self._largest.get(key)
            if largest_entry is None or size > largest_entry[0]:
                self._largest[key] = (size, Remarkable(name, event.devices, leaf))


def is_renaming(instruction: Instruction) -> bool:
    """Whether what an instruction gives was there before: given to the module, or made by others that are traced."""
    return role_of(instruction) not in (None, Role.KERNEL, Role.CUSTOM_CALL)


def _event_fields(number: int, event: Event, module: Module) -> dict[str, Any]:
    """What the index says of an event, its arrays left out."""
    instruction = event.instruction
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
        "op_name": instruction.op_name,
        "source": source_text(module, instruction),
        "seconds": round(event.seconds, 9),
    }


def _array_fields(leaf: LeafStatistics, index: tuple[int, ...], offset: int | None) -> dict[str, object]:
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
