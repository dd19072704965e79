"""Kinds of faults, to be planted wherever a program has a place for one."""

from evaluation.faults.kinds import flow, numbers, operands, places
from evaluation.faults.kinds.kind import Kind

__all__ = ["KINDS", "Kind"]

KINDS: tuple[Kind, ...] = (*flow.KINDS, *places.KINDS, *numbers.KINDS, *operands.KINDS)
"""All of them; those that few programs have a place for come first."""
