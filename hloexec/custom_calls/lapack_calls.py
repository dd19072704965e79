"""How a LAPACK routine becomes the entries of its custom-call targets.

jaxlib's CPU calls come in two spellings. The typed one, `lapack_sgetrf_ffi`, takes arrays and says the rest in
attributes; the older one, `lapack_sgetrf`, takes sizes, flags and letters as scalar operands before the arrays, and has
workspaces among its results. Either is brought to one function of one matrix, which is called for each of a batch.
SciPy's bindings do the work. Matrices are logical here: that XLA lays them out by columns does not matter.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.custom_calls.ffi import AttributeValue, checked_attributes
from hloexec.custom_calls.registry import add_custom_call
from hloexec.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, require
from hloexec.ops.control import CustomCallAttributes
from hloexec.values import Array

__all__ = ["Call", "Older", "letters", "routine"]

_TYPES = {"s": "f32", "d": "f64", "c": "c64", "z": "c128"}
_REAL_PARTS = {"f32": "f32", "f64": "f64", "c64": "f32", "c128": "f64"}
_COMPLEX = {"f32": "c64", "f64": "c128", "c64": "c64", "c128": "c128"}
_FIELD = re.compile(r"(\w+)\[([\w,\-]*)\](?::(\w+))?")


@attrs.frozen
class Call:
    """What a routine's function gets besides its matrices."""

    lapack: Any
    """SciPy's function for the precision, e.g. `scipy.linalg.lapack.sgetrf`."""
    module: Any
    """`scipy.linalg.lapack`, for the functions that tell the size of a workspace."""
    name: str
    """SciPy's name of the function."""
    options: Mapping[str, Any]
    """The attributes, letters as letters; those of the older spelling under the names of the typed one."""

    def workspace(self, *arguments: Any, **options: Any) -> int:
        """The best `lwork`, as the routine's own query tells it: it decides how LAPACK blocks the work."""
        query = getattr(self.module, f"{self.name}_lwork", None)
        if query is not None:
            return int(query(*arguments, **options)[0].real)
        return int(self.lapack(*arguments, lwork=-1, **options)[-2][0].real)


@attrs.frozen
class Older:
    """A routine's spelling with scalar operands."""

    scalars: str
    """Their names in order."""
    options: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """From the scalars to the typed spelling's attributes."""
    results: Mapping[str, str] | str = ""
    """The names of the results, workspaces as `_`; by default those of the typed spelling. More workspaces follow."""
    library: str = "lapack"


@attrs.frozen
class _Field:
    """An operand or a result: `a[m,n]`, `info[]:s32`; every one has the batch dimensions before its own."""

    name: str
    dims: tuple[str, ...]
    element: str

    def element_type(self, scalar: str) -> ElementType:
        names = {"": scalar, "real": _REAL_PARTS[scalar], "complex": _COMPLEX[scalar]}
        return ELEMENT_TYPES[names.get(self.element, self.element)]


@attrs.frozen(eq=False)
class _Routine:
    """One target."""

    target: str
    scipy_name: str
    scalar: str
    """The HLO name of the element type."""
    operands: tuple[_Field, ...]
    results: tuple[_Field | None, ...]
    """None is a workspace."""
    compute: Callable[..., Any]
    options: Mapping[str, Any]
    older: Older | None

    @property
    def scalar_count(self) -> int:
        return len(self.older.scalars.split()) if self.older else 0

    def supports(self, instruction: Instruction) -> str | None:
        if find_spec("scipy") is None:
            return "SciPy is needed, which is not installed: pip install 'hloexec[linalg]'"
        try:
            self.typed_options(instruction.backend_config)
        except UnsupportedError as error:
            return error.message
        return None

    def typed_options(self, backend_config: str | None) -> Mapping[str, Any]:
        if self.older is not None:
            return {}
        found = checked_attributes(backend_config, self.options)
        return {name: _letter(value) if _is_letters(self.options[name]) else value for name, value in found.items()}

    def infer(self, *operands: Shape, shape: Shape) -> Shape:
        """The declared shape, where sizes, ranks and element types are those of the routine."""
        count = self.scalar_count + len(self.operands)
        require(len(operands) == count, f"{self.target} must have {count} operands, but has {len(operands)}")
        for number, scalar in enumerate(operands[: self.scalar_count]):
            array = array_shape(scalar, f"operand {number} of {self.target}")
            require(array.rank == 0, f"operand {number} of {self.target} must be a scalar, but has shape {array}")
        declared = shape.elements if isinstance(shape, TupleShape) else (shape,)
        fits = len(declared) >= len(self.results) if self.older else len(declared) == len(self.results)
        require(fits, f"{self.target} must have {len(self.results)} results, but is declared as {shape}")
        sizes: dict[str, int] = {}
        arrays = operands[self.scalar_count :]
        batch = array_shape(arrays[0], f"an operand of {self.target}").dimensions[: -len(self.operands[0].dims) or None]
        for field, part in (*zip(self.operands, arrays, strict=True), *zip(self.results, declared, strict=False)):
            if field is not None:
                self._check(field, array_shape(part, f"{field.name} of {self.target}"), batch, sizes)
        return shape

    def _check(self, field: _Field, array: ArrayShape, batch: tuple[int, ...], sizes: dict[str, int]) -> None:
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
        expected = (*batch, *(_size(name, sizes) for name in field.dims))
        require(
            array.dimensions == expected,
            f"{field.name} of {self.target} must have dimensions [{','.join(map(str, expected))}], but has "
            f"shape {array}",
        )

    def evaluate(
        self, *operands: Array, attributes: CustomCallAttributes, backend_config: str | None, shape: Shape
    ) -> Any:
        self.infer(*(ArrayShape(element_type_of(array.dtype), array.shape) for array in operands), shape=shape)
        options = self.typed_options(backend_config)
        if self.older is not None:
            scalars = dict(zip(self.older.scalars.split(), operands[: self.scalar_count], strict=True))
            options = self.older.options({name: value.item() for name, value in scalars.items()})
        leaves = shape.elements if isinstance(shape, TupleShape) else (shape,)
        declared = [array_shape(leaf, f"a result of {self.target}") for leaf in leaves]
        results = [np.zeros(leaf.dimensions, leaf.element_type.storage) for leaf in declared]
        self._fill(operands[self.scalar_count :], options, results)
        return tuple(results) if isinstance(shape, TupleShape) else results[0]

    def _fill(self, operands: Sequence[Array], options: Mapping[str, Any], results: list[Array]) -> None:
        """Write the results, matrix by matrix; what has no elements has no factors."""
        batch = operands[0].shape[: operands[0].ndim - len(self.operands[0].dims)]
        count = prod(batch)
        if not count or operands[0].size == 0:
            return
        call = _call(self.scipy_name, options)
        flat = [operand.reshape(count, *operand.shape[len(batch) :]) for operand in operands]
        named = [
            (field, result.reshape(count, *result.shape[len(batch) :]))
            for field, result in zip(self.results, results, strict=False)
            if field is not None
        ]
        for number in range(count):
            values = self.compute(call, *(operand[number] for operand in flat))
            for field, result in named:
                value = values.get(field.name)
                if value is None:
                    continue
                if np.shape(value) != result.shape[1:]:
                    raise EvaluationError(
                        f"{self.target} gives {field.name} of dimensions {list(np.shape(value))}, but "
                        f"{list(result.shape[1:])} are declared"
                    )
                result[number] = value


