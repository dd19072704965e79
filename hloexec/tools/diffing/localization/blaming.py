"""Which instruction of `after` makes its results differ.

`causes` proposes suspects. The first one is to blame that makes the results right when its value is replaced by the
one that it should be, and everything that depends on it is computed again. If results still differ, the search goes on
from there: several instructions may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import attrs
import numpy as np

from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.registry import Role, is_elementwise, role_of
from hloexec.tools.diffing.control import Decisions
from hloexec.tools.diffing.findings import InstructionRun
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.limits import BYTES, LIMITS, Work
from hloexec.tools.diffing.localization.compensations import rewired
from hloexec.tools.diffing.localization.patches import Patch, patched
from hloexec.tools.diffing.localization.relations import NodePair, Relations, Suspect, is_filled
from hloexec.tools.diffing.localization.trials import Trials
from hloexec.tools.diffing.matching import says_much
from hloexec.tools.diffing.replaying.replay import Replay, State
from hloexec.tools.diffing.replaying.rerun import stays_wrong

_INTERRUPTED = "the search was interrupted; this is the best that it had found"


@frozen(eq=False)
class Blamed:
    """An instruction, and what was found out about it."""

    node: Node
    counterpart: Node | None
    value: Array | None
    """What it should have given, arranged as its own value."""
    raw: Array
    """What it gave, on `before`'s operands."""
    allowed: Array | None
    """By how much rounding may put its elements off; None where nothing rounds."""
    wrong: frozenset[int]
    """The nodes on the way from it to the results that differ."""
    reason: str = ""
    place: InstructionRun | None = None
    """What is to blame, where it computes no value of its own."""
    is_certain: bool = True
    is_proven: bool = True
    """Whether rounding is not to blame, but it or its region."""
    region: tuple[Node, ...] = ()
    is_more_precise: bool = False
    """Whether it is right, and has only not been rounded as `before` rounds it."""
    is_beyond_rounding: bool = True
    """Whether what was put right was further off than rounding explains, as far as that was looked at: where rounding,
    as it was measured, explains the results."""
    compared: NodePair | None = None
    """What was put right to see whether the results come right, where it is not the node itself."""
    is_rounding: bool = False
    """Whether it rounds to fewer bits than `before` has."""
    is_repair: bool = False
    """Whether all that is known is that a change of it makes a value right."""
    has_right_operands: bool = False
    """Whether what it takes was compared, and is right."""


