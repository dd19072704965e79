"""The search for what is to blame, from a replay to what the result of a diff says of it: findings and notes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, verdict_of
from hloexec.analysis.numerics.measuring import measure
from hloexec.analysis.numerics.tolerances import Tolerance
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Module
from hloexec.core.structs import frozen
from hloexec.core.wording import counted
from hloexec.engine.devices.topology import Topology
from hloexec.engine.exec.observers import Stages
from hloexec.errors import HloError, InputError
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.diffing.agreement import LOCAL
from hloexec.tools.diffing.extracting.building import Extractor
from hloexec.tools.diffing.extracting.pair import ExtractedPair
from hloexec.tools.diffing.extracting.region import region_graph
from hloexec.tools.diffing.findings import Finding
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.blaming import Blame, Blamed
from hloexec.tools.diffing.localization.precision import lost_roundings, roundings_taken_back
from hloexec.tools.diffing.replaying.replay import Replay, match_through_rounding
from hloexec.tools.diffing.replaying.states import State

_NOWHERE = "no instruction exceeds its rounding bound; this one is closest to it"


@frozen(eq=False)
class Search:
    """What was found out about why results differ."""

    state: State
    blamed: Sequence[Blamed]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    first: Blamed | None
    """What the first finding is made of."""

    def extracted(
        self, modules: tuple[Module, Module], policies: tuple[NumericsPolicy, NumericsPolicy], topology: Topology
    ) -> ExtractedPair | HloError | None:
        """What shows the first finding, or why that makes no module."""
        if self.first is None:
            return None
        try:
            return Extractor(modules, policies, topology, self.state).extract(self.first)
        except HloError as error:
            return error
        except KeyboardInterrupt:
            return InputError("it was interrupted")


def search(
    replay: Replay,
    state: State,
    blame: Blame,
    comparison: Comparison,
    top: int,
    stages: Stages,
    known: Blamed | None = None,
) -> Search:
    """What is to blame, at most `top` findings; where rounding explains the results, only what it does not explain.

    `state` is that of the replay without overrides. `known` is the only thing that can be to blame, where that follows
    from the texts.
    """
    stages.begin("search")
    if known is not None and not comparison.agrees:
        match_through_rounding(replay.graph, state)
        return Search(state, [known], (_finding(known, state),), ("the texts differ nowhere else",), known)
    blamed = blame.find(state, top) if any(leaf.unequal for leaf in comparison.leaves) else []
    is_settled = len(blamed) == 1 and blamed[0].is_certain
    if not (comparison.agrees or is_settled or blame.without_roundings is not None):
        blamed = blame.rewired(state, blamed) or blamed
    notes = [blame.end] if blame.end else []
    if comparison.agrees and not replay.is_complete:
        # What has not been replayed is unmatched, and proves nothing.
        blamed = []
        notes.append("not every instruction was replayed; that rounding explains the results is all that is known")
    if comparison.agrees and replay.is_complete and all(entry.is_more_precise for entry in blamed):
        notes += _excess_precision(replay, state, blamed)
        blamed = []
    match_through_rounding(replay.graph, state)
    findings, nearest = [_finding(entry, state) for entry in blamed], []
    if comparison.agrees:
        # Against results that rounding explains, only a proof counts, of what rounding does not explain.
        pairs = [pair for pair in zip(blamed, findings, strict=True) if _is_beyond_bounds(*pair)]
        blamed, findings = [entry for entry, _ in pairs], [finding for _, finding in pairs]
    if findings or not comparison.agrees:
        notes += _roundings(replay, blame)
    if not findings and not comparison.agrees:
        nearest, doubt = blame.misaligned(state), ""
        if not nearest:
            nearest, doubt = blame.nearest(state), _NOWHERE
        findings = [_finding(entry, state, doubt) for entry in nearest]
    return Search(state, blamed, tuple(findings[:top]), tuple(notes), next(iter([*blamed, *nearest]), None))


def _roundings(replay: Replay, blame: Blame) -> list[str]:
    """Notes on what rounds to fewer bits than `before`, where it took several to say what else differs."""
    if blame.without_roundings is None:
        return []
    found = list(roundings_taken_back(replay, blame.without_roundings))
    if not found:
        return []
    left = "nothing else differs" if blame.is_rounding_all else "the results still differ"
    notes = [f"without {counted(len(found), 'rounding')} to fewer bits, which before does not have, {left}"]
    return notes + _listed(found, "values are rounded to fewer bits than before has")


def _listed(found: Sequence[tuple[Node, str]], others: str, end: str = "") -> list[str]:
    """The first of some values with what is said of each, and how many others there are."""
    shown = found[: LIMITS.notes_on_precision]
    notes = [f"%{node.instance.instruction.name}: {reason}{end}" for node, reason in shown]
    left = len(found) - len(shown)
    return notes + ([f"{left} more {others}"] if left else [])


def _is_beyond_bounds(blamed: Blamed, finding: Finding) -> bool:
    """Whether it is proven, and clearly not for want of room for rounding: a change that makes results right which
    rounding explains anyway shows nothing."""
    if not blamed.is_proven or blamed.is_repair:
        return False
    is_within = finding.comparison is not None and finding.comparison.agrees
    return blamed.is_beyond_rounding and not is_within


def _excess_precision(replay: Replay, state: State, blamed: Sequence[Blamed]) -> list[str]:
    """Notes on values that keep more bits than in `before`, if not on more than a few."""
    found = list(lost_roundings(replay, state)) or [(entry.node, entry.reason) for entry in blamed]
    return _listed(found, "values are not rounded as before rounds them", "; the results do not show it")


def _other_shape(blamed: Blamed) -> str:
    """What distinguishes values that cannot be compared, as they are of other types or sizes."""
    if blamed.counterpart is None or blamed.value is not None:
        return ""
    values = (blamed.node.value, blamed.counterpart.value)
    ours, its = (str(ArrayShape(element_type_of(value.dtype), value.shape)) for value in values)
    return "" if ours == its else f"it is {ours}, where that of the module before is {its}"


def _finding(blamed: Blamed, state: State, doubt: str = "") -> Finding:
    comparison = None
    if blamed.counterpart is not None and blamed.value is not None:
        tolerance = Tolerance(derivation="nothing rounds on the way") if blamed.allowed is None else LOCAL
        measured = measure(blamed.raw, np.ascontiguousarray(blamed.value), tolerance, blamed.allowed)
        ours, its = (str(ArrayShape(element_type_of(array.dtype), array.shape)) for array in (blamed.raw, blamed.value))
        name = element_type_of(blamed.raw.dtype).name
        leaf = LeafComparison("value", verdict_of(measured), ours, its, blamed.raw.size, name, measured)
        comparison = Comparison((leaf,))
    before = None if blamed.counterpart is None else blamed.counterpart.place
    region = tuple(node.place for node in blamed.region) if len(blamed.region) > 1 else ()
    is_certain = blamed.is_certain and not doubt
    return Finding(
        blamed.place or blamed.node.place,
        before,
        comparison,
        is_certain,
        doubt or blamed.reason or _other_shape(blamed),
        region=region,
        graph=region_graph(blamed.region, state),
        has_right_operands=is_certain or blamed.has_right_operands,
    )
