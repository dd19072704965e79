"""bitcast and bitcast-convert: the same bits, interpreted as another shape.

`bitcast` is the only operation that computes with layouts. The physical order of an array is its dimensions from major
to minor; each tile then divides the minor dimensions into blocks, padding them to whole ones: `[m, n]` with tile `(t,
u)` is stored as `[⌈m/t⌉, ⌈n/u⌉, t, u]`. Source: XLA, "Shapes and layout", "Tiled layout".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from operator import mul

import numpy as np

from hloexec.core.dtypes import ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape, flags, require, reshaped, shape_of
from hloexec.ops.movement.columns import physical_columns, physical_demand
from hloexec.ops.movement.dynamic_shapes import completed, part, reshaped_extents
from hloexec.ops.registry import MemoryOrder, opcode
from hloexec.ops.relations import LANES, Relating, Resizing, relate_bytes, relate_part, relate_reshape
from hloexec.ops.traits import Probe

_COMBINED = -1
"""The tile dimension written `*`: the dimension joins the next more minor one before tiling."""


@opcode(
    "bitcast",
    operands=1,
    may_be_view=True,
    moves=(0,),
    keeps_all=True,
    aliases=(((), ()),),
    fast_in="hloexec.ops.movement.fast.movement",
)
class Bitcast:
    """The operand's elements in physical order, as the physical elements of the result   (XLA: "Shapes and layout")

    Omitted layouts are row-major. The result may be smaller than the operand: it then consists of its first elements.
    Tiles are used only if both sides have the same number of elements including padding; otherwise both are read
    without tiles.
    """

    states_shape = True
    probe = Probe("T[2] bitcast(a0)", ("T[2]",))
    columns = staticmethod(physical_columns)
    demand_on = staticmethod(physical_demand)

    @staticmethod
    def relate(use: Relating) -> None:
        source, result = use.operands[0], use.result
        ours, theirs = (
            [value.axes[dimension] for dimension in _major_to_minor(value.array)] for value in (source, result)
        )
        if source.array.element_type.bits != result.array.element_type.bits:
            if not _relate_padded_bytes(use, ours, theirs):
                _keep_lanes(use, ours, theirs)
                relate_bytes(use, ours, theirs)
        elif _drops_padding(source.array, result.array):
            ours, theirs = ([value.axes[axis] for axis in _stored_axes(value.array)] for value in (source, result))
            _relate_padding(use, ours[-1], theirs[-1])
            for whole, part_ in zip(ours, theirs, strict=True):
                relate_part(use, whole, part_, 0)
        elif _tiles(source.array) or _tiles(result.array):
            _relate_tiled(use, ours, theirs)
        else:
            relate_reshape(use, ours, theirs)

    @staticmethod
    def resize(change: Resizing) -> object:
        source, result, *new = (
            array_shape(shape, "a bitcast")
            for shape in (change.operands[0], change.result, change.new_operands[0], change.new_result)
        )
        if (
            _drops_padding(source, result)
            and not _drops_padding(new[0], new[1])
            and new[0].dimensions != new[1].dimensions
        ):
            raise UnsupportedError(
                f"of {source} as {result}, only padding is left out; of {new[0]} as {new[1]}, it is not"
            )
        return change.attributes

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of bitcast")
        result = array_shape(shape, "the result of bitcast")
        bits_plan(source, result)
        return shape_of(result.element_type, result.dimensions, flags(result))

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, operand_shapes: ArrayShapes) -> Array:
        (source,) = operand_shapes
        if shape.dynamic_dimensions or source.dynamic_dimensions:
            return _dynamic_bitcast(operand, source, shape)
        plan = bits_plan(source, shape)
        physical, sizes = _tiled(operand.transpose(plan.major_to_minor), plan.tiling), plan.result_tiling.sizes
        if plan.is_same_width:
            front = physical if plan.is_whole else physical.reshape(-1)[: prod(sizes)]
            physical = _reinterpreted(reshaped(front, sizes), shape.element_type)
        else:
            content = _bytes(physical.reshape(-1))
            physical = _from_bytes(content, shape.element_type)[: prod(sizes)].reshape(sizes)
        return _untiled(physical, plan.result_tiling).transpose(plan.result_axes)

    @staticmethod
    def memory_order(order: MemoryOrder, *, shape: ArrayShape, operand_shapes: ArrayShapes) -> MemoryOrder:
        (source,) = operand_shapes
        if _tiles(source) or _tiles(shape) or shape.dynamic_dimensions or source.dynamic_dimensions:
            return tuple(range(shape.rank))
        return _major_to_minor(shape)


_TILED = "its layout has tiles"


def _keep_lanes(use: Relating, ours: Sequence[int], theirs: Sequence[int]) -> None:
    """Rows of tiles stay as long as they are where the last dimensions differ, of which some may be padding."""
    tiles = [tile for value in (use.operands[0], use.result) for tile in _tiles(value.array)]
    last = [[use.size(axis) for axis in axes[-1:]] for axes in (ours, theirs)]
    if tiles and last[0] != last[1] and prod(map(use.size, ours)) > 1:
        use.keep([use.relations.lanes_of_tiles()], _TILED)


def _relate_padded_bytes(use: Relating, ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """The same bytes with the padding of tiles, which stays; False where there is none."""
    source, result = use.operands[0].array, use.result.array
    bits = [prod(shape.dimensions) * shape.element_type.bits for shape in (source, result)]
    if bits[0] == bits[1] or not have_equal_sizes(source, result):
        return False
    sides = [(axes, _tiles(shape)[0] if _tiles(shape) else ()) for axes, shape in ((ours, source), (theirs, result))]
    if not all(len(axes) >= len(tile) for axes, tile in sides):
        return False
    products = []
    for axes, tile in sides:
        first = len(axes) - len(tile)
        tiled = list(zip(axes[first:], tile, strict=True))
        larger = [(axis, size) for axis, size in tiled if use.size(axis) > size or use.size(axis) == size > 1]
        whole = [*axes[:first], *(axis for axis, _ in larger)]
        products.append(_physical(use, whole, tuple(size for _, size in larger), 0))
        for axis, size in tiled:
            if use.size(axis) < size and size % LANES == 0:
                # Rows of one tile, or less.
                lanes = use.relations.lanes_of_tiles()
                use.at_least(lanes, use.size(axis))
                products[-1].append(lanes)
    use.product(*products)
    return True


def _relate_padding(use: Relating, whole: int, part: int) -> None:
    """What is left out of rows is less than a row of a tile, and stays that."""
    size, left_out, lanes = use.size(whole), use.size(whole) - use.size(part), use.relations.lanes_of_tiles()
    if size % LANES == 0:
        (count,) = use.relations.new((size // LANES,))
        use.product([whole], [count, lanes])
        use.at_least(lanes, left_out + 1)
    elif left_out and size < LANES:
        use.at_least(lanes, size)
    elif left_out:
        use.keep([lanes], _TILED)


def _keep_tile(use: Relating, axis: int) -> None:
    """A dimension of a tile: rows may become shorter, in all tiles of the module."""
    if use.size(axis) % LANES:
        use.keep([axis], _TILED)
    else:
        use.multiple(axis, use.relations.lanes_of_tiles())


def _relate_tiled(use: Relating, ours: Sequence[int], theirs: Sequence[int]) -> None:
    """Dimensions from major to minor, of which the last ones are tiled.

    Where rows stay rows, it is a reshape at other sizes, too. Else the numbers of whole tiles may change, which come
    before the tiles in physical order.
    """
    left, right = _tiles(use.operands[0].array), _tiles(use.result.array)
    sides = [(list(ours), left[0] if left else ()), (list(theirs), right[0] if right else ())]
    alike = 0
    while left == right and alike < min(len(left[0]), len(ours), len(theirs)):
        if use.size(ours[-1 - alike]) != use.size(theirs[-1 - alike]):
            break
        alike += 1
    is_whole = prod(map(use.size, ours)) == prod(map(use.size, theirs))
    padded = _alike_in_tiles(use, ours, theirs) if left == right else []
    if is_whole and alike and all(_keeps_rows(use, axes, tile, alike) for axes, tile in sides):
        use.same(ours[len(ours) - alike :], theirs[len(theirs) - alike :])
        relate_reshape(use, ours[: len(ours) - alike], theirs[: len(theirs) - alike])
    elif is_whole and max(len(left), len(right)) < 2 and all(_lies_in_rows(use, axes, tile) for axes, tile in sides):
        for axes, tile in sides:
            if len(tile) > 1 and use.size(axes[-1]) == tile[-1]:
                _keep_tile(use, axes[-1])
        relate_reshape(use, ours, theirs)
    elif (
        have_equal_sizes(use.operands[0].array, use.result.array)
        and left[1:] == right[1:]
        and (left == right or len(left) < 2)
        and all(_has_tiles(use, axes, tile, alike, padded, is_whole=is_whole) for axes, tile in sides)
    ):
        use.same(ours[len(ours) - alike :], theirs[len(theirs) - alike :])
        for number in padded:
            use.same([ours[number]], [theirs[number]])
        first, second = (_physical(use, axes, tile, alike, padded) for axes, tile in sides)
        relate_reshape(use, first, second)
    elif all(_has_padded_rows(use, axes, tile) for axes, tile in sides) and _are_same_rows(use, sides):
        if use.size(ours[-1]) % LANES:
            use.at_least(use.relations.lanes_of_tiles(), use.size(ours[-1]))
        else:
            _keep_tile(use, ours[-1])
        relate_part(use, ours[-1], theirs[-1], 0)
        first, second = (_physical(use, axes, tile, 1) for axes, tile in sides)
        relate_reshape(use, first, second)
    elif is_whole and min(len(ours), len(theirs)) == 1:
        # All of it as numbers in a row, in whatever order: blocks of rows are neighbours, with tiles and without.
        relate_reshape(use, ours, theirs)
    else:
        _keep_lanes(use, ours, theirs)
        relate_reshape(use, ours, theirs, _TILED)


def _drops_padding(source: ArrayShape, result: ArrayShape) -> bool:
    """Whether the result is the first elements of the operand in some dimensions, and the others become padding."""
    tiles = _tiles(source)
    sizes = [tuple(shape.dimensions[axis] for axis in _stored_axes(shape)) for shape in (source, result)]
    return (
        tiles == _tiles(result) != ()
        and sizes[0] != sizes[1]
        and len(sizes[0]) == len(sizes[1])
        and all(part_ <= whole for whole, part_ in zip(*sizes, strict=True))
        and _tiling(sizes[0], tiles).sizes == _tiling(sizes[1], tiles).sizes
    )


def _stored_axes(shape: ArrayShape) -> list[int]:
    """The dimensions from major to minor, without those of size 1 before the tiled ones."""
    order, tiles = _major_to_minor(shape), _tiles(shape)
    first = len(order) - (len(tiles[0]) if tiles else 0)
    return [axis for number, axis in enumerate(order) if number >= first or shape.dimensions[axis] != 1]


def _keeps_rows(use: Relating, axes: list[int], tile: Dimensions, alike: int) -> bool:
    """Whether all tiled dimensions are alike on both sides, or all but rows, whose blocks are not padded.

    Powers of two become such, and there is no padding, or more on the side with fewer rows: then tiles are not used.
    """
    if alike == len(tile):
        return True
    is_one = prod(map(use.size, axes[: len(axes) - len(tile)])) == 1
    return len(axes) >= len(tile) == alike + 1 and (is_one or use.size(axes[-1 - alike]).bit_count() == 1)


def _lies_in_rows(use: Relating, axes: list[int], tile: Dimensions) -> bool:
    """Whether an array lies in memory in row-major order, and does so with fewer rows."""
    if not tile:
        return True
    sizes = [use.size(axis) for axis in axes]
    if len(tile) == 1 or len(axes) < 2:
        return len(tile) == 1 and prod(sizes[:-1]) == 1
    if len(tile) == 2 and sizes[-1] == tile[1]:
        return sizes[-2].bit_count() == 1 or prod(sizes[:-2]) == 1
    return len(tile) == 2 and tile[0] == 1 and prod(sizes[:-1]) == 1


def _has_padded_rows(use: Relating, axes: list[int], tile: Dimensions) -> bool:
    """Whether rows are no longer than those of tiles, so that they lie one after the other, each with its padding."""
    return len(tile) == 2 <= len(axes) and use.size(axes[-1]) <= tile[-1] and use.size(axes[-2]) % tile[0] == 0


def _are_same_rows(use: Relating, sides: Sequence[tuple[list[int], Dimensions]]) -> bool:
    """Whether there are as many rows on both sides, in tiles as long; what the result leaves out of them is padding."""
    (ours, left), (theirs, right) = sides
    counts = [prod(map(use.size, axes[:-1])) for axes in (ours, theirs)]
    return left[-1] == right[-1] and counts[0] == counts[1] and use.size(ours[-1]) >= use.size(theirs[-1])


def _alike_in_tiles(use: Relating, ours: Sequence[int], theirs: Sequence[int]) -> list[int]:
    """Which tiled dimensions, counted from the end, are as large on both sides, and smaller than their tile."""
    tile = _tiles(use.result.array)[0] if _tiles(use.result.array) else ()
    numbers = range(-min(len(tile), len(ours), len(theirs)), 0)
    return [number for number in numbers if use.size(ours[number]) == use.size(theirs[number]) < tile[number]]


def _has_tiles(
    use: Relating, axes: list[int], tile: Dimensions, alike: int, padded: Sequence[int], *, is_whole: bool
) -> bool:
    """Whether tiled dimensions are whole tiles, or those that are not are larger than one, padded on this side only, or
    padded alike on both."""
    return len(axes) >= len(tile) and all(
        size > 0
        and (use.size(axes[number]) % size == 0 or number in padded or (not is_whole and use.size(axes[number]) > size))
        for number, size in zip(range(-len(tile), -alike), tile, strict=False)
    )


def _physical(use: Relating, axes: list[int], tile: Dimensions, alike: int, padded: Collection[int] = ()) -> list[int]:
    """Dimensions as they lie in memory, but for the last ones: those before the tiled ones, numbers of tiles, tiles.

    Tiles that are padded alike stay as they are.
    """
    before, after = len(axes) - len(tile), len(axes) - alike
    tiled = [number for number in range(before, after) if number - len(axes) not in padded]
    blocks = use.relations.new(tuple(tile[number - before] for number in tiled))
    counts = []
    for axis, block in zip((axes[number] for number in tiled), blocks, strict=True):
        (count,) = use.relations.new((-(-use.size(axis) // use.size(block)),))
        _keep_tile(use, block)
        if use.size(axis) % use.size(block):
            use.keep([block], _TILED)
            use.equation({axis: 1, count: -use.size(block)})
        elif use.size(block) % LANES:
            use.multiple(axis, count)
        else:
            use.product([axis], [count, block])
        counts.append(count)
    return [*axes[:before], *counts, *blocks]


@frozen
class _Split:
    """One tile: the minor dimensions of an array become counts of blocks, and the sizes of these."""

    sizes: Dimensions
    """Before the split, dimensions joined by `*`."""
    padded: Dimensions
    paired: Dimensions
    """The split shape with each block count beside its block size."""
    axes: Dimensions
    """The transposition from there to all counts followed by all blocks."""
    result: Dimensions

    @classmethod
    def of(cls, sizes: Dimensions, tile: Dimensions) -> _Split:
        first = len(sizes) - len(tile)
        leading, pairs = sizes[:first], range(first, first + 2 * len(tile))
        counts = tuple(-(-size // extent) for size, extent in zip(sizes[first:], tile, strict=True))
        return cls(
            sizes=sizes,
            padded=(*leading, *map(mul, counts, tile)),
            paired=(*leading, *chain.from_iterable(zip(counts, tile, strict=True))),
            axes=(*range(first), *pairs[::2], *pairs[1::2]),
            result=(*leading, *counts, *tile),
        )


@frozen
class _Tiling:
    """The tiles of a layout applied one after the other to dimensions in major-to-minor order."""

    logical: Dimensions
    splits: tuple[_Split, ...]

    @property
    def sizes(self) -> Dimensions:
        """The dimensions as stored, padding included."""
        return self.splits[-1].result if self.splits else self.logical


@frozen
class _Plan:
    major_to_minor: Dimensions
    """The operand's dimensions in physical order."""
    tiling: _Tiling
    result_tiling: _Tiling
    result_axes: Dimensions
    """Where in physical order each result dimension lies."""
    is_whole: bool
    is_same_width: bool