class Blame:
    """The search, from a replay on."""

    def __init__(
        self,
        replay: Replay,
        decisions: tuple[Decisions, Decisions],
        different: Collection[tuple[int, int]],
        work: Work,
        comes_right: Callable[[Module], bool] | None = None,
    ) -> None:
        """`comes_right` runs a module in place of `after`, and says whether its results are right; None where none is
        to run."""
        self._replay = replay
        self.different = different
        self._decisions = decisions
        self._work = work
        work.kept = 0.0 if comes_right is None else LIMITS.reserve
        self._comes_right = comes_right
        self._is_interrupted = False
        self.without_roundings: State | None = None
        """The state in which roundings to fewer bits were taken back to find what else differs; None where that was not
        needed."""
        self.is_rounding_all = False
        """Whether nothing else does."""

    @property
    def end(self) -> str:
        """Why the search ended before it was done; empty where it was."""
        return _INTERRUPTED if self._is_interrupted else self._work.end

    def is_over(self) -> bool:
        """Whether no more work is to be done."""
        return self._work.is_over()

    def find(self, state: State, top: int) -> list[Blamed]:
        """What is to blame, in data-flow order; at most `top`."""
        findings: list[Blamed] = []
        try:
            if self._replay.was_interrupted:
                raise KeyboardInterrupt
            doubted = self._find(state, top, findings)
            findings = self._only_one(state, findings) or [
                attrs.evolve(entry, is_certain=entry.is_certain and not is_doubted)
                for entry, is_doubted in zip(findings, doubted, strict=True)
            ]
        except KeyboardInterrupt:
            self._is_interrupted = True
        if self.end and len(findings) > 1:
            # Whether one of them puts all right alone has not been tried.
            findings = [attrs.evolve(entry, is_certain=False) for entry in findings]
        # Beside roundings, something else comes first if that is proven.
        has_roundings = any(entry.is_rounding for entry in findings)
        return sorted(
            findings,
            key=lambda entry: (has_roundings and (entry.is_rounding or not entry.is_proven), entry.node.number),
        )

    def _find(self, state: State, top: int, findings: list[Blamed]) -> list[bool]:
        """Add what is to blame to `findings`; whether each may be so because of what else was found or is wrong."""
        corrected: set[tuple[int, int]] = set()
        behind: list[frozenset[int]] = []
        doubted: list[bool] = []
        is_assumed = is_guessed = is_decided = False
        while (
            len(findings) < top
            and (not findings or not self.is_over())
            and (wrong := self._wrong(state, bool(findings)))
        ):
            blamed_statics = {entry.node.instance.static for entry in findings}
            suspect, patch = Trials(self._replay, state, wrong, self._decisions, blamed_statics, self.is_over).next()
            if suspect is None:
                break
            if suspect.pair.ours.instance.static not in blamed_statics:
                blamed = self._blamed(state, suspect, patch, wrong)
                # What is wrong with values that nothing has proven to be right may be wrong because of these.
                findings.append(attrs.evolve(blamed, is_proven=blamed.is_proven and not is_guessed))
                start = suspect.trial or suspect.pair
                behind.append(self._between(state, [start]) - {start.ours.number})
                # What was not looked at for want of work may be meant as well.
                doubted.append(is_assumed or self.is_over())
            if suspect.is_rounding and not suspect.is_certain and self.without_roundings is None and len(findings) == 1:
                # It is one of several, and what else is wrong shows only without them.
                self.without_roundings = self._replay.without_roundings(self.is_over)
                if self.without_roundings is not None:
                    state, is_assumed = self.without_roundings, True
                    self.is_rounding_all = not self._wrong(state, is_explained=True)
                    continue
                self._replay.adopt(state)
            # What decides how a loop runs is not corrected, and all else that is wrong may follow from it.
            is_decided = suspect.decision is not None
            if is_decided or patch is None or patch.pair.numbers in corrected:
                break
            corrected.add(patch.pair.numbers)
            is_guessed |= not patch.is_proof
            is_assumed |= is_guessed
            state = self._replay.adopt(patch.after)
        left = frozenset[int]() if is_decided else self._between(state, self._wrong(state, bool(findings)))
        for place, own in enumerate(behind):
            # One step behind it may explain other results that are wrong, too.
            doubted[place] |= not own.isdisjoint(left.union(*behind[:place], *behind[place + 1 :]))
        return doubted

    def _only_one(self, start: State, findings: Sequence[Blamed]) -> list[Blamed]:
        """The first one that puts all right alone; none where it takes several, or there is one anyway."""
        if len(findings) < 2:
            return []
        self._replay.adopt(start)
        wrong, relations = self._wrong(start), Relations(self._replay, start)
        for entry in sorted(findings, key=lambda entry: entry.node.number):
            counterpart = None if entry.counterpart is None else NodePair(entry.node, entry.counterpart)
            if (pair := entry.compared or counterpart) is not None and not self.is_over():
                if not relations.has_right_operands(pair):
                    continue
                patch = patched(self._replay, start, pair, wrong, self.is_over)
                if patch is not None and not self._wrong(self._replay.adopt(patch.after)):
                    return [entry]
                self._replay.adopt(start)
        return []

    def rewired(self, state: State, blamed: Sequence[Blamed]) -> list[Blamed]:
        """What hands another value on than it should, if changing it, and nothing else, puts all results right. Nothing
        if there is no such instruction, or no module is to run.

        What is `blamed` already stays as certain; and of a region, one instruction is told from the others only if it
        is the only one that may be changed so."""
        if self._comes_right is None or self._is_interrupted or not self._replay.is_complete:
            return []
        try:
            return self._rewired(state, self._comes_right, blamed)
        except KeyboardInterrupt:
            self._is_interrupted = True
            return []

    def _rewired(
        self, state: State, comes_right: Callable[[Module], bool], already_blamed: Sequence[Blamed]
    ) -> list[Blamed]:
        self._work.kept = 0.0
        self._replay.adopt(state)
        wrong = self._wrong(state)
        between = self._between(state, wrong)
        firsts = {node.instance.static: node for node in map(self._replay.graph.node, sorted(between, reverse=True))}
        steps = sorted(firsts.values(), key=lambda node: node.number)
        nodes = steps[: LIMITS.rewired_steps]
        # What is right in itself may be right for another place.
        behind = {entry.instance.static: entry for node in nodes for entry in node.instance.inputs}
        nodes += [entry for static, entry in behind.items() if static not in firsts and not entry.instance.is_source]
        results = self._replay.graph.outputs[min(self._replay.graph.outputs)]
        differing = {pair.ours.number for pair in wrong}
        leaves = {number: node for number, node in enumerate(results) if node.number in differing}
        module = self._replay.graph.module
        first = min(wrong, key=lambda pair: pair.ours.number, default=None)
        theirs = self._replay.index.graph
        is_straight = not any(
            role_of(instruction) in (Role.WHILE, Role.CONDITIONAL) for part in module for instruction in part
        )

        def is_right(edited: Module, mover: tuple[str, str] | None) -> bool:
            if self.is_over():
                return False
            if mover is None or first is None or not is_straight:
                return comes_right(edited)
            with self._work.uncounted():
                is_wrong = stays_wrong(self._replay, mover, edited, first.ours, first.theirs.value)
            if is_wrong:
                self._work.add(len(theirs.instances) + theirs.arrays.byte_size / BYTES)
            return not is_wrong and comes_right(edited)

        change = rewired(module, nodes, leaves, is_right)
        if change is None:
            return []
        reason = f"the results are right if it is {change.text}"
        place = (change.place.computation, change.place.instruction)
        is_known = any(entry.is_certain and entry.node.instance.static == place for entry in already_blamed[:1])
        region = already_blamed[0].region if len(already_blamed) == 1 and already_blamed[0].is_proven else ()
        # What the time, or a limit, left untried might do as well.
        are_all = len(nodes) >= len(steps) and not self.is_over()
        is_one = are_all and change.is_alone and not change.region
        if region and not (is_one and place in {node.instance.static for node in region}):
            return []
        raw, is_certain = state.raw[change.node.number], (are_all and change.is_only_one) or is_known
        blamed = Blamed(change.node, None, None, raw, None, between, reason, change.place, is_certain, is_certain)
        return [attrs.evolve(blamed, region=change.region)]

    def nearest(self, state: State) -> list[Blamed]:
        """The value that is closest to its rounding bound, if none exceeds it; or nothing."""
        worst, nearest = 0.0, []
        for number, match in state.matches.found():
            if match.is_exact or match.held.shape != state.raw.of(number).shape:
                continue
            node = self._replay.graph.node(number)
            raw = state.raw[node.number]
            allowed = self._allowed(state, node, match.node)
            if allowed is None or allowed.shape != raw.shape:
                continue
            with np.errstate(all="ignore"):
                severity = float(np.nanmax(np.abs(wide(raw) - wide(match.value)) / allowed, initial=0.0))
            if severity > worst:
                worst = severity
                nearest = [Blamed(node, match.node, match.value, raw, allowed, frozenset())]
        return nearest

    def misaligned(self, state: State) -> list[Blamed]:
        """The first value that is computed element by element as one of `before` that `after` lacks, from the same
        numbers, but does not have its numbers: some of what it takes lies in another order. Or nothing.

        No rounding explains that, and the bounds of what follows, in a narrow type, may."""
        users = self._replay.index.graph.users()
        for node in self._replay.graph.nodes:
            if state.matches.is_any(node.number) or not is_elementwise(node.instance.instruction):
                continue
            taken = [entry for entry in node.instance.inputs if not is_filled(entry)]
            matched = [(entry, match) for entry in taken if (match := state.matches[entry.number]) is not None]
            shuffled = [entry for entry, match in matched if not match.is_in_order and entry.instance.is_movement]
            if not shuffled or len(matched) < len(taken):
                continue
            digests = {match.node.digest.in_any_order for _, match in matched}
            for user in users[matched[0][1].node.number]:
                inputs = [entry for entry in user.inputs if not is_filled(entry)]
                is_alike = user.opcode == node.instance.opcode and user.device == node.device
                if is_alike and {entry.digest.in_any_order for entry in inputs} == digests:
                    theirs = user.results[0]
                    if theirs.number in state.matched or theirs.digest.count != node.digest.count:
                        continue
                    reason = f"%{node.instance.instruction.name} takes its elements in another order than before does"
                    raw, wrong = state.raw[shuffled[0].number], self._between(state, self._wrong(state))
                    return [Blamed(shuffled[0], None, None, raw, None, wrong, reason, is_certain=False)]
        return []

    def _wrong(self, state: State, is_explained: bool = False) -> list[NodePair]:
        """The results that differ: those that rounding cannot explain in the runs as they were, or if there are none,
        and nothing is to blame yet, those of the replay."""
        pairs = [NodePair(*entry) for entry in self._replay.wrong_outputs(state, self.different)]
        certain = [pair for pair in pairs if pair.numbers in self.different]
        return certain or ([] if is_explained and self.different else pairs)

    def _blamed(self, state: State, suspect: Suspect, patch: Patch | None, wrong: Sequence[NodePair]) -> Blamed:
        node, compared = suspect.pair.ours, suspect.trial or suspect.pair
        raw = state.raw[node.number]
        value, allowed = None, None
        if patch is not None and patch.pair.ours is node:
            value, allowed = patch.value, self._allowed(state, node, patch.pair.theirs)
        is_certain, is_beyond = suspect.is_certain, True
        if patch is not None and not self.different:
            is_beyond = self._is_beyond_rounding(state, patch, wrong)
        elif patch is not None and is_certain:
            # What its operands lost in rounding is no fault of it.
            is_certain = self._is_explained(state, patch.pair, patch.value, 1.0, LIMITS.steps_ahead) is not True
        between = self._between(state, wrong)
        return Blamed(
            node,
            compared.theirs if compared.ours is node else None,
            value,
            raw,
            allowed,
            between,
            suspect.reason,
            suspect.place,
            is_certain,
            suspect.is_proven,
            suspect.region,
            suspect.is_more_precise,
            is_beyond,
            suspect.trial,
            suspect.is_rounding,
            suspect.is_repair,
            patch is not None and Relations(self._replay, state).has_right_operands(patch.pair),
        )

    def _is_beyond_rounding(self, state: State, patch: Patch, wrong: Sequence[NodePair]) -> bool:
        """Whether rounding explains neither a value that was put right nor a result that came right with it, by far.

        The value alone says little: where both modules divide by a sum of exponentials, these may be of other numbers.
        """

        def is_explained(pair: NodePair, value: Array) -> bool | None:
            return self._is_explained(state, pair, value, LIMITS.proof, LIMITS.chain_steps)

        if is_explained(patch.pair, patch.value) is not False:
            return False
        # Of a result so far behind that its bound says nothing, the value alone says what there is to say.
        results = [pair for pair in wrong if patch.after.changed[pair.ours.number]]
        return any(is_explained(pair, pair.theirs.value) is not True for pair in results)

    def _is_explained(self, state: State, pair: NodePair, expected: Array, times: float, most: int) -> bool | None:
        """Whether a value is at most so many times as far off what is expected as rounding may put it; None where it
        takes more than so many steps to say, or a bound that says nothing."""
        raw, value = wide(state.raw[pair.ours.number]), wide(expected)
        allowed = self._replay.allowed_from_common(state, pair.ours, pair.theirs, expected, most)
        if allowed is None or not value.shape == allowed.shape == raw.shape:
            return False
        if np.isinf(allowed).all() or not says_much(allowed, value):
            return None
        with np.errstate(all="ignore"):
            is_same = (raw == value) | (np.isnan(raw) & np.isnan(value))
            return bool((is_same | (np.abs(raw - value) <= times * allowed)).all())

    def _allowed(self, state: State, node: Node, theirs: Node) -> Array | None:
        return list(self._replay.allowed(state, node, theirs))[-1]

    def _between(self, state: State, wrong: Sequence[NodePair]) -> frozenset[int]:
        """The nodes on the way to wrong results that `before` does not have."""
        stack = [pair.ours for pair in wrong]
        seen = {node.number for node in stack}
        while stack:
            for entry in stack.pop().instance.inputs:
                if entry.number not in seen and not state.has(entry):
                    seen.add(entry.number)
                    stack.append(entry)
        return frozenset(seen)
