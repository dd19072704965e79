"""Reading a trace: the index line by line, arrays on demand. All input is validated."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hloexec.core.arguments import require_path, require_text, wrong
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.files import opened
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Described
from hloexec.core.wording import quoted
from hloexec.errors import InputError, os_errors_named, warn
from hloexec.language.literals.npz import DAMAGE, decoded
from hloexec.tools.tracing.recording import VERSION

_SHAPE = re.compile(r"([a-z0-9]+)\[((?:[0-9]+(?:,[0-9]+)*)?)\]")
_STATISTICS = ("minimum", "maximum", "mean", "standard_deviation")


@frozen
class ArrayRecord:
    """One array that an instruction gave: its statistics, as in `numerics.statistics`, and where it lies."""

    index: tuple[int, ...]
    """The place in the instruction's value; empty where that is an array."""
    shape: ArrayShape
    minimum: float | int | None
    maximum: float | int | None
    mean: float | None
    standard_deviation: float | None
    nan_count: int
    infinity_count: int
    hash: str
    offset: int | None
    """Where its record begins in values.npy; None in a trace of statistics only."""


@frozen
class TraceEvent:
    """One run of an instruction, on devices that hold the same value."""

    number: int
    name: str
    """The path and the instruction, e.g. `loop[2]:body/fusion.1/add.3`; unique in a run of one device."""
    instruction: str
    opcode: str
    computation: str
    iteration: int | None
    """Of the innermost loop around it, counted from 0."""
    devices: tuple[int, ...]
    op_name: str | None
    source: str | None
    """The source position, e.g. `train.py:12 in loss`."""
    seconds: float
    arrays: tuple[ArrayRecord, ...]


class Trace(Described):
    """A trace on disk. Iterating gives its events in the order in which they ran, read from disk as needed.

    `information` is the content of trace.json: the module's name, the numerics policy, the seed, and whether the run
    finished (`is_complete`).
    """

    def __init__(self, folder: str | os.PathLike[str], information: dict[str, object]) -> None:
        self.folder = Path(folder)
        self.information = information

    def __str__(self) -> str:
        return f"of {self.information['module']} in {self.folder}"

    def __iter__(self) -> Iterator[TraceEvent]:
        path = self.folder / "events.jsonl"
        with os_errors_named(f"read {os.fspath(path)!r}"), opened(path) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and not self.information["is_complete"]:
                    # The run was cut off within this line.
                    return
                yield _event(line, f"{os.fspath(path)}:{number}")

    def find(self, name: str, device: int | None = None) -> TraceEvent:
        """The first event of this name or path (and of a device); InputError where there is none."""
        require_text("name", name, "the name or the path of an instruction")
        wanted = name.removeprefix("%")
        for event in self:
            if wanted in (event.name, event.instruction) and (device is None or device in event.devices):
                return event
        where = f" on device {device}" if device is not None else ""
        raise InputError(f"the trace {os.fspath(self.folder)!r} has no event {name!r}{where}")

    def array(self, record: ArrayRecord) -> Array:
        """An array in its element type's NumPy type; InputError where the trace has statistics only or is damaged."""
        if not isinstance(record, ArrayRecord):
            raise wrong("record", "an ArrayRecord, one of the arrays of a TraceEvent", record)
        if record.offset is None:
            raise InputError(f"the trace {os.fspath(self.folder)!r} holds statistics only, no values")
        path = self.folder / "values.npy"
        where = f"{os.fspath(path)!r}, at {record.offset}"
        try:
            with os_errors_named(f"read {os.fspath(path)!r}"), opened(path) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(record.offset)
                version = np.lib.format.read_magic(file)
                if version != (1, 0):
                    raise InputError(f"{where}: a .npy record of version {version}, which traces do not have")
                dimensions, _, dtype = np.lib.format.read_array_header_1_0(file)
                needed = int(np.prod(dimensions, dtype=object)) * dtype.itemsize
                if dtype.kind in "OV" or dimensions != record.shape.dimensions or file.tell() + needed > size:
                    raise InputError(f"{where} is damaged: it has no complete {record.shape} there")
                file.seek(record.offset)
                stored = np.lib.format.read_array(file, allow_pickle=False)
        except DAMAGE as error:
            raise InputError(f"{where} is damaged: {error}") from error
        return decoded(np.asarray(stored), record.shape.element_type, where)

    def value(self, event: TraceEvent) -> Array:
        """The array that an event gave; InputError where it gave a tuple, whose arrays `array` reads one by one."""
        if not isinstance(event, TraceEvent):
            raise wrong("event", "a TraceEvent, as iterating or Trace.find gives", event)
        if len(event.arrays) != 1 or event.arrays[0].index:
            raise InputError(f"{event.name} gave {len(event.arrays)} arrays; read them with Trace.array")
        return self.array(event.arrays[0])


