"""Shapes and layouts.

A shape is what the text declares: an array with an element type, dimensions and an optional layout, or a tuple of
shapes. Tokens and opaque values are arrays without dimensions, as in XLA. The layout gives the physical order of the
logical elements; only `bitcast` computes with it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.structs import frozen
from hloexec.core.tree import Nested, flat, fold, leaves, parenthesized, rebuilt, walk
from hloexec.core.values import Ints

T = TypeVar("T")

UNBOUNDED = -1
"""The size of a dimension written `?`: dynamic without an upper bound."""


@frozen(cache_hash=True)
class SplitConfig:
    """Where a dimension is split between memories: `SC(dimension:index,…)`."""

    dimension: int
    split_indices: Ints


@frozen(cache_hash=True)
class Layout:
    """The physical order of an array: `{minor_to_major:D(..)T(..)L(..)#(..)*(..)E(..)S(..)SC(..)M(..)}`.

    `tiles` are applied one after the other; a tile dimension of -1 (written `*`) is combined with the next. Source:
    XLA, "Shapes and layout" and "Tiled layout".
    """

    minor_to_major: Ints = ()
    dim_level_types: tuple[str, ...] = ()
    """One of D, C, S, H per dimension, each with optional `+` and `~` marks as written."""
    tiles: tuple[Ints, ...] = ()
    tail_padding_alignment_in_elements: int = 1
    index_primitive_type: ElementType | None = None
    pointer_primitive_type: ElementType | None = None
    element_size_in_bits: int = 0
    memory_space: int = 0
    split_configs: tuple[SplitConfig, ...] = ()
    dynamic_shape_metadata_prefix_bytes: int = 0


@frozen(cache_hash=True, repr=False)
class ArrayShape:
    """An array, a token or an opaque value.

    `dynamic_dimensions` is empty for static shapes, otherwise one flag per dimension; the size of a dynamic dimension
    is its upper bound, or `UNBOUNDED`.
    """

    element_type: ElementType
    dimensions: Ints = ()
    layout: Layout | None = None
    dynamic_dimensions: tuple[bool, ...] = ()

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.dimensions)

    @property
    def stated_layout(self) -> Layout:
        """The layout; where none is given, the row-major one that stands for it."""
        return self.layout or Layout(tuple(range(self.rank - 1, -1, -1)))

    @property
    def plain(self) -> ArrayShape:
        """The same without a layout, and with dimensions that are all static."""
        return ArrayShape(self.element_type, self.dimensions)

    @property
    def array_shape(self) -> ArrayShape:
        """The shape itself, as a buffer's is that of its contents."""
        return self

    @property
    def is_array(self) -> bool:
        """Whether values of this shape are NumPy arrays (tokens and opaque values are not)."""
        return self.element_type.is_array

    @property
    def is_token(self) -> bool:
        """Whether it is `token[]`, which orders effects and holds nothing."""
        return self.element_type.kind is Kind.TOKEN

    @property
    def is_dynamic(self) -> bool:
        """Whether a size may differ from run to run, up to its bound."""
        return any(self.dynamic_dimensions)

    @property
    def element_count(self) -> int:
        """Number of elements; dynamic dimensions count with their bound."""
        return math.prod(self.dimensions)

    @property
    def is_too_large(self) -> bool:
        """Whether NumPy has no such arrays: it counts up to 2⁶³ bytes, even where another dimension is 0."""
        return math.prod(size or 1 for size in self.dimensions) * self.element_type.byte_size > sys.maxsize

    @cached_property
    def byte_size(self) -> int:
        """Bytes of a hloexec array of this shape."""
        return self.element_count * self.element_type.byte_size if self.is_array else 0

    def compatible(self, other: Shape) -> bool:
        """Equal but for layouts, and for which dimensions are dynamic."""
        return (
            isinstance(other, ArrayShape)
            and self.dimensions == other.dimensions
            and self.element_type is other.element_type
        )

    def has_room_for(self, sizes: Ints) -> bool:
        """Whether an array of these sizes is of this shape; a dynamic dimension is of any size up to its bound."""
        if not self.dynamic_dimensions:
            return sizes == self.dimensions
        return len(sizes) == self.rank and all(
            size == bound or (dynamic and (bound < 0 or size <= bound))
            for size, bound, dynamic in zip(sizes, self.dimensions, self.dynamic_dimensions, strict=True)
        )

    def with_element_type(self, element_type: ElementType) -> ArrayShape:
        """This shape with other elements."""
        return ArrayShape(element_type, self.dimensions, self.layout, self.dynamic_dimensions)

    def __str__(self) -> str:
        return _array_text(self)

    def __repr__(self) -> str:
        order = "" if self.layout is None else ",".join(map(str, self.layout.minor_to_major))
        return f"{self}{{{order}}}" if order else str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis asks for, which would show every field."""
        printer.text(repr(self))


@frozen(eq=False, repr=False)
class TupleShape:
    """A tuple of shapes, possibly empty or nested to any depth."""

    elements: tuple[Shape, ...] = ()

    @property
    def is_array(self) -> bool:
        """Never."""
        return False

    @property
    def byte_size(self) -> int:
        """Bytes of all leaves."""
        return sum(leaf.byte_size for leaf in flat_shapes(self))

    @cached_property
    def leaf_offsets(self) -> Ints:
        """How many leaves lie before each element, and behind the last how many there are."""
        counts = (len(flat_shapes(element)) for element in self.elements)
        return (0, *accumulate(counts))

    def compatible(self, other: Shape) -> bool:
        """Equal but for layouts, and for which dimensions are dynamic."""
        return self is other or agree_in_arrays(self, other, ArrayShape.compatible)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TupleShape):
            return NotImplemented
        return self is other or flat(self, elements_of, is_counted=True) == flat(other, elements_of, is_counted=True)

    def __hash__(self) -> int:
        return hash(tuple(flat(self, elements_of, is_counted=True)))

    def __str__(self) -> str:
        return fold(self, elements_of, str, parenthesized)

    __repr__ = __str__


@frozen(cache_hash=True)
class BufferShape:
    """A buffer that may be written in place: `b(f32[8])`."""

    element: ArrayShape

    @property
    def array_shape(self) -> ArrayShape:
        """The shape of its contents."""
        return self.element

    @property
    def is_array(self) -> bool:
        """Always."""
        return True

    @property
    def byte_size(self) -> int:
        """Bytes of the array."""
        return self.element.byte_size

    def compatible(self, other: Shape) -> bool:
        """Equal but for layouts, and for which dimensions are dynamic."""
        return isinstance(other, BufferShape) and self.element.compatible(other.element)

    def __str__(self) -> str:
        return f"b({self.element})"


Shape: TypeAlias = ArrayShape | TupleShape | BufferShape
ArrayShapes: TypeAlias = tuple[ArrayShape, ...]


def elements_of(shape: object) -> tuple[Shape, ...] | None:
    """The elements of a tuple's shape; None of any other shape."""
    return shape.elements if isinstance(shape, TupleShape) else None


