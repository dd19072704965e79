"""`trace` runs a module and writes the result of every instruction to a folder, and a `Trace` reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Unpack

import attrs
import numpy as np

from hloexec.core.arguments import (
    byte_count,
    listed,
    require_flags,
    require_module,
    require_path,
    require_text,
    texts,
    wrong,
)
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.files import new_folder, open_atomically, opened, require_new_folder, require_room
from hloexec.core.ir import ArrayShape, Computation, Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Array, Described, Inputs
from hloexec.core.wording import quoted
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Observer
from hloexec.engine.exec.running import RunOptions, plan_of, resolve_options, run_with
from hloexec.engine.plan.program import Program
from hloexec.errors import InputError, os_errors_named, warn
from hloexec.language.literals.npz import DAMAGE, decoded
from hloexec.ops.registry import find_opcode
from hloexec.tools.summary import run_counts
from hloexec.tools.tracing.recording import VERSION, Recorder, Remarkable, Selection, advice, is_renaming

_SHAPE = re.compile(r"([a-z0-9]+)\[((?:[0-9]+(?:,[0-9]+)*)?)\]")
_STATISTICS = ("minimum", "maximum", "mean", "standard_deviation")


@frozen
class ArrayRecord:
    """One array that an instruction gave: its statistics, as in `numerics.leaves`, and where it lies."""

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


@frozen
class Traced(Described):
    """What a trace came to."""

    trace: Trace = attrs.field(metadata=UNTOLD)
    events: int
    """How many values were looked at."""
    instructions: int
    """How many instructions there are."""
    value_bytes: int
    """The size of the values on disk."""
    remarkable: tuple[Remarkable, ...]
    """The first events with NaN or infinities, then those with the largest magnitudes."""
    select: tuple[str, ...]
    """The patterns of the instructions that were traced; none for all."""

    @property
    @told
    def statistics_only(self) -> bool:
        """Whether the values themselves are left out."""
        return bool(self.trace.information["statistics_only"])

    @property
    @told
    def is_complete(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.trace.information["is_complete"])

    def __str__(self) -> str:
        return f"{self.trace}: {self.events} events of {self.instructions} instructions, {self.value_bytes} bytes"


def trace(
    module: Module,
    inputs: Inputs | None,
    folder: str | os.PathLike[str],
    *,
    select: Iterable[str] = (),
    statistics_only: bool = False,
    disk_limit: int | str | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Trace:
    """Run a module, and write the result of every instruction to a new folder, as it is computed.

    `inputs`, `observers` and `options` are those of `run_devices` (`hloexec.Inputs`, `hloexec.RunOptions`). `select`
    are patterns for instructions, opcodes or op_names (see `hloexec.tracing.Selection`); without any, all instructions
    are traced, including those in fusions and in each iteration of a loop. `statistics_only` omits the arrays
    themselves. Memory use does not grow with the size of the trace. The format is documented in `hloexec.tracing`.

    If the run fails, the trace up to that point is kept, unless it is empty.

    Raises InputError if the folder is not empty or cannot be written, or a pattern selects nothing; ResourceError if
    the values cannot fit on the disk or into `disk_limit` bytes (a number, or a text such as `"8G"`), as far as this is
    known before the run; and whatever `run_devices` raises.
    """
    settings: dict[str, Any] = {"select": select, "statistics_only": statistics_only, "disk_limit": disk_limit}
    return record(module, inputs, folder, observers=observers, **settings, **options).trace


def record(
    module: Module,
    inputs: Inputs | None,
    folder: str | os.PathLike[str],
    *,
    select: Iterable[str] = (),
    statistics_only: bool = False,
    disk_limit: int | str | None = None,
    top: int = 0,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Traced:
    """`trace`, with the `top` events that stand out."""
    require_module(module)
    require_path("folder", folder)
    require_flags(statistics_only=statistics_only)
    resolved = resolve_options("trace", options)
    watchers = listed("observers", observers, "observers")
    limit = None if disk_limit is None else byte_count("disk_limit", disk_limit)
    selection = Selection.of(texts("select", select))
    selection.require_some(module)
    name = resolved.computation
    entry = module.entry if name is None else module.by_name.get(name.removeprefix("%"), module.entry)
    require_new_folder(folder)
    # Whatever keeps the module from running is said before there is a folder.
    plan_of(module, resolved, is_observed=True)
    if not statistics_only:
        require_room(folder, _declared_bytes(module, entry, selection), limit, "the traced values", advice())
    topology = topology_of(module, resolved.replicas, resolved.partitions)
    information = {
        "version": VERSION,
        "module": module.name,
        "devices": topology.count,
        "numerics": resolved.numerics.name,
        "seed": resolved.seed,
        "select": list(selection.patterns),
        "statistics_only": statistics_only,
        "is_complete": False,
    }
    path = Path(folder)
    with (
        os_errors_named(f"write to {os.fspath(path)!r}"),
        _new_files(path, information, has_values=not statistics_only) as (index, values),
    ):
        recorder = Recorder(path, index, values, module, selection, limit, top)
        run_with(module, inputs, resolved, [recorder, *watchers])
    information |= {"is_complete": True, "events": recorder.event_count}
    _write_information(path, information)
    counts = recorder.event_count, len(recorder.instructions), recorder.value_bytes
    return Traced(Trace(path, information), *counts, tuple(recorder.remarkable()), selection.patterns)


@contextmanager
def _new_files(
    folder: Path, information: dict[str, object], *, has_values: bool
) -> Iterator[tuple[BinaryIO, BinaryIO | None]]:
    """The index and the values of a new trace; where a run that fails wrote nothing to them, nothing stays.

    Of several processes the first makes the index, and the others get InputError.
    """
    was_there = folder.is_dir()
    new_folder(folder)
    with _index(folder) as index:
        try:
            _write_information(folder, information)
            with open(folder / "values.npy", "wb") if has_values else nullcontext() as values:
                yield index, values
        except BaseException:
            if not index.tell():
                index.close()  # Windows removes no open file.
                shutil.rmtree(folder, ignore_errors=True)
                if was_there:
                    folder.mkdir()
            raise


def _index(folder: Path) -> BinaryIO:
    try:
        return open(folder / "events.jsonl", "xb")
    except FileExistsError as error:
        raise InputError(f"{os.fspath(folder)!r} is being written by another process; name a new folder") from error


def _declared_bytes(module: Module, entry: Computation, selection: Selection) -> int:
    """What the selected values take, by declared shapes; loops of which no trip count is known count as once.

    What only passes a value on takes nothing, as arrays of the same bytes are stored once. Both branches of
    conditionals count.
    """
    program = Program(module, entry)
    runs = run_counts(module, entry.name)
    total = 0
    for computation in program.live_computations:
        for instruction in program.schedule(computation):
            opcode = find_opcode(instruction.opcode)
            if opcode is None or is_renaming(instruction) or not selection.has(instruction):
                continue
            shapes = [operand.shape for operand in computation.operands_of(instruction)[:1]]
            if not opcode.may_be_view or instruction.shape not in shapes:
                total += runs.get(computation.name, 1) * instruction.shape.byte_size
    return total


def _write_information(folder: Path, information: dict[str, object]) -> None:
    with open_atomically(folder / "trace.json") as file:
        file.write(json.dumps(information, indent=2, ensure_ascii=False).encode() + b"\n")
