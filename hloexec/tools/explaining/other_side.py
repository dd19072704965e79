"""What instructions gave on the other side: by names, in a trace, or in a folder of literals.

A computation may run often, in loops and on several devices. What one of its runs gave on one device is a *frame*: the
operands of an instruction are looked up in the frame that its result is from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.core.arguments import wrong
from hloexec.core.dtypes import element_type_of
from hloexec.core.files import opened
from hloexec.core.ir import ArrayShape, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value
from hloexec.core.wording import listing
from hloexec.errors import InputError, os_errors_named
from hloexec.language.interop.literals import literal_value
from hloexec.language.literals import load_arrays
from hloexec.tools.tracing.reading import Trace


@frozen(eq=False)
class Frame:
    """The values of a computation in one of its runs, on one device."""

    computation: str
    run: str
    """The path of the run, `loop[2]:body`; empty for that of the entry computation."""
    device: int
    values: dict[str, Callable[[], Array]]
    """By the names of instructions; a trace is read only where they are asked for."""


def frames_of_names(module: Module, given: Mapping[str, Array], inputs: Sequence[Value]) -> list[Frame]:
    """One frame for each computation with instructions of these names; of several that have one of the same name, the
    entry computation is meant, else the first. InputError where there is none, or a value does not fit."""
    named = {name.removeprefix("%"): array for name, array in given.items()}
    homes: dict[str, str] = {}
    for computation in (module.entry, *module):
        for instruction in computation:
            homes.setdefault(instruction.name, computation.name)
    unknown = [name for name in named if name not in homes]
    if unknown:
        raise InputError(f"values are given for {listing(unknown, 4)}, but {module.name} has no such instruction")
    frames = _with_inputs(module, [inputs], {})
    for name, array in named.items():
        home = homes[name]
        _require_fit(module.by_name[home].by_name[name], array)
        frame = frames.setdefault(("", home, 0), Frame(home, "", 0, {}))
        frame.values[name] = partial(_itself, array)
    return list(frames.values())


def frames_of_trace(module: Module, trace: Trace, inputs: Sequence[Sequence[Value]]) -> list[Frame]:
    """The frames of all runs and devices in a trace, of computations and instructions that the module has, too."""
    frames = _with_inputs(module, inputs, {})
    for event in trace:
        computation = module.by_name.get(event.computation)
        instruction = None if computation is None else computation.by_name.get(event.instruction)
        if instruction is None or len(event.arrays) != 1 or event.arrays[0].index:
            continue
        record = event.arrays[0]
        shape = instruction.shape
        if not isinstance(shape, ArrayShape) or (shape.element_type, shape.dimensions) != (
            record.shape.element_type,
            record.shape.dimensions,
        ):
            raise InputError(f"the trace has {record.shape} for %{event.instruction}, but it is {shape}")
        run = event.name.removesuffix(event.instruction).removesuffix("/")
        for device in event.devices:
            key = run, event.computation, device
            frame = frames.setdefault(key, Frame(event.computation, run, device, {}))
            frame.values[event.instruction] = partial(trace.array, record)
    return list(frames.values())


def _with_inputs(
    module: Module, inputs: Iterable[Sequence[Value]], frames: dict[tuple[str, str, int], Frame]
) -> dict[tuple[str, str, int], Frame]:
    """Frames of the entry computation that know the inputs of each device."""
    for device, row in enumerate(inputs):
        pairs = zip(module.entry.parameters, row, strict=True)
        known: dict[str, Callable[[], Array]] = {
            parameter.name: partial(_itself, value) for parameter, value in pairs if isinstance(value, np.ndarray)
        }
        frames["", module.entry.name, device] = Frame(module.entry.name, "", device, known)
    return frames


def _itself(array: Array) -> Array:
    return array


def _require_fit(instruction: Instruction, array: Array) -> None:
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.dimensions != array.shape:
        raise InputError(
            f"the value given for %{instruction.name} has dimensions {list(array.shape)}, but it is {shape}"
        )
    if element_type_of(array.dtype) is not shape.element_type:
        raise InputError(
            f"the value given for %{instruction.name} is {element_type_of(array.dtype)}, but it is {shape}"
        )


def given_arrays(values: object) -> dict[str, Array]:
    """Arrays by names of instructions; InputError where it is something else."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise wrong("values", "a mapping from names of instructions to arrays, or a Trace", values)
    found = {}
    for name, value in values.items():
        (pair,) = leaves_of({name: value}, "other side's") if not isinstance(value, (tuple, list, Mapping)) else (None,)
        if pair is None:
            raise wrong("values", f"arrays, but that of {name!r} is a tuple", value)
        found[name] = pair[1]
    return found


def read_literals(folder: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a folder with a file for each instruction, named as it is: `.pb`, a serialized LiteralProto as XLA
    writes it, or `.npy`. InputError where there is none, or one is damaged."""
    found: dict[str, Array] = {}
    for path in _files(Path(folder)):
        if path.stem in found:
            raise InputError(f"{os.fspath(folder)!r} has two files for %{path.stem}")
        if path.suffix == ".npy":
            (found[path.stem],) = load_arrays(path).values()
            continue
        with os_errors_named(f"read {os.fspath(path)!r}"), opened(path) as file:
            data = file.read()
        try:
            value = literal_value(data)
        except InputError as error:
            raise InputError(f"{os.fspath(path)!r} is not a LiteralProto: {error.message}") from error
        # Tuples are put together of what instructions give that have files of their own.
        if isinstance(value, np.ndarray):
            found[path.stem] = value
    if not found:
        raise InputError(
            f"{os.fspath(folder)!r} is not a trace, and has no files of instructions' values, NAME.pb or NAME.npy"
        )
    return found


def _files(folder: Path) -> Iterator[Path]:
    with os_errors_named(f"read {os.fspath(folder)!r}"):
        yield from sorted(path for path in folder.iterdir() if path.suffix in (".pb", ".npy"))
