"""Running a LAPACK routine for one matrix over a batch, and returning the results that a custom call declares.

Libraries for CPUs and GPUs name the same routines differently; this module runs them in the precisions that LAPACK has,
with SciPy's bindings. Matrices are logical arrays; XLA's column-major layouts do not matter.
"""

from __future__ import annotations

import os
import re
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

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape, Shape, TupleShape, parts_of
from hloexec.core.precision import part_type
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.blas import hold_blas
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.linalg.stacks import STACKS
from hloexec.ops.library_calls.shapes import zeros
from hloexec.ops.registry import add_custom_call

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
                found = self.lapack(*arguments, lwork=-1, **options)[-2][0]
            else:
                found = query(*arguments, **options)[0]
            self._workspaces[key] = int(found.real)
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

    def _check(self, field: Field, array: ArrayShape, batch: tuple[int, ...], sizes: dict[str, int]) -> None:
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
