"""Kernels by rows: how an opcode is computed a block of rows at a time.

A value of dimensions [d0, d1, …] is viewed as R rows, where R is the product of its first dimensions, the *prefix*. An
instruction can be computed by rows if rows i to j of its result need only rows i to j of its operands, except for
scalar operands. Blocks of rows are arrays [rows, dimensions behind the prefix...]. Values have the same bits whether
they are computed by rows or as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any, TypeAlias

from hloexec.core.dtypes import DType, element_type
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array

RowFunction: TypeAlias = "Callable[..., Any]"
_F32 = element_type("f32")


@frozen(eq=False)
class RowForm:
    """How one instruction is computed by rows."""

    rows: frozenset[int]
    """The numbers of rows for which it can be."""
    bind: Callable[[int], RowFunction]
    """For one of them, the function from blocks (and whole scalars) to a block."""
    is_view: bool = False
    """Whether the result shares the operand's memory where the instruction runs by itself."""
    is_reduction: bool = False
    wide: ArrayShape | None = None
    """Where set, `bind` gives a function of f32 blocks in place of bf16 ones, whose f32 result is yet to be rounded."""
    is_exact: bool = False
    """Whether that result is a bf16 number, its bits included, without rounding."""
    is_elementwise: bool = False
    """Whether an operand that is one number everywhere may be given as an array of one element."""
    mask: DType | None = None
    """Where set, `bind` gives a function of a mask of such integers in place of a pred."""
    moves: bool = False
    """Whether elements are copied as they are, so that a copy of the result would be one too many."""
    numbers_rows: bool = False
    """Whether `bind` gives a function of the number of the first row and of that behind the last, of no operands."""
    fills: bool = False
    """Whether `bind` gives a function that takes, as its last argument, an array to fill, which shares no memory with
    the others but may be one of `overwrites`."""
    overwrites: tuple[int, ...] = ()
    """The numbers of such operands."""


@lru_cache(maxsize=4096)
def prefixes(dimensions: tuple[int, ...]) -> frozenset[int]:
    """The numbers of rows that an array can be seen as."""
    return frozenset(accumulate(dimensions, mul)) - {0, 1}


def prefix_length(dimensions: Sequence[int], rows: int) -> int:
    """How many of the first dimensions make up so many rows; the fewest where several do."""
    return list(accumulate(dimensions, mul)).index(rows) + 1


def behind_prefix(dimensions: Sequence[int], rows: int) -> tuple[int, ...]:
    """The dimensions of a row."""
    return tuple(dimensions[prefix_length(dimensions, rows) :])


def same(block: Array) -> Array:
    """The block itself."""
    return block


def widened_from_bf16(shape: ArrayShape) -> ArrayShape:
    """The shape in f32 where it is in bf16, as `RowForm.wide` has it."""
    return shape.with_element_type(_F32) if shape.element_type.name == "bf16" else shape
