"""Registration of a LAPACK routine under its custom-call targets on CPUs.

jaxlib's CPU calls exist in two forms. The typed one, `lapack_sgetrf_ffi`, takes arrays, and has parameters as
attributes; the older one, `lapack_sgetrf`, takes sizes, flags and letters as scalar operands before the arrays, and
returns workspaces among its results. Both are mapped to one function of one matrix (see matrix_routines).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import attrs

from hloexec.core.dtypes import DType, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.ffi import checked_attributes
from hloexec.ops.library_calls.linalg.matrix_routines import (
    PRECISIONS,
    Field,
    MatrixRoutine,
    fields_of,
    reason_without_scipy,
    register,
)


@frozen
class Older:
    """A routine's spelling with scalar operands."""

    scalars: str
    """Their names in order."""
    options: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda scalars: {}
    """From the scalars to the typed spelling's attributes."""
    results: Mapping[str, str] | str = ""
    """The names of the results, workspaces as `_`; by default those of the typed spelling. More workspaces follow."""
    library: str = "lapack"


@frozen(eq=False)
class _Target:
    """One target."""

    routine: MatrixRoutine
    options: Mapping[str, Any]
    older: Older | None
    last: str | None = None
    """An option that calls of the typed spelling may have as a scalar behind their operands, as jaxlib 0.4.36 did."""

    @property
    def scalar_count(self) -> int:
        return len(self.older.scalars.split()) if self.older else 0

    def supports(self, instruction: Instruction) -> str | None:
        return reason_without_scipy()

    def config(self, instruction: Instruction) -> Mapping[str, object]:
        """The options of the typed spelling."""
        if self.older is not None:
            return {}
        permitted = {name: _permitted(values) for name, values in self.options.items()}
        found: Mapping[str, Any] = checked_attributes(instruction.backend_config, permitted)
        return {name: chr(value) if isinstance(self.options[name], str) else value for name, value in found.items()}

    def infer(self, *operands: Shape, shape: Shape) -> Shape:
        """The declared shape, where sizes, ranks and element types are those of the routine."""
        target, count = self.routine.target, self.scalar_count + len(self.routine.operands)
        if self.last is not None and len(operands) == count + 1:
            factor = array_shape(operands[-1], f"operand {count} of {target}")
            require(
                factor.rank == 0 and factor.element_type is array_shape(operands[0], "operand 0").element_type,
                f"operand {count} of {target} must be a scalar of the type of the others, but has shape {factor}",
            )
            operands = operands[:-1]
        require(len(operands) == count, f"{target} must have {count} operands, but has {len(operands)}")
        for number, scalar in enumerate(operands[: self.scalar_count]):
            array = array_shape(scalar, f"operand {number} of {target}")
            require(array.rank == 0, f"operand {number} of {target} must be a scalar, but has shape {array}")
        return self.routine.check(operands[self.scalar_count :], shape)

    def evaluate(self, *operands: Array, config: Mapping[str, object], shape: Shape) -> Any:
        _check(self, tuple((operand.dtype, operand.shape) for operand in operands), shape)
        options = config
        if self.last is not None and len(operands) > len(self.routine.operands):
            options = {**config, self.last: operands[-1].item()}
            operands = operands[:-1]
        if self.older is not None:
            scalars = zip(self.older.scalars.split(), operands, strict=False)
            options = self.older.options({name: value.item() for name, value in scalars})
        return self.routine.run(operands[self.scalar_count :], options, shape)


@lru_cache(maxsize=1024)
def _check(target: _Target, operands: tuple[tuple[DType, tuple[int, ...]], ...], shape: Shape) -> None:
    """Raise ShapeError for what `infer` refuses; a loop asks about the same shapes in each iteration."""
    target.infer(*(ArrayShape(element_type_of(dtype), sizes) for dtype, sizes in operands), shape=shape)


def routine(
    names: Mapping[str, str] | str,
    operands: str,
    results: Mapping[str, str] | str,
    *,
    options: Mapping[str, object] | None = None,
    older: Older | None = None,
    last: str | None = None,
) -> Callable[[Callable[..., Mapping[str, Any]]], Callable[..., Mapping[str, Any]]]:
    """Register the decorated function, of one matrix, as the entries of a routine in all precisions and spellings.

    `names` and `results` may differ between `real` and `complex`. `options` gives the values that each attribute may
    have, as `checked_attributes` does, or the letters in a string. Operands and results are written `a[m,n] tau[r]`,
    where a letter is a size that an earlier one fixes and `r` is min(m, n), with `:real`, `:complex` or an element type
    where it is not the routine's own. The function is given a `Call` and the operands, and returns the results by name;
    what it leaves out is zero. `last` names an option that may come as a scalar behind the operands.
    """

    def decorate(function: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        documentation = inspect.getdoc(function) or ""
        for precision, scalar in PRECISIONS.items():
            kind = "complex" if precision in "cz" else "real"
            name, fields = _for(names, kind), fields_of(_for(results, kind))
            sourced = f"{documentation}\n\nSource: LAPACK, {precision.upper()}{name.upper()}; jaxlib, jaxlib/lapack.py."
            typed = MatrixRoutine(
                target=f"lapack_{precision}{name}_ffi",
                scipy_name=f"{precision}{name}",
                scalar=scalar,
                operands=fields_of(operands),
                results=fields,
                compute=function,
            )
            wide = _WIDER.get(precision)
            wider = None if wide is None else f"lapack_{wide}{name}_ffi"
            register(typed.target, _Target(typed, options or {}, None, last), sourced, wider)
            if older is not None:
                ordered = _in_order(_for(older.results, kind), fields)
                target = f"{older.library}_{precision}{name}"
                with_scalars = attrs.evolve(typed, target=target, results=ordered, allows_workspaces=True)
                register(
                    target,
                    _Target(with_scalars, {}, older),
                    sourced,
                    None if wide is None else f"{older.library}_{wide}{name}",
                )
        return function

    return decorate


_WIDER = {"s": "d", "c": "z"}
"""The letters of the routines for 64 bits."""


def _for(texts: Mapping[str, str] | str, kind: str) -> str:
    return texts if isinstance(texts, str) else texts[kind]


def _in_order(names: str, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The results in the older spelling's order; `info` may be new to it."""
    by_name = {field.name: field for field in (*fields_of("_ info[]:s32"), *fields)}
    return tuple(by_name[name] for name in names.split()) or fields


def _permitted(values: Any) -> Any:
    """What `checked_attributes` asks about an option: letters are written as their numbers."""
    if not isinstance(values, str):
        return values
    return lambda value: type(value) is int and value in map(ord, values)
