"""Runs of a kernel: its body once per grid point, in order, and the blocks that it sees of its operands at each.

The operands of the body are the grid point's indices, scalars that are there before all else (scalar prefetch), a view
for each input and each output, and scratch memory. A windowed operand's view is a block in nearer memory: it is
fetched, and an output's written back, where the index that its map gives changes from one point to the next. What a
block has beyond the edge of its array is undefined, and is not written back. Source: JAX, Pallas, "Grids and
BlockSpecs" and its lowering for TPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, product
from typing import Any

import attrs
import numpy as np

from hloexec.core.structs import define, frozen
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.mosaic.ir import DYNAMIC, Kernel, MlirType, Text
from hloexec.ops.library_calls.mosaic.machine import Machine
from hloexec.ops.library_calls.mosaic.memory import Index, Ref, allocate
from hloexec.ops.library_calls.mosaic.operations.accesses import allocated
from hloexec.ops.library_calls.mosaic.operations.control import check_semaphores
from hloexec.ops.library_calls.mosaic.programs import Program
from hloexec.ops.library_calls.mosaic.registry import Block


@frozen
class Geometry:
    """What a kernel says of its grid and its operands."""

    bounds: tuple[int, ...]
    """Sizes of the grid; DYNAMIC for those that the first operands of the call give."""
    semantics: tuple[str, ...]
    """Of each dimension, `arbitrary` or `parallel`."""
    prefetched: tuple[MlirType, ...]
    operands: tuple[MlirType, ...]
    """Of inputs and outputs as the body sees them."""
    scratch: tuple[MlirType, ...]
    windows: tuple[Mapping[str, Any], ...]
    """Of each operand, `window_params`: empty where it is not moved by blocks."""

    @property
    def dynamic_count(self) -> int:
        return self.bounds.count(DYNAMIC)


def geometry_of(kernel: Kernel) -> Geometry:
    """The grid of a kernel; UnsupportedError where its attributes and its arguments do not fit."""
    said, types = kernel.main.attributes, kernel.body.argument_types
    bounds = tuple(said.get("iteration_bounds", ()))
    semantics = tuple(item.word for item in said.get("dimension_semantics", ()) if isinstance(item, Text))
    rank = len(semantics)
    prefetch, scratch = said.get("scalar_prefetch", 0), said.get("scratch_operands", 0)
    first, last = rank + prefetch, len(types) - scratch
    windows = said.get("window_params", ())
    if not bounds:
        bounds = (1,) * rank
    if not rank <= first <= last or len(bounds) != rank or (windows and len(windows) != last - first):
        raise UnsupportedError(
            f"{kernel.describe()} has {len(types)} arguments, {len(windows)} windows and bounds {list(bounds)}, which "
            "do not fit one another"
        )
    unknown = [word for word in semantics if word not in ("arbitrary", "parallel", "core_parallel")]
    if unknown:
        raise UnsupportedError(f"{kernel.describe()} has grid dimensions that are {unknown[0]}")
    core = said.get("tpu.core_type")
    if isinstance(core, Text) and core.word != "tc":
        raise UnsupportedError(f"{kernel.describe()} runs on a SparseCore ({core.word}), which hloexec does not run")
    windows = tuple(windows) or ({},) * (last - first)
    return Geometry(bounds, semantics, types[rank:first], types[first:last], types[last:], windows)


@define(eq=False)
class _Window:
    """An operand that the body sees by blocks."""

    whole: Ref
    block: Ref
    index_map: Block
    sizes: tuple[int, ...]
    padding: tuple[int, ...] | None
    """Where the map gives elements, not blocks: how many lie before the array in each dimension."""
    is_output: bool
    is_restored: bool = False
    """Of an output, whether a block that is visited again has what it had (`revisit_mode` any)."""
    index: tuple[int, ...] | None = None
    """The block that the body sees."""
    written: dict[tuple[int, ...], tuple[int, ...]] = attrs.Factory(dict)
    """Of an output's blocks, by their index, where on the parallel dimensions the grid was when it was written."""

    def move(self, machine: Machine, index: tuple[int, ...]) -> None:
        """The block of an index takes the place of the one that is there."""
        if index == self.index:
            return
        self.flush()
        self.index = index
        self.block.defined[...] = False
        if not self.is_output or (self.is_restored and index in self.written):
            ours, theirs = self._common()
            self.block.array[ours] = self.whole.array[theirs]
            self.block.defined[ours] = self.whole.defined[theirs]

    def flush(self) -> None:
        """Write an output's block back."""
        if self.is_output and self.index is not None:
            ours, theirs = self._common()
            self.whole.array[theirs] = self.block.array[ours]
            self.whole.defined[theirs] = self.block.defined[ours]

    def _common(self) -> tuple[Index, Index]:
        """What block and array have in common, as places in each."""
        assert self.index is not None
        factors = self.sizes if self.padding is None else (1,) * len(self.sizes)
        before = self.padding or (0,) * len(self.sizes)
        starts = [number * factor - low for number, factor, low in zip(self.index, factors, before, strict=True)]
        ours, theirs = [], []
        for start, size, extent in zip(starts, self.sizes, self.whole.array.shape, strict=True):
            first, last = min(max(start, 0), extent), min(max(start + size, 0), extent)
            theirs.append(slice(first, last))
            ours.append(slice(first - start, last - start) if last > first else slice(0, 0))
        return tuple(ours), tuple(theirs)


