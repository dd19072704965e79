"""cuDNN's attention: its operands by name, and its results, one of which is scratch memory (u8, zeros)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import HloError, ShapeError
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.cudnn.attention_config import AttentionConfig
from hloexec.ops.library_calls.shapes import CallResult, require_floating, result_shapes, zeros_of

_Operand = TypeVar("_Operand")

_INTEGERS = ("query lengths", "key lengths", "query offsets", "key offsets", "key pages", "value pages")


def named(operands: Sequence[_Operand], names: Sequence[str], what: str, error: type[HloError]) -> dict[str, _Operand]:
    """The operands by name; `error` unless there is one for each of `names`."""
    if len(operands) != len(names):
        raise error(f"{what} must have the operands {', '.join(names)}, but has {len(operands)} operands")
    return dict(zip(names, operands, strict=True))


def named_shapes(operands: Sequence[Shape], names: Sequence[str], what: str) -> dict[str, ArrayShape]:
    """The operands' shapes by name; ShapeError for other than floating-point numbers, where these are asked for."""
    found = named(operands, names, what, ShapeError)
    shapes = {name: array_shape(shape, f"{name} of {what}") for name, shape in found.items()}
    require_floating((shape for name, shape in shapes.items() if name not in _INTEGERS), what)
    return shapes


def check_heads(queries: Sequence[int], keys: Sequence[int], values: Sequence[int]) -> None:
    """ShapeError where operands of these batches, heads, rows and depths do not fit each other."""
    require(
        queries[0] == keys[0] == values[0]
        and keys[1:3] == values[1:3]
        and queries[3] == keys[3]
        and keys[1] > 0
        and queries[1] % keys[1] == 0,
        f"queries, keys and values of the attention do not fit each other: as batch, heads, rows and depth they are "
        f"{list(queries)}, {list(keys)} and {list(values)}",
    )


def check_outputs(
    shapes: Mapping[str, ArrayShape], config: AttentionConfig, expected: tuple[int, ...], what: str
) -> None:
    """ShapeError unless the output and its gradient, as operands, are as the output of forward is."""
    for name in ("output gradient", "output"):
        if name in shapes:
            found = config.placements[name].shape(shapes[name], f"the {name} of {what}")
            require(found == expected, f"the {name} of {what} must be {list(expected)}, but is {shapes[name]}")


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
) -> CallResult:
    """The results in the places of what is no scratch memory, each rounded once; zeros for scratch memory.

    Results for which the declared shape has no place are left out.
    """
    remaining = iter(results)
    leaves = [
        zeros_of(leaf) if _is_scratch(leaf) else rounded(next(remaining), leaf.element_type).reshape(leaf.dimensions)
        for leaf in result_shapes(shape, "the attention")
    ]
    return tuple(leaves) if isinstance(shape, TupleShape) else leaves[0]


def _is_scratch(leaf: ArrayShape) -> bool:
    """Whether a result is scratch memory; its place among the results changed over the years."""
    return leaf.element_type.name == "u8" and leaf.rank == 1
