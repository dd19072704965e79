"""Which instructions a numerics policy may compute otherwise than `reference` does, as opcodes and types tell."""

from __future__ import annotations

from hloexec.core.ir import ArrayShape, Computation, Instruction, parts_of
from hloexec.ops.policies.excess import has_excess, reads_excess
from hloexec.ops.policies.fast_functions import FAST_FUNCTIONS
from hloexec.ops.policies.flushing import flushes
from hloexec.ops.policies.narrow_sums import is_narrow_sum
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.policies.xla_cpu import XLA_CPU_FUNCTIONS
from hloexec.ops.registry import Role, find_opcode
from hloexec.ops.rounding import Rounding, Sums


def concerns(policy: NumericsPolicy, computation: Computation, instruction: Instruction) -> bool:
    """Whether a policy is about an instruction; of library calls, every one is about all."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is Role.CUSTOM_CALL:
        return entry is not None
    types = [
        shape.element_type
        for shape in (
            *(operand.shape for operand in computation.operands_of(instruction)),
            *parts_of(instruction.shape),
        )
        if isinstance(shape, ArrayShape)
    ]
    is_f32 = any(kind.name == "f32" for kind in types)
    is_computed_in_f32 = bool(types) and types[0].is_floating and types[0].compute.name == "float32"
    operands = [operand for operand in computation.operands_of(instruction) if operand.name in computation.by_name]
    return (
        (
            policy.contraction_operand_mantissa_bits is not None
            and entry.traits.sums is Sums.PRODUCTS
            and is_f32
            and _has_default_precision(instruction)
        )
        or (
            policy.keeps_excess
            and reads_excess(instruction)
            and any(has_excess(computation, operand, policy) for operand in operands)
        )
        or (policy.narrows_sums and entry.rounding is Rounding.SUM and any(map(is_narrow_sum, types)))
        or (policy.has_fast_functions and entry.name in FAST_FUNCTIONS and is_computed_in_f32)
        or (policy.has_xla_cpu_functions and entry.name in XLA_CPU_FUNCTIONS and is_computed_in_f32)
        or (policy.fuses_multiply_add and entry.is_elementwise and is_f32)
        or (policy.flushes_denormals and flushes(entry.traits, frozenset(types)))
        or (policy.is_exact and entry.rounding is not Rounding.NONE)
    )


def _has_default_precision(contraction: Instruction) -> bool:
    """Whether the text leaves it to the backend how the operands are rounded: of what has a precision, the default."""
    attributes = contraction.attributes
    if not hasattr(attributes, "operand_precision"):
        return False
    words = (*attributes.operand_precision, getattr(attributes, "algorithm", "unset"))
    return all(word in ("default", "unset") for word in words)
