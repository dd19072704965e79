"""Passes on products that are added: in place, or with one rounding.

Accumulation: a matrix product that is added to a carried matrix is added in place. Gradients of weights are accumulated
like this, in the backward loop over a sequence. Separately, product and sum read and write a matrix three times;
combined, once, a block at a time, with the same two roundings. If nothing else in the loop reads the sum, several
products are added at a time (`ops.contraction.fast.dot`).

Fused multiply-adds: where XLA:CPU computes a product and a sum in one instruction, with one rounding. XLA:CPU emits
chains of elementwise instructions as one loop, in which LLVM forms fused multiply-adds: from an addition or subtraction
with an operand that is a product, or a negated product, without other uses; if both operands are, from the left one.
(LLVM first sorts the operands of sums by how it computes them; that is not reproduced.) Data movement between the
product and the sum (a reshape, a slice) does not matter, because a loop reads each element where it is.

This is not an optimization, but part of the `xla-cpu` policy, in all of its runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import InstructionKernel, Kernel, Leaf
from hloexec.engine.plan.steps import Plan, Scope, Step, While
from hloexec.ops.contraction.fast.dot import AddedProduct
from hloexec.ops.policies.backends import Flushing, multiply_add
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import traits_of

_LEAST_BYTES = 1 << 17
"""Smaller sums stay in the cache."""


def with_products_accumulated(plan: Plan) -> Plan:
    """The plan with such products and sums as one step, whose loops know which sums may wait."""
    uses = Counter(slot for step in plan.steps for slot in step.operands)
    uses.update(plan.results)
    makers = {step.result: step for step in plan.steps}
    merged: set[int] = set()
    steps = []
    for step in plan.steps:
        addend = _carried_addend(plan, step, uses)
        replacement = _bare(step, uses) if addend is None else _accumulated(step, addend, makers, uses, merged)
        steps.append(replacement or step)
    return attrs.evolve(plan, steps=[step for step in steps if step.result not in merged]).with_loops(_sums)


def _sums(flow: While) -> Mapping[str, dict[int, int]]:
    body, condition = flow.body, flow.condition
    makers = {inner.result: inner for inner in body.steps}
    uses = Counter(chain(body.results, *(inner.operands for inner in body.steps)))
    asked = {*condition.results, *chain(*(inner.operands for inner in condition.steps))}
    sums = {}
    for leaf, (parameter, result) in enumerate(zip(body.parameters, body.results, strict=True)):
        maker = makers.get(result)
        if maker is None or maker.kernel is None or not isinstance(maker.kernel.function, AddedProduct):
            continue
        is_alone = uses[parameter] == uses[result] == 1 and condition.parameters[leaf] not in asked
        lhs, rhs, addend = (body.slot_shapes[slot] for slot in maker.operands)
        waiting = maker.kernel.function.waiting_bytes(lhs, rhs, addend)
        if maker.operands[2] == parameter and is_alone and waiting:
            sums[leaf] = waiting
    return {"sums": sums} if sums else {}


def _bare(step: Step, uses: Counter[int]) -> Step | None:
    """A library's product and sum without the rest of what it gives, if nothing needs that."""
    kernel = step.kernel
    if not isinstance(kernel, InstructionKernel) or not isinstance(kernel.bound, AddedProduct):
        return None
    if any(uses[slot] for slot in step.results[1:]) or kernel.orders is None:
        return None
    lhs, rhs, _ = kernel.orders
    added = attrs.evolve(kernel.bound, orders=(lhs, rhs))
    return attrs.evolve(step, tree=step.results[0], kernel=Kernel(added, overwrites=2))


def _carried_addend(plan: Plan, step: Step, uses: Counter[int]) -> int | None:
    """The slot of the large carried matrix that a step adds something to, and that is needed for nothing else."""
    if step.kernel is None or step.kernel.ufunc is not np.add or uses[step.result] != 1:
        return None
    shape = plan.slot_shapes[step.result]
    if not isinstance(shape, ArrayShape) or shape.rank != 2 or shape.byte_size < _LEAST_BYTES:
        return None
    if step.result not in plan.results:
        return None
    leaf = plan.results.index(step.result)
    addend = plan.parameters[leaf] if leaf < len(plan.parameters) else None
    return addend if addend in step.operands and uses[addend] == 1 else None


def _accumulated(step: Step, addend: int, makers: dict[int, Step], uses: Counter[int], merged: set[int]) -> Step | None:
    """The step that adds a product to a slot; `merged` grows by the slots that it makes superfluous."""
    (slot,) = (slot for slot in step.operands if slot != addend)
    is_transposed = False
    on_the_way = []
    while uses[slot] == 1 and slot in makers:
        maker = makers[slot]
        on_the_way.append(slot)
        if isinstance(maker.kernel, InstructionKernel) and maker.kernel.product is not None:
            assert maker.kernel.orders is not None
            lhs, rhs = maker.kernel.orders
            added = AddedProduct(maker.kernel.product, (lhs, rhs), is_transposed, step.operands[0] == addend)
            merged.update(on_the_way)
            kernel = Kernel(added, overwrites=2)
            return attrs.evolve(step, operand_trees=(*maker.operands, addend), kernel=kernel)
        if maker.instruction.opcode != "transpose":
            return None
        is_transposed ^= maker.instruction.attributes.dimensions == (1, 0)
        (slot,) = maker.operands
    return None


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
    new_steps: list[Step] = []
    for step in plan.program:
        loop = step.scope.fusion
        policy = numerics.of(step.scope.computation.name, step.instruction.name)
        if policy.fuses_multiply_add and _is_f32(step, shapes) and (loop is not None or not is_scheduled):
            operand_products = [products.get(slot) for slot in step.operands]
            places = [
                place for place, product in enumerate(operand_products) if product is not None and product.loop is loop
            ]
            addend = operand_products[places[0]] if places else None
            product = _product(step, loop, addend)
            if product is not None and uses[step.result] == 1:
                products[step.result] = product
            if addend is not None and step.instruction.opcode in ("add", "subtract"):
                merged |= addend.slots
                moved = [_moved(factor, addend.moves, plan, new_steps) for factor in addend.factors]
                step = _multiply_add(step, addend, moved, places[0])
        new_steps.append(step)
    program = [attrs.evolve(step, is_shown_only=True) if step.result in merged else step for step in new_steps]
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
    slot_shapes = [shapes[slot] for slot in (*step.operands, *step.results)]
    return step.kernel is not None and all(
        isinstance(shape, ArrayShape) and shape.element_type.name == "f32" and not shape.is_dynamic
        for shape in slot_shapes
    )
