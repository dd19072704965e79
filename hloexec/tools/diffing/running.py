"""`diff`: run two modules on the same inputs, and find the instruction that makes their results differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.dataflow.open_values import open_values
from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison
from hloexec.analysis.numerics.comparison import Verdict as Outcome
from hloexec.analysis.numerics.measuring import same_bits
from hloexec.analysis.numerics.sampling.decided import settled
from hloexec.analysis.numerics.sampling.runs import Sampled, sampled_in_stages
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.core.arguments import (
    listed,
    require_integer,
    require_module,
    require_number,
)
from hloexec.core.ir import Module, flat_arrays
from hloexec.core.structs import define, frozen
from hloexec.core.system_memory import memory_limit_bytes
from hloexec.core.values import Array, Inputs, Value, arrays_of
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import Topology, topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.observers import Observer, Stages
from hloexec.engine.exec.running import run_with
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools.diffing.agreement import is_near
from hloexec.tools.diffing.bounds import Bounds, PathBounds
from hloexec.tools.diffing.chains import InstructionChains
from hloexec.tools.diffing.control import ControlRecorder, Decisions
from hloexec.tools.diffing.correspondence import Correspondence, correspondence_of, unseen_exchanges
from hloexec.tools.diffing.findings import Diff, Verdict
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.blaming import Blame, Blamed
from hloexec.tools.diffing.matching import Index
from hloexec.tools.diffing.partitioned.collectives import with_exchanges
from hloexec.tools.diffing.partitioned.correspondence import Partitioning, partitioning_of
from hloexec.tools.diffing.partitioned.pairing import TiledIndex
from hloexec.tools.diffing.partitioned.tiles import TileEvaluator, Tiles
from hloexec.tools.diffing.recording.arrays import Arrays
from hloexec.tools.diffing.recording.pairs import Pairs
from hloexec.tools.diffing.recording.recorder import GraphRecorder
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.replaying.replay import Replay
from hloexec.tools.diffing.replaying.states import State
from hloexec.tools.diffing.replaying.ties import Decided, explained_by_ties, ties_of
from hloexec.tools.diffing.searching import Search, search
from hloexec.tools.diffing.texts.blaming import blamed_by_texts, notes_on_texts
from hloexec.tools.diffing.texts.changes import text_changes
from hloexec.tools.diffing.work import BYTES, Work

_PICTURE_ORDER = "█▓·?×"
_PICTURE_WIDTH = 100


@frozen(eq=False)
class _Side:
    """One of the modules, and how it runs."""

    module: Module
    inputs: list[list[Value]]
    topology: Topology
    policy: NumericsPolicy

    def options(self, common: Options) -> Options:
        """Those of its runs, of which these are the same for both sides."""
        return attrs.evolve(common.on(self.topology), numerics=self.policy)


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
        for found in self._further:
            self.latest = found
            self._count += 1
            yield found


@frozen(eq=False)
class _Pair:
    """What any run of `after` is compared with, and by what."""

    sides: Sequence[_Side]
    theirs: Graph
    pairing: Correspondence
    evaluators: Sequence[Evaluator]
    tiles: Tiles | None
    samples: _Samples
    work: Work
    stages: Stages

    def replayed(self, graph: Graph, decisions: Decisions) -> _Run:
        """A run, from what was recorded of it."""
        comparison = self.compared(_arrays(graph))
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


def diff(
    before: Module,
    after: Module,
    inputs: Inputs | None = None,
    *,
    replicas: int | None = None,
    partitions: int | None = None,
    numerics: str | NumericsPolicy | tuple[str | NumericsPolicy, str | NumericsPolicy] = "reference",
    seed: int = 0,
    elided: str | Mapping[str, Any] = "zeros",
    unknown: str = "error",
    memory_limit: int | str | None = None,
    max_iterations: int | None = None,
    timeout: float | None = None,
    verify: bool = True,
    planner: bool = True,
    observers: Sequence[Observer] = (),
    top: int = 20,
    runs: int | None = LIMITS.runs,
    budget: float | None = None,
) -> Diff:
    """Run two modules on the same inputs, and find the instruction that makes their results differ.

    `inputs` are those of `before`, as for `run_devices` (see `hloexec.Inputs`); None generates them from `seed`. Both
    modules must have the same arrays as parameters and as results. Tuples may be nested differently, and results with
    distinct shapes may be in another order. Or `after` is what SPMD partitioning made of `before`, whose shardings say
    how arrays are divided.

    Instructions are matched by their values, not by their names, through fusions, loops and layouts. The verdict is
    `agree` if the results have the same bits. It is `rounding only` if they are no further apart than the spread of
    `before` in 6 to 64 runs with random rounding, and within the bounds on rounding of their elements since values that
    both modules have; an instruction that is wrong by more, but whose effect is gone by then, is not reported.
    Otherwise it is `differ`, and `findings` has at most `top` instructions whose operands are right but whose results
    are not, in data-flow order. If every instruction is within its own rounding bound but the results are not, the
    instruction closest to its bound is reported, as uncertain. A rounding that `after` leaves out is only a note if the
    results are within their tolerance.

    `numerics` is the policy of both, or a pair. All values of both runs are kept, in at most `memory_limit` bytes (by
    default 80 % of the free memory). The other options are those of `run_devices`, for both modules; `max_iterations`
    and `timeout` apply to each of the two runs.

    The search for what is to blame ends after the work of `runs` runs of an instruction (of large arrays, a run counts
    as several; None: never), or at Ctrl-C; the result is then the best that was found, and a note says so. As work is
    counted, the result is the same on every machine, unless `budget` ends the search after so many seconds. Observers
    that also have a method `on_stage(stage)` are told which stage has begun, and how far it is.

    Raises InputError if parameters or results do not correspond, ResourceError if the values take more than the limit,
    and whatever `run_devices` raises.
    """
    _require_arguments(before, after, top, runs, budget)
    policies, watchers = _policies(numerics), listed("observers", observers, "observers")
    given = Options(None, policies[0], seed, elided, unknown, memory_limit, max_iterations, timeout, verify, planner)
    pairing, topologies = _paired(before, after, replicas, partitions)
    values = [random_inputs(before, given.seed)] if inputs is None else inputs_by_device(before.entry, inputs)
    device_arguments(before.entry, values, topologies[0].count)  # so that what is wrong with them is said of `before`
    once = attrs.evolve(given, planner=given.planner and _has_large_loops((before, after)))
    # Of a module that has run, or of parts of it.
    again = attrs.evolve(once, memory_limit=None, max_iterations=None, timeout=None, verify=False)
    room = memory_limit_bytes(given.memory_limit)
    sides = list(map(_Side, (before, after), (values, pairing.inputs_by_device(values)), topologies, policies))
    stages = Stages(watchers)
    record = partial(_recorded, Arrays(), room, watchers, once, again, stages)
    (theirs, their_decisions), (ours, our_decisions) = record("before", sides[0]), record("after", sides[1])
    theirs.outputs = {device: pairing.ordered(nodes) for device, nodes in theirs.outputs.items()}
    work = Work(runs, budget, stages.tick)
    evaluators = _evaluators(sides, attrs.evolve(again, memory_limit=room), work)
    tiles = pairing.tiled(ours, theirs, evaluators[0]) if isinstance(pairing, Partitioning) else None
    is_equal = _is_equal(ours, theirs)
    sampled = partial(iter, ()) if is_equal else partial(_sampled, sides[0], once, stages)
    pair = _Pair(sides, theirs, pairing, evaluators, tiles, _Samples(sampled), work, stages)
    work.begin()
    run, decided = pair.decided(pair.replayed(ours, our_decisions), partial(record, "after", sides[1]))
    runner = _runner(pair, (their_decisions, run.decisions), given, decided)
    # Where results are parts of `before`'s, what hands values on is not changed.
    judge = partial(_comes_right, pair, runner) if tiles is None else None
    blame = Blame(run.replay, (run.decisions, their_decisions), _different(run, theirs, pairing), work, judge)
    changes = text_changes(before, after) if tiles is None and _are_alike(*policies) else []
    known = blamed_by_texts(changes, run.graph, theirs)
    searched = search(run.replay, run.state, blame, run.comparison, top, stages, known)
    found = with_exchanges(searched, run.replay, blame.different, partial(_is_rounded, pair, run, runner))
    is_different = found.findings or not run.comparison.agrees
    verdict: Verdict = "agree" if is_equal else "differ" if is_different else "rounding only"
    hidden = [] if is_different or tiles is not None else unseen_exchanges((before, after), topologies[1], values)
    said = notes_on_texts(changes, found.findings, (after, before))
    notes = (*pairing.notes, *decided.notes, *found.notes, *said, *hidden)
    part = found.extracted((before, after), policies, topologies[1])
    end = Diff(before, after, verdict, found.findings, run.comparison, *_matched(run.graph, theirs, found), notes, part)
    return _unless_left_open(end, run.graph, pair, values) if is_different and tiles is None else end


def _require_arguments(before: object, after: object, top: object, runs: object, budget: object) -> None:
    require_module(before, "before")
    require_module(after, "after")
    require_integer("top", top, 1)
    if runs is not None:
        require_integer("runs", runs, 1)
    if budget is not None:
        require_number("budget", budget)


def _has_large_loops(modules: Sequence[Module]) -> bool:
    """Whether modules that run once, each value being kept, are optimized: that takes longer than it saves, unless they
    have loops, and values so large that to compute one again in each iteration takes long."""
    instructions = [each for module in modules for computation in module for each in computation]
    is_large = any(leaf.byte_size >= LIMITS.large for each in instructions for leaf in flat_arrays(each.shape))
    return is_large and any(role_of(each) is Role.WHILE for each in instructions)


def _are_alike(before: NumericsPolicy, after: NumericsPolicy) -> bool:
    """Whether both modules compute the same wherever their texts say the same, whatever instructions are called."""
    return before == after and not before.overrides and before.rounding_seed is None


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
    actual, expected = runner(module), _arrays(pair.theirs)
    are_near = actual is not None and all(
        is_near(array, value)
        for arrays, values in zip(actual, expected, strict=True)
        for array, value in zip(arrays, values, strict=True)
    )
    return are_near and _compared(actual or [], expected, pair.pairing, pair.sides[0].policy, None).agrees


def _is_rounded(pair: _Pair, run: _Run, runner: Callable[[Module], list[list[Array]] | None], module: Module) -> bool:
    """Whether a module, run in place of `after`, gives results that rounding explains, where those of `after` are not
    such."""
    if run.comparison.agrees or pair.work.is_over():
        return False
    actual = runner(module)
    return actual is not None and pair.compared(actual).agrees


def _paired(
    before: Module, after: Module, replicas: int | None, partitions: int | None
) -> tuple[Correspondence, list[Topology]]:
    """The correspondence of two modules, and the devices that each runs on: what has yet to be partitioned runs on as
    many as what has been."""
    topologies = [topology_of(module, replicas, partitions) for module in (before, after)]
    partitioning = partitioning_of(before, after, topologies)
    if partitioning is not None:
        return partitioning, [topologies[1]] * 2
    return correspondence_of(before, after, topologies), topologies


def _policies(numerics: object) -> tuple[NumericsPolicy, NumericsPolicy]:
    """Those of both sides."""
    policies = numerics if isinstance(numerics, (tuple, list)) else (numerics, numerics)
    if len(policies) != 2:
        raise InputError(
            f"{argument('numerics')} must be one policy or two, for before and after, but there are {len(policies)}"
        )
    return numerics_policy(policies[0]), numerics_policy(policies[1])


def _recorded(
    arrays: Arrays,
    room: int | None,
    watchers: Sequence[Observer],
    options: Options,
    alone: Options,
    stages: Stages,
    name: str,
    side: _Side,
    *controllers: Observer,
) -> tuple[Graph, Decisions]:
    """What a side computes, in `room` bytes together with what else is in `arrays`, and which way it goes."""
    stages.begin(f"recording {name}")
    recorder = GraphRecorder(side.module, arrays, room)
    controls = ControlRecorder(side.module, recorder.held)
    observers = [*controllers, recorder, controls, *watchers]
    found = run_with(side.module, side.inputs, side.options(options), observers)
    graph = recorder.finish(found)
    return graph, Decisions(controls, side.module, graph, attrs.evolve(alone, numerics=side.policy))


def _sampled(before: _Side, options: Options, stages: Stages) -> Iterator[Sampled]:
    """What rounding does to the results of `before`, by more and more runs."""
    stages.begin("measuring what rounding does to before")
    unlimited = attrs.evolve(before.options(options), max_iterations=None, timeout=None, verify=False)
    return sampled_in_stages(before.module, before.inputs, before.policy, options=unlimited)


def _evaluators(sides: Sequence[_Side], options: Options, work: Work) -> list[Evaluator]:
    return [TileEvaluator(side.module, side.topology, side.options(options), work) for side in sides]


def _replay(
    sides: Sequence[_Side], graphs: Sequence[Graph], evaluators: Sequence[Evaluator], tiles: Tiles | None
) -> Replay:
    """The replay of `after` on the values of `before`, and on tiles of them."""
    chains = [InstructionChains(side.module, side.policy) for side in sides]
    bounds = [Bounds(*entries) for entries in zip(graphs, evaluators, chains, strict=True)]
    known = graphs[0], chains[0], PathBounds(graphs[0], bounds[0])
    index = Index(*known) if tiles is None else TiledIndex(tiles, evaluators[1], graphs[1].nodes, *known)
    return Replay(graphs[1], index, evaluators[1], chains[1], bounds[1])


def _is_equal(ours: Graph, theirs: Graph) -> bool:
    """Whether the results are the same bits."""
    return all(
        bool(same_bits(one.value, other.value).all())
        for device in ours.outputs
        for one, other in zip(ours.outputs[device], theirs.outputs[device], strict=True)
    )


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
    return _compared(actual, _arrays(theirs), pairing, policy, spreads)


def _arrays(graph: Graph) -> list[list[Array]]:
    """The arrays of the results of each device."""
    return [[node.value for node in graph.outputs[device]] for device in sorted(graph.outputs)]


def _compared(
    ours: Sequence[Sequence[Array]],
    theirs: Sequence[Sequence[Array]],
    pairing: Correspondence,
    policy: NumericsPolicy,
    spreads: dict[str, Spread] | None,
) -> Comparison:
    """The results of each device, in the order of `after`'s, compared."""
    actual, expected = (tuple(map(pairing.result, side)) for side in (ours, theirs))
    if len(actual) == 1:
        return compare(
            actual[0], expected[0], module=pairing.before, numerics=policy, spreads=spreads, same_choices=True
        )
    # The module itself may be silent about how many devices there are.
    module = attrs.evolve(pairing.before, replica_count=len(actual), num_partitions=1)
    return compare(actual, expected, module=module, numerics=policy, spreads=spreads, same_choices=True)


