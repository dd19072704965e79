"""Which instructions are computed by rows, and how: as their opcodes declare, or because they are elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Shape
from hloexec.engine.plan.kernels import InstructionKernel, Leaf
from hloexec.engine.plan.steps import Step
from hloexec.ops.traits import Rounding, RowForm, prefix_length, prefixes, same, widened_from_bf16

if TYPE_CHECKING:
    from hloexec.ops.policies.random_rounding import RandomRounding


def row_form(step: Step, shapes: Sequence[Leaf]) -> RowForm | None:
    """How a step is computed by rows; None where it is not."""
    kernel = step.kernel
    if not isinstance(kernel, InstructionKernel) or kernel.opcode is None or not kernel.is_bare:
        return None
    if not isinstance(step.tree, int) or any(order is not None for order in kernel.orders or ()):
        return None
    slot_shapes = [shapes[slot] for slot in (*step.operands, step.tree)]
    arrays = [shape for shape in slot_shapes if isinstance(shape, ArrayShape)]
    if len(arrays) < len(slot_shapes) or any(not shape.is_array or shape.dynamic_dimensions for shape in arrays):
        return None
    *operands, result = arrays
    if any(shape.element_count == 0 for shape in arrays):
        return None
    by_name = step.scope.computation.by_name
    declared = tuple(by_name[name].shape for name in step.instruction.operands)
    if kernel.random is None and [_type(shape) for shape in declared] != [_type(shape) for shape in operands]:
        return None
    by_rows = kernel.opcode.fast.by_rows
    if by_rows is None:
        return _elementwise(step, kernel, operands, result) if kernel.opcode.is_elementwise and operands else None
    form = by_rows(
        attributes=step.instruction.attributes,
        shape=result,
        operand_shapes=declared,
        computations=kernel.callees,
    )
    if form is None or kernel.random is None:
        return form
    return _sums_at_random(form, kernel.random, operands[0]) if operands else None


def _type(shape: Shape) -> ElementType | None:
    return shape.element_type if isinstance(shape, ArrayShape) else None


def _sums_at_random(form: RowForm, rounding: RandomRounding, operand: ArrayShape) -> RowForm | None:
    """Sums with random errors of their terms, which are the same for blocks of rows where terms are neighbours."""
    dimensions = rounding.summation.along[0] if rounding.summation.along else ()
    are_last = dimensions == tuple(range(operand.rank - len(dimensions), operand.rank))
    if not dimensions or not are_last or operand.element_type.is_narrow:
        return None
    return attrs.evolve(
        form,
        bind=lambda count: rounding.by_rows(form.bind(count), prefix_length(operand.dimensions, count)),
    )


def _elementwise(
    step: Step, kernel: InstructionKernel, operands: Sequence[ArrayShape], result: ArrayShape
) -> RowForm | None:
    opcode, entry = step.instruction.opcode, kernel.entry
    assert entry is not None
    bind = entry.fast.bind
    if bind is None or any(shape.dimensions not in ((), result.dimensions) for shape in operands):
        return None
    if not result.dimensions:
        return None
    if kernel.random:
        return RowForm(prefixes(result.dimensions), lambda _: kernel.function, is_elementwise=True)
    converts = entry.traits.converts and entry.rounding is not Rounding.FORMAT
    if opcode in ("real", "imag") or (converts and operands[0].element_type is result.element_type):
        # They may give their operand itself.
        return None
    rows = prefixes(result.dimensions)
    types = [shape.element_type.name for shape in (*operands, result)]
    operand_shapes, wide = tuple(operands), None
    rounds = "bf16" in types and entry.rounding is not Rounding.FORMAT and opcode != "stochastic-convert"
    if rounds and (not converts or set(types) == {"bf16", "f32"} or types[0] == "bf16"):
        operand_shapes, wide = tuple(map(widened_from_bf16, operands)), widened_from_bf16(result)
        if converts and operand_shapes[0].element_type is wide.element_type:
            return RowForm(rows, lambda _: same, wide=wide, is_exact=types[0] == "bf16", is_elementwise=True)
    how = {"attributes": step.instruction.attributes, "shape": wide or result, "operand_shapes": operand_shapes}
    fill = None if entry.fast.fill is None else entry.fast.fill(**how)
    function = fill or (kernel.function if wide is None else bind(**how))
    assert function is not None, "elementwise entries give one for all element types"
    return RowForm(rows, lambda _: function, wide=wide, is_elementwise=True, fills=fill is not None)
