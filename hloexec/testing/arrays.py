"""Shapes, and arrays of every element type, their elements chosen one by one while they are few.

Elements are drawn as Python's numbers and rounded to the element type in the end, once. Floats of up to 16 bits are
drawn from a table of all that the type has, in the order in which examples shrink: whole numbers first, specials last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hloexec.core.arguments import described, listed, require_flags, require_integer, wrong
from hloexec.core.dtypes import (
    ELEMENT_TYPES,
    ElementType,
    Kind,
    largest_number,
    least_number,
    part_type,
    smallest_normal,
)
from hloexec.core.ir import ArrayShape
from hloexec.core.process import memory_limit_bytes
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Ints
from hloexec.core.wording import byte_text
from hloexec.engine.inputs.bounds import Range
from hloexec.engine.inputs.distributions import random_array
from hloexec.errors import InputError, ParseError, ResourceError
from hloexec.language.text.shapes import parse_shape
from hloexec.ops.common import narrow, widen
from hloexec.ops.intervals import ANYTHING

_FIRST = ("f32", "s32", "pred", "bf16", "f64")
ARRAY_TYPES = tuple(
    ELEMENT_TYPES[name] for name in dict.fromkeys((*_FIRST, *ELEMENT_TYPES)) if ELEMENT_TYPES[name].is_array
)
"""Every element type of arrays, what is usual first: examples shrink towards it."""


def shapes(
    element_types: str | ElementType | Iterable[str | ElementType] | None = None,
    *,
    min_rank: int = 0,
    max_rank: int = 3,
    min_size: int = 1,
    max_size: int = 5,
    max_elements: int | None = None,
) -> st.SearchStrategy[ArrayShape]:
    """Shapes of arrays, such as f32[2,3].

    `element_types` are those to choose among, by HLO name (`"bf16"`) or as `ElementType`s; all by default. Ranks lie
    between `min_rank` and `max_rank`, sizes of dimensions between `min_size` and `max_size`, and the array has no more
    elements than `max_elements`. Examples shrink towards the first element type, few dimensions and small sizes.

    Raises InputError for an element type that HLO has no arrays of, and for bounds that no shape keeps to.
    """
    types = element_types_of(element_types)
    for name, value in (("min_rank", min_rank), ("min_size", min_size)):
        require_integer(name, value, 0)
    require_integer("max_rank", max_rank, min_rank)
    require_integer("max_size", max_size, min_size)
    if max_elements is not None:
        require_integer("max_elements", max_elements, min(min_size, 1) if max_rank else 1)
        if min_size**min_rank > max_elements:
            raise InputError(f"no shape of rank {min_rank} and sizes from {min_size} has only {max_elements} elements")
        while min_size**max_rank > max_elements:
            max_rank -= 1
    return _shapes(types, (min_rank, max_rank), (min_size, max_size), max_elements)


@st.composite
def _shapes(
    draw: st.DrawFn,
    types: tuple[ElementType, ...],
    ranks: tuple[int, int],
    sizes: tuple[int, int],
    max_elements: int | None,
) -> ArrayShape:
    element_type = draw(st.sampled_from(types))
    rank, dimensions = draw(st.integers(*ranks)), list[int]()
    low, high = sizes
    for left in range(rank - 1, -1, -1):
        if max_elements is not None and (taken := prod(dimensions)):
            high = min(high, max_elements // (taken * max(low, 1) ** left))
        dimensions.append(draw(st.integers(low, high)))
    return ArrayShape(element_type, tuple(dimensions))


def element_types_of(value: object) -> tuple[ElementType, ...]:
    """The element types that a user names; InputError for what is none, or has no arrays."""
    if value is None:
        return ARRAY_TYPES
    named_types = [value] if isinstance(value, (str, ElementType)) else listed("element_types", value, "element types")
    if not named_types:
        raise InputError("element_types is empty: name at least one")
    return tuple(dict.fromkeys(map(_element_type, named_types)))


def _element_type(value: object) -> ElementType:
    element_type = ELEMENT_TYPES.get(value) if isinstance(value, str) else value
    if not isinstance(element_type, ElementType) or not element_type.is_array:
        description = repr(value) if isinstance(value, str) else described(value)
        names = ", ".join(entry.name for entry in ARRAY_TYPES)
        raise InputError(f"{description} is no element type of arrays; there are {names}")
    return element_type


_MOST_DRAWN = 64
"""Elements that are drawn one by one: larger arrays are made by a seed, and some of their elements are replaced."""
_MOST_REPLACED = 8
_WIDEST_LISTED = 16
"""Bits of the floats of which there is a table of all."""
_SIMPLE = 16
"""Of the numbers in such a table, those that are drawn more often than others."""


@frozen
class _Limits:
    """What elements may be; specials as far as the element type has them."""

    min_value: float | None = None
    max_value: float | None = None
    allow_nan: bool = True
    allow_infinity: bool = True
    allow_subnormal: bool = True
    allow_negative_zero: bool = True

    @property
    def is_bounded(self) -> bool:
        return self.min_value is not None or self.max_value is not None


@frozen(eq=False)
class Elements:
    """How elements are drawn."""

    numbers: st.SearchStrategy[Any]
    """Python's numbers, that round to elements."""
    bulk: Callable[[Ints, int], Array]
    """From the sizes of a large array and a seed, the array."""