@lru_cache(maxsize=4096)
def bits_plan(source: ArrayShape, result: ArrayShape) -> _Plan:
    """How to read a bitcast; ShapeError where the result needs more elements than the operand has."""
    order, result_order = _major_to_minor(source), _major_to_minor(result)
    sizes = tuple(source.dimensions[axis] for axis in order)
    result_sizes = tuple(result.dimensions[axis] for axis in result_order)
    tiles, result_tiles = _tiles(source), _tiles(result)
    reach = max(map(len, tiles), default=0)
    if (
        tiles == result_tiles
        and min(len(sizes), len(result_sizes)) >= reach
        and sizes[len(sizes) - reach :] == result_sizes[len(result_sizes) - reach :]
    ):
        # Tiling does the same on both sides.
        tiles = result_tiles = ()
    tiling, result_tiling = _tiling(sizes, tiles), _tiling(result_sizes, result_tiles)
    bits, result_bits = source.element_type.bits, result.element_type.bits
    if prod(tiling.sizes) * bits != prod(result_tiling.sizes) * result_bits:
        tiling, result_tiling = _tiling(sizes, ()), _tiling(result_sizes, ())
    available, needed = prod(sizes) * bits, prod(result_sizes) * result_bits
    padded, result_padded = prod(tiling.sizes) * bits, prod(result_tiling.sizes) * result_bits
    require(
        padded >= result_padded,
        f"a bitcast must not need more bits than its operand has, but the operand {source} has {available} and the "
        f"result {result} needs {needed}",
    )
    return _Plan(
        major_to_minor=order,
        tiling=tiling,
        result_tiling=result_tiling,
        result_axes=tuple(int(axis) for axis in np.argsort(result_order)),
        is_whole=padded == result_padded,
        is_same_width=bits == result_bits,
    )


