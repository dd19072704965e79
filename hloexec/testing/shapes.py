"""Shapes of arrays, and the element types that they may have."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from hypothesis import strategies as st

from hloexec.core.arguments import described, listed, require_integer
from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape
from hloexec.errors import InputError

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
    given = [value] if isinstance(value, (str, ElementType)) else listed("element_types", value, "element types")
    if not given:
        raise InputError("element_types is empty: name at least one")
    return tuple(dict.fromkeys(map(_element_type, given)))


def _element_type(value: object) -> ElementType:
    found = ELEMENT_TYPES.get(value) if isinstance(value, str) else value
    if not isinstance(found, ElementType) or not found.is_array:
        given = repr(value) if isinstance(value, str) else described(value)
        names = ", ".join(entry.name for entry in ARRAY_TYPES)
        raise InputError(f"{given} is no element type of arrays; there are {names}")
    return found