def arrays(
    shape: Any,
    *,
    min_value: float | None = None,
    max_value: float | None = None,
    allow_nan: bool = True,
    allow_infinity: bool = True,
    allow_subnormal: bool = True,
    allow_negative_zero: bool = True,
    **sizes: int,
) -> st.SearchStrategy[Array]:
    """Arrays of a shape, or of any shape of an element type.

    `shape` is an `ArrayShape`, the text of one (`"bf16[2,3]"`), a strategy of shapes, or an element type (`"bf16"`, or
    several), whose arrays have shapes as `shapes` draws them; `sizes` are its options then. Arrays are of the storage
    types that hloexec runs on: NumPy's, or those of ml_dtypes for what NumPy lacks.

    Elements lie between `min_value` and `max_value`, both included, where given (the parts of complex numbers do, and
    no NaN does). NaN, infinities, denormals and -0.0 are among them unless told otherwise, where the type has them.
    Arrays of up to 64 elements shrink element by element towards 0; larger ones towards one repeated number.

    Raises InputError for what is no shape or element type, for bounds between which a type has no number, and for
    shapes of unknown sizes, ResourceError where an array of the shape would not fit into memory.
    """
    require_flags(
        allow_nan=allow_nan,
        allow_infinity=allow_infinity,
        allow_subnormal=allow_subnormal,
        allow_negative_zero=allow_negative_zero,
    )
    for name, value in (("min_value", min_value), ("max_value", max_value)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value != value):
            raise wrong(name, "a number", value)
    limits = _Limits(min_value, max_value, allow_nan, allow_infinity, allow_subnormal, allow_negative_zero)
    chosen = _shape_strategy(shape, sizes)
    if isinstance(chosen, ArrayShape):
        return array_of(chosen.dimensions, chosen.element_type, _elements_of(chosen.element_type, limits))
    return chosen.flatmap(
        lambda one: array_of(one.dimensions, one.element_type, _elements_of(one.element_type, limits))
    )


def _shape_strategy(value: object, sizes: dict[str, int]) -> ArrayShape | st.SearchStrategy[ArrayShape]:
    is_shape = isinstance(value, (ArrayShape, st.SearchStrategy)) or (isinstance(value, str) and "[" in value)
    if not is_shape:
        return shapes(element_types_of(value), **sizes)
    if sizes:
        raise InputError(f"{', '.join(sizes)} choose shapes of an element type, but a shape is given")
    return value if isinstance(value, st.SearchStrategy) else _array_shape(value)


def _array_shape(value: object) -> ArrayShape:
    try:
        shape = parse_shape(value) if isinstance(value, str) else value
    except ParseError as error:
        raise InputError(f"{value!r} is no shape: {error.message}") from error
    if not isinstance(shape, ArrayShape) or not shape.is_array or min(shape.dimensions, default=0) < 0:
        raise InputError(f"arrays have a shape such as f32[2,3], but {shape} was given")
    allowed = memory_limit_bytes(None)
    if shape.is_too_large or (allowed is not None and shape.byte_size > allowed):
        raise ResourceError(f"an array {shape} takes {byte_text(shape.byte_size)}, more than this machine has free")
    return shape


@st.composite
def array_of(draw: st.DrawFn, dimensions: Ints, element_type: ElementType, elements: Elements) -> Array:
    """An array of an element type, its elements drawn from `elements`."""
    count = int(np.prod(dimensions, dtype=object))
    if count <= _MOST_DRAWN:
        numbers = draw(st.lists(elements.numbers, min_size=count, max_size=count))
        return _rounded(numbers, element_type).reshape(dimensions)
    if draw(st.booleans()):
        array = elements.bulk(dimensions, draw(st.integers(0, 2**32 - 1)))
    else:
        array = np.full(dimensions, _rounded([draw(elements.numbers)], element_type)[0], element_type.storage)
    replaced = draw(st.dictionaries(st.integers(0, count - 1), elements.numbers, max_size=_MOST_REPLACED))
    array.reshape(-1)[[*replaced]] = _rounded([*replaced.values()], element_type)
    return array


