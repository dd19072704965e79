"""Faults in where things are: dimensions, windows, indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from random import Random
from typing import Any

import attrs

from evaluation.faults.editing import Draft
from evaluation.faults.kinds.kind import Kind, array_of, dimensions, named, of, where
from evaluation.faults.planting import Fault, becomes, shifted_index, with_attributes
from hloexec.core.ir import Instruction, PaddingDimension, SliceDimension, Window, WindowDimension

Change = Callable[[Draft, Instruction], Iterator[dict[str, Any]]]
"""The other attributes that an instruction may have, with a result of the same shape."""


def _attribute(name: str, opcode: str, changes: Change) -> Kind:
    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        return with_attributes(opcode, 0, named(site.name), **random.choice(list(changes(draft, site))))

    return Kind(name, where(lambda d, i: i.opcode == opcode and any(True for _ in changes(d, i))), fault)


def _broadcasts(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    sizes, given = dimensions(instruction), dimensions(draft.operand(instruction))
    old = instruction.attributes.dimensions
    for new in permutations(range(len(sizes)), len(given)) if len(sizes) < 6 else ():
        if new != old and all(sizes[axis] == size for axis, size in zip(new, given, strict=True)) and given != ():
            yield {"dimensions": new}


def _transposes(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    sizes, given = dimensions(instruction), dimensions(draft.operand(instruction))
    for new in permutations(range(len(given))) if len(given) < 6 else ():
        if new != instruction.attributes.dimensions and tuple(given[axis] for axis in new) == sizes:
            yield {"dimensions": new}


def _reductions(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    sizes, given = dimensions(instruction), dimensions(draft.operand(instruction))
    old = instruction.attributes.dimensions
    for new in permutations(range(len(given)), len(old)):
        left = tuple(size for axis, size in enumerate(given) if axis not in new)
        if set(new) != set(old) and left == sizes and new == tuple(sorted(new)):
            yield {"dimensions": new}


def _iotas(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    for axis in range(len(dimensions(instruction))):
        if axis != instruction.attributes.iota_dimension:
            yield {"iota_dimension": axis}


def _slices(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    ranges = instruction.attributes.slice
    for axis, (each, size) in enumerate(zip(ranges, dimensions(draft.operand(instruction)), strict=True)):
        for by in (1, -1):
            if each.start + by >= 0 and each.limit + by <= size:
                moved = SliceDimension(each.start + by, each.limit + by, each.stride)
                yield {"slice": (*ranges[:axis], moved, *ranges[axis + 1 :])}


def _paddings(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    old = instruction.attributes.padding
    for axis, each in enumerate(old):
        low, high = each.edge_padding_low, each.edge_padding_high
        if low != high:
            yield {"padding": (*old[:axis], PaddingDimension(high, low, each.interior_padding), *old[axis + 1 :])}


def _windows(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    """One dimension of the window padded elsewhere."""
    for axis, each in _taps(instruction):
        low, high = each.padding_low, each.padding_high
        new = (high, low) if low != high else (low + 1, high - 1)
        yield _with(instruction, axis, attrs.evolve(each, padding_low=new[0], padding_high=new[1]))


def _dilations(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    """Taps further apart, or nearer, padded so that the result keeps its shape."""
    for axis, each in _taps(instruction):
        new = 2 if each.window_dilation == 1 else 1
        more = (each.size - 1) * (new - each.window_dilation)
        low = each.padding_low + more // 2
        yield _with(
            instruction,
            axis,
            attrs.evolve(each, window_dilation=new, padding_low=low, padding_high=each.padding_high + more - more // 2),
        )


def _reversals(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    for axis, each in _taps(instruction):
        yield _with(instruction, axis, attrs.evolve(each, window_reversal=not each.window_reversal))


def _taps(instruction: Instruction) -> Iterator[tuple[int, WindowDimension]]:
    return ((axis, each) for axis, each in enumerate(instruction.attributes.window.dimensions) if each.size > 1)


def _with(instruction: Instruction, axis: int, new: WindowDimension) -> dict[str, Any]:
    old = instruction.attributes.window.dimensions
    return {"window": Window((*old[:axis], new, *old[axis + 1 :]))}


def _contractions(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    """Another dimension of one operand is contracted, where sizes allow it."""
    attributes = instruction.attributes
    for number, side in enumerate(("lhs", "rhs")):
        contracted = getattr(attributes, f"{side}_contracting_dims")
        batch = getattr(attributes, f"{side}_batch_dims")
        sizes = dimensions(draft.operand(instruction, number))
        if len(contracted) != 1:
            continue
        free = [axis for axis in range(len(sizes)) if axis not in (*contracted, *batch)]
        for axis in free:
            left = [sizes[each] for each in range(len(sizes)) if each not in (axis, *batch)]
            if sizes[axis] == sizes[contracted[0]] and left == [sizes[each] for each in free]:
                yield {f"{side}_contracting_dims": (axis,)}


def _turns(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    old = instruction.attributes.dimensions
    for axis in range(len(dimensions(instruction))):
        yield {"dimensions": tuple(each for each in old if each != axis) if axis in old else (*old, axis)}


def _transforms(draft: Draft, instruction: Instruction) -> Iterator[dict[str, Any]]:
    other = {"FFT": "IFFT", "IFFT": "FFT"}.get(instruction.attributes.fft_type)
    if other is not None:
        yield {"fft_type": other}


def _index(name: str, opcode: str, first: int, last: int | None = None) -> Kind:
    """An index among these operands is one off."""

    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        number = random.choice(range(first, len(site.operands) if last is None else last + 1))
        return shifted_index(opcode, number, random.choice([1, -1]), where=named(site.name))

    return Kind(name, of(opcode), fault)


def _read_as_it_lies(draft: Draft, site: Instruction, random: Random) -> Fault:
    return becomes("transpose", "reshape", where=named(site.name))


def _counted_from_one(draft: Draft, site: Instruction, random: Random) -> Fault:
    def fault(draft: Draft) -> None:
        one = draft.filled(site.name, 1, site.shape)
        draft.insert_after(site.name, draft.add(site.name, "add", [site.name, one], site.shape))

    return fault


def _counts(draft: Draft, instruction: Instruction) -> bool:
    shape = array_of(instruction)
    return instruction.opcode == "iota" and shape is not None and shape.element_type.name != "pred"


KINDS = (
    _attribute("broadcast along another dimension", "broadcast", _broadcasts),
    _attribute("transposed otherwise", "transpose", _transposes),
    _attribute("reduced over another dimension", "reduce", _reductions),
    _attribute("counted along another dimension", "iota", _iotas),
    _attribute("slice one further", "slice", _slices),
    _attribute("padded on the other side", "pad", _paddings),
    _attribute("window one further", "reduce-window", _windows),
    _attribute("convolution padded otherwise", "convolution", _windows),
    _attribute("convolution dilated otherwise", "convolution", _dilations),
    _attribute("kernel reversed", "convolution", _reversals),
    _attribute("another dimension contracted", "dot", _contractions),
    _attribute("reversed along another dimension", "reverse", _turns),
    _attribute("the other transform", "fft", _transforms),
    _index("gathered one off", "gather", 1, 1),
    _index("sliced one off", "dynamic-slice", 1),
    _index("updated one off", "dynamic-update-slice", 2),
    _index("scattered one off", "scatter", 1, 1),
    Kind(
        "read as it lies instead of transposed",
        of("transpose"),
        _read_as_it_lies,
    ),
    Kind("counted from one", where(_counts), _counted_from_one),
)
