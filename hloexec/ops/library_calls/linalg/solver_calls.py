"""LAPACK's routines as library calls: for one matrix or many at once.

LAPACK's routines for many small matrices at once, where calling LAPACK for each would take longer.

Each function takes the options and stacks of matrices, and returns the results by name as the routine of the same name
does for one matrix, or None where one of the matrices is not to be had this way. Values are LAPACK's but for rounding.
Those that compute step by step have the matrices' rows and columns first and the matrices last, so that each step is a
few operations on long rows.
Source: LAPACK Users' Guide, 3rd edition, whose names these are.

Running a LAPACK routine for one matrix over a batch, and returning the results that a custom call declares.

Libraries for CPUs and GPUs name the same routines differently; this module runs them in the precisions that LAPACK has,
with SciPy's bindings. Matrices are logical arrays; XLA's column-major layouts do not matter.

Registration of a matrix routine under its custom-call targets on GPUs.

jaxlib's GPU calls exist in two forms. The typed one, `cusolver_getrf_ffi`, has parameters as attributes. The older one,
`cusolver_getrf`, has them in a C structure, the bytes of the backend_config, and returns workspaces among its results.
One target serves all element types. AMD's (`hipsolver_…`) and Intel's (`oneapisolver_…`) libraries have the same calls
under other names, with their own numbers for the same enumerations.
"""

from __future__ import annotations

import inspect
import os
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, part_type
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.configs import bytes_of_config, checked_attributes, shapes_of, zeros
from hloexec.ops.linalg import TriangularSolve, TriangularSolveAttributes
from hloexec.ops.registry import add_custom_call
from hloexec.ops.resources import hold_blas

Options = Mapping[str, Any]
Results = Mapping[str, Any]


def _getrf(options: Options, a: Array) -> Results | None:
    """None where a matrix is singular or not finite: then comparisons are LAPACK's own."""
    factors = np.array(a.transpose(1, 2, 0), order="C")
    steps = min(factors.shape[:2])
    pivots = np.empty((len(a), steps), np.int32)
    for step in range(steps):
        column = factors[step:, step]
        # LAPACK measures complex numbers so.
        size = abs(column.real) + abs(column.imag) if np.iscomplexobj(a) else abs(column)
        chosen = size.argmax(0)[None, None] + step
        pivots[:, step] = chosen[0, 0] + 1
        top = np.take_along_axis(factors, chosen, 0)
        np.put_along_axis(factors, chosen, factors[step : step + 1], 0)
        factors[step] = top
        if not factors[step, step].all():
            return None
        column[1:] /= column[0]
        factors[step + 1 :, step + 1 :] -= column[1:, None] * factors[step, step + 1 :]
    return {"a": factors.transpose(2, 0, 1), "ipiv": pivots} if np.isfinite(factors).all() else None


def _geqrf(options: Options, a: Array) -> Results | None:
    reflectors, tau = np.linalg.qr(a, mode="raw")
    return {"a": reflectors.swapaxes(-1, -2), "tau": tau}


def _orgqr(options: Options, a: Array, tau: Array) -> Results | None:
    vectors = np.ascontiguousarray(a.transpose(1, 2, 0))
    product = np.zeros_like(vectors)
    diagonal = np.arange(min(vectors.shape[:2]))
    product[diagonal, diagonal] = 1
    for step in reversed(range(tau.shape[1])):
        vector = vectors[step:, step].copy()
        vector[0] = 1
        below = product[step:, step:]
        below -= (tau[:, step] * vector)[:, None] * (vector.conj()[:, None] * below).sum(0)
    return {"a": product.transpose(2, 0, 1)}


def _potrf(options: Options, a: Array) -> Results | None:
    """None where one of the matrices is not positive definite."""
    is_lower = options["uplo"] == "L"
    try:
        factors = np.linalg.cholesky(a if is_lower else a.swapaxes(-1, -2).conj())
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(factors).all():
        return None
    places = np.tri(a.shape[-1], dtype=bool)
    return {"a": np.where(places, factors, a) if is_lower else np.where(places.T, factors.swapaxes(-1, -2).conj(), a)}