def _major_to_minor(shape: ArrayShape) -> Dimensions:
    minor_to_major = shape.layout.minor_to_major if shape.layout else ()
    if not minor_to_major:
        return tuple(range(shape.rank))
    require(
        sorted(minor_to_major) == list(range(shape.rank)),
        f"the layout of {shape} must order its {shape.rank} dimensions, but orders {list(minor_to_major)}",
    )
    return minor_to_major[::-1]


def have_equal_sizes(first: ArrayShape, second: ArrayShape) -> bool:
    """Whether two arrays hold as many bits, or do with the padding of their tiles."""
    bits = [prod(shape.dimensions) * shape.element_type.bits for shape in (first, second)]
    return bits[0] == bits[1] or _stored_bits(first) == _stored_bits(second)


def _stored_bits(shape: ArrayShape) -> int:
    sizes = tuple(shape.dimensions[axis] for axis in _major_to_minor(shape))
    return prod(_tiling(sizes, _tiles(shape)).sizes) * shape.element_type.bits


def is_row_major(shape: ArrayShape) -> bool:
    """Whether an array lies in row-major order without tiles."""
    return _major_to_minor(shape) == tuple(range(shape.rank)) and not _tiles(shape)


def _tiles(shape: ArrayShape) -> tuple[Dimensions, ...]:
    tiles = shape.layout.tiles if shape.layout else ()
    for tile in tiles:
        sizes = ",".join("*" if size == _COMBINED else str(size) for size in tile)
        require(
            all(size > 0 or size == _COMBINED for size in tile) and tile[-1:] != (_COMBINED,),
            f"the tile ({sizes}) in the layout of {shape} needs positive sizes, or * where a dimension joins the next",
        )
    return tiles


