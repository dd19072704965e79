"""Declaring elementwise operations: a formula on compute types, the element types it accepts, a shape rule.

`elementwise(...)` creates a registry entry from a formula. The kernel around every formula is the same: widen the
operands to their compute types, apply the formula, narrow the result to the declared element type, with NumPy's
warnings disabled. Formulas may be chained without that kernel, provided each result is narrowed before the next one.
For operands of known element types and shapes, all decisions are made once: for f32, f64 and most integers, each call
is a single NumPy function.

A formula receives arrays of at least one dimension and, as keyword-only arguments if it declares them, the
`attributes`, `shape` and `operand_shapes` of the instruction (a few depend on widths that the compute type hides).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from operator import methodcaller
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.values import Array
from hloexec.errors import ShapeError
from hloexec.ops.common import (
    array_shape,
    narrow,
    narrow_unchecked,
    rounds_directly,
    same_dimensions,
    same_type_ignoring_float_width,
    values_of_patterns,
    widen,
)
from hloexec.ops.elementwise.single import decided_by, form_of
from hloexec.ops.policies.fast_functions import FAST_FUNCTIONS
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.policies.xla_cpu import XLA_CPU_FUNCTIONS
from hloexec.ops.registry import OPCODES, Entry, Rule, parameters_of
from hloexec.ops.rounding import Rounding
from hloexec.ops.rows import same
from hloexec.ops.traits import Traits

Function = Callable[..., Any]
_HAS_ELLIPSIS = np.lib.NumpyVersion(np.__version__) >= "2.3.0"
"""Whether NumPy's functions give an array for `out=...`."""


def around_formula(formula: Function, shape: ArrayShape, operand_shapes: Sequence[ArrayShape]) -> Function:
    """Widen the operands, apply a formula of compute types that takes nothing else, narrow the result to `shape`."""
    types = [operand.element_type for operand in operand_shapes]
    result = shape.element_type
    if isinstance(formula, np.ufunc):
        given = formula.resolve_dtypes((*(entry.compute for entry in types), None))[-1]
        function = _keeping_arrays(formula) if shape.rank == 0 else formula
        narrowing: Function | None = None if given == result.storage else partial(_narrowed, result)
        if narrowing and rounds_directly(given, result):
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
    given = [operand.reshape(1) if operand.ndim == 0 else operand for operand in operands]
    result: Array = function(*given)
    # A called computation is given operands with the dimensions of its batch in front.
    return result.reshape(()) if is_scalar and all(operand.ndim == 0 for operand in operands) else result


Kinds = frozenset[Kind]

INTEGRAL: Kinds = frozenset({Kind.SIGNED, Kind.UNSIGNED})
LOGICAL: Kinds = INTEGRAL | {Kind.PRED}
FLOAT: Kinds = frozenset({Kind.FLOAT})
FLOAT_OR_COMPLEX: Kinds = FLOAT | {Kind.COMPLEX}
SIGNED_NUMBER: Kinds = FLOAT_OR_COMPLEX | {Kind.SIGNED}
NUMBER: Kinds = FLOAT_OR_COMPLEX | INTEGRAL
ANY_TYPE: Kinds = NUMBER | {Kind.PRED}

_WORDS = {
    Kind.PRED: "pred",
    Kind.SIGNED: "signed integers",
    Kind.UNSIGNED: "unsigned integers",
    Kind.FLOAT: "floating-point numbers",
    Kind.COMPLEX: "complex numbers",
}

Formula = Callable[..., Any]
"""Compute-type arrays to a compute-type array."""
Chosen = Callable[[Any, ElementType], Formula | None]


class ByKind:
    """A formula for floats, others for integers and complex numbers where that is not theirs, too."""

    def __init__(self, floating: Formula, integral: Formula | None = None, complex_: Formula | None = None) -> None:
        integral, complex_ = integral or floating, complex_ or floating
        self.formulas = {"f": floating, "i": integral, "u": integral, "c": complex_}
        """By the kinds of NumPy's types."""

    def __call__(self, *operands: Array) -> Any:
        return self.formulas[operands[0].dtype.kind](*operands)


def operands_shape(name: str, operands: tuple[Shape, ...], kinds: Kinds) -> ArrayShape:
    """The common shape of the operands of opcode `name`: same dimensions, and the same element type (of `kinds`).

    Floats may differ in width, as optimized modules have them; the result is then of the widest.
    """
    result = array_shape(operands[0], f"operand 0 of {name}")
    if result.element_type.kind not in kinds:
        expected = ", ".join(words for kind, words in _WORDS.items() if kind in kinds)
        raise ShapeError(f"operand 0 of {name} must be of {expected}, but has shape {result}")
    for index, operand in enumerate(operands[1:], 1):
        other = array_shape(operand, f"operand {index} of {name}")
        common = same_type_ignoring_float_width(result, other, f"the operands of {name}")
        result = same_dimensions(result, other, f"the operands of {name}").with_element_type(common)
    if result.layout is None:
        return result
    return ArrayShape(result.element_type, result.dimensions, dynamic_dimensions=result.dynamic_dimensions)


