"""Sparse matrices on CPUs."""

from __future__ import annotations

import numpy as np

from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import element_type_of
from hloexec.errors import EvaluationError
from hloexec.ir import ArrayShape, Shape
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.values import Array

__all__ = ["checked_indices", "row_indices", "sparse_product"]

_COLUMNS_AT_ONCE = 1 << 22
"""Products that are made before they are added up, so that memory stays bounded."""


@custom_call("cpu_csr_sparse_dense_ffi")
class CsrTimesDense:
    """out[r, …] = Σ data[j] · rhs[inner[j], …] over j from outer[r] up to outer[r + 1].

    Compressed sparse rows: data [nse], outer [rows + 1], inner [nse], and rhs [columns] or [columns, k]; elements from
    outer[rows] on are padding. Sums run in the order of the elements, in f32 for narrower types. Source: JAX,
    jax.experimental.sparse.BCSR; jaxlib, cpu_sparse.
    """

    @staticmethod
    def infer(data: Shape, outer: Shape, inner: Shape, rhs: Shape) -> Shape:
        values, starts, columns, dense = (
            array_shape(part, f"{name} of a sparse product")
            for part, name in ((data, "data"), (outer, "outer"), (inner, "inner"), (rhs, "rhs"))
        )
        require(
            values.rank == starts.rank == columns.rank == 1 and values.dimensions == columns.dimensions,
            f"data, outer and inner of a sparse product must be vectors, the first and the last of one size, but have "
            f"shapes {values}, {starts} and {columns}",
        )
        require(
            starts.dimensions[0] > 0 and starts.element_type.is_integral and columns.element_type.is_integral,
            f"outer and inner of a sparse product must be integers, one more than rows, but have shapes {starts} and "
            f"{columns}",
        )
        require(
            dense.rank in (1, 2) and dense.element_type is values.element_type,
            f"rhs of a sparse product must be a vector or a matrix of {values.element_type}, but has shape {dense}",
        )
        return ArrayShape(values.element_type, (starts.dimensions[0] - 1, *dense.dimensions[1:]))

    @staticmethod
    def evaluate(data: Array, outer: Array, inner: Array, rhs: Array) -> Array:
        shapes = (ArrayShape(element_type_of(part.dtype), part.shape) for part in (data, outer, inner, rhs))
        rows = array_shape(CsrTimesDense.infer(*shapes), "the product").dimensions[0]
        row_of = row_indices(outer, len(data))
        columns = checked_indices(inner[: len(row_of)], len(rhs), "columns")
        return sparse_product(data[: len(row_of)], row_of, columns, rhs, rows)


def row_indices(outer: Array, elements: int) -> Array:
    """The row of each element of compressed sparse rows, up to the last that belongs to a row."""
    starts = outer.astype(np.int64)
    if starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > elements:
        raise EvaluationError(f"the rows of a sparse matrix of {elements} elements cannot start at {starts}")
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def checked_indices(indices: Array, size: int, what: str) -> Array:
    """The indices as machine integers, or EvaluationError where one is out of range."""
    if indices.size and not 0 <= indices.min() <= indices.max() < size:
        raise EvaluationError(f"a sparse matrix has {what} {indices.min()} to {indices.max()} of {size}")
    return indices.astype(np.int64)


def sparse_product(data: Array, rows: Array, columns: Array, rhs: Array, size: int) -> Array:
    """out[i, …] = Σ data[j] · rhs[columns[j], …] over the j with rows[j] = i, for i < size; rhs [n] or [n, k].

    Indices are in range. Sums run in the order of the elements, in f32 for narrower types, and round once.
    """
    values, dense = widen(data), widen(rhs).reshape(len(rhs), -1)
    result = np.zeros((size, dense.shape[1]), values.dtype)
    step = max(_COLUMNS_AT_ONCE // max(dense.shape[1], 1), 1)
    with np.errstate(all="ignore"):
        for first in range(0, len(data), step):
            part = slice(first, first + step)
            np.add.at(result, rows[part], values[part, None] * dense[columns[part]])
    return narrow(result, element_type_of(data.dtype)).reshape(size, *rhs.shape[1:])