def _unless_left_open(found: Diff, ours: Graph, pair: _Pair, values: Any) -> Diff:
    """What was found, or *not decided* where the results differ only in what `before` leaves open. Constants that it
    elides are the same on both sides."""
    pairing, module = pair.pairing, pair.pairing.before
    names = {instruction.name for computation in module for instruction in computation}
    if not open_values(module, names):
        return found
    actual, expected = (tuple(map(pairing.result, _arrays(side))) for side in (ours, pair.theirs))
    if len(actual) > 1:
        module = attrs.evolve(module, replica_count=len(actual), num_partitions=1)
    sides = (actual, expected) if len(actual) > 1 else (actual[0], expected[0])
    outputs = compare(*sides, module=module, inputs=values, elided=None, spreads=pair.samples.latest.spreads)
    if outputs.verdict is not Outcome.NOT_DECIDED:
        return found
    said = (f"{leaf.label}: {leaf.undecided_text}" for leaf in outputs.not_decided)
    notes = (*found.notes, *said)
    return attrs.evolve(found, verdict="not decided", findings=(), outputs=outputs, notes=notes, extracted=None)


def _matched(ours: Graph, theirs: Graph, found: Search) -> tuple[Pairs, int, int, str]:
    """Which values match, of how many that say something how many do, and a picture of them."""
    counted = [node.number for node in ours.nodes if _tells_something(node)]
    matched = sum(map(found.state.matches.is_any, counted))
    picture = _picture(ours, counted, found.state, found.blamed)
    return _pairs(ours, theirs, found.state), len(counted), matched, picture


def _pairs(ours: Graph, theirs: Graph, state: State) -> Pairs:
    rows = ((number, match.node.number, match.is_exact, match.is_in_order) for number, match in state.matches.found())
    return Pairs(ours.columns, theirs.columns, np.fromiter(rows, np.dtype((np.int32, 4))))


def _tells_something(node: Node) -> bool:
    """Whether it is not a source, a copy or a repetition, nor one number often."""
    instance = node.instance
    traits = traits_of(instance.instruction)
    before = instance.inputs[0].shape if instance.inputs else None
    is_same = traits.keeps_order and not traits.converts and node.shape == before
    is_shown = traits.moves == (0,) and bool(traits.aliases or is_same)
    is_repeated = traits.repeats and len(instance.operands) == 1
    is_known = instance.is_source or is_shown or is_repeated
    return not is_known and not node.digest.is_uniform and node.digest.count > 1


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
    if len(characters) <= _PICTURE_WIDTH:
        return "".join(characters)
    edges = [len(characters) * place // _PICTURE_WIDTH for place in range(_PICTURE_WIDTH + 1)]
    return "".join(max(characters[start:stop], key=_PICTURE_ORDER.index) for start, stop in pairwise(edges))