def _kernel(compute: Formula, needs: frozenset[str], name: str) -> Callable[..., Array]:
    """The `evaluate` of an elementwise opcode, by whose name some policies have other formulas."""

    def evaluate(
        *operands: Array,
        attributes: object,
        shape: ArrayShape,
        operand_shapes: tuple[ArrayShape, ...],
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        exact = (
            exact_formula(name, operand_shapes[0].element_type.kind, shape.element_type) if numerics.is_exact else None
        )
        given = {"attributes": attributes, "shape": shape, "operand_shapes": operand_shapes}
        with np.errstate(all="ignore"):
            # NumPy turns arrays without dimensions into scalars; formulas shall not have to know.
            arrays = [widen(operand.reshape(1) if operand.ndim == 0 else operand) for operand in operands]
            if exact is not None:
                # Products of narrow floats may be denormal in f32, and would round twice there.
                is_narrow = any(operand.element_type.is_narrow for operand in operand_shapes)
                result = exact(*(array.astype(np.float64) for array in arrays) if is_narrow else arrays)
            elif numerics.has_xla_cpu_functions and name in XLA_CPU_FUNCTIONS and arrays[0].dtype == np.float32:
                result = XLA_CPU_FUNCTIONS[name](*arrays)
            elif numerics.has_fast_functions and name in FAST_FUNCTIONS and arrays[0].dtype == np.float32:
                result = FAST_FUNCTIONS[name](*arrays)
            else:
                result = compute(*arrays, **{need: given[need] for need in needs})
            result = narrow(result, shape.element_type)
        return result.reshape(()) if all(operand.ndim == 0 for operand in operands) else result

    return evaluate


def _binding(compute: Formula, needs: frozenset[str], chosen: Chosen | None) -> Callable[..., Formula]:
    """The `bind` of an elementwise opcode; `chosen` gives the formula for an instruction's attributes and the element
    type of its first operand, if there is one that does not depend on anything else."""

    def bind(*, attributes: object, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Formula:
        formula = None if chosen is None else chosen(attributes, operand_shapes[0].element_type)
        if formula is None:
            given = {"attributes": attributes, "shape": shape, "operand_shapes": operand_shapes}
            formula = partial(compute, **{need: given[need] for need in needs}) if needs else compute
        if isinstance(formula, ByKind):
            formula = formula.formulas[operand_shapes[0].element_type.compute.kind]
        return around_formula(formula, shape, operand_shapes)

    return bind


def _filling(formula: Formula) -> Callable[..., Formula | None]:
    """The `fill` of an elementwise opcode: the formula, where nothing is to be converted and numbers are real."""

    def fill(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Formula | None:
        types = {entry.element_type for entry in (shape, *operand_shapes)}
        is_plain = len(types) == 1 and not shape.element_type.is_narrow and not shape.element_type.is_complex
        return formula if is_plain else None

    return fill


@cache
def exact_formula(name: str, kind: Kind, result: ElementType | None = None) -> Formula | None:
    """The formula of an opcode under the `exact` policy for operands of this kind, where it has one of its own.

    Its results are good enough to be rounded to a type, f64 if none is given.
    """
    # Its tables take a third of a second to compute, so that they wait until someone asks.
    from hloexec.ops.policies.exact.certainty import can_be_certain
    from hloexec.ops.policies.exact.formulas import EXACT_FORMULAS, QUICK_FORMULAS

    if kind is Kind.FLOAT and result is not None and can_be_certain(result) and name in QUICK_FORMULAS:
        return QUICK_FORMULAS[name]
    return EXACT_FORMULAS.get(kind, {}).get(name)


def elementwise(
    name: str,
    compute: Formula,
    documentation: str,
    *,
    operands: int,
    kinds: Kinds,
    result: Callable[[ElementType], ElementType] = lambda operand_type: operand_type,
    attributes: type | None = None,
    infer: Callable[..., Shape] | None = None,
    chosen: Chosen | None = None,
    fill: Formula | None = None,
    rounding: Rounding = Rounding.ONCE,
    **traits: Any,
) -> None:
    """Register an elementwise opcode whose operands have one shape, and whose result has it, too.

    `kinds` are the element types it takes, `result` its element type for the operands'; `infer` replaces the usual
    shape rule; `chosen` gives a simpler formula for an instruction's attributes and the element type of its first
    operand, or None; `fill` is the formula of real numbers that writes to an array given last, apart from the operands;
    `traits` are fields of `Traits`.
    """

    # NumPy's functions and `ByKind` need nothing but operands.
    needs = parameters_of(compute)[2] if hasattr(compute, "__code__") else frozenset[str]()

    def usual(*shapes: Shape) -> ArrayShape:
        common = operands_shape(name, shapes, kinds)
        return common.with_element_type(result(common.element_type))

    OPCODES.add(
        Entry(
            name=name,
            documentation=documentation,
            operands=operands,
            attributes=attributes,
            traits=Traits(**traits),
            is_elementwise=True,
            rounding=rounding,
            infer=Rule(infer or usual),
            evaluate=Rule(_kernel(compute, needs, name)),
            bind=Rule(_binding(compute, needs, chosen)),
            fill=None if fill is None else Rule(_filling(fill)),
        )
    )