def tuple_shape(_: object, elements: Iterable[Shape]) -> Shape:
    """The shape of a tuple, where a tree of shapes is put together again."""
    return TupleShape(tuple(elements))


def parts_of(shape: Shape) -> tuple[Shape, ...]:
    """The elements of a tuple's shape; of any other shape, the shape itself."""
    return shape.elements if isinstance(shape, TupleShape) else (shape,)


def agree_in_arrays(first: Shape, second: Shape, agree: Callable[[ArrayShape, ArrayShape], bool]) -> bool:
    """Whether shapes are tuples and buffers alike, and their arrays agree, two by two."""
    if isinstance(first, ArrayShape) and isinstance(second, ArrayShape):
        return agree(first, second)

    def agrees(ours: _Part, theirs: _Part) -> bool:
        if isinstance(ours, BufferShape) and isinstance(theirs, BufferShape):
            ours, theirs = ours.element, theirs.element
        if isinstance(ours, ArrayShape) and isinstance(theirs, ArrayShape):
            return ours is theirs or agree(ours, theirs)
        return ours == theirs

    return all(map(agrees, flat(first, elements_of, is_counted=True), flat(second, elements_of, is_counted=True)))


def part_at(shape: Shape, index: Iterable[int]) -> Shape | None:
    """The part of a nested tuple at an index path; None where there is none."""
    for number in index:
        if not isinstance(shape, TupleShape) or not 0 <= number < len(shape.elements):
            return None
        shape = shape.elements[number]
    return shape


def map_shape(shape: Shape, leaf: Callable[[ArrayShape | BufferShape], T]) -> Nested[T]:
    """Tuples nested as in a shape, with what `leaf` makes of each of its leaves, depth first."""
    return rebuilt(shape, elements_of, leaf)


def change_arrays(shape: Shape, change: Callable[[ArrayShape], ArrayShape]) -> Shape:
    """The shape with what `change` makes of each of its arrays; buffers stay as they are."""

    def changed(leaf: ArrayShape | BufferShape) -> Shape:
        return change(leaf) if isinstance(leaf, ArrayShape) else leaf

    return fold(shape, elements_of, changed, tuple_shape)


def leaf_shapes(shape: Shape) -> Iterator[tuple[Ints, ArrayShape | BufferShape]]:
    """The leaves of a shape with their index paths, depth first; an array is its own only leaf, at `()`."""
    return leaves(shape, elements_of)


def flat_shapes(*shapes: Shape) -> list[ArrayShape | BufferShape]:
    """The leaves of shapes, depth first."""
    return [leaf for shape in shapes for leaf in flat(shape, elements_of)]


def flat_arrays(*shapes: Shape) -> list[ArrayShape | BufferShape]:
    """The leaves of shapes that are arrays, depth first."""
    return [leaf for leaf in flat_shapes(*shapes) if leaf.is_array]


def subshapes(shape: Shape) -> Iterator[tuple[Ints, Shape]]:
    """A shape and all shapes within it with their indices, each tuple before its elements."""
    return ((index, part) for index, part, _ in walk(shape, elements_of))


_Part: TypeAlias = int | ArrayShape | BufferShape


@lru_cache(maxsize=1024)  # shape rules phrase their messages before they know whether they need them
def _array_text(shape: ArrayShape) -> str:
    """The shape as HLO text without its layout, e.g. `f32[<=4,?]`."""
    if not shape.dynamic_dimensions:
        return f"{shape.element_type.name}[{','.join(map(str, shape.dimensions))}]"
    sizes = (
        "?" if size == UNBOUNDED else f"<={size}" if bounded else str(size)
        for size, bounded in zip(shape.dimensions, shape.dynamic_dimensions, strict=True)
    )
    return f"{shape.element_type.name}[{','.join(sizes)}]"
