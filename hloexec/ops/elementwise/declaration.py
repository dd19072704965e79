"""Declaring elementwise operations: a formula on compute types, the element types it accepts, a shape rule.

`elementwise(...)` creates a registry entry from a formula. The kernel around every formula is the same: widen the
operands to their compute types, apply the formula, narrow the result to the declared element type, with NumPy's
warnings disabled. Formulas may be chained without that kernel, provided each result is narrowed before the next one:
`fast.formulas` makes kernels of them for operands of known element types and shapes.

A formula receives arrays of at least one dimension and, as keyword-only arguments if it declares them, the
`attributes`, `shape` and `operand_shapes` of the instruction (a few depend on widths that the compute type hides).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.ir import ArrayShape, ArrayShapes, Shape
from hloexec.core.values import Array
from hloexec.ops.common import Kinds, elementwise_rule, narrow, widen
from hloexec.ops.elementwise.fast.formulas import binding_of, filling_of
from hloexec.ops.elementwise.formula import Chosen, Formula
from hloexec.ops.policies.backends import FAST_FUNCTIONS, XLA_CPU_FUNCTIONS
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import FAST, OPCODES, Entry, Fast, Rule, parameters_of
from hloexec.ops.traits import Rounding, Traits

INTEGRAL: Kinds = frozenset({Kind.SIGNED, Kind.UNSIGNED})
LOGICAL: Kinds = INTEGRAL | {Kind.PRED}
FLOAT: Kinds = frozenset({Kind.FLOAT})
FLOAT_OR_COMPLEX: Kinds = FLOAT | {Kind.COMPLEX}
SIGNED_NUMBER: Kinds = FLOAT_OR_COMPLEX | {Kind.SIGNED}
NUMBER: Kinds = FLOAT_OR_COMPLEX | INTEGRAL
ANY_TYPE: Kinds = NUMBER | {Kind.PRED}


def _kernel(compute: Formula, needs: frozenset[str], name: str) -> Callable[..., Array]:
    """The `evaluate` of an elementwise opcode, by whose name some policies have other formulas."""

    def evaluate(
        *operands: Array,
        attributes: object,
        shape: ArrayShape,
        operand_shapes: ArrayShapes,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        exact = (
            exact_formula(name, operand_shapes[0].element_type.kind, shape.element_type) if numerics.is_exact else None
        )
        keywords = {"attributes": attributes, "shape": shape, "operand_shapes": operand_shapes}
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
                result = compute(*arrays, **{need: keywords[need] for need in needs})
            result = narrow(result, shape.element_type)
        return result.reshape(()) if all(operand.ndim == 0 for operand in operands) else result

    return evaluate


@cache
def exact_formula(name: str, kind: Kind, result: ElementType | None = None) -> Formula | None:
    """The formula of an opcode under the `exact` policy for operands of this kind, where it has one of its own.

    Its results are good enough to be rounded to a type, f64 if none is given.
    """
    # Its tables take a third of a second to compute, so that they wait until someone asks.
    from hloexec.ops.policies.exact.doubled import can_be_certain
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
    result: Callable[[ElementType], ElementType] | None = None,
    attributes: type | None = None,
    infer: Callable[..., Shape] | None = None,
    chosen: Chosen | None = None,
    fill: Formula | None = None,
    rounding: Rounding = Rounding.ONCE,
    is_reproducible: bool = False,
    **traits: Any,
) -> None:
    """Register an elementwise opcode whose operands have one shape, and whose result has it, too.

    `kinds` are the element types it takes, `result` its element type for the operands' where it is another; `infer`
    replaces the usual shape rule; `chosen` gives a simpler formula for an instruction's attributes and the element type
    of its first operand, or None; `fill` is the formula of real numbers that writes to an array given last, apart from
    the operands; a function `is_reproducible` if `policies.exact` has a formula of it; `traits` are fields of `Traits`.
    """

    # NumPy's functions and `ByKind` need nothing but operands.
    needs = parameters_of(compute)[2] if hasattr(compute, "__code__") else frozenset[str]()
    filling = None if fill is None else Rule(filling_of(fill))
    FAST[name] = Fast(bind=Rule(binding_of(compute, needs, chosen)), fill=filling)
    OPCODES.add(
        Entry(
            name=name,
            documentation=documentation,
            operands=operands,
            attributes=attributes,
            traits=Traits(**traits),
            is_elementwise=True,
            rounding=rounding,
            is_reproducible=is_reproducible or rounding is not Rounding.FUNCTION,
            infer=Rule(infer or elementwise_rule(name, kinds, result)),
            evaluate=Rule(_kernel(compute, needs, name)),
            fast_in=__name__,
        )
    )
