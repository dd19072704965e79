"""XLA's own matrix decompositions, which TPUs run, and what JAX calls on GPUs beside cuSOLVER.

XLA defines them as calls until a backend expands them; here they are their definitions, on whole batches of matrices.
Source: XLA, hlo/builder/lib (self_adjoint_eig, qr, lu_decomposition); JAX, jax.lax.linalg.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from hloexec.custom_calls.ffi import checked_attributes, ffi_attributes
from hloexec.custom_calls.linalg.solver_calls import Descriptor
from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.errors import UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.blas import hold_blas, matmul
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.values import Array

__all__ = ["matrix_shape"]

_REAL_PARTS = {"c64": "f32", "c128": "f64"}
_EIGH_FIELDS = 4


def matrix_shape(shape: Shape, what: str) -> ArrayShape:
    array = array_shape(shape, what)
    require(
        array.rank >= 2 and (array.element_type.is_floating or array.element_type.is_complex),
        f"{what} must hold matrices of floating-point or complex numbers, but has shape {array}",
    )
    return ArrayShape(array.element_type, array.dimensions)


@custom_call("Eigh")
class Eigh:
    """(v, w) with a v = v diag(w) of Hermitian matrices [..., n, n]; w [..., n] is real and ascending.

    backend_config is `lower,sort_eigenvalues,max_iter,tol`: which triangle is read, and how far XLA's iteration goes,
    which this one (LAPACK's) does not need to be told. Source: XLA, self_adjoint_eig.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = matrix_shape(operand, "the operand of Eigh")
        require(array.dimensions[-1] == array.dimensions[-2], f"Eigh needs square matrices, but is given {array}")
        real = ELEMENT_TYPES[_REAL_PARTS.get(array.element_type.name, array.element_type.name)]
        return TupleShape((array, ArrayShape(real, array.dimensions[:-1])))

    @staticmethod
    def supports(instruction: Instruction) -> None:
        _reads_lower(instruction.backend_config)

    @staticmethod
    def evaluate(operand: Array, *, backend_config: str | None) -> tuple[Array, Array]:
        Eigh.infer(ArrayShape(element_type_of(operand.dtype), operand.shape))
        matrices = widen(operand)
        try:
            hold_blas()
            values, vectors = np.linalg.eigh(matrices, UPLO="L" if _reads_lower(backend_config) else "U")
        except np.linalg.LinAlgError:
            values, vectors = np.full(matrices.shape[:-1], np.nan), np.full_like(matrices, np.nan)
        entry = element_type_of(operand.dtype)
        real = ELEMENT_TYPES[_REAL_PARTS.get(entry.name, entry.name)]
        return narrow(vectors, entry), narrow(values, real)


def _reads_lower(backend_config: str | None) -> bool:
    fields = (backend_config or "").split(",")
    if len(fields) != _EIGH_FIELDS or fields[0] not in "01" or fields[1] not in "01":
        raise UnsupportedError(
            f"its backend_config must be lower,sort_eigenvalues,max_iter,tol with 0 or 1 for the first two, but is "
            f"{backend_config!r}"
        )
    return fields[0] == "1"


@custom_call("Qr")
class Qr:
    """(qr, taus) with a = Q R: R in the upper triangle, below it the vectors v of reflectors I − tau v vᴴ, v[i] = 1.

    a [..., m, n]; taus [..., min(m, n)]. The diagonal of R has the sign that LAPACK gives it. Source: XLA, qr.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = matrix_shape(operand, "the operand of Qr")
        taus = (*array.dimensions[:-2], min(array.dimensions[-2:]))
        return TupleShape((array, ArrayShape(array.element_type, taus)))

    @staticmethod
    def evaluate(operand: Array) -> tuple[Array, Array]:
        matrices = widen(operand)
        if matrices.size == 0:
            return operand, np.zeros((*operand.shape[:-2], min(operand.shape[-2:])), operand.dtype)
        hold_blas()
        transposed, taus = np.linalg.qr(matrices, mode="raw")
        entry = element_type_of(operand.dtype)
        return narrow(np.ascontiguousarray(transposed.swapaxes(-1, -2)), entry), narrow(taus, entry)


@custom_call("ProductOfElementaryHouseholderReflectors")
class HouseholderProduct:
    """The first n columns of H(1) H(2) … H(k), the reflectors that Qr stored in a [..., m, n] and taus [..., k].

    Source: XLA, qr.
    """

    @staticmethod
    def infer(a: Shape, taus: Shape) -> Shape:
        array, factors = matrix_shape(a, "a"), array_shape(taus, "taus")
        rows, columns = array.dimensions[-2:]
        require(rows >= columns, f"a product of reflectors needs no fewer rows than columns, but is given {array}")
        require(
            factors.dimensions[:-1] == array.dimensions[:-2] and factors.rank > 0 and factors.dimensions[-1] <= columns,
            f"taus must have the batch of {array} and at most {columns} elements, but has shape {factors}",
        )
        return array

    @staticmethod
    def evaluate(a: Array, taus: Array) -> Array:
        matrices, factors = widen(a), widen(taus)
        rows, columns = matrices.shape[-2:]
        product = np.broadcast_to(np.eye(rows, columns, dtype=matrices.dtype), matrices.shape).copy()
        for number in reversed(range(factors.shape[-1])):
            v = matrices[..., number:, number].copy()
            v[..., 0] = 1
            projection = matmul(v.conj()[..., None, :], product[..., number:, :])
            product[..., number:, :] -= (factors[..., number, None] * v)[..., None] * projection
        return narrow(product, element_type_of(a.dtype))


@custom_call("LuDecomposition")
class LuDecomposition:
    """(lu, pivots, permutation) with a[permutation] = L U, partial pivoting; L's diagonal is 1 and not stored.

    a [..., m, n]; pivots s32 [..., min(m, n)]: row i was swapped with row pivots[i], from 0; permutation s32 [..., m].
    Source: XLA, lu_decomposition.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = matrix_shape(operand, "the operand of LuDecomposition")
        index, batch, (rows, columns) = ELEMENT_TYPES["s32"], array.dimensions[:-2], array.dimensions[-2:]
        return TupleShape((array, ArrayShape(index, (*batch, min(rows, columns))), ArrayShape(index, (*batch, rows))))

    @staticmethod
    def evaluate(operand: Array) -> tuple[Array, Array, Array]:
        rows, columns = operand.shape[-2:]
        factors = np.array(widen(operand)).reshape(-1, rows, columns)
        count, least = len(factors), min(rows, columns)
        pivots = np.zeros((count, least), np.int32)
        batch = np.arange(count)
        with np.errstate(all="ignore"):
            for step in range(least):
                column = factors[:, step:, step]
                # LAPACK measures complex numbers by |re| + |im|.
                chosen = step + (np.abs(column.real) + np.abs(column.imag)).argmax(-1)
                pivots[:, step] = chosen
                factors[batch, chosen], factors[:, step] = factors[:, step].copy(), factors[batch, chosen]
                pivot = factors[:, step, step, None]
                # A column of zeros is left as it is.
                factors[:, step + 1 :, step] /= np.where(pivot == 0, 1, pivot)
                factors[:, step + 1 :, step + 1 :] -= (
                    factors[:, step + 1 :, step, None] * factors[:, step, None, step + 1 :]
                )
        pivots = pivots.reshape(*operand.shape[:-2], least)
        lu = narrow(factors, element_type_of(operand.dtype)).reshape(operand.shape)
        return lu, pivots, _permutation_of_swaps(pivots, rows)


@custom_call(
    "cu_lu_pivots_to_permutation",
    "cuda_lu_pivots_to_permutation",
    "hip_lu_pivots_to_permutation",
    "oneapi_lu_pivots_to_permutation",
    is_reproducible=True,
)
class LuPivotsToPermutation:
    """The permutation [..., n] into which swapping row i with row pivots[i], for i = 0, 1, …, brings 0, 1, …, n − 1.

    pivots s32 [..., k] from 0, k ≤ n. The sizes that older configs hold must be those of the shapes: permutation_size,
    or a C structure. Source: JAX, jax.lax.linalg.lu_pivots_to_permutation; jaxlib, gpu/lu_pivot_kernels.
    """

    @staticmethod
    def supports(instruction: Instruction) -> None:
        _permutation_sizes(instruction.backend_config)

    @staticmethod
    def infer(pivots: Shape, *, backend_config: str | None, shape: Shape) -> Shape:
        swaps, result = array_shape(pivots, "pivots"), array_shape(shape, "the permutation")
        require(
            swaps.rank == result.rank > 0
            and swaps.dimensions[:-1] == result.dimensions[:-1]
            and swaps.dimensions[-1] <= result.dimensions[-1]
            and swaps.element_type is result.element_type is ELEMENT_TYPES["s32"],
            f"pivots {swaps} do not permute {result}",
        )
        known = {
            "batch_size": prod(swaps.dimensions[:-1]),
            "pivot_size": swaps.dimensions[-1],
            "permutation_size": result.dimensions[-1],
        }
        for name, size in _permutation_sizes(backend_config).items():
            require(
                size == known[name],
                f"the backend_config has {name} = {size}, but pivots {swaps} that permute {result} have {known[name]}",
            )
        return ArrayShape(result.element_type, result.dimensions)

    @staticmethod
    def evaluate(pivots: Array, *, shape: ArrayShape) -> Array:
        return _permutation_of_swaps(pivots, shape.dimensions[-1])


def _permutation_sizes(backend_config: str | None) -> Mapping[str, object]:
    """The sizes that the config of an older call gives, if any."""
    text = backend_config or ""
    if text.startswith("{") and text.endswith("}"):
        is_size = {"permutation_size": lambda value: type(value) is int}
        return checked_attributes(text, is_size if ffi_attributes(text) else {})
    if not text:
        return {}
    return Descriptor("qii", "batch_size pivot_size permutation_size").read(text.encode("utf-8", "surrogateescape"))


def _permutation_of_swaps(pivots: Array, size: int) -> Array:
    """0 … size − 1 after swapping element i with element pivots[i], for each i in turn; batches before it."""
    swaps = pivots.reshape(-1, pivots.shape[-1])
    batch = np.arange(len(swaps))
    permutation = np.broadcast_to(np.arange(size, dtype=np.int32), (len(swaps), size)).copy()
    for step in range(swaps.shape[-1]):
        # An index beyond the end moves nothing.
        other = np.where((swaps[:, step] >= 0) & (swaps[:, step] < size), swaps[:, step], step)
        permutation[batch, other], permutation[:, step] = permutation[:, step].copy(), permutation[batch, other]
    return permutation.reshape(*pivots.shape[:-1], size)