def _tiling(sizes: Dimensions, tiles: tuple[Dimensions, ...]) -> _Tiling:
    """The steps of tiling dimensions in major-to-minor order."""
    splits: list[_Split] = []
    current = sizes
    for tile in tiles:
        current = (1,) * (len(tile) - len(current)) + current
        joined = list(current[: len(current) - len(tile)])
        block: list[int] = []
        carried = 1
        for size, extent in zip(current[len(current) - len(tile) :], tile, strict=True):
            carried *= size
            if extent != _COMBINED:
                joined.append(carried)
                block.append(extent)
                carried = 1
        splits.append(_Split.of(tuple(joined), tuple(block)))
        current = splits[-1].result
    return _Tiling(sizes, tuple(splits))


def _tiled(array: Array, tiling: _Tiling) -> Array:
    """The array as stored; padding is zero."""
    for split in tiling.splits:
        array = completed(array.reshape(split.sizes), split.padded).reshape(split.paired).transpose(split.axes)
    return array


def _untiled(array: Array, tiling: _Tiling) -> Array:
    """The inverse of `_tiled`: padding is dropped."""
    for position in reversed(range(len(tiling.splits))):
        split = tiling.splits[position]
        array = array.transpose(np.argsort(split.axes)).reshape(split.padded)
        array = part(array, map(slice, split.sizes))
        array = array.reshape(tiling.splits[position - 1].result if position else tiling.logical)
    return array


