"""The number of bytes of a value on the machine that a module was compiled for, from its shape and layout alone.

An array takes its elements as the layout stores them: tiles padded to whole ones, `E(bits)` packed, `L(n)` padded to a
multiple of n elements, `M(bytes)` as a prefix. An inner node of a tuple is a table of pointers. Source: XLA, "Tiled
layout"; pointer widths as in XLA's dumps.
"""

from __future__ import annotations

from math import prod

from hloexec.core.ir import UNBOUNDED, ArrayShape, BufferShape, Layout, Module, Shape, TupleShape, subshapes
from hloexec.core.structs import frozen
from hloexec.core.values import Ints

_COMBINED = -1
_EXTENT_BYTES = 4
"""A dynamic array is followed by the size of each dimension."""


@frozen
class Target:
    """How a backend stores tuples: bytes of a pointer, and what the table is padded to a multiple of."""

    name: str
    pointer_bytes: int
    """The size of a pointer."""
    table_alignment: int
    """What the sizes of tables of pointers are multiples of."""


PLAIN = Target("cpu or gpu", 8, 1)
TPU = Target("tpu", 4, 32)


def target_of(module: Module) -> Target:
    """Which kind of machine a module was compiled for: arrays in two-dimensional tiles mean a TPU."""
    for instruction in module.entry:
        for _, shape in subshapes(instruction.shape):
            if isinstance(shape, ArrayShape) and shape.layout and any(len(tile) > 1 for tile in shape.layout.tiles):
                return TPU
    return PLAIN


def byte_size(shape: Shape, target: Target) -> int:
    """Bytes of the value itself: of a tuple, the table of pointers without what they point to.

    A dimension without a bound counts as one element; tokens take nothing.
    """
    if isinstance(shape, TupleShape):
        return _rounded_up(target.pointer_bytes * len(shape.elements), target.table_alignment)
    shape = shape.array_shape
    if not shape.is_array:
        return 0 if shape.is_token else target.pointer_bytes
    layout = shape.layout or Layout()
    sizes = tuple(1 if size == UNBOUNDED else size for size in shape.dimensions)
    if len(layout.minor_to_major) == len(sizes):
        sizes = tuple(sizes[dimension] for dimension in reversed(layout.minor_to_major))
    for tile in layout.tiles:
        sizes = _tiled(sizes, tile)
    count = _rounded_up(prod(sizes), max(1, layout.tail_padding_alignment_in_elements))
    bits = layout.element_size_in_bits or max(8, shape.element_type.bits)
    prefix = layout.dynamic_shape_metadata_prefix_bytes
    extents = _EXTENT_BYTES * shape.rank if shape.is_dynamic and not prefix else 0
    return prefix + -(-count * bits // 8) + extents


def _tiled(sizes: Ints, tile: Ints) -> Ints:
    """Dimensions from major to minor after one tile: `[m, n]` with `(t, u)` is `[⌈m/t⌉, ⌈n/u⌉, t, u]`.

    A tile dimension `*` joins the dimension to the next more minor one.
    """
    sizes = (1,) * (len(tile) - len(sizes)) + sizes
    major = sizes[: len(sizes) - len(tile)]
    counts: list[int] = []
    extents: list[int] = []
    carried = 1
    for size, extent in zip(sizes[len(major) :], tile, strict=True):
        carried *= size
        if extent != _COMBINED:
            counts.append(-(-carried // max(1, extent)))
            extents.append(max(1, extent))
            carried = 1
    return (*major, *counts, *extents)


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def memory_space(shape: Shape) -> int:
    """The memory space of a value's layout, which is its color in a buffer assignment; 0 for tables of pointers."""
    if isinstance(shape, BufferShape):
        shape = shape.element
    return shape.layout.memory_space if isinstance(shape, ArrayShape) and shape.layout is not None else 0
