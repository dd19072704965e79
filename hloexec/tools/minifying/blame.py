"""What `hloexec diff` blames for the difference of two modules, so that a smaller pair shows the same fault."""

from __future__ import annotations

import warnings

import attrs

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.engine.options import Options
from hloexec.errors import HloError, HloWarning
from hloexec.ops.attributes import without_computations
from hloexec.ops.registry import Role, role_of
from hloexec.tools.diffing import Diff, Finding, diff
from hloexec.tools.minifying.case import Case, part_of

_RUNS = 1_000_000
"""Runs of an instruction that a search for what is to blame takes at most."""


@frozen
class Blame:
    """The kind of fault that `diff` names first. Names and sizes are no part of it, as a smaller pair has others."""

    opcode: str
    opcode_before: str | None
    """That of what gave the right value; None where nothing did."""
    is_written_alike: bool
    """Whether both have the same opcode and the same attributes: what they take, or what they call, is to blame."""
    is_added: bool = False
    """Whether what gave the right value is a parameter that the instruction takes: the other module goes without it."""

    def is_kept_by(self, other: Blame | None) -> bool:
        """Whether another pair shows the same.

        One that finds a counterpart where there was none says more of it. A counterpart in which nothing is wrong may
        have become a parameter.
        """
        if other is None or other.opcode != self.opcode:
            return False
        return self.opcode_before is None or other == self or (other.is_added and not self.is_written_alike)

    def can_be_in(self, case: Case) -> bool:
        """Whether a pair has instructions that may be meant."""
        assert case.other is not None
        return _has(case.module, self.opcode) and (not self.is_written_alike or _has(case.other, self.opcode))

    def __str__(self) -> str:
        if self.opcode_before is None:
            return f"{self.opcode}, which has no counterpart"
        if self.is_added:
            return f"{self.opcode}, which the other module goes without"
        if self.is_written_alike:
            return f"{self.opcode}, by what it is given or calls"
        return f"{self.opcode} in place of {self.opcode_before}"


def found_by_diff(case: Case, options: Options) -> Diff | None:
    """What `hloexec.diff` says of the pair."""
    assert case.other is not None
    kept = attrs.evolve(options, timeout=None, max_iterations=None)
    try:
        with warnings.catch_warnings(action="ignore", category=HloWarning):
            return diff(case.other, case.module, case.inputs, runs=_RUNS, **kept)
    except HloError:
        return None


def blame_of(found: Diff | None) -> tuple[Blame | None, bool]:
    """The fault that is named first, and whether it is certain."""
    if found is None or not found.findings:
        return None, False
    first: Finding = found.findings[0]
    after = first.after.of(found.after)
    before = None if first.before is None else first.before.of(found.before)
    if before is None:
        return Blame(after.opcode, None, is_written_alike=False), first.is_certain
    is_added = role_of(before) is Role.PARAMETER and _takes(found.after.entry, after, before.attributes.number)
    return Blame(after.opcode, before.opcode, _are_written_alike(after, before), is_added), first.is_certain


def _takes(entry: Computation, instruction: Instruction, number: int) -> bool:
    """Whether an instruction of an entry computation is computed from a parameter."""
    if entry.by_name.get(instruction.name) is not instruction:
        return False
    computed = [each for each in entry if role_of(each) is not Role.PARAMETER]
    return entry.parameters[number].name in part_of(computed, [instruction.name], is_paired=True).needed


def _has(module: Module, opcode: str) -> bool:
    return any(each.opcode == opcode for computation in module for each in computation)


def _are_written_alike(ours: Instruction, theirs: Instruction) -> bool:
    kind: type = type(ours.attributes)
    if ours.opcode != theirs.opcode or kind is not type(theirs.attributes) or not ours.shape.compatible(theirs.shape):
        return False
    # Each module chooses the names of computations for itself.
    return ours.attributes is None or _said(kind, ours) == _said(kind, theirs)


def _said(kind: type, instruction: Instruction) -> tuple[object, ...]:
    return without_computations(kind)(instruction.attributes)
