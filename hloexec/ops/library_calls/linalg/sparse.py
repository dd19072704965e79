"""Sparse matrices: products on CPUs, cuSPARSE's products and conversions, and cuSOLVER's sparse systems of equations.

On GPUs jaxlib packs what the library must know into a C structure, the whole backend_config of older calls and the
attribute `opaque` of typed ones. Sizes in it must be those of the shapes; types are the shapes', whatever the structure
says. Source: jaxlib, gpu/sparse_kernels; NVIDIA, cuSPARSE, generic API; AMD, hipSPARSE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Arrays
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.library_calls.configs import (
    CallResult,
    bytes_of_attribute,
    bytes_of_config,
    checked_attributes,
    in_declared_form,
    shapes_of,
    with_scratch,
    zeros,
)
from hloexec.ops.library_calls.linalg.solver_calls import (
    VENDORS,
    Descriptor,
    enumeration,
    reason_without_scipy,
    register,
)
from hloexec.ops.registry import custom_call

_COLUMNS_AT_ONCE = 1 << 22
"""Products that are made before they are added up, so that memory stays bounded."""


def row_indices(outer: Array, elements: int) -> Array:
    """The row of each element of compressed sparse rows, up to the last that belongs to a row."""
    starts = outer.astype(np.int64)
    if starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > elements:
        raise EvaluationError(f"the rows of a sparse matrix of {elements} elements cannot start at {starts}")
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def checked_indices(indices: Array, size: int, subject: str) -> Array:
    """The indices as machine integers, or EvaluationError where one is out of range."""
    if indices.size and not 0 <= indices.min() <= indices.max() < size:
        raise EvaluationError(f"a sparse matrix has {subject} {indices.min()} to {indices.max()} of {size}")
    return indices.astype(np.int64)


def sparse_product(data: Array, rows: Array, columns: Array, rhs: Array, size: int) -> Array:
    """out[i, …] = Σ data[j] · rhs[columns[j], …] over the j with rows[j] = i, for i < size; rhs [n] or [n, k].

    Indices are in range. Sums run in the order of the elements, in f32 for narrower types, and round once.
    """
    values, dense = widen(data), widen(rhs).reshape(len(rhs), -1)
    result = np.zeros((size, dense.shape[1]), values.dtype)
    step = max(_COLUMNS_AT_ONCE // max(dense.shape[1], 1), 1)
    for first in range(0, len(data), step):
        part = slice(first, first + step)
        np.add.at(result, rows[part], values[part, None] * dense[columns[part]])
    return narrow(result, element_type_of(data.dtype)).reshape(size, *rhs.shape[1:])


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
    def demands(use: Use) -> Demanded:
        data, _, _, rhs = use.shapes
        yield 1, Demand(0, data.dimensions[0], is_ascending=True)
        yield 2, Demand(0, rhs.dimensions[0] - 1)

    @staticmethod
    def evaluate(data: Array, outer: Array, inner: Array, rhs: Array) -> Array:
        rows = array_shape(CsrTimesDense.infer(*shapes_of([data, outer, inner, rhs])), "the product").dimensions[0]
        row_of = row_indices(outer, len(data))
        columns = checked_indices(inner[: len(row_of)], len(rhs), "columns")
        return sparse_product(data[: len(row_of)], row_of, columns, rhs, rows)


_Members: TypeAlias = Mapping[str, Any]


def _structures(members: str) -> tuple[Descriptor, Descriptor]:
    """The structure of today, and that of versions that knew no batches; all members are integers."""
    today = members.split()
    older = [name for name in today if "batch" not in name]
    return Descriptor("i" * len(today), members), Descriptor("i" * len(older), " ".join(older))


_SPARSE = "value_type index_type rows cols nnz batch_count batch_stride"
_CONVERSION = _structures(_SPARSE)
_VECTOR_PRODUCT = _structures(f"{_SPARSE} x_type x_size y_type y_size op")
_MATRIX_PRODUCT = _structures(
    f"{_SPARSE} b_type b_rows b_cols b_batch_count b_batch_stride c_type c_rows c_cols c_batch_count c_batch_stride op"
)

_OPERATION = enumeration({0: "N", 1: "T", 2: "C"})


@frozen
class _Format:
    """How the places of elements are given by two index arrays."""

    names: tuple[str, str]
    rows_and_columns: Callable[[Array, Array, int, int, int], tuple[Array, Array]]
    """From the two arrays, the number of elements, of rows and of columns; only elements in rows."""


def _csr_places(indices: Array, indptr: Array, elements: int, rows: int, cols: int) -> tuple[Array, Array]:
    row_of = row_indices(indptr, elements)
    return row_of, checked_indices(indices[: len(row_of)], cols, "columns")


_FORMATS = {
    "csr": _Format(("indices", "indptr"), _csr_places),
    "coo": _Format(
        ("row", "col"),
        lambda row, col, _, rows, cols: (checked_indices(row, rows, "rows"), checked_indices(col, cols, "columns")),
    ),
}


@frozen
class _Target:
    """One of the calls, in one format and spelling."""

    format: _Format
    is_typed: bool
    operands: tuple[str, ...]
    descriptors: tuple[Descriptor, ...]
    infer_values: Callable[..., ArrayShapes]
    """The results' shapes, from the members, the format, the operands' shapes and the declared shape."""
    compute: Callable[..., Arrays]
    """The results, from the members, the format, the operands and the inferred shape."""

    def config(self, instruction: Instruction) -> dict[str, object]:
        """The members of the structure."""
        data = bytes_of_config(instruction.backend_config)
        if self.is_typed:
            attributes = checked_attributes(
                instruction.backend_config, {"opaque": lambda value: isinstance(value, str)}
            )
            data = bytes_of_attribute(str(attributes["opaque"]))
        fitting = [descriptor for descriptor in self.descriptors if 4 * len(descriptor.layout) == len(data)]
        members = (fitting or self.descriptors)[0].read(data)
        for name in members:
            if name.endswith("batch_count") and members[name] != 1:
                raise UnsupportedError(
                    f"{name} of its backend_config is {members[name]}, which hloexec does not support"
                )
        if "op" in members:
            members["op"] = _OPERATION(members, "op")
        return members

    def infer(self, *operands: Shape, config: _Members, shape: Shape) -> Shape:
        arrays = [array_shape(operand, "an operand of a sparse call") for operand in operands]
        require(
            len(arrays) == len(self.operands),
            f"a sparse call takes {', '.join(self.operands)}, but has {len(arrays)} operands",
        )
        results = self.infer_values(config, self.format, arrays, shape)
        require(
            len(parts_of(shape)) >= len(results),
            f"a sparse call gives {len(results)} results and a workspace, but is declared as {shape}",
        )
        return in_declared_form(results, shape)

    def evaluate(self, *operands: Array, config: _Members, shape: Shape) -> CallResult:
        inferred = self.infer(*shapes_of(operands), config=config, shape=shape)
        return with_scratch(self.compute(config, self.format, operands, inferred), inferred)


def _check_sparse(members: _Members, kind: _Format, arrays: Sequence[ArrayShape]) -> None:
    """data [nnz] and its two index arrays against the sizes that the structure gives."""
    rows, nnz = members["rows"], members["nnz"]
    lengths = (nnz, nnz, rows + 1 if kind.names[1] == "indptr" else nnz)
    for name, array, length in zip(("data", *kind.names), arrays, lengths, strict=False):
        require(
            array.dimensions == (length,),
            f"{name} of a sparse matrix of {rows} rows and {nnz} elements must have {length} elements, but is {array}",
        )
        require(
            name == "data" or array.element_type.is_integral,
            f"{name} of a sparse matrix must be integers, but is {array}",
        )


def _infer_product(members: _Members, kind: _Format, arrays: Sequence[ArrayShape], shape: Shape) -> ArrayShapes:
    _check_sparse(members, kind, arrays)
    rows, cols = (members["rows"], members["cols"])[:: -1 if members["op"] != "N" else 1]
    data, rhs = arrays[0], arrays[3]
    rank = 2 if "b_rows" in members else 1
    require(
        rhs.rank == rank and rhs.dimensions[0] == cols and rhs.element_type is data.element_type,
        f"a sparse matrix of {data.element_type} with {cols} columns cannot be multiplied with {rhs}",
    )
    sizes = (members["b_rows"], members["b_cols"]) if rank == 2 else (members["x_size"],)
    require(
        rhs.dimensions == sizes, f"the backend_config of a sparse product has rhs of {list(sizes)}, but it is {rhs}"
    )
    return (ArrayShape(data.element_type, (rows, *rhs.dimensions[1:])),)


def _product(members: _Members, kind: _Format, operands: Sequence[Array], inferred: Shape) -> Arrays:
    """A · rhs, Aᵀ · rhs or Aᴴ · rhs."""
    data, first, second, rhs = operands
    rows, columns = kind.rows_and_columns(first, second, len(data), members["rows"], members["cols"])
    size = members["rows"]
    if members["op"] != "N":
        rows, columns, size = columns, rows, members["cols"]
    values = data[: len(rows)]
    return (sparse_product(values.conj() if members["op"] == "C" else values, rows, columns, rhs, size),)


def _infer_dense(members: _Members, kind: _Format, arrays: Sequence[ArrayShape], shape: Shape) -> ArrayShapes:
    _check_sparse(members, kind, arrays)
    return (ArrayShape(arrays[0].element_type, (members["rows"], members["cols"])),)


def _to_dense(members: _Members, kind: _Format, operands: Sequence[Array], inferred: Shape) -> Arrays:
    """The matrix with all its zeros; of elements at one place, the last."""
    data, first, second = operands
    dense = np.zeros((members["rows"], members["cols"]), data.dtype)
    places = kind.rows_and_columns(first, second, len(data), *dense.shape)
    dense[places] = data[: len(places[0])]
    return (dense,)


def _infer_sparse(members: _Members, kind: _Format, arrays: Sequence[ArrayShape], shape: Shape) -> ArrayShapes:
    dense = arrays[0]
    require(
        dense.dimensions == (members["rows"], members["cols"]),
        f"the backend_config of a sparse call has {members['rows']} rows and {members['cols']} columns, but the matrix "
        f"is {dense}",
    )
    declared = parts_of(shape)
    require(len(declared) >= 3, f"a sparse matrix is data and two index arrays, but {shape} is declared")
    parts = [array_shape(part, "a part of a sparse matrix") for part in declared[:3]]
    _check_sparse(members, kind, parts)
    require(
        parts[0].element_type is dense.element_type,
        f"the elements of a sparse {dense} cannot be {parts[0].element_type}",
    )
    return tuple(part.plain for part in parts)


def _from_dense(members: _Members, kind: _Format, operands: Sequence[Array], inferred: Shape) -> Arrays:
    """The elements that are not zero, row by row; zeros where there is room for more."""
    (dense,) = operands
    rows, columns = np.nonzero(dense)
    if len(rows) > members["nnz"]:
        raise EvaluationError(
            f"a matrix has {len(rows)} elements that are not zero, but the result has space for {members['nnz']}"
        )
    assert isinstance(inferred, TupleShape)
    data, first, second = zeros(inferred.elements[:3])
    data[: len(rows)] = dense[rows, columns]
    if kind.names == ("row", "col"):
        first[: len(rows)], second[: len(rows)] = rows, columns
    else:
        first[: len(rows)] = columns
        second[...] = np.searchsorted(rows, np.arange(len(dense) + 1))
    return data, first, second


_MATRIX = ("data", "the first index array", "the second index array")
_CALLS: dict[str, Any] = {
    "matvec": ((*_MATRIX, "rhs"), _VECTOR_PRODUCT, _infer_product, _product),
    "matmat": ((*_MATRIX, "rhs"), _MATRIX_PRODUCT, _infer_product, _product),
    "todense": (_MATRIX, _CONVERSION, _infer_dense, _to_dense),
    "fromdense": (("the matrix",), _CONVERSION, _infer_sparse, _from_dense),
}

for _vendor in VENDORS:
    for _format_name, _format in _FORMATS.items():
        for _name, _rules in _CALLS.items():
            for _suffix in ("", "_ffi"):
                register(
                    f"{_vendor}sparse_{_format_name}_{_name}{_suffix}",
                    _Target(_format, bool(_suffix), *_rules),
                    f"{_rules[-1].__doc__}\n\nSource: jaxlib, gpu/sparse_kernels; NVIDIA, cuSPARSE.",
                )


def _solve_members(instruction: Instruction) -> Mapping[str, object] | None:
    """The sizes as an older call gives them apart from the shapes; what remains decides how, not what."""
    if instruction.attributes.custom_call_target.endswith("_ffi"):
        is_number = {"tol": lambda value: type(value) in (int, float)}
        checked_attributes(instruction.backend_config, {"reorder": (0, 1, 2, 3), **is_number})
        return None
    return Descriptor("iiiid", "type n nnz reorder tol").read(bytes_of_config(instruction.backend_config))


@custom_call("cusolver_csrlsvqr_ffi", "cusolver_csrlsvqr", config=_solve_members)
class SparseSolve:
    """x with A x = b for a sparse square matrix; EvaluationError where it is singular.

    data [nnz], indices s32 [nnz], indptr s32 [n + 1] (the older call has them in the order data, indptr, indices), b
    [n]. `reorder` and `tol` say how the library goes about it: SuperLU does it here. Source: jaxlib,
    gpu/solver_kernels_ffi; NVIDIA, cusolverSp<t>csrlsvqr.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return reason_without_scipy()

    @staticmethod
    def infer(data: Shape, second: Shape, third: Shape, b: Shape, *, config: _Members | None) -> Shape:
        indices, indptr = (second, third) if config is None else (third, second)
        right, values = array_shape(b, "b of a sparse system"), array_shape(data, "data of a sparse system")
        require(
            right.rank == values.rank == 1
            and right.element_type is values.element_type
            and right.element_type.name in ("f32", "f64", "c64", "c128"),
            f"data and b of a sparse system must be vectors of f32, f64, c64 or c128, but are {values} and {right}",
        )
        members = config or {}
        sizes = {"rows": members.get("n", right.dimensions[0]), "nnz": members.get("nnz", values.dimensions[0])}
        require(right.dimensions == (sizes["rows"],), f"the system has {sizes['rows']} equations, but b is {right}")
        parts = [array_shape(part, "an index array") for part in (data, indices, indptr)]
        _check_sparse(sizes, _FORMATS["csr"], parts)
        return right.plain

    @staticmethod
    def evaluate(data: Array, second: Array, third: Array, b: Array, *, config: _Members | None) -> Array:
        SparseSolve.infer(*shapes_of([data, second, third, b]), config=config)
        indices, indptr = (second, third) if config is None else (third, second)
        if not b.size:
            return b
        rows, columns = _csr_places(indices, indptr, len(data), len(b), len(b))
        from scipy.sparse import coo_matrix
        from scipy.sparse.linalg import splu

        matrix = coo_matrix((data[: len(rows)], (rows, columns)), shape=(len(b), len(b))).tocsc()
        try:
            solution = splu(matrix).solve(b)
        except RuntimeError:
            raise EvaluationError("the matrix of a sparse system of equations is singular") from None
        return np.asarray(solution, b.dtype)