def _trsm(options: Options, a: Array, b: Array) -> Results | None:
    """None where the matrices do not fit each other."""
    is_left = options["side"] == "L"
    if b.shape[1 if is_left else 2] != a.shape[1]:
        return None
    attributes = TriangularSolveAttributes(
        left_side=is_left,
        lower=options["uplo"] == "L",
        unit_diagonal=options["diag"] == "U",
        transpose_a={"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}[options["trans_x"]],
    )
    scaled = b if "alpha" not in options else (options["alpha"] * b).astype(b.dtype)
    return {"b": TriangularSolve.evaluate(a, scaled, attributes=attributes)}


STACKS: Mapping[str, Callable[..., Results | None]] = {
    "geqrf": _geqrf,
    "getrf": _getrf,
    "orgqr": _orgqr,
    "potrf": _potrf,
    "trsm": _trsm,
    "ungqr": _orgqr,
}
"""By LAPACK's name, without the letter of the element type."""


PRECISIONS = {"s": "f32", "d": "f64", "c": "c64", "z": "c128"}
"""LAPACK's letters for its element types."""
_COMPLEX = {"f32": "c64", "f64": "c128", "c64": "c64", "c128": "c128"}
_MANY = 4
"""From so many matrices for each of their rows, calling LAPACK for each takes longer than a stack takes row by row."""
_FIELD = re.compile(r"(\w+)(?:\[([\w,\-]*)\](?::(\w+))?)?")


@frozen
class Call:
    """What a routine's function gets besides its matrices."""

    lapack: Any
    """SciPy's function for the precision, e.g. `scipy.linalg.lapack.sgetrf`."""
    module: Any
    """`scipy.linalg.lapack`, or what it has the functions from, for those that tell the size of a workspace."""
    name: str
    """SciPy's name of the function."""
    options: Mapping[str, Any]
    """LAPACK's options: letters as letters."""

    _workspaces: dict[object, int] = attrs.field(factory=dict, init=False)

    def workspace(self, *arguments: object, **options: object) -> int:
        """The best `lwork`, as the routine's own query tells it from sizes: it decides how LAPACK blocks the work."""
        sizes = [argument.shape if isinstance(argument, np.ndarray) else argument for argument in arguments]
        key = (*sizes, *options.items())
        if key not in self._workspaces:
            query = getattr(self.module, f"{self.name}_lwork", None)
            if query is None:
                work_size = self.lapack(*arguments, lwork=-1, **options)[-2][0]
            else:
                work_size = query(*arguments, **options)[0]
            self._workspaces[key] = int(work_size.real)
        return self._workspaces[key]


@frozen
class Field:
    """An operand or a result: `a[m,n]`, `info[]:s32`; every one has the batch dimensions before its own.

    A workspace, of any shape, is named `_`.
    """

    name: str
    dims: tuple[str, ...]
    element: str

    def element_type(self, scalar: str) -> ElementType:
        names = {"": scalar, "real": part_type(ELEMENT_TYPES[scalar]).name, "complex": _COMPLEX[scalar]}
        return ELEMENT_TYPES[names.get(self.element, self.element)]


@lru_cache(maxsize=1024)
def fields_of(text: str) -> tuple[Field, ...]:
    """`a[m,n] tau[r] _`: names, sizes, and element types where they are not the routine's own; `_` is a workspace.

    A letter is a size that its first use fixes, `r` is min(m, n), and `n-1` one less than n. Types are `:real`,
    `:complex` (the parts or the complex numbers of the routine's type) or an element type.
    """
    return tuple(
        Field(name, tuple(dims.split(",")) if dims else (), element) for name, dims, element in _FIELD.findall(text)
    )


def reason_without_scipy() -> str | None:
    """Why no routine can be run here, or None where SciPy is installed."""
    return None if find_spec("scipy") else "SciPy is needed, which is not installed: pip install 'hloexec[linalg]'"


@frozen(eq=False)
class MatrixRoutine:
    """One routine in one precision, as one custom-call target names it.

    `compute(call, *matrices)` returns the results by name; what it leaves out is zero, as are workspaces.
    """

    target: str
    scipy_name: str
    """E.g. `sgetrf`."""
    scalar: str
    """The HLO name of the element type."""
    operands: tuple[Field, ...]
    results: tuple[Field, ...]
    compute: Callable[..., Mapping[str, Any]]
    allows_workspaces: bool = False
    """Whether further results, of any size, may follow."""

    def check(self, operands: Sequence[Shape], shape: Shape) -> Shape:
        """The declared shape, where sizes, ranks and element types are those of the routine."""
        count = len(self.operands)
        require(len(operands) == count, f"{self.target} must have {count} operands, but has {len(operands)}")
        declared = parts_of(shape)
        expected = len(self.results)
        fits = len(declared) >= expected if self.allows_workspaces else len(declared) == expected
        require(fits, f"{self.target} must have {expected} results, but is declared as {shape}")
        sizes: dict[str, int] = {}
        first = array_shape(operands[0], f"an operand of {self.target}")
        batch = first.dimensions[: -len(self.operands[0].dims) or None]
        for field, part in (*zip(self.operands, operands, strict=True), *zip(self.results, declared, strict=False)):
            if field.name != "_":
                self._check(field, array_shape(part, f"{field.name} of {self.target}"), batch, sizes)
        return shape

    def _check(self, field: Field, array: ArrayShape, batch: Dimensions, sizes: dict[str, int]) -> None:
        expected_type = field.element_type(self.scalar)
        require(
            array.element_type is expected_type,
            f"{field.name} of {self.target} must have element type {expected_type}, but has shape {array}",
        )
        require(
            array.rank == len(batch) + len(field.dims),
            f"{field.name} of {self.target} must have {len(field.dims)} dimensions besides the batch, but "
            f"has shape {array}",
        )
        for name, size in zip(field.dims, array.dimensions[len(batch) :], strict=True):
            if name not in sizes and name.isalpha():
                sizes[name] = size
        if "m" in sizes and "n" in sizes:
            sizes["r"] = min(sizes["m"], sizes["n"])
        expected = list(batch)
        for name in field.dims:
            letter, _, less = name.partition("-")
            expected.append(max(sizes[letter] - int(less or 0), 0))
        require(
            array.dimensions == tuple(expected),
            f"{field.name} of {self.target} must have dimensions [{','.join(map(str, expected))}], but has "
            f"shape {array}",
        )

    def run(self, operands: Sequence[Array], options: Mapping[str, object], shape: Shape) -> Any:
        """The results for whole batches; the operands and `shape` must have passed `check`."""
        declared = parts_of(shape)
        batch = operands[0].shape[: operands[0].ndim - len(self.operands[0].dims)]
        count = prod(batch)
        matrices = [operand.reshape(count, *operand.shape[len(batch) :]) for operand in operands]
        stacks = self._stacks(matrices, options)
        if stacks is None:
            results = zeros(declared)
            if operands[0].size:
                self._fill(matrices, options, results, len(batch))
        else:
            names = [field.name for field in self.results] + ["_"] * (len(declared) - len(self.results))
            results = [
                _stacked(stacks.get(name), array_shape(part, name)) for name, part in zip(names, declared, strict=True)
            ]
        return tuple(results) if isinstance(shape, TupleShape) else results[0]

    def _stacks(self, matrices: list[Array], options: Mapping[str, object]) -> Mapping[str, Any] | None:
        """The results by name, where they can be computed for all matrices at once."""
        first, of_stack = matrices[0], STACKS.get(self.scipy_name[1:])
        if of_stack is None or not first.size or len(first) < _MANY * max(first.shape[1:], default=1):
            return None
        hold_blas()
        return of_stack(options, *matrices)

    def _fill(self, matrices: list[Array], options: Mapping[str, object], results: list[Array], batch: int) -> None:
        """Write the results, whose first `batch` dimensions number the matrices, matrix by matrix."""
        count = len(matrices[0])
        function, module = _scipy_function(self.scipy_name)
        hold_blas()
        call = Call(function, module, self.scipy_name, options)
        filled = [
            (field.name, result.reshape(count, *result.shape[batch:]))
            for field, result in zip(self.results, results, strict=False)
            if field.name != "_"
        ]
        for number in range(count):
            values = self.compute(call, *(operand[number] for operand in matrices))
            for name, result in filled:
                if (value := values.get(name)) is None:
                    continue
                sizes = value.shape if isinstance(value, np.ndarray) else np.shape(value)
                if sizes != result.shape[1:]:
                    raise EvaluationError(
                        f"{self.target} gives {name} of dimensions {list(sizes)}, but "
                        f"{list(result.shape[1:])} are declared"
                    )
                result[number] = value


def _stacked(values: Any, shape: ArrayShape) -> Array:
    """The values of a result in the form that is declared, zeros where there are none."""
    if values is None:
        return zeros([shape])[0]
    return np.ascontiguousarray(values, shape.element_type.storage).reshape(shape.dimensions)


def register(target: str, rules: Any, documentation: str, wider: str | None = None) -> None:
    """Add the entry of a target whose rules are methods of an object; `wider` is that of the routine in 64 bits."""
    methods = {name: getattr(rules, name, None) for name in ("infer", "supports", "config")}
    add_custom_call(target, rules.evaluate, **methods, wider=wider, documentation=documentation)


@lru_cache(maxsize=256)
def _scipy_function(name: str) -> tuple[Any, Any]:
    """LAPACK's or the BLAS's function, and the module that it is in."""
    module = _bindings("lapack")
    if not hasattr(module, name):
        module = _bindings("blas")
    # SciPy comes with a BLAS of its own.
    hold_blas(is_new=True)
    return getattr(module, name), module


@cache
def _bindings(library: str) -> Any:
    """`scipy.linalg.lapack` or `scipy.linalg.blas`: where nobody has imported it, only the compiled module within.

    All of SciPy's package takes three times as long to import and 16 MB more.
    """
    package, name = find_spec("scipy"), f"scipy.linalg._f{library}"
    if name not in sys.modules and package is not None and package.submodule_search_locations:
        try:
            spec = PathFinder.find_spec(name, [os.path.join(package.submodule_search_locations[0], "linalg")])
            if spec is not None and spec.loader is not None:
                module = module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
        except ImportError:
            # It needs what the package would load before it, as on Windows.
            pass
    return import_module(f"scipy.linalg.{library}")


VENDORS = ("cu", "hip", "oneapi")
"""What targets begin with: NVIDIA's, AMD's and Intel's."""

FLAGS = (True, False)

_LETTERS = {element: letter for letter, element in PRECISIONS.items()}
_TYPES = tuple(_LETTERS)


@frozen
class Descriptor:
    """The C structure of an older call: `struct` codes, and its members' names in order.

    Members that repeat what the shapes say (type, batch, m, n, k) must agree with them. The sizes of workspaces and
    leading dimensions change no value.
    """

    layout: str
    members: str
    shorter: tuple[str, ...] = ()
    """Layouts of versions that lack the last members."""

    def read(self, data: bytes) -> dict[str, object]:
        """The members; UnsupportedError for a structure of another size."""
        for layout in (self.layout, *self.shorter):
            # C pads a structure to a multiple of its largest member.
            if len(data) in (struct.calcsize(f"@{layout}"), struct.calcsize(f"@{layout}0q")):
                return dict(zip(self.members.split(), struct.unpack_from(f"@{layout}", data), strict=False))
        raise UnsupportedError(
            f"its backend_config must be a structure of {struct.calcsize('@' + self.layout)} bytes ({self.members}), "
            f"but has {len(data)}"
        )


def enumeration(values: Mapping[int, Any]) -> Callable[[Options, str], Any]:
    """Reads a member that is one of an enumeration's numbers; vendors number from other bases, so none is ambiguous."""

    def read(members: Options, name: str) -> Any:
        if members[name] not in values:
            raise UnsupportedError(f"{name} of its backend_config is {members[name]}, which hloexec does not know")
        return values[members[name]]

    return read


@frozen
class Spelling:
    """One way to write a call.

    `read` gives LAPACK's options from the attributes or members; `results` may depend on these options.
    """

    name: str
    """What follows the vendor: `solver_getrf_ffi`."""
    results: str | Callable[[Options], str]
    attributes: Mapping[str, Any] | Descriptor = attrs.field(factory=dict)
    read: Callable[[Options], Options] = lambda found: {}

    def members(self, backend_config: str | None) -> Options:
        if isinstance(self.attributes, Descriptor):
            return self.attributes.read(bytes_of_config(backend_config))
        return checked_attributes(backend_config, self.attributes)


@frozen(eq=False)
class _Target:
    target: str
    spelling: Spelling
    names: Mapping[str, str]
    """SciPy's names of the routine, for `real` and `complex`; one may be missing."""
    operands: str
    compute: Callable[..., Mapping[str, Any]]

    def config(self, instruction: Instruction) -> tuple[Options, Options]:
        """The attributes or members, and LAPACK's options that they stand for."""
        members = self.spelling.members(instruction.backend_config)
        return members, self.spelling.read(members)

    def supports(self, instruction: Instruction) -> str | None:
        by_columns = not self.config(instruction)[1].get("is_transposed", False)
        return reason_against_layouts(instruction, by_columns) or reason_without_scipy()

    def infer(self, *operands: Shape, config: tuple[Options, Options], shape: Shape) -> Shape:
        members, options = config
        self._routine(operands, options).check(operands, shape)
        if isinstance(self.spelling.attributes, Descriptor):
            self._check_members(operands, members)
        return shape

    def evaluate(self, *operands: Array, config: tuple[Options, Options], shape: Shape) -> Any:
        shapes = shapes_of(operands)
        self.infer(*shapes, config=config, shape=shape)
        return self._routine(shapes, config[1]).run(operands, config[1], shape)

    def _routine(self, operands: Sequence[Shape], options: Options) -> MatrixRoutine:
        require(bool(operands), f"{self.target} must have operands")
        scalar = array_shape(operands[0], f"an operand of {self.target}").element_type.name
        kind = "complex" if scalar in ("c64", "c128") else "real"
        taken = [name for name in _TYPES if ("complex" if name.startswith("c") else "real") in self.names]
        require(scalar in taken, f"{self.target} must be given one of {', '.join(taken)}, but its type is {scalar}")
        results = self.spelling.results
        return MatrixRoutine(
            target=self.target,
            scipy_name=f"{_LETTERS[scalar]}{self.names[kind]}",
            scalar=scalar,
            operands=fields_of(self.operands),
            results=fields_of(results if isinstance(results, str) else results(options)),
            compute=self.compute,
            allows_workspaces=isinstance(self.spelling.attributes, Descriptor),
        )

    def _check_members(self, operands: Sequence[Shape], members: Mapping[str, object]) -> None:
        arrays = [array_shape(operand, f"an operand of {self.target}") for operand in operands]
        fields = fields_of(self.operands)
        expected = {"type": _TYPES.index(arrays[0].element_type.name)}
        expected["batch"] = prod(arrays[0].dimensions[: arrays[0].rank - len(fields[0].dims)])
        for field, array in zip(fields, arrays, strict=True):
            own = array.dimensions[array.rank - len(field.dims) :]
            expected = dict(zip(field.dims, own, strict=True)) | expected
        for name in ("type", "batch", "m", "n", "k"):
            require(
                name not in members or name not in expected or members[name] == expected[name],
                f"the backend_config of {self.target} has {name} = {members.get(name)}, but its operands have "
                f"{name} = {expected.get(name)}",
            )


def reason_against_layouts(instruction: Instruction, by_columns: bool) -> str | None:
    """Why matrices that lie in memory as declared are others to the library, which knows only columns, or rows.

    Matrices are the arrays of most dimensions; those without a layout, or of one row or column, are as they ought.
    """
    operands = instruction.attributes.operand_layout_constraints or ()
    arrays = [array for array in (*operands, *parts_of(instruction.shape)) if isinstance(array, ArrayShape)]
    rank = max((array.rank for array in arrays), default=0)
    for array in arrays:
        if array.rank < max(rank, 2) or array.layout is None or 1 in array.dimensions[-2:]:
            continue
        if array.layout.minor_to_major[:1] not in ((), (rank - 1 - by_columns,)):
            order = "columns" if by_columns else "rows"
            return f"its library expects {order}, but {array} is stored in another order"
    return None


def register_solver(
    names: Mapping[str, str] | str,
    operands: str,
    *spellings: Spelling,
    compute: Callable[..., Mapping[str, Any]],
    source: str = "LAPACK Users' Guide; jaxlib, gpu/solver_kernels_ffi; NVIDIA, cuSOLVER.",
) -> None:
    """Register a routine of one matrix under all vendors' names for its spellings.

    `names` are SciPy's, by `real` and `complex` where they differ; `operands` and results are written as `fields_of`
    reads them. `compute` is given a `Call` and the matrices. Its docstring is the entries'.
    """
    by_kind = {"real": names, "complex": names} if isinstance(names, str) else names
    documentation = f"{inspect.getdoc(compute) or ''}\n\nSource: {source}"
    for spelling in spellings:
        for vendor in VENDORS:
            target = f"{vendor}{spelling.name}"
            register(target, _Target(target, spelling, by_kind, operands, compute), documentation)
