"""Contractions of compressed operands: scaled by blocks, sparse, or with two numbers in each element.

Such an operand is given with others (its scales, zero points or indices) behind lhs and rhs, which `sparsity_config`
and `block_scaling_config` refer to by number. XLA reads and prints these; how they are computed only the compilers for
some accelerators know, so that hloexec does not run them.
"""

from __future__ import annotations

from typing import Any

from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape
from hloexec.ops.relations import Relating

_REASONS = {
    "sparsity_config": "it has a sparsity_config, and in which order the elements of a sparse operand are kept",
    "block_scaling_config": "it has a block_scaling_config, and which elements of an operand each scale belongs to",
}


def configuration() -> Any:
    """An attribute that says how operands are compressed; kept as it is written."""
    return attribute(Grammar.VERBATIM, default=None)


def reason_against_compression(instruction: Instruction) -> str | None:
    """Why a contraction is one that hloexec does not run, as a clause; None where it runs."""
    for name, reason in _REASONS.items():
        if getattr(instruction.attributes, name) is not None:
            return f"{reason} is not documented"
    if len(instruction.operands) > 2:
        return "it has operands behind lhs and rhs, and no attribute that hloexec knows refers to them"
    if "packed_nibble" in instruction.attributes.operand_precision:
        return (
            "an operand has the precision packed_nibble: each of its elements holds two numbers of four bits, and TPU "
            "compilers alone know how they are multiplied"
        )
    return None


def relates_compressed(use: Relating) -> bool:
    """Whether an operand is, or may be, compressed; such a contraction keeps its dimensions."""
    further = tuple(operand.shape for operand in use.operands[2:])
    is_compressed = compressed_shape(further, use.attributes, use.result.shape) is not None
    if is_compressed:
        use.keep_all("which elements of a compressed operand are kept is not documented")
    return is_compressed


def compressed_shape(further: tuple[Shape, ...], attributes: Any, declared: Shape) -> ArrayShape | None:
    """The declared shape of a contraction that has, or may have, a sparse operand; None for others."""
    is_scaled = attributes.block_scaling_config is not None
    is_sparse = attributes.sparsity_config is not None or (bool(further) and not is_scaled)
    return array_shape(declared, "the result") if is_sparse else None
