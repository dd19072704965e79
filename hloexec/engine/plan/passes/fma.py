"""Fused multiply-adds: where XLA:CPU computes a product and a sum in one instruction, with one rounding.

XLA:CPU emits chains of elementwise instructions as one loop, in which LLVM forms fused multiply-adds: from an addition
or subtraction with an operand that is a product, or a negated product, without other uses; if both operands are, from
the left one. (LLVM first sorts the operands of sums by how it computes them; that is not reproduced.) Data movement
between the product and the sum (a reshape, a slice) does not matter, because a loop reads each element where it is.

This is not an optimization, but part of the `xla-cpu` policy, in all of its runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import Kernel, Leaf
from hloexec.engine.plan.steps import Plan, Scope, Step
from hloexec.ops.policies.backends import Flushing, multiply_add
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import traits_of


@frozen(eq=False)
class _Product:
    """A value that is the product of two others, or the negative of it, moved or not."""

    factors: tuple[int, ...]
    loop: Scope | None
    slots: frozenset[int]
    """The value's own, and those it was made from on the way."""
    is_negative: bool = False
    moves: tuple[Step, ...] = ()


@frozen(eq=False)
class _MultiplyAdd:
    """± factor · other factor ± addend."""

    is_product_negative: bool
    is_addend_negative: bool

    def __call__(self, factor: Array, other_factor: Array, addend: Array) -> Array:
        signed = -factor if self.is_product_negative else factor
        return multiply_add(signed, other_factor, -addend if self.is_addend_negative else addend)


def with_fused_multiply_adds(plan: Plan, numerics: NumericsPolicy, *, is_scheduled: bool) -> Plan:
    """The plan with sums of f32 products rounded once.

    In a scheduled module, one that has been optimized, only fusions are loops. A product that is contracted is there
    for observers only; the operands of a contracted sum are the factors and the addend.
    """
    shapes = plan.slot_shapes
    uses = Counter(slot for step in plan.program for slot in step.operands)
    uses.update(plan.results)
    products: dict[int, _Product] = {}
    merged: set[int] = set()
    found: list[Step] = []
    for step in plan.program:
        loop = step.scope.fusion
        policy = numerics.of(step.scope.computation.name, step.instruction.name)
        if policy.fuses_multiply_add and _is_f32(step, shapes) and (loop is not None or not is_scheduled):
            given = [products.get(slot) for slot in step.operands]
            places = [place for place, product in enumerate(given) if product is not None and product.loop is loop]
            addend = given[places[0]] if places else None
            product = _product(step, loop, addend)
            if product is not None and uses[step.result] == 1:
                products[step.result] = product
            if addend is not None and step.instruction.opcode in ("add", "subtract"):
                merged |= addend.slots
                moved = [_moved(factor, addend.moves, plan, found) for factor in addend.factors]
                step = _multiply_add(step, addend, moved, places[0])
        found.append(step)
    program = [attrs.evolve(step, is_shown_only=True) if step.result in merged else step for step in found]
    steps = [step for step in program if not step.is_shown_only]
    return attrs.evolve(plan, program=program, steps=steps)


def _product(step: Step, loop: Scope | None, operand: _Product | None) -> _Product | None:
    """The product that a step computes, possibly negated or moved, if any; `operand` is that of its operand."""
    if step.instruction.opcode == "multiply":
        return _Product(step.operands, loop, frozenset({step.result}))
    if step.instruction.opcode == "negate" and operand is not None:
        return attrs.evolve(operand, slots=operand.slots | {step.result}, is_negative=not operand.is_negative)
    if traits_of(step.instruction).rearranges and len(step.operands) == 1 and operand is not None:
        return attrs.evolve(operand, slots=operand.slots | {step.result}, moves=(*operand.moves, step))
    return None


def _moved(slot: int, moves: Sequence[Step], plan: Plan, steps: list[Step]) -> int:
    """The slot of a factor, moved by steps that are added."""
    for move in moves:
        source, slot = slot, plan.new_slot(plan.slot_shapes[move.result])
        steps.append(attrs.evolve(move, operand_trees=(source,), tree=slot, is_silent=True))
    return slot


def _multiply_add(step: Step, product: _Product, factors: Sequence[int], place: int) -> Step:
    """An addition or subtraction whose operand in that place is a product of these factors."""
    is_difference = step.instruction.opcode == "subtract"
    function = _MultiplyAdd(product.is_negative != (is_difference and place == 1), is_difference and place == 0)
    operands = (*factors, step.operands[1 - place])
    return attrs.evolve(step, operand_trees=operands, kernel=Kernel(Flushing(function)))


def _is_f32(step: Step, shapes: Sequence[Leaf]) -> bool:
    """Whether a kernel takes and gives nothing but f32, of sizes that the text says."""
    found = [shapes[slot] for slot in (*step.operands, *step.results)]
    return step.kernel is not None and all(
        isinstance(shape, ArrayShape) and shape.element_type.name == "f32" and not shape.is_dynamic for shape in found
    )
