"""What cuDNN's attention returns: results among which scratch memory lies (u8, zeros), somewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hloexec.custom_calls.cudnn.fields import result_shapes
from hloexec.dtypes import ElementType
from hloexec.errors import ShapeError
from hloexec.ir import ArrayShape, Shape, TupleShape
from hloexec.values import Array

__all__ = ["result_count", "results_of", "rounded_results"]


def result_count(shape: Shape) -> int:
    """How many results are declared, scratch memory aside."""
    return sum(not _is_scratch(leaf) for leaf in result_shapes(shape, "the attention"))


def results_of(shape: Shape, expected: Sequence[tuple[int, ...]], what: str) -> Shape:
    """The declared shape with the dimensions of everything but scratch memory as expected.

    A dimension of size 1 that one of them has more than the other does not count.
    """
    declared = list(result_shapes(shape, what))
    places = [place for place, leaf in enumerate(declared) if not _is_scratch(leaf)]
    if len(places) != len(expected) or not isinstance(shape, TupleShape):
        raise ShapeError(f"{what} has {len(expected)} results and scratch memory, but is declared as {shape}")
    for place, dimensions in zip(places, expected, strict=True):
        found = declared[place]
        if [size for size in found.dimensions if size != 1] != [size for size in dimensions if size != 1]:
            declared[place] = ArrayShape(found.element_type, dimensions)
    return TupleShape(tuple(declared))


def rounded_results(
    results: Sequence[Array], shape: Shape, rounded: Callable[[Array, ElementType], Array]
) -> Array | tuple[Array, ...]:
    """The results in the places of what is no scratch memory, each rounded once; zeros for scratch memory.

    Results for which the declared shape has no place are left out.
    """
    remaining = iter(results)
    leaves = [
        np.zeros(leaf.dimensions, leaf.element_type.storage)
        if _is_scratch(leaf)
        else rounded(next(remaining), leaf.element_type).reshape(leaf.dimensions)
        for leaf in result_shapes(shape, "the attention")
    ]
    return tuple(leaves) if isinstance(shape, TupleShape) else leaves[0]


def _is_scratch(leaf: ArrayShape) -> bool:
    """Whether a result is scratch memory; its place among the results changed over the years."""
    return leaf.element_type.name == "u8" and leaf.rank == 1