def read_trace(folder: str | os.PathLike[str]) -> Trace:
    """Open a trace that `hloexec.trace` wrote.

    Raises InputError if the folder is not a trace, or is one of a newer version; warns HloWarning if the run that wrote
    it did not finish.
    """
    require_path("folder", folder)
    path = Path(folder) / "trace.json"
    try:
        with opened(path) as file:
            information = json.loads(file.read())
    except OSError as error:
        raise InputError(
            f"{os.fspath(folder)!r} is not a trace: cannot read its trace.json: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{os.fspath(path)!r} is damaged: {error}") from error
    if not isinstance(information, dict) or not isinstance(information.get("is_complete"), bool):
        raise InputError(f"{os.fspath(path)!r} is not what `hloexec trace` writes")
    if information.get("version") != VERSION:
        raise InputError(f"{os.fspath(path)!r} is of version {information.get('version')}, this reads {VERSION}")
    if not information["is_complete"]:
        warn(f"the run that wrote the trace {os.fspath(folder)!r} did not finish")
    return Trace(folder, information)


def _event(line: bytes, where: str) -> TraceEvent:
    try:
        fields = json.loads(line)
        return TraceEvent(
            **{name: _typed(fields[name], str) for name in ("name", "instruction", "opcode", "computation")},
            **{name: _typed(fields[name], str, type(None)) for name in ("op_name", "source")},
            number=_typed(fields["number"], int),
            iteration=_typed(fields["iteration"], int, type(None)),
            devices=tuple(_typed(device, int) for device in fields["devices"]),
            seconds=float(_typed(fields["seconds"], int, float)),
            arrays=tuple(_array(record) for record in _typed(fields["arrays"], list)),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{where}: the line is damaged: {type(error).__name__} {error}") from error


def _array(fields: dict[str, Any]) -> ArrayRecord:
    match = _SHAPE.fullmatch(_typed(fields["shape"], str))
    if match is None or match[1] not in ELEMENT_TYPES or not ELEMENT_TYPES[match[1]].is_array:
        raise ValueError(f"{fields['shape']!r} is not a shape")
    shape = ArrayShape(ELEMENT_TYPES[match[1]], tuple(map(int, match[2].split(","))) if match[2] else ())
    offset = _typed(fields["offset"], int, type(None))
    if offset is not None and offset < 0:
        raise ValueError(f"an offset of {offset}")
    return ArrayRecord(
        index=tuple(_typed(part, int) for part in fields["index"]),
        shape=shape,
        nan_count=_typed(fields["nan_count"], int),
        infinity_count=_typed(fields["infinity_count"], int),
        hash=_typed(fields["hash"], str),
        offset=offset,
        **{name: _typed(fields[name], int, float, type(None)) for name in _STATISTICS},
    )


def _typed(value: object, *types: type) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(f"{quoted(value, 50)} where {' or '.join(kind.__name__ for kind in types)} is expected")
    return value
