"""Fast variants of elementwise opcodes, derived from their formulas.

For operands of known element types and shapes, all decisions are made once: for f32, f64 and most integers, each call
is a single NumPy function.

A call of a NumPy function on an array without dimensions takes ten times as long as an operator on a scalar. Some
formulas have a form for scalars, which decides the usual cases by operators, and leaves the others to the kernel of
arrays: both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, ArrayShapes
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow_unchecked, rounds_directly, values_of_patterns, widen
from hloexec.ops.elementwise.formula import ByKind, Chosen, Formula, Function
from hloexec.ops.traits import same

_Formula = TypeVar("_Formula", bound=Function)

_FORMS: dict[Function, Function] = {}


@frozen
class OfScalars:
    """A kernel of arrays without dimensions, and the function that gives its result from NumPy's scalars, as one."""

    function: Function
    of_scalars: Function

    def __call__(self, *operands: Any) -> Any:
        return self.function(*operands)


def decided_by(form: Function, function: Function) -> OfScalars:
    """A kernel with a form that gives None where the kernel is to be asked."""

    def of_scalars(*operands: Any) -> Any:
        result = form(*operands)
        return function(*map(np.asarray, operands))[()] if result is None else result

    return OfScalars(function, of_scalars)


def on_scalars(form: Function) -> Callable[[_Formula], _Formula]:
    """Declare the form of a formula."""

    def declare(formula: _Formula) -> _Formula:
        _FORMS[formula] = form
        return formula

    return declare


def form_of(formula: Function) -> Function | None:
    """The declared form of a formula."""
    return _FORMS.get(formula.func if isinstance(formula, partial) else formula)


def _has_one_zero(number: Any) -> bool:
    return isinstance(number, (np.integer, np.bool_))


def larger_scalar(lhs: Any, rhs: Any) -> Any:
    """The larger of two numbers. Zeros of either sign, and NaN, are not decided."""
    if lhs > rhs:
        return lhs
    return rhs if lhs < rhs or (lhs == rhs and (rhs or _has_one_zero(rhs))) else None


def smaller_scalar(lhs: Any, rhs: Any) -> Any:
    """The smaller of two numbers. Zeros of either sign, and NaN, are not decided."""
    if lhs < rhs:
        return lhs
    return rhs if lhs > rhs or (lhs == rhs and (rhs or _has_one_zero(rhs))) else None


def clamp_scalars(low: Any, operand: Any, high: Any) -> Any:
    """The operand moved to lie between bounds that are in order. Zeros of either sign, and NaN, are not decided."""
    if not low <= high:
        return None
    result = low if operand < low else high if operand > high else operand
    return result if result == result and (result or _has_one_zero(result)) else None


def divide_scalars(lhs: Any, rhs: Any) -> Any:
    """The quotient by a positive integer: ⌈x / y⌉ = ⌊(x + y − 1) / y⌋, whose sum does not overflow for x < 0."""
    if rhs > 0:
        return lhs // rhs if lhs >= 0 else (lhs + (rhs - 1)) // rhs
    return None


def remainder_scalars(lhs: Any, rhs: Any) -> Any:
    """The remainder by a positive integer: Python's has the sign of the divisor."""
    if rhs > 0:
        rest = lhs % rhs
        return rest - rhs if lhs < 0 and rest else rest
    return None


def shift_scalar_left(lhs: Any, rhs: Any) -> Any:
    """lhs · 2^rhs; a negative amount is not decided."""
    return lhs << rhs if rhs >= 0 else None


def shift_scalar_right(lhs: Any, rhs: Any) -> Any:
    """⌊lhs / 2^rhs⌋ where the sign of neither counts."""
    return lhs >> rhs if lhs >= 0 and rhs >= 0 else None


_HAS_ELLIPSIS = np.lib.NumpyVersion(np.__version__) >= "2.3.0"
"""Whether NumPy's functions give an array for `out=...`."""


