"""Contractions of compressed operands: scaled by blocks, sparse, or with two numbers in each element.

Such an operand is given with others (its scales, zero points or indices) behind lhs and rhs, which `sparsity_config`
and `block_scaling_config` refer to by number. XLA reads and prints these; how they are computed only the compilers for
some accelerators know, so that hloexec does not run them.
"""

from __future__ import annotations

from typing import Any

from hloexec.ir import ArrayShape, Instruction, Shape
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, require

__all__ = ["compressed_shape", "configuration", "reason_against_compression"]

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
    if "packed_nibble" in instruction.attributes.operand_precision:
        return (
            "an operand has the precision packed_nibble: each of its elements holds two numbers of four bits, and TPU "
            "compilers alone know how they are multiplied"
        )
    return None


def compressed_shape(further: tuple[Shape, ...], attributes: Any, declared: Shape) -> ArrayShape | None:
    """The shape of a contraction that has a sparse operand, which is as it is declared; None for all others.

    ShapeError where there are operands behind lhs and rhs that nothing refers to.
    """
    configured = [name for name in _REASONS if getattr(attributes, name) is not None]
    require(
        bool(configured) or not further,
        f"there are {len(further)} operands behind lhs and rhs, but neither a sparsity_config nor a "
        f"block_scaling_config that refers to them",
    )
    return array_shape(declared, "the result") if "sparsity_config" in configured else None
