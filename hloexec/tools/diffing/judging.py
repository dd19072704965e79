"""What a diff does with two runs whose results differ: it compares, replays and searches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.analysis.dataflow.dependences import open_values
from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, verdict_of
from hloexec.analysis.numerics.comparison import Verdict as Outcome
from hloexec.analysis.numerics.measuring import measure, same_bits
from hloexec.analysis.numerics.sampling.decided import settled
from hloexec.analysis.numerics.sampling.runs import Sampled, sampled_in_stages
from hloexec.analysis.numerics.tolerances import Tolerance
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, arrays_of
from hloexec.core.wording import counted
from hloexec.engine.devices.topology import Topology
from hloexec.engine.exec.observers import Observer, Stages
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.diffing.bounds import Bounds, InstructionChains, PathBounds
from hloexec.tools.diffing.control import ControlRecorder, Decisions
from hloexec.tools.diffing.correspondence import (
    Correspondence,
    Pairs,
    compared,
    drawn,
    have_same_bits,
    result_arrays,
    tells_something,
    unseen_exchanges,
)
from hloexec.tools.diffing.extracting import Extractor, region_graph
from hloexec.tools.diffing.findings import NOT_REPLAYED, Diff, ExtractedPair, Finding, Verdict
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import BYTES, LIMITS, Work
from hloexec.tools.diffing.localization.blaming import Blame, Blamed
from hloexec.tools.diffing.localization.relations import lost_roundings, roundings_taken_back
from hloexec.tools.diffing.matching import LOCAL, Index, is_near
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.replaying.replay import Replay, State, match_through_rounding
from hloexec.tools.diffing.replaying.rerun import Decided, explained_by_ties, ties_of
from hloexec.tools.diffing.running import Recording, Side
from hloexec.tools.diffing.texts import TextChange, notes_on_texts

if TYPE_CHECKING:
    from hloexec.tools.diffing.partitioned.tiles import Tiles

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
        notes.append(NOT_REPLAYED)
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
    roundings = list(roundings_taken_back(replay, blame.without_roundings))
    if not roundings:
        return []
    left = "nothing else differs" if blame.is_rounding_all else "the results still differ"
    notes = [f"without {counted(len(roundings), 'rounding')} to fewer bits, which before does not have, {left}"]
    return notes + _listed(roundings, "values are rounded to fewer bits than before has")


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
    findings = list(lost_roundings(replay, state)) or [(entry.node, entry.reason) for entry in blamed]
    return _listed(findings, "values are not rounded as before rounds them", "; the results do not show it")


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


def _with_origin(finding: Finding, after: Module, theirs: Graph) -> Finding:
    """A finding for which no value of `before` was found, with what the text says that it was made of."""
    origin = finding.after.of(after).original_value
    if finding.before is not None or origin is None or len(names := {*origin.names}) != 1:
        return finding
    (name,) = names
    homes = [computation.name for computation in theirs.module if name in computation.by_name]
    runs = theirs.runs[homes[0], name] if len(homes) == 1 else []
    places = [node.place for instance in runs for node in instance.results]
    # Of a loop, the one in the same iteration; where that runs otherwise, or on fewer devices, the first.
    alike = (place for place in places if (place.path, place.device) == (finding.after.path, finding.after.device))
    before = next(alike, places[0] if places else None)
    reasons = filter(None, (finding.reason, f"by its origin, it stands for %{name} of the module before"))
    return finding if before is None else attrs.evolve(finding, before=before, reason="; ".join(reasons))


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


def _is_equal(node: Node, other: Node) -> bool:
    if (node.shape, node.dtype) != (other.shape, other.dtype):
        return False
    return bool(same_bits(node.value, other.value).all())


@frozen(eq=False)
class _Run:
    """A run of `after`, compared with `before` and replayed on its values."""

    graph: Graph
    decisions: Decisions
    comparison: Comparison
    replay: Replay
    state: State
    """That of the replay without overrides."""


@define(eq=False)
class _Samples:
    """What rounding does to the results of `before`, by more and more runs; they take place when they are asked for."""

    _begin: Callable[[], Iterator[Sampled]]
    _further: Iterator[Sampled] = iter(())
    _count: int = 0
    latest: Sampled = attrs.field(factory=Sampled)
    """What as many runs as were taken last have shown."""

    def stages(self) -> Iterator[Sampled]:
        """The stages from the first on. It is known if no other has been taken, with which its means change."""
        if self._count == 1:
            yield self.latest
        else:
            self._further, self._count = self._begin(), 0
        for stage in self._further:
            self.latest = stage
            self._count += 1
            yield stage


@frozen(eq=False)
class _Pair:
    """What any run of `after` is compared with, and by what."""

    sides: Sequence[Side]
    theirs: Graph
    pairing: Correspondence
    evaluators: Sequence[Evaluator]
    tiles: Tiles | None
    samples: _Samples
    work: Work
    stages: Stages

    def replayed(self, graph: Graph, decisions: Decisions) -> _Run:
        """A run, from what was recorded of it."""
        comparison = self.compared(result_arrays(graph))
        replay = _replay(self.sides, (self.theirs, graph), self.evaluators, self.tiles)
        self.stages.begin("replay", len(graph.instances))
        return _Run(graph, decisions, comparison, replay, replay.start(self.work.is_over))

    def compared(self, actual: Sequence[Sequence[Array]]) -> Comparison:
        """The results of each device, compared with what rounding does to those of `before`."""
        judge = partial(_outputs, actual, self.theirs, self.pairing, self.sides[0].policy, self.tiles)
        return settled(self.samples.stages(), judge)

    def decided(self, run: _Run, again: Callable[[Decided], tuple[Graph, Decisions]]) -> tuple[_Run, Decided]:
        """A run, repeated with decisions of `before` where rounding lets them go either way, and which these are; the
        run itself where there are none."""
        decided, as_it_ran = Decided(), run.comparison
        try:
            for _ in range(LIMITS.tie_runs if self.sides[1].policy.rounds_every_value else 0):
                is_open = run.replay.is_complete and not run.comparison.agrees
                further = decided.with_further(ties_of(run.replay, run.state)) if is_open else None
                if further is None:
                    break
                repeated = self.replayed(*again(further))
                comparison = explained_by_ties(as_it_ran, repeated.comparison)
                run, decided = attrs.evolve(repeated, comparison=comparison), further
        except KeyboardInterrupt:
            run.replay.was_interrupted = True
        return run, decided


def judged(
    sides: Sequence[Side],
    recordings: Sequence[Recording],
    pairing: Correspondence,
    changes: Sequence[TextChange],
    record: Callable[..., Recording],
    ways: tuple[Options, Options],
    top: int,
    work: Work,
    stages: Stages,
) -> Diff:
    """What is wrong with the results of two runs, and what that comes from. `record` records `after` with what observes
    it; `changes` are those of the texts; `ways` are the options that were given, and those of runs whose values are all
    kept."""
    given, once = ways
    # Of a module that has run, or of parts of it.
    again = attrs.evolve(once, memory_limit=None, max_iterations=None, timeout=None, verify=False)
    (before, after), values = [side.module for side in sides], sides[0].inputs
    theirs, ours = (recording.graph for recording in recordings)
    options = attrs.evolve(again, memory_limit=given.memory_limit)
    evaluators = [Evaluator(side.module, side.topology, side.options(options), work) for side in sides]
    tiles = pairing.tiled(ours, theirs, evaluators[0])
    is_equal = have_same_bits(ours, theirs)

    def decisions(side: Side, recording: Recording) -> Decisions:
        kept = recording.controls or ControlRecorder(side.module, lambda *_: ())
        return Decisions(kept, side.module, recording.graph, attrs.evolve(again, numerics=side.policy))

    def repeated(decided: Decided) -> tuple[Graph, Decisions]:
        found = record(sides[1], decided)
        return found.graph, decisions(sides[1], found)

    sampled = partial(iter, ()) if is_equal else partial(_sampled, sides[0], once, stages)
    pair = _Pair(sides, theirs, pairing, evaluators, tiles, _Samples(sampled), work, stages)
    work.begin()
    their_decisions, our_decisions = map(decisions, sides, recordings)
    run, decided = pair.decided(pair.replayed(ours, our_decisions), repeated)
    runner = _runner(pair, (their_decisions, run.decisions), given, decided)
    # Where results are parts of `before`'s, what hands values on is not changed.
    judge = partial(_comes_right, pair, runner) if tiles is None else None
    blame = Blame(run.replay, (run.decisions, their_decisions), _different(run, theirs, pairing), work, judge)
    known = blamed_by_texts(changes, run.graph, theirs)
    searched = search(run.replay, run.state, blame, run.comparison, top, stages, known)
    found = searched
    if len(run.graph.outputs) > 1:
        from hloexec.tools.diffing.partitioned.collectives import with_exchanges
        from hloexec.tools.diffing.partitioned.parts import without_other_parts

        searched = searched if tiles is None or len(searched.findings) < 2 else without_other_parts(searched, tiles)
        found = with_exchanges(searched, run.replay, tiles, blame.different, partial(_is_rounded, pair, run, runner))
    is_different = found.findings or not run.comparison.agrees
    verdict: Verdict = "agree" if is_equal else "differ" if is_different else "rounding only"
    hidden = [] if is_different or tiles is not None else unseen_exchanges((before, after), sides[1].topology, values)
    said = notes_on_texts(changes, found.findings, (after, before))
    notes = (*pairing.notes, *decided.notes, *found.notes, *said, *hidden)
    part = found.extracted((before, after), (sides[0].policy, sides[1].policy), sides[1].topology)
    findings = tuple(_with_origin(finding, after, theirs) for finding in found.findings)
    end = Diff(before, after, verdict, findings, run.comparison, *_matched(run.graph, theirs, found), notes, part)
    return _unless_left_open(end, run.graph, pair, values) if is_different and tiles is None else end


def _runner(
    pair: _Pair, decisions: Sequence[Decisions], options: Options, decided: Decided
) -> Callable[[Module], list[list[Array]] | None]:
    """What runs a module in place of `after`, and gives the results of each device; None where it fails. Its loops may
    never end."""
    most = LIMITS.more_iterations * (1 + max(entry.most_iterations for entry in decisions))
    # It runs once: optimizing it takes longer than what that saves, unless its loops go round often.
    runs_often = len(pair.theirs.instances) >= LIMITS.runs_unplanned * pair.sides[1].module.instruction_count
    limited = attrs.evolve(
        options,
        verify=False,
        max_iterations=min(most, options.max_iterations or most),
        planner=options.planner and runs_often,
    )
    return partial(_results, pair, limited, [decided] if decided.notes else ())


def _results(pair: _Pair, options: Options, observers: Sequence[Observer], module: Module) -> list[list[Array]] | None:
    # It does about what `before` does.
    pair.work.add(len(pair.theirs.instances) + pair.theirs.arrays.byte_size / BYTES)
    side = pair.sides[1]
    try:
        return list(map(arrays_of, run_with(module, side.inputs, side.options(options), observers)))
    except HloError:
        return None


def _comes_right(pair: _Pair, runner: Callable[[Module], list[list[Array]] | None], module: Module) -> bool:
    """Whether a module, run in place of `after`, gives the results of `before`."""
    actual, expected = runner(module), result_arrays(pair.theirs)
    are_near = actual is not None and all(
        is_near(array, value)
        for arrays, values in zip(actual, expected, strict=True)
        for array, value in zip(arrays, values, strict=True)
    )
    return are_near and compared(actual or [], expected, pair.pairing, pair.sides[0].policy, None).agrees


def _is_rounded(pair: _Pair, run: _Run, runner: Callable[[Module], list[list[Array]] | None], module: Module) -> bool:
    """Whether a module, run in place of `after`, gives results that rounding explains, where those of `after` are not
    such."""
    if run.comparison.agrees or pair.work.is_over():
        return False
    actual = runner(module)
    return actual is not None and pair.compared(actual).agrees


def _sampled(before: Side, options: Options, stages: Stages) -> Iterator[Sampled]:
    """What rounding does to the results of `before`, by more and more runs."""
    stages.begin("measuring what rounding does to before")
    unlimited = attrs.evolve(before.options(options), max_iterations=None, timeout=None, verify=False)
    return sampled_in_stages(before.module, before.inputs, before.policy, options=unlimited)


def _replay(
    sides: Sequence[Side], graphs: Sequence[Graph], evaluators: Sequence[Evaluator], tiles: Tiles | None
) -> Replay:
    """The replay of `after` on the values of `before`, and on tiles of them."""
    chains = [InstructionChains(side.module, side.policy) for side in sides]
    bounds = [Bounds(*entries) for entries in zip(graphs, evaluators, chains, strict=True)]
    parts = graphs[0], chains[0], PathBounds(graphs[0], bounds[0])
    if tiles is None:
        return Replay(graphs[1], Index(*parts), evaluators[1], chains[1], bounds[1])
    from hloexec.tools.diffing.partitioned.pairing import TiledIndex

    index = TiledIndex(tiles, evaluators[1], graphs[1].nodes, *parts)
    return Replay(graphs[1], index, evaluators[1], chains[1], bounds[1])


def _different(run: _Run, theirs: Graph, pairing: Correspondence) -> frozenset[tuple[int, int]]:
    """The numbers of the nodes that are results which rounding does not explain."""
    ours, count = run.graph, len(pairing.result_order)
    return frozenset(
        (one.number, other.number)
        for row, device in enumerate(sorted(ours.outputs))
        for place, one, other in zip(pairing.result_order, ours.outputs[device], theirs.outputs[device], strict=True)
        if run.comparison.leaves[row * count + place].verdict is Outcome.DIFFERENT
    )


def _outputs(
    actual: Sequence[Sequence[Array]],
    theirs: Graph,
    pairing: Correspondence,
    policy: NumericsPolicy,
    tiles: Tiles | None,
    runs: Sampled,
) -> Comparison:
    """The results, nested as `before` has them, compared with what rounding does to those of `before`, or to tiles of
    them."""
    spreads = runs.spreads if tiles is None else tiles.spreads_of(runs.spreads)
    return compared(actual, result_arrays(theirs), pairing, policy, spreads)


def _unless_left_open(result: Diff, ours: Graph, pair: _Pair, values: Any) -> Diff:
    """What was found, or *not decided* where the results differ only in what `before` leaves open. Constants that it
    elides are the same on both sides."""
    pairing, module = pair.pairing, pair.pairing.before
    names = {instruction.name for computation in module for instruction in computation}
    if not open_values(module, names):
        return result
    actual, expected = (tuple(map(pairing.result, result_arrays(side))) for side in (ours, pair.theirs))
    if len(actual) > 1:
        module = attrs.evolve(module, replica_count=len(actual), num_partitions=1)
    sides = (actual, expected) if len(actual) > 1 else (actual[0], expected[0])
    outputs = compare(*sides, module=module, inputs=values, elided=None, spreads=pair.samples.latest.spreads)
    if outputs.verdict is not Outcome.NOT_DECIDED:
        return result
    said = (f"{leaf.label}: {leaf.undecided_text}" for leaf in outputs.not_decided)
    notes = (*result.notes, *said)
    return attrs.evolve(result, verdict="not decided", findings=(), outputs=outputs, notes=notes, extracted=None)


def _matched(ours: Graph, theirs: Graph, search: Search) -> tuple[Pairs, int, int, str]:
    """Which values match, of how many that say something how many do, and a picture of them."""
    counted = [node.number for node in ours.nodes if tells_something(node)]
    matched = sum(map(search.state.matches.is_any, counted))
    picture = _picture(ours, counted, search.state, search.blamed)
    return _pairs(ours, theirs, search.state), len(counted), matched, picture


def _pairs(ours: Graph, theirs: Graph, state: State) -> Pairs:
    rows = ((number, match.node.number, match.is_exact, match.is_in_order) for number, match in state.matches.found())
    return Pairs(ours.columns, theirs.columns, np.fromiter(rows, np.dtype((np.int32, 4))))


def _picture(graph: Graph, nodes: Sequence[int], state: State, blamed: Sequence[Blamed]) -> str:
    """A character per node, or for the worst of several where there are more than fit."""
    guilty = {entry.node.instance.static for entry in blamed}
    wrong = {number for entry in blamed for number in entry.wrong}
    characters = []
    for number in nodes:
        match = state.matches[number]
        if graph.instance_of(number).static in guilty:
            characters.append("×")
        elif match is not None:
            characters.append("█" if match.is_exact else "▓")
        else:
            characters.append("?" if number in wrong else "·")
    return drawn(characters)
