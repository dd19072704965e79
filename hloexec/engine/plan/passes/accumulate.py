"""Accumulation: a matrix product that is added to a carried matrix is added in place.

Gradients of weights are accumulated like this, in the backward loop over a sequence. Separately, product and sum read
and write a matrix three times; combined, once, a block at a time, with the same two roundings. If nothing else in the
loop reads the sum, several products are added at a time (`ops.contraction.fast.dot`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import InstructionKernel, Kernel
from hloexec.engine.plan.steps import Plan, Step, While
from hloexec.ops.contraction.fast.dot import AddedProduct

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
        found = _bare(step, uses) if addend is None else _accumulated(step, addend, makers, uses, merged)
        steps.append(found or step)
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