def letters(allowed: str) -> Callable[[AttributeValue], bool]:
    """The values of an attribute that is one of these letters, written as its number."""
    return _Letters(allowed)


@attrs.frozen
class _Letters:
    allowed: str

    def __call__(self, value: AttributeValue) -> bool:
        return isinstance(value, int) and _letter(value) in self.allowed


def routine(
    names: Mapping[str, str] | str,
    operands: str,
    results: Mapping[str, str] | str,
    *,
    options: Mapping[str, Any] | None = None,
    older: Older | None = None,
    scipy_module: str = "lapack",
) -> Callable[[Callable[..., Mapping[str, Any]]], Callable[..., Mapping[str, Any]]]:
    """Register the decorated function, of one matrix, as the entries of a routine in all precisions and spellings.

    `names` and `results` may differ between `real` and `complex`. Operands and results are written `a[m,n] tau[r]`,
    where a letter is a size that an earlier one fixes and `r` is min(m, n), with `:real`, `:complex` or an element type
    where it is not the routine's own. The function is given a `Call` and the operands, and returns the results by name;
    what it leaves out is zero.
    """

    def decorate(function: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        documentation = inspect.getdoc(function) or ""
        for precision, scalar in _TYPES.items():
            kind = "complex" if precision in "cz" else "real"
            name, fields = _for(names, kind), _fields(_for(results, kind))
            sourced = f"{documentation}\n\nSource: LAPACK, {precision.upper()}{name.upper()}; jaxlib, jaxlib/lapack.py."
            entry = partial(
                _Routine,
                scipy_name=f"{scipy_module}.{precision}{name}",
                scalar=scalar,
                operands=_fields(operands),
                compute=function,
            )
            typed = f"lapack_{precision}{name}_ffi"
            _add(entry(typed, results=fields, options=options or {}, older=None), sourced)
            if older is not None:
                ordered = _in_order(_for(older.results, kind), fields)
                target = f"{older.library}_{precision}{name}"
                _add(entry(target, results=ordered, options={}, older=older), sourced)
        return function

    return decorate


def _for(texts: Mapping[str, str] | str, kind: str) -> str:
    return texts if isinstance(texts, str) else texts[kind]


def _in_order(names: str, fields: Sequence[_Field]) -> tuple[_Field | None, ...]:
    """The results in the older spelling's order; `info` may be new to it."""
    by_name = {field.name: field for field in (*_fields("info[]:s32"), *fields)}
    return tuple(by_name.get(name) for name in names.split()) or tuple(fields)


def _add(entry: _Routine, documentation: str) -> None:
    add_custom_call(
        entry.target, entry.evaluate, infer=entry.infer, supports=entry.supports, documentation=documentation
    )


def _fields(text: str) -> tuple[_Field, ...]:
    return tuple(
        _Field(name, tuple(dims.split(",")) if dims else (), element) for name, dims, element in _FIELD.findall(text)
    )


def _size(name: str, sizes: Mapping[str, int]) -> int:
    letter, _, less = name.partition("-")
    return max(sizes[letter] - int(less or 0), 0)


def _is_letters(values: Any) -> bool:
    return isinstance(values, _Letters)


def _letter(value: AttributeValue) -> str:
    return chr(value) if isinstance(value, int) and 0 <= value < 128 else "?"


def _call(scipy_name: str, options: Mapping[str, Any]) -> Call:
    function, module = _scipy_function(scipy_name)
    return Call(function, module, scipy_name.partition(".")[2], options)


@lru_cache(maxsize=256)
def _scipy_function(name: str) -> tuple[Any, Any]:
    try:
        from scipy.linalg import blas, lapack
    except ImportError as error:
        raise UnsupportedError("LAPACK calls need SciPy: pip install 'hloexec[linalg]'") from error
    module_name, _, function = name.partition(".")
    module = {"lapack": lapack, "blas": blas}[module_name]
    return getattr(module, function), module