def _dynamic_bitcast(operand: Array, source: ArrayShape, shape: ArrayShape) -> Array:
    """A bitcast of runtime extents: supported where it is a reshape, i.e. without tiles and in row-major order."""
    if not all(map(is_row_major, (source, shape))):
        raise UnsupportedError(
            f"bitcast from {source} to {shape}: dynamic dimensions are supported in row-major layouts without tiles"
        )
    return _reinterpreted(operand.reshape(reshaped_extents(operand.shape, source, shape)), shape.element_type)


@opcode("bitcast-convert", operands=1, may_be_view=True, reads_bits=True, fast_in="hloexec.ops.movement.fast.movement")
class BitcastConvert:
    """The operand's bits as another element type   (XLA: BitcastConvertType)

    A narrower type adds a minor dimension that holds the parts of each element, least significant first; a wider one
    takes such a dimension away.
    """

    states_shape = True
    probe = Probe("T[2] bitcast-convert(a0)", ("T[2]",))

    @staticmethod
    def relate(use: Relating) -> None:
        ours, theirs = use.operands[0].axes, use.result.axes
        shared = min(len(ours), len(theirs))
        use.same(ours[:shared], theirs[:shared])
        use.keep((*ours[shared:], *theirs[shared:]), "it counts the parts of an element")

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> ArrayShape:
        source = array_shape(operand, "the operand of bitcast-convert")
        element_type = array_shape(shape, "the result of bitcast-convert").element_type
        require(
            source.element_type.is_complex == element_type.is_complex,
            f"bitcast-convert does not convert between real and complex numbers, but the operand is {source} and the "
            f"result {shape}",
        )
        bits, result_bits = source.element_type.bits, element_type.bits
        require(
            max(bits, result_bits) % min(bits, result_bits) == 0,
            f"bitcast-convert needs widths of which one divides the other, but {source.element_type} has {bits} bits "
            f"and {element_type} {result_bits}",
        )
        dimensions, dynamic = source.dimensions, flags(source)
        if bits > result_bits:
            return shape_of(element_type, (*dimensions, bits // result_bits), (*dynamic, False))
        if bits == result_bits:
            return shape_of(element_type, dimensions, dynamic)
        ratio = result_bits // bits
        require(
            dimensions[-1:] == (ratio,),
            f"bitcast-convert to the wider {element_type} needs a last dimension of size {ratio}, but the operand is "
            f"{source}",
        )
        return shape_of(element_type, dimensions[:-1], dynamic[:-1])

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape) -> Array:
        bits, result_bits = element_type_of(operand.dtype).bits, shape.element_type.bits
        if bits == result_bits:
            return _reinterpreted(operand, shape.element_type)
        sizes = (*operand.shape, bits // result_bits) if bits > result_bits else operand.shape[:-1]
        return _from_bytes(_bytes(operand.reshape(-1)), shape.element_type).reshape(sizes)


def _reinterpreted(array: Array, element_type: ElementType) -> Array:
    """The bits of an array as an element type of the same width."""
    return array if array.dtype == element_type.storage else _viewed(array, element_type)


def _bytes(flat: Array) -> Array:
    """The bytes of a flat array, elements of fewer than eight bits packed, least significant first."""
    bits = element_type_of(flat.dtype).bits
    content = np.ascontiguousarray(flat).view(np.uint8)
    if bits >= 8:
        return content
    per_byte = 8 // bits
    groups = completed(content, (-(-len(content) // per_byte) * per_byte,)).reshape(-1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce((groups & ((1 << bits) - 1)) << shifts, axis=1)
    return packed


def _from_bytes(content: Array, element_type: ElementType) -> Array:
    """The flat array whose bytes are `content`; the inverse of `_bytes`."""
    bits = element_type.bits
    if bits >= 8:
        whole = len(content) // element_type.byte_size * element_type.byte_size
        return _viewed(content[:whole], element_type)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts: Array = (content[:, None] >> shifts) & ((1 << bits) - 1)
    return parts.reshape(-1).view(element_type.storage)


def _viewed(array: Array, element_type: ElementType) -> Array:
    """The memory of an array as an element type; a pred is true where its byte is not 0."""
    if element_type.kind is Kind.PRED:
        return np.not_equal(array.view(np.uint8), 0)
    return array.view(element_type.storage)
