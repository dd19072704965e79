"""What is to blame where the texts of two modules differ in one place."""

from __future__ import annotations

from collections.abc import Sequence

from hloexec.analysis.numerics.measuring import same_bits
from hloexec.core.ir import ArrayShape, Module
from hloexec.tools.diffing.findings import Finding
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.localization.blaming import Blamed
from hloexec.tools.diffing.texts.changes import TextChange, scalar_constants

_MOST_CONSTANTS = 2
"""Of more, none is worth a note."""
_OF_AN_INVERSE = 2.0**-7
"""How far the product of a number and its inverse may be from 1, both rounded to bf16: 2^-9 each, relative."""


def blamed_by_texts(changes: Sequence[TextChange], ours: Graph, theirs: Graph) -> Blamed | None:
    """The only place in which the texts differ, at its first run that gives another value: up to there both modules
    compute the same, so that this is proven. None where there are several places, or it has not run in both."""
    if len(changes) != 1:
        return None
    (change,) = changes
    runs = zip(ours.runs[change.after], theirs.runs[change.before], strict=False)
    pairs = [pair for one, other in runs for pair in zip(one.results, other.results, strict=False)]
    if not pairs:
        return None
    different = next((pair for pair in pairs if not _is_equal(*pair)), None)
    if different is None and _lie_otherwise(*pairs[0]):
        return _reader(*pairs[0], ours, theirs)
    return _blamed(*(different or pairs[0]), change.reason, is_different=different is not None)


def _blamed(node: Node, counterpart: Node, reason: str, *, is_different: bool) -> Blamed:
    is_alike = (node.shape, node.dtype) == (counterpart.shape, counterpart.dtype)
    value = counterpart.value if is_different and is_alike else None
    return Blamed(node, counterpart, value, node.value, None, frozenset(), reason)


def _lie_otherwise(node: Node, counterpart: Node) -> bool:
    """Whether two arrays of the same numbers have other layouts."""
    shapes = (entry.instance.instruction.shape for entry in (node, counterpart))
    return len({shape.stated_layout for shape in shapes if isinstance(shape, ArrayShape)}) > 1


def _reader(node: Node, counterpart: Node, ours: Graph, theirs: Graph) -> Blamed | None:
    """What reads the numbers in the order in which they lie, and so gives others; None where nothing does."""
    for user, other in zip(ours.users()[node.number], theirs.users()[counterpart.number], strict=False):
        for pair in zip(user.results, other.results, strict=False):
            if user.opcode == other.opcode and not _is_equal(*pair):
                names = (f"%{entry.instance.instruction.name}" for entry in (node, counterpart))
                reason = "its operand {} lies in another order in memory than {} of the module before".format(*names)
                return _blamed(*pair, reason, is_different=True)
    return None


def notes_on_texts(
    changes: Sequence[TextChange], findings: Sequence[Finding], modules: tuple[Module, Module]
) -> list[str]:
    """That constants differ is worth a note, whatever follows from it, unless it is a finding; where the texts of
    `modules`, after and before, are not alike, which of the few that only one has, unless the finding is certain.
    Where nothing is found, only what may stand for each other is: one on either side, and not its inverse."""
    known = {finding.reason for finding in findings}
    others = [each for each in changes if each.is_of_constant and each.reason not in known]
    if changes or (findings and findings[0].is_certain):
        return [f"the texts differ in a constant: %{each.after[1]}: {each.reason}" for each in others]
    ours, theirs = (scalar_constants(module) for module in modules)
    if not findings:
        pair = ours - theirs, theirs - ours
        is_replaced = all(len(side) == 1 for side in pair) and not _are_inverse(*(float(*side) for side in pair))
        return (
            [
                f"the module after has the constant {', '.join(pair[0])}, where the module before has "
                f"{', '.join(pair[1])}"
            ]
            if is_replaced
            else []
        )
    sides = {"after": sorted(ours - theirs), "before": sorted(theirs - ours)}
    return [
        f"a constant that only the module {side} has: {', '.join(numbers)}"
        for side, numbers in sides.items()
        if 0 < len(numbers) <= _MOST_CONSTANTS
    ]


def _are_inverse(one: float, other: float) -> bool:
    return abs(one * other - 1) <= _OF_AN_INVERSE


def _is_equal(node: Node, other: Node) -> bool:
    if (node.shape, node.dtype) != (other.shape, other.dtype):
        return False
    return bool(same_bits(node.value, other.value).all())
