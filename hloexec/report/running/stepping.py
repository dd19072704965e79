"""What `hloexec step` prints: where a run stands still, values, and the text around it, in plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hloexec.analysis.numerics.leaves import LeafStatistics, statistics
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.tree import leaves
from hloexec.core.values import Array, Ints, Value
from hloexec.core.wording import braced, number_text, on_devices, plural
from hloexec.language.origins import hlo_line, source_text
from hloexec.ops.common import widen
from hloexec.tools.stepping.controlling import Level, Stop

_SHOWN_ELEMENTS = 200
_EDGE_ELEMENTS = 4
_WIDTH = 100


def devices_text(devices: Sequence[int], count: int) -> str:
    """` on device 2`, ` on devices 0–3`; nothing where there is only one."""
    return "" if count == 1 else on_devices(devices)


def stop_lines(stop: Stop, module: Module, device_count: int) -> Iterator[str]:
    """Why and where the run stands still, and the value that has just been computed."""
    why = stop.reason if stop.breakpoint is None else f"{stop.reason} ({stop.breakpoint})"
    yield f"{why}: {stop.name}{devices_text(stop.devices, device_count)}"
    if stop.error is not None:
        yield from (f"  {line}" for line in str(stop.error).split("\n"))
        return
    yield f"  {hlo_line(stop.instruction)}"
    source = source_text(module, stop.instruction)
    if source is not None:
        yield f"  from {source}"
    if stop.value is not None:
        yield from (f"  {line}" for line in statistics_lines("", stop.value))


def statistics_lines(label: str, value: Value) -> list[str]:
    """One line per array: its shape, range, moments, what is not finite, and the start of its hash."""
    return [
        "  ".join(filter(None, (_leaf_label(label, leaf.index), _statistics_text(leaf)))) for leaf in statistics(value)
    ]


def _leaf_label(label: str, index: Ints) -> str:
    return label + (braced(index) if index else "")


def _statistics_text(leaf: LeafStatistics) -> str:
    shape = str(ArrayShape(leaf.element_type, leaf.dimensions))
    if not leaf.element_type.is_array:
        return shape
    parts = [shape]
    if leaf.minimum is not None and not leaf.dimensions and not leaf.element_type.is_complex:
        parts += [number_text(leaf.minimum, 9)]
    elif leaf.minimum is not None:
        names = {"min": leaf.minimum, "max": leaf.maximum, "mean": leaf.mean, "std": leaf.standard_deviation}
        parts += [f"{name} {number_text(number)}" for name, number in names.items()]
    parts += [f"nan {leaf.nan_count}"] if leaf.nan_count else []
    parts += [f"inf {leaf.infinity_count}"] if leaf.infinity_count else []
    return "  ".join([*parts, f"hash {leaf.hash[:8]}"])


def value_lines(label: str, value: Value) -> Iterator[str]:
    """The elements of each array, the middle of long ones left out."""
    for index, leaf in leaves(value):
        name = _leaf_label(label, index)
        if not isinstance(leaf, np.ndarray):
            yield f"{name} = token[]"
            continue
        text = _array_text(leaf).split("\n")
        yield f"{name} = {_shape_text(leaf)} {text[0]}" if len(text) == 1 else f"{name} = {_shape_text(leaf)}"
        if len(text) > 1:
            yield from text


def _shape_text(array: Array) -> str:
    (leaf,) = statistics(array[(slice(0, 0),) * array.ndim])
    return str(ArrayShape(leaf.element_type, array.shape))


def _array_text(array: Array) -> str:
    return np.array2string(
        widen(array),
        max_line_width=_WIDTH,
        threshold=_SHOWN_ELEMENTS,
        edgeitems=_EDGE_ELEMENTS,
        floatmode="unique",
        separator=", ",
        sign="-",
        suppress_small=False,
        formatter={},
        legacy=False,
    )


def level_line(number: int, level: Level, module: Module, marker: str = " ") -> str:
    """One of the computations that the run is in, as a line of a backtrace."""
    source = source_text(module, level.instruction)
    entered = level.entered
    loop = "" if entered is None or entered.iteration is None else f", iteration {entered.iteration}"
    where = f"  ({source})" if source is not None else ""
    return f"{marker}#{number} %{level.instruction.name} in {level.computation.name}{loop}{where}"


def listing(computation: Computation, centre: Instruction, marked: Instruction | None, around: int) -> Iterator[str]:
    """The lines of a computation around an instruction; `->` is in front of the one where the run is."""
    lines = computation.instructions
    place = next(number for number, instruction in enumerate(lines) if instruction is centre)
    first, last = max(0, place - around), min(len(lines), place + around + 1)
    yield f"{computation.name}, {plural(len(lines), 'instruction')}"
    width = len(str(last))
    for number in range(first, last):
        instruction = lines[number]
        root = "ROOT " if instruction.name == computation.root_name else ""
        yield f"{'->' if instruction is marked else '  '} {number + 1:>{width}}  {root}{hlo_line(instruction)}"


@frozen
class Stepping:
    """A run that was stopped."""

    stops: tuple[Stop, ...]
    """Where the run stopped, in order."""
    has_ended: bool
    """Whether the run came to its end."""
    has_failed: bool
    """Whether it has failed; if neither, it was left where it stopped."""
    printed_lines: tuple[str, ...]
    """The commands, each behind a prompt, and what they printed."""
