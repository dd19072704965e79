"""What is to blame where the texts of two modules differ in one place."""

from __future__ import annotations

from collections.abc import Sequence

from hloexec.diffing.findings import Finding
from hloexec.diffing.graph import Graph, Node
from hloexec.diffing.localization.blaming import Blamed
from hloexec.diffing.texts.changes import TextChange, scalar_constants
from hloexec.ir import Module
from hloexec.numerics.ulps import same_bits

__all__ = ["blamed_by_texts", "notes_on_texts"]

_MOST_CONSTANTS = 2
"""Of more, none is worth a note."""


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
    node, counterpart = different or pairs[0]
    is_alike = (node.shape, node.dtype) == (counterpart.shape, counterpart.dtype)
    value = counterpart.value if different and is_alike else None
    return Blamed(node, counterpart, value, node.value, None, frozenset(), change.reason)


def notes_on_texts(
    changes: Sequence[TextChange], findings: Sequence[Finding], modules: tuple[Module, Module]
) -> list[str]:
    """That constants differ is worth a note, whatever follows from it, unless it is a finding; where the texts of
    `modules`, after and before, are not alike, which of the few that only one has, unless the finding is certain."""
    known = {finding.reason for finding in findings}
    others = [each for each in changes if each.is_of_constant and each.reason not in known]
    if changes or not findings or findings[0].is_certain:
        return [f"the texts differ in a constant: %{each.after[1]}: {each.reason}" for each in others]
    ours, theirs = (scalar_constants(module) for module in modules)
    sides = {"after": sorted(ours - theirs), "before": sorted(theirs - ours)}
    return [
        f"a constant that only the module {side} has: {', '.join(numbers)}"
        for side, numbers in sides.items()
        if 0 < len(numbers) <= _MOST_CONSTANTS
    ]


def _is_equal(node: Node, other: Node) -> bool:
    if (node.shape, node.dtype) != (other.shape, other.dtype):
        return False
    return bool(same_bits(node.value, other.value).all())
