"""Carried matrices to which each iteration of a loop adds a product, as the gradients of weights are added up.

Nothing in the loop reads such a matrix, so that the products of many iterations can be computed as one
(`hloexec.ops.product_sums`) before they are added to it.
"""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np

from hloexec.exec.in_place import InPlace
from hloexec.exec.plan import Plan, Step, While
from hloexec.ir import ArrayShape
from hloexec.ops.contractions import MatrixProduct
from hloexec.ops.product_sums import ProductForm

__all__ = ["Accumulation", "accumulations_of"]

_LEAST_BYTES = 1 << 17
"""Smaller sums stay in the cache."""


@attrs.frozen(eq=False)
class Accumulation:
    """What a loop's body adds to a carried leaf."""

    form: ProductForm
    product: Step
    lhs: int
    rhs: int
    """The slots of the product's operands, as the form wants them."""
    others: tuple[Step, ...]
    """The steps from the product to the sum, which come to nothing."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps that add."""
        return (self.product, *self.others)


def accumulations_of(flow: While) -> dict[int, Accumulation]:
    """The sums of products among the leaves that a loop carries."""
    body, condition = flow.body, flow.condition
    uses = Counter(slot for step in body.steps for slot in step.operands)
    uses.update(body.results)
    uses.update(slot for step in condition.steps for slot in step.operands if slot < condition.parameter_count)
    makers = {slot: step for step in body.steps for slot in step.results}
    found = {}
    for leaf, result in enumerate(body.results):
        # Once by the step that adds to it; the sum itself is a result and nothing else.
        if result in makers and uses[leaf] == uses[result] == 1:
            accumulation = _accumulation(body, leaf, makers[result], makers, uses)
            if accumulation is not None and accumulation.form.group > 1:
                found[leaf] = accumulation
    return found


def _accumulation(
    body: Plan, leaf: int, last: Step, makers: dict[int, Step], uses: Counter[int]
) -> Accumulation | None:
    """How a step that makes the next value of a leaf adds a product to it; None where it does something else."""
    shape = body.slot_shapes[leaf]
    if (
        not isinstance(shape, ArrayShape)
        or shape.rank != 2
        or shape.byte_size < _LEAST_BYTES
        or leaf not in last.operands
    ):
        return None
    if any(uses[slot] for slot in last.results[1:]):
        return None
    if isinstance(last.function, InPlace) and last.function.adds is not None:
        if last.operands.index(leaf) != last.function.place:
            return None
        lhs, rhs = (slot for place, slot in enumerate(last.operands) if place != last.function.place)
        return _of_form(body, leaf, last.function.adds, last, (lhs, rhs), (), is_turned=False)
    if last.function is not np.add:
        return None
    others = [last]
    (slot,) = (slot for slot in last.operands if slot != leaf)
    is_turned = False
    while True:
        maker = makers.get(slot)
        if maker is None or uses[slot] != 1:
            return None
        if isinstance(maker.function, MatrixProduct):
            return _of_form(body, leaf, maker.function, maker, maker.operands, tuple(others), is_turned=is_turned)
        if maker.instruction.opcode != "transpose":
            return None
        others.append(maker)
        is_turned ^= maker.instruction.attributes.dimensions == (1, 0)
        (slot,) = maker.operands


def _of_form(
    body: Plan,
    leaf: int,
    product: MatrixProduct,
    step: Step,
    operands: tuple[int, ...],
    others: tuple[Step, ...],
    *,
    is_turned: bool,
) -> Accumulation | None:
    """The accumulation by a product; None where operands are to be widened before, or their sizes are not known."""
    lhs, rhs = operands
    shapes = [shape for slot in (lhs, rhs, leaf) if isinstance(shape := body.slot_shapes[slot], ArrayShape)]
    if len({shape.element_type for shape in shapes}) > 1 or any(shape.dynamic_dimensions for shape in shapes):
        return None
    # MatrixProduct turns what is not [rows, terms] · [terms, columns]; a form has the terms first.
    turns_lhs, turns_rhs = not product.turns_lhs, product.turns_rhs
    rows, terms = shapes[0].dimensions[:: 1 if turns_lhs else -1]
    columns = shapes[1].dimensions[0 if turns_rhs else 1]
    dtype = np.dtype(shapes[0].element_type.storage)
    if is_turned:
        return Accumulation(ProductForm(columns, rows, terms, turns_rhs, turns_lhs, dtype), step, rhs, lhs, others)
    return Accumulation(ProductForm(rows, columns, terms, turns_lhs, turns_rhs, dtype), step, lhs, rhs, others)
