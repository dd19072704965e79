"""`trace`: run a module and write the result of every instruction to a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Unpack

import attrs

from hloexec.core.arguments import byte_count, listed, require_flags, require_module, require_path, texts
from hloexec.core.files import new_folder, open_atomically, require_new_folder, require_room
from hloexec.core.ir import Computation, Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described, Inputs
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Observer
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.engine.exec.plans import plan_of
from hloexec.engine.exec.running import run_with
from hloexec.engine.plan.program import Program
from hloexec.errors import InputError, os_errors_named
from hloexec.ops.registry import find_opcode
from hloexec.tools.summary import run_counts
from hloexec.tools.tracing.reading import Trace
from hloexec.tools.tracing.recording import VERSION, Recorder, Remarkable, advice, is_renaming
from hloexec.tools.tracing.selection import Selection


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
    given: dict[str, Any] = {"select": select, "statistics_only": statistics_only, "disk_limit": disk_limit}
    return record(module, inputs, folder, observers=observers, **given, **options).trace


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
    """What the selected values take, by declared shapes; loops that state no trip count count as if they ran once.

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