def around_formula(formula: Function, shape: ArrayShape, operand_shapes: Sequence[ArrayShape]) -> Function:
    """Widen the operands, apply a formula of compute types that takes nothing else, narrow the result to `shape`."""
    types = [operand.element_type for operand in operand_shapes]
    result = shape.element_type
    if isinstance(formula, np.ufunc):
        formula_type = formula.resolve_dtypes((*(entry.compute for entry in types), None))[-1]
        function = _keeping_arrays(formula) if shape.rank == 0 else formula
        narrowing: Function | None = None if formula_type == result.storage else partial(_narrowed, result)
        if narrowing and rounds_directly(formula_type, result):
            narrowing = methodcaller("astype", result.storage)
        function = _chained(function, types, narrowing)
        form = None if shape.rank else form_of(formula)
        return function if form is None else decided_by(form, function)
    function = _chained(formula, types, partial(_narrowed, result))
    is_plain = all(operand.rank for operand in operand_shapes)
    if is_plain:
        return function
    function, form = partial(_on_vectors, function, shape.rank == 0), form_of(formula)
    return function if form is None or shape.rank else decided_by(form, function)


def _keeping_arrays(ufunc: np.ufunc) -> Function:
    """A NumPy function that gives arrays for arrays without dimensions, too, instead of scalars."""
    return partial(ufunc, out=...) if _HAS_ELLIPSIS else lambda *operands: np.asarray(ufunc(*operands))


def ufunc_of_scalars(function: Function) -> np.ufunc | None:
    """The NumPy function that a kernel of arrays without dimensions is, but for the array that it gives."""
    if isinstance(function, partial) and isinstance(function.func, np.ufunc) and function.keywords == {"out": ...}:
        return function.func
    return None


def _widening(element_type: ElementType) -> Function | None:
    """What `widen` does to arrays of an element type; None where it does nothing."""
    if not element_type.is_narrow:
        return None
    if element_type.is_floating and element_type.name != "bf16":
        values, pattern = values_of_patterns(element_type), f"u{element_type.byte_size}"
        return lambda array: np.asarray(values.take(array.view(pattern), mode="clip"))
    return methodcaller("astype", element_type.compute)


def _narrowed(element_type: ElementType, array: Array) -> Array:
    return array if array.dtype == element_type.storage else narrow_unchecked(array, element_type)


def _chained(formula: Function, types: Sequence[ElementType], narrowing: Function | None) -> Function:
    """The formula of operands of these types once they are widened, and the conversion of its result."""
    widenings = [_widening(entry) for entry in types]
    narrowed = narrowing or same
    if not any(widenings):
        return formula if narrowing is None else lambda *operands: narrowed(formula(*operands))
    widen_lhs, *others = (entry or same for entry in widenings)
    if not others:
        return lambda operand: narrowed(formula(widen_lhs(operand)))
    if len(others) == 1:
        widen_rhs = others[0]
        return lambda lhs, rhs: narrowed(formula(widen_lhs(lhs), widen_rhs(rhs)))
    return lambda *operands: narrowed(formula(*map(widen, operands)))


def _on_vectors(function: Function, is_scalar: bool, *operands: Array) -> Array:
    """A function whose formula takes no arrays without dimensions, on operands that may be such."""
    vectors = [operand.reshape(1) if operand.ndim == 0 else operand for operand in operands]
    result: Array = function(*vectors)
    # A called computation is given operands with the dimensions of its batch in front.
    return result.reshape(()) if is_scalar and all(operand.ndim == 0 for operand in operands) else result


def binding_of(compute: Formula, needs: frozenset[str], chosen: Chosen | None) -> Callable[..., Formula]:
    """The `bind` of an elementwise opcode; `chosen` gives the formula for an instruction's attributes and the element
    type of its first operand, if there is one that does not depend on anything else."""

    def bind(*, attributes: object, shape: ArrayShape, operand_shapes: ArrayShapes) -> Formula:
        formula = None if chosen is None else chosen(attributes, operand_shapes[0].element_type)
        if formula is None:
            keywords = {"attributes": attributes, "shape": shape, "operand_shapes": operand_shapes}
            formula = partial(compute, **{need: keywords[need] for need in needs}) if needs else compute
        if isinstance(formula, ByKind):
            formula = formula.formulas[operand_shapes[0].element_type.compute.kind]
        return around_formula(formula, shape, operand_shapes)

    return bind


def filling_of(formula: Formula) -> Callable[..., Formula | None]:
    """The `fill` of an elementwise opcode: the formula, where nothing is to be converted and numbers are real."""

    def fill(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Formula | None:
        types = {entry.element_type for entry in (shape, *operand_shapes)}
        is_plain = len(types) == 1 and not shape.element_type.is_narrow and not shape.element_type.is_complex
        return formula if is_plain else None

    return fill
