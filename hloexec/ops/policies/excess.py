"""Excess precision: results that are used before they are rounded to bf16 or f16, as the `excess` policy has it.

Backends compute bf16 and f16 in f32. XLA writes that down as a conversion behind every instruction and one in front of
each of its users, and under xla_allow_excess_precision may leave out both (XLA: FloatNormalization,
SimplifyFPConversions). Here, elementwise instructions read what elementwise instructions and contractions of their own
computation give before it is rounded; who stores, moves, contracts or reduces it reads it rounded. A conversion to a
narrower type that the text itself has rounds. In a module that is not optimized yet, a computation is as one fusion.

XLA:CPU of jaxlib 0.10 leaves out the conversions in front of the text's own ones to f32, and no others: there, it is
the converts alone that have this policy (measured; docs/precision.md).
"""

from __future__ import annotations

from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Shape
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import find_opcode
from hloexec.ops.rounding import Rounding, Sums


def reads_excess(instruction: Instruction) -> bool:
    """Whether an instruction, under the policy, reads its operands unrounded."""
    return _computes_elements(instruction)


def has_excess(computation: Computation, instruction: Instruction, numerics: NumericsPolicy) -> bool:
    """Whether some user reads an instruction's result unrounded."""
    entry = find_opcode(instruction.opcode)
    if entry is None or not _is_half(instruction) or entry.traits.converts:
        return False
    if not (_is_contraction(instruction) or _computes_elements(instruction)):
        return False
    users = computation.users[instruction.name]
    return any(numerics.of(computation.name, user.name).keeps_excess and reads_excess(user) for user in users)


def widest_shape(computation: Computation, instruction: Instruction) -> Shape:
    """The shape with the widest type in which an implementation may keep a result until its users have read it.

    A bf16 or f16 result of an elementwise instruction or a contraction that elementwise instructions alone see has the
    type that it is computed in: who rounds to eight bits means it. And an f32 product that sums alone see has f64,
    which holds it exactly, as it is in a multiply-add: where products cancel, the rounding error of one of them is all
    that is left.
    """
    users, shape = computation.users[instruction.name], instruction.shape
    if not isinstance(shape, ArrayShape) or instruction is computation.root:
        return shape
    if _is_half(instruction) and (_is_contraction(instruction) or _rounds_elements(instruction)):
        return wide_shape(shape) if all(map(_rounds_elements, users)) else shape
    if _is_f32_product(instruction) and all(_takes_first(computation, user, instruction) for user in users):
        return shape.with_element_type(ELEMENT_TYPES["f64"])
    return shape


def wide_shape(shape: Shape) -> Shape:
    """A shape with the types that its narrow floats are computed in."""
    if not isinstance(shape, ArrayShape) or not shape.element_type.is_floating or not shape.element_type.is_narrow:
        return shape
    return shape.with_element_type(element_type_of(shape.element_type.compute))


def _is_half(instruction: Instruction) -> bool:
    shape = instruction.shape
    return isinstance(shape, ArrayShape) and shape.element_type.is_floating and shape.element_type.bits == 16


def _takes_first(computation: Computation, user: Instruction, product: Instruction) -> bool:
    """Whether `user` is a sum of which compilers make a multiply-add with this product: if both operands are products,
    with the first (see `plan.passes.fma`)."""
    names = user.operands
    if user.opcode not in ("add", "subtract") or names.count(product.name) != 1:
        return False
    return names[0] == product.name or not _is_f32_product(computation.by_name[names[0]])


def _is_f32_product(instruction: Instruction) -> bool:
    shape = instruction.shape
    return instruction.opcode == "multiply" and isinstance(shape, ArrayShape) and shape.element_type.name == "f32"


def _is_contraction(instruction: Instruction) -> bool:
    entry = find_opcode(instruction.opcode)
    return entry is not None and entry.traits.sums is Sums.PRODUCTS


def _computes_elements(instruction: Instruction) -> bool:
    """Whether an instruction is elementwise on floats, rounding them or choosing among them."""
    entry = find_opcode(instruction.opcode)
    return entry is not None and entry.is_elementwise and _is_floating(instruction.shape)


def _rounds_elements(instruction: Instruction) -> bool:
    entry = find_opcode(instruction.opcode)
    rounds = entry is not None and entry.rounding in (Rounding.ONCE, Rounding.FUNCTION)
    return rounds and _is_floating(instruction.shape)


def _is_floating(shape: Shape) -> bool:
    return isinstance(shape, ArrayShape) and shape.element_type.is_floating