@frozen
class Operands:
    """What a run is given."""

    bounds: tuple[int, ...]
    prefetched: tuple[Ref, ...]
    views: tuple[Ref, ...]
    """Of inputs and outputs, whole."""
    input_count: int


def prepared(program: Program, geometry: Geometry, operands: Operands, machine: Machine) -> Callable[[], None]:
    """What runs the body for each grid point; the outputs are in their views then. All memory is there before."""
    machine.bounds = operands.bounds
    scratch = [
        allocated(machine, scratch_type, (), f"scratch operand {number}")
        for number, scratch_type in enumerate(geometry.scratch)
    ]
    windows = [_window(program, geometry, operands, number) for number in range(len(operands.views))]
    moved = [window for window in windows if isinstance(window, _Window)]
    views = [window.block if isinstance(window, _Window) else window for window in windows]
    for key, ref in enumerate((*operands.prefetched, *views, *scratch)):
        machine.share(key, ref)
    body, kept = program.function(program.kernel.name), [*views[operands.input_count :], *scratch]
    machine.outputs = tuple(whole.buffer for whole in windows[operands.input_count :] if isinstance(whole, Ref))

    def run() -> None:
        before: tuple[int, ...] | None = None
        for point, place in _points(geometry, operands.bounds, is_reversed=machine.is_reversed):
            machine.tick()
            machine.point = point
            machine.has_aged |= place != (before or place)
            for ref in kept if place != before and machine.has_aged else ():
                ref.age()
            before = place
            for window in moved:
                index = tuple(map(int, window.index_map(machine, *point, *operands.prefetched)))
                window.move(machine, index)
            body(machine, *point, *operands.prefetched, *views, *scratch)
            _note_writers(machine, moved, place, program.kernel)
        for window in moved:
            window.flush()

    return run


def _points(
    geometry: Geometry, bounds: Sequence[int], *, is_reversed: bool
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The points of the grid in order, each with its place on the parallel dimensions, of which any order is right."""
    is_parallel = [word != "arbitrary" for word in geometry.semantics]
    for point in product(
        *(
            range(size)[:: -1 if is_free and is_reversed else 1]
            for size, is_free in zip(bounds, is_parallel, strict=True)
        )
    ):
        yield point, tuple(compress(point, is_parallel))


def check_end(kernel: Kernel, machine: Machine) -> None:
    """What has to hold when a kernel has come to its end, on all devices that run it."""
    machine.operation, machine.point = kernel.main, ()
    if machine.barrier is not None:
        machine.semaphores.append(machine.barrier)
    check_semaphores(machine, 0)


def _note_writers(machine: Machine, windows: Sequence[_Window], where: tuple[int, ...], kernel: Kernel) -> None:
    """Note blocks that are written at several places of the parallel dimensions, whose order is not defined."""
    names = [
        f"block {window.index} of {window.whole.name}"
        for window in windows
        if window.is_output and window.index is not None and window.written.setdefault(window.index, where) != where
    ]
    if names and not any("parallel grid dimensions, whose" in clause for _, clause in machine.ordered):
        machine.operation = kernel.main
        machine.note_order(
            f"writes {', '.join(names)} at several points of its parallel grid dimensions, whose order is not defined: "
            "no matter where nothing uses the result"
        )


def _window(program: Program, geometry: Geometry, operands: Operands, number: int) -> _Window | Ref:
    """An operand as the body sees it: by blocks, or whole."""
    said, whole, value_type = geometry.windows[number], operands.views[number], geometry.operands[number]
    if "transform_indices" not in said:
        return whole
    sizes = tuple(said["window_bounds"])
    if len(sizes) != whole.array.ndim:
        raise UnsupportedError(
            f"{program.kernel.describe()} moves blocks {list(sizes)} of {whole.name}, which has "
            f"{whole.array.ndim} dimensions"
        )
    block = allocate(value_type, value_type.dimensions, f"the block of {whole.name}")
    revisits = said.get("revisit_mode")
    is_restored = isinstance(revisits, Text) and revisits.word == "any"
    return _Window(
        whole,
        block,
        program.function(said["transform_indices"]),
        sizes,
        _padding(said),
        number >= operands.input_count,
        is_restored,
    )


def _padding(said: Mapping[str, Any]) -> tuple[int, ...] | None:
    """`#tpu.element_window<[low…],[high…]>`: the map gives elements, counted from `low` before the array."""
    kind = said.get("window_kind")
    if not isinstance(kind, Text):
        return None
    low = kind.word.partition("]")[0].strip("[")
    return tuple(int(item) for item in low.split(",") if item.strip())


def as_memory(array: np.ndarray[Any, Any], value_type: MlirType, subject: str) -> np.ndarray[Any, Any]:
    """An operand of the call as the array of a memref: integers lose their sign."""
    storage = value_type.element_type.storage
    if array.dtype == storage:
        return array
    if array.dtype.itemsize != storage.itemsize or (array.dtype.kind in "fc") != (storage.kind in "fc"):
        raise UnsupportedError(f"{subject} is an array of {array.dtype}, but the kernel takes {value_type.text}")
    return array.view(storage)