def _rounded(numbers: Sequence[Any], element_type: ElementType) -> Array:
    if element_type.is_floating:
        return narrow(np.array(numbers, np.float64), element_type)
    return np.array(numbers, element_type.compute).astype(element_type.storage)


@lru_cache(maxsize=256)
def _elements_of(element_type: ElementType, limits: _Limits) -> Elements:
    """The elements of a type within limits; InputError where there are none."""
    within = _range(element_type, limits) if limits.is_bounded and element_type.kind is not Kind.PRED else None

    def bulk(dimensions: Ints, seed: int) -> Array:
        if within is not None:
            return within.random_array(element_type, dimensions, (seed, 0))
        return random_array(element_type, dimensions, ANYTHING, "normal", (seed, 0))

    return Elements(_numbers(element_type, limits, within), bulk)


def _range(element_type: ElementType, limits: _Limits) -> Range:
    """The bounds that a user gives, as far as numbers of the type reach."""
    kind, is_integral = part_type(element_type), element_type.is_integral
    least, most = kind.integer_range if is_integral else (least_number(kind), largest_number(kind))
    low = least if limits.min_value is None else max(limits.min_value, least)
    high = most if limits.max_value is None else min(limits.max_value, most)
    if low > high:
        limits_by_word = (("from", limits.min_value), ("to", limits.max_value))
        bounds = [f"{word} {bound}" for word, bound in limits_by_word if bound is not None]
        raise InputError(f"type {element_type.name} has no number {' '.join(bounds)}")
    return Range(low, high, f"the range of elements, {low} to {high},")


def _numbers(element_type: ElementType, limits: _Limits, within: Range | None) -> st.SearchStrategy[Any]:
    if element_type.kind is Kind.PRED:
        return st.booleans()
    if element_type.is_integral:
        return st.integers(*(within.integers(element_type) if within else element_type.integer_range))
    kind = part_type(element_type)
    bounds = within.floats(kind) if within else None
    parts = _listed(kind, limits, bounds) if kind.bits <= _WIDEST_LISTED else _floats(kind, limits, bounds)
    return st.builds(complex, parts, parts) if element_type.is_complex else parts


def _floats(kind: ElementType, limits: _Limits, bounds: tuple[float, float] | None) -> st.SearchStrategy[float]:
    low, high = bounds or (None, None)
    numbers: st.SearchStrategy[float] = st.floats(
        low,
        high,
        width=32 if kind.bits == 32 else 64,
        allow_nan=limits.allow_nan and bounds is None,
        allow_infinity=limits.allow_infinity and bounds is None,
        allow_subnormal=None if limits.allow_subnormal else False,
    )
    return numbers if limits.allow_negative_zero else numbers.map(lambda number: number + 0.0)


def _listed(kind: ElementType, limits: _Limits, bounds: tuple[float, float] | None) -> st.SearchStrategy[float]:
    """Every number of a narrow type within limits, simple ones first; extremes and specials are drawn more often."""
    patterns = np.arange(1 << kind.bits).astype(f"u{kind.storage.itemsize}").view(kind.storage)
    with np.errstate(invalid="ignore"):
        numbers = widen(patterns).astype(np.float64)
    size, is_negative = np.abs(numbers), np.signbit(numbers)
    is_finite, is_negative_zero = np.isfinite(numbers), is_negative & (numbers == 0)
    is_subnormal = (size > 0) & (size < smallest_normal(kind))
    kept = np.full(numbers.shape, True) if bounds is None else (numbers >= bounds[0]) & (numbers <= bounds[1])
    is_nan = np.isnan(numbers)
    kept &= ~is_nan
    kept[np.argmax(is_nan)] |= limits.allow_nan and bounds is None and is_nan.any()  # all are the same once rounded
    kept &= limits.allow_infinity | ~np.isinf(numbers)
    kept &= limits.allow_subnormal | ~is_subnormal
    kept &= limits.allow_negative_zero | ~is_negative_zero
    is_special = ~is_finite | is_negative_zero | is_subnormal
    order = np.lexsort((is_negative, size, numbers != np.trunc(numbers), is_special))
    order = order[kept[order]]
    if not order.size:
        raise InputError(f"type {kind.name} has no number within these limits")
    finite = numbers[kept & is_finite]
    is_notable = (is_special & ~is_subnormal) | np.isin(numbers, (finite.min(initial=0), finite.max(initial=0)))
    table = numbers[order].tolist()
    notable = numbers[order[is_notable[order]]].tolist() or table[:1]
    # Not sampled_from: it shows the whole table in its repr.
    every = st.integers(0, len(table) - 1).map(lambda number: table[number])
    return st.sampled_from(table[:_SIMPLE]) | every | st.sampled_from(notable)
