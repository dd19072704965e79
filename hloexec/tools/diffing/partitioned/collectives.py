"""What devices exchange otherwise than they should: parts of a sum that nothing adds up, as an all-reduce was left out,
other exchanges that are missing, and collectives between the wrong devices.

All results have to come right once the module is changed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, product, zip_longest
from typing import TYPE_CHECKING

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Module, TupleShape
from hloexec.core.ir.editing import (
    change_computations,
    rename_operands,
    replace_computation,
    take_name,
)
from hloexec.core.values import Array
from hloexec.core.wording import listing
from hloexec.language.origins import source_text
from hloexec.language.text.parser import parse
from hloexec.language.verifier import is_well_formed
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import wide
from hloexec.ops.registry import exchanges, traits_of
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.blaming import Blamed
from hloexec.tools.diffing.localization.relations import NodePair, transparent_chain
from hloexec.tools.diffing.matching import comes_near, is_near
from hloexec.tools.diffing.partitioned.constants import integers_right_by_one
from hloexec.tools.diffing.partitioned.numbering import counted_otherwise
from hloexec.tools.diffing.partitioned.pairing import contents_of
from hloexec.tools.diffing.partitioned.parts import giver_of_elements, part_taken_as_sum
from hloexec.tools.diffing.partitioned.routes import LEFT_OUT, Place, home_of, other_exchanges, twins_of
from hloexec.tools.diffing.partitioned.tiles import Tiles
from hloexec.tools.diffing.replaying.replay import Replay, State
from hloexec.tools.diffing.replaying.rerun import Rerun

if TYPE_CHECKING:
    from hloexec.tools.diffing.judging import Search

_TEMPLATE = """HloModule exchange, replica_count={replicas}, num_partitions={partitions}
{adder} {{
  a = {number} parameter(0)
  b = {number} parameter(1)
  ROOT sum = {number} add(a, b)
}}
ENTRY main {{
  value = {shape} parameter(0)
  ROOT {name} = {shape} {what}, channel_id={channel}
}}
"""


def over(groups: Sequence[Sequence[int]]) -> str:
    """Groups of devices, as an attribute."""
    listed = ",".join("{" + ",".join(map(str, group)) + "}" for group in groups)
    return f"replica_groups={{{listed}}}"


def with_exchange(module: Module, place: Place | None, subject: str, *, adds: bool = False) -> Module | None:
    """The module with a collective on what an instruction gives, which all that uses it takes instead; None where there
    can be none. `subject` is it, on `value`, but for the computation of one that `adds` up."""
    if place is None:
        return None
    computation, source = place
    names = {name for member in module for name in (member.name, *member.by_name)}
    shape = source.shape
    if not isinstance(shape, ArrayShape):
        return None
    channel = 1 + max(_channels(module), default=0)
    adder = take_name("adder", names)
    made = parse(
        _TEMPLATE.format(
            replicas=module.replica_count,
            partitions=module.num_partitions,
            adder=adder,
            name=take_name("exchanged", names),
            number=ArrayShape(shape.element_type, ()),
            shape=ArrayShape(shape.element_type, shape.dimensions),
            channel=channel,
            what=f"{subject}, use_global_device_ids=true, to_apply={adder}" if adds else subject,
        )
    )
    added = attrs.evolve(made.entry.root, shape=shape, operands=(source.name,))
    instructions: list[Instruction] = []
    for member in computation:
        instructions.append(rename_operands(member, {source.name: added.name}))
        if member is source:
            instructions.append(added)
    root = added.name if computation.root_name == source.name else computation.root_name
    changed = attrs.evolve(computation, instructions=tuple(instructions), root_name=root)
    sums = [member for member in made if member is not made.entry and adds]
    edited = change_computations(module, (*sums, *replace_computation(module, changed)))
    return edited if is_well_formed(edited) else None


def place_of(module: Module, node: Node) -> Place | None:
    """The instruction that gives a value to others than those of its own fusion."""
    computation, source = home_of(module, node)
    fusions = [
        (outer, instruction)
        for outer in module
        for instruction in outer
        if hasattr(instruction.attributes, "kind") and computation.name in computation_names(instruction.attributes)
    ]
    if not fusions:
        return computation, source
    is_only_one = len(fusions) == 1 and computation.root_name == source.name
    return fusions[0] if is_only_one else None


def _channels(module: Module) -> list[int]:
    channels = (
        getattr(instruction.attributes, "channel_id", None) for computation in module for instruction in computation
    )
    return [channel for channel in channels if channel is not None]


def with_exchanges(
    search: Search,
    replay: Replay,
    tiles: Tiles | None,
    different: Iterable[tuple[int, int]],
    is_right: Callable[[Module], bool],
) -> Search:
    """The same search; if what its first finding gives on several devices adds up to the right value, that is said.

    So it is if all results are right once that, or what it is computed from, is added up; or, where the finding is not
    certain, once results are, or a collective before it exchanges otherwise, or there is another one. `different` has
    the numbers of results that differ; `is_right` runs a module in place of `after`, and says whether its results are
    right.
    """
    ours = replay.graph
    if search.first is None or not search.findings or len(ours.outputs) < 2:
        return search
    (first, *others), blamed = search.findings, search.first
    group = _group(blamed, ours)
    if group and first.is_certain:
        return attrs.evolve(search, findings=(attrs.evolve(first, reason=_reason(group)), *others))
    if first.is_certain and not first.reason:
        return search
    right: dict[int, tuple[Node, Sequence[int]]] = {}
    for node, groups in _candidates(blamed, ours, replay.index.graph):
        edited = None if node.number in right else _with_sum(ours.module, node, groups)
        if edited is not None and is_right(edited):
            right[node.number] = node, _own(node, groups)
    if right:
        # What takes parts in the place of their sum may give parts, too.
        node, own = right[min(right)]
        return _blaming(search, node, _reason(own))
    if first.is_certain:
        return search
    wrong = [NodePair(ours.node(one), replay.index.graph.node(other)) for one, other in sorted(different)]
    added = _adding_results(search, wrong, ours, is_right)
    if added is None and group:
        search = attrs.evolve(search, findings=(attrs.evolve(first, reason=_reason(group)), *others))
    return (
        added
        or _exchanging(search, blamed, replay, is_right)
        or _exchanging_once_more(search, blamed, replay, is_right)
        or _counting_otherwise(search, ours, is_right)
        or (tiles and _taking_part(search, wrong, ours, tiles))
        or _giving_elements(search, blamed, replay)
        or search
    )


def _with_sum(module: Module, node: Node, groups: Sequence[Sequence[int]]) -> Module | None:
    return with_exchange(module, place_of(module, node), f"all-reduce(value), {over(groups)}", adds=True)


def _adding_results(
    search: Search, wrong: Sequence[NodePair], ours: Graph, is_right: Callable[[Module], bool]
) -> Search | None:
    """The search with what gives the first result that differs as its only finding, if all that do are right once they
    are added up over the same devices."""
    places = {node.number: place for nodes in ours.outputs.values() for place, node in enumerate(nodes)}
    for groups in _groupings(sorted(ours.outputs)) if wrong else ():
        edited: Module | None = ours.module if _add_up(wrong, ours, groups) else None
        for place in {places[pair.ours.number] for pair in wrong}:
            if edited is not None:
                entry, root = edited.entry, edited.entry.root
                source = entry.by_name[root.operands[place]] if isinstance(root.shape, TupleShape) else root
                edited = with_exchange(edited, (entry, source), f"all-reduce(value), {over(groups)}", adds=True)
        if edited is not None and is_right(edited):
            node = transparent_chain(wrong[0].ours)[-1]
            return _blaming(search, node, _reason(_own(node, groups)), is_certain=False)
    return None


def _taking_part(search: Search, wrong: Sequence[NodePair], ours: Graph, tiles: Tiles) -> Search | None:
    """The search with a part of a sum as its only finding, if one is taken for the sum."""
    statics = {node.instance.static for pair in wrong for node in _all_behind(pair.ours)}
    part = part_taken_as_sum(ours, search.state, statics, tiles)
    reason = "devices have parts of a sum that nothing adds up before it is used: an all-reduce is missing"
    return None if part is None else _blaming(search, part, reason, is_certain=False)


def _add_up(wrong: Sequence[NodePair], ours: Graph, groups: Sequence[Sequence[int]]) -> bool:
    """Whether values that differ are parts of sums that are what they should be, if only one is not zero."""
    for pair in wrong:
        parts, group = _on_devices(pair.ours, ours), _own(pair.ours, groups)
        if not is_near(_total(parts, group), pair.theirs.value):
            return False
    return True


def _exchanging_once_more(
    search: Search, blamed: Blamed, replay: Replay, is_right: Callable[[Module], bool]
) -> Search | None:
    """The search with what gives a value before the first finding as its only one, if all results are right once
    devices exchange that; with what else they may exchange. That it is to blame is then not certain."""
    pair = _compared(blamed)
    if pair is None:
        return None
    right: dict[int, tuple[Node, str]] = {}
    suspects = [*_suspects(blamed.node, search.state, replay.graph), *_near(pair.ours)]
    for node in {node.instance.static: node for node in suspects}.values():
        # A collective is itself what may exchange otherwise.
        how = None if exchanges(node.instance.instruction) else _exchange(node, pair, replay, search.state, is_right)
        if how is not None:
            right[node.number] = node, f"the results are right once {how}, follows it"
    nodes = [right[number][0] for number in sorted(right)]
    present = [node for node in nodes if search.state.has(node)]
    unknown = [node for node in nodes if node not in present]
    if present and unknown:
        # It is missing where values begin to be others.
        region, place = [present[-1], unknown[0]], 1
    else:
        # Most is moved where shards are made ready to be exchanged.
        runs = [[*run] for moves, run in groupby(nodes, _moves) if moves]
        region, place = max(runs, key=len, default=nodes), 0
        if nodes and not runs and nodes[-1] in _moved(blamed.node):
            # It is missing on the way from there.
            how = right[nodes[-1].number][1].replace("follows it", f"follows {nodes[-1].instance.instruction.name}")
            return _blaming(search, blamed.node, how, is_certain=False)
    shown = region if 1 < len(region) <= LIMITS.largest_region else []
    return _blaming(search, *right[region[place].number], False, shown) if region else None


def _moved(node: Node) -> list[Node]:
    """A node, and those before it whose elements it consists of."""
    nodes = [node]
    for current in nodes:
        nodes += [entry for entry in current.instance.inputs if _moves(current) and entry not in nodes]
    return nodes


def _counting_otherwise(search: Search, ours: Graph, is_right: Callable[[Module], bool]) -> Search | None:
    """The search with what counts devices, or steps, as its only finding, if all results are right once it counts
    otherwise: an integer one more or less, the number of a device along others, or what is computed from that."""
    right = [(use, f"it uses {number}") for use, number in integers_right_by_one(ours.module, is_right)]
    if len(right) != 1:
        other = counted_otherwise(ours.module, is_right)
        right = [] if other is None else [(other[0], f"it is {other[1]}")]
    runs = [instance for use, _ in right for instance in ours.runs[use[:2]]]
    if not runs:
        return None
    return _blaming(search, runs[0].results[0], f"the results are right if {right[0][1]}", is_certain=False)


def _giving_elements(search: Search, blamed: Blamed, replay: Replay) -> Search | None:
    """The search with what gives the elements of the first finding that differ as its only one, where only movement is
    between them."""
    pair = _compared(blamed)
    if pair is None or not _moves(pair.ours) or pair.ours.shape != pair.theirs.shape:
        return None
    behind = {node.instance.static: node for node in _moved(pair.ours)[1:] if not node.instance.is_source}.values()
    suspects = {node: _peers(node, replay.graph) for node in behind}
    giver = giver_of_elements(pair, suspects, Rerun(replay, search.state, pair.ours), search.state.values)
    reason = "all elements that differ come from it"
    return None if giver is None else _blaming(search, giver, reason, is_certain=False)


def _compared(blamed: Blamed) -> NodePair | None:
    """What was compared with what it should be to find a fault."""
    if blamed.compared is None and blamed.counterpart is not None:
        return NodePair(blamed.node, blamed.counterpart)
    return blamed.compared


def _moves(node: Node) -> bool:
    return node.instance.is_movement or traits_of(node.instance.instruction).moves is not None


def _exchange(
    node: Node, pair: NodePair, replay: Replay, state: State, is_right: Callable[[Module], bool]
) -> str | None:
    """The first exchange of what an instruction gives that puts a pair right, and all results."""
    ours, rerun = replay.graph, Rerun(replay, state, pair.ours)
    peers = {peer.device: peer for peer in _peers(node, ours)}
    values = {device: state.values[peer.number] for device, peer in peers.items()}
    for exchange, exchanged in _exchanges(values, ours) if len(peers) == len(ours.outputs) else ():
        now = rerun.value({peers[device].number: array for device, array in exchanged.items()})
        if now is not None and comes_near(now, state.raw[pair.ours.number], pair.theirs.value):
            edited = with_exchange(ours.module, place_of(ours.module, node), exchange)
            if edited is not None and is_right(edited):
                return exchange.replace("(value)", "")
    return None


def _exchanges(values: Mapping[int, Array], ours: Graph) -> Iterator[tuple[str, dict[int, Array]]]:
    """How devices may exchange values and keep their shape, and what each has then: along the routes of the module, to
    a neighbour, or part by part."""
    devices = sorted(values)
    shape = values[devices[0]].shape
    routes = [
        tuple(instruction.attributes.source_target_pairs)
        for computation in ours.module
        for instruction in computation
        if hasattr(instruction.attributes, "source_target_pairs")
    ]
    groupings = [*_groupings(devices)]
    for groups, step, is_open in product(groupings, (1, -1), (False, True)):
        moves = [
            [(group[place], group[(place + step) % len(group)]) for place in range(len(group))][::step]
            for group in groups
        ]
        routes.append(tuple(pair for group in moves for pair in group[: len(group) - is_open]))
    for route in dict.fromkeys(tuple(sorted(route)) for route in routes):
        sources = {target: values[source] for source, target in route}
        nothing = np.zeros_like(values[devices[0]])
        pairs = ",".join(f"{{{source},{target}}}" for source, target in route)
        yield (
            f"collective-permute(value), source_target_pairs={{{pairs}}}",
            {device: sources.get(device, nothing) for device in devices},
        )
    for groups, axis in product(groupings, range(len(shape))):
        count = len(groups[0])
        if shape[axis] % count == 0:
            parts = {device: np.split(value, count, axis) for device, value in values.items()}
            yield (
                f"all-to-all(value), dimensions={{{axis}}}, {over(groups)}",
                {
                    device: np.concatenate([parts[source][place] for source in group], axis)
                    for group in groups
                    for place, device in enumerate(group)
                },
            )


def _exchanging(search: Search, blamed: Blamed, replay: Replay, is_right: Callable[[Module], bool]) -> Search | None:
    """The search with a collective as its only finding, if it is the only one of those before the first finding that,
    exchanging otherwise, puts all results right; or one of several, if all results are right without one of them. That
    it is to blame is then not certain."""
    right: dict[tuple[str, str], tuple[Node, str]] = {}
    idle: dict[int, Node] = {}
    module = replay.graph.module
    suspects = [*_suspects(blamed.node, search.state, replay.graph), *_all_behind(blamed.node)]
    # What one line of a program says is written once for each step of a loop that is unrolled.
    alike: dict[tuple[tuple[str, str], ...], Node] = {}
    for node in suspects:
        if exchanges(node.instance.instruction):
            alike.setdefault(twins_of(module, home_of(module, node)[1]), node)
    ways = [other_exchanges(node, module) for node in islice(alike.values(), LIMITS.steps_to_sums)]
    # Each collective has its turn, the nearest first.
    others = filter(None, chain.from_iterable(zip_longest(*ways)))
    for node, text, edited in islice(others, LIMITS.other_exchanges):
        if node.instance.static not in right and is_right(edited):
            right[node.instance.static] = node, f"the results are right if it is {text}"
            idle |= {node.number: node} if text == LEFT_OUT else {}
    if len(right) == len(idle) > 1:
        node = idle[min(idle)]
        return _blaming(search, node, right[node.instance.static][1], False, [idle[number] for number in sorted(idle)])
    # What is right for one collective of a source line may be right for another.
    lines = {source_text(module, node.instance.instruction) or static for static, (node, _) in right.items()}
    if len(lines) != 1:
        return search if right else None
    node, reason = next(iter(right.values()))
    if node.instance.static == blamed.node.instance.static:
        return search
    missing = _exchanging_once_more(search, blamed, replay, is_right) if idle else None
    if missing is not None:
        # It exchanges back what nothing has exchanged before.
        (first, *rest), text = missing.findings, f", or if {node.instance.instruction.name} is {LEFT_OUT}"
        return attrs.evolve(missing, findings=(attrs.evolve(first, reason=first.reason + text), *rest))
    return _blaming(search, node, reason, is_certain=False)


def _reason(group: Sequence[int]) -> str:
    names = listing(map(str, group), 16)
    return f"devices {names} have parts of a sum that nothing adds up: an all-reduce over them is missing"


def _blaming(search: Search, node: Node, reason: str, is_certain: bool = True, region: Sequence[Node] = ()) -> Search:
    """The search with an instruction as its only finding."""
    places = tuple(member.place for member in region)
    first, *_ = search.findings
    assert search.first is not None
    if node.instance.static == search.first.node.instance.static and search.first.place is None:
        finding = attrs.evolve(first, is_certain=is_certain, reason=reason, region=places, graph=())
        blamed = attrs.evolve(search.first, is_certain=is_certain, region=tuple(region), reason=reason)
    else:
        finding = attrs.evolve(
            first,
            after=node.place,
            before=None,
            comparison=None,
            is_certain=is_certain,
            reason=reason,
            region=places,
            graph=(),
        )
        blamed = Blamed(
            node, None, None, node.value, None, search.first.wrong, reason, None, is_certain, region=tuple(region)
        )
    return attrs.evolve(search, blamed=[blamed], findings=(finding,), first=blamed)


def _group(blamed: Blamed, ours: Graph) -> Sequence[int]:
    """The devices whose values add up to what the instruction should have given, or to what takes it and is right with
    it: a multiple of the sum. Empty where none do."""
    node, right = blamed.node, blamed.value
    if right is None and blamed.compared is not None:
        node, right = blamed.compared.ours, blamed.compared.theirs.value
    if right is None or right.shape != node.shape or is_near(node.value, right):
        return ()
    parts = _on_devices(node, ours)
    for groups in _groupings(sorted(parts)):
        group = _own(node, groups)
        if _are_parts(parts, group) and is_near(_total(parts, group), right):
            return group
    return ()


def _candidates(blamed: Blamed, ours: Graph, theirs: Graph) -> Iterator[tuple[Node, Sequence[Sequence[int]]]]:
    """What may give parts of a sum, and how devices add up to something that `before` has."""
    for node in _near(blamed.node):
        if not element_type_of(node.dtype).is_inexact:
            continue
        parts = _on_devices(node, ours)
        if len(parts) != len(ours.outputs):
            continue
        for groups in _groupings(sorted(parts)):
            if not all(_are_parts(parts, group) for group in groups):
                continue
            group = _own(node, groups)
            if _has(theirs, _total(parts, group), node):
                yield node, groups


def _suspects(node: Node, state: State, ours: Graph) -> Iterator[Node]:
    """The nearest values behind a node; further back, where values begin to be ones that `before` does not have."""

    def begins(node: Node) -> bool:
        return any(not state.has(peer) and all(map(state.has, peer.instance.inputs)) for peer in _peers(node, ours))

    near = [*_near(node)]
    names = {candidate.instance.name for candidate in near}
    far = _all_behind(node)
    yield from near
    yield from islice(
        (candidate for candidate in far if candidate.instance.name not in names and begins(candidate)),
        LIMITS.steps_to_sums,
    )


def _all_behind(node: Node) -> Iterator[Node]:
    return islice(_behind(node, lambda _: True), LIMITS.rerun_steps)


def _near(node: Node) -> Iterator[Node]:
    return islice(_behind(node), LIMITS.steps_to_sums)


def _adds_none(node: Node) -> bool:
    """Whether it does not add up values of several devices."""
    return not exchanges(node.instance.instruction) or traits_of(node.instance.instruction).moves is not None


def _behind(node: Node, is_passed: Callable[[Node], bool] = _adds_none) -> Iterator[Node]:
    """A node, and what it is computed from, the nearest first and each instruction once; not behind what is not passed.
    Of what floats are computed from, only floats count, not their places."""
    pending = {node.instance.name: node}
    seen: set[str] = set()
    while pending:
        name = next(iter(pending))
        current = pending.pop(name)
        seen.add(name)
        yield current
        if is_passed(current):
            inputs = [entry for part in current.instance.operands for entry in part if not entry.instance.is_constant]
            is_float = element_type_of(current.dtype).is_inexact
            pending |= {
                entry.instance.name: entry
                for entry in inputs
                if entry.instance.name not in seen and element_type_of(entry.dtype).is_inexact >= is_float
            }


def _has(graph: Graph, value: Array, like: Node) -> bool:
    """Whether a graph has about the numbers of a value on a device, in whatever order."""
    wanted = contents_of(value)
    arrays = graph.arrays
    count, family = like.digest.count, like.digest.family
    seen: set[int] = set()
    for number, array in enumerate(graph.columns.array):
        if array in seen or graph.device_of(number) != like.device:
            continue
        seen.add(array)
        digest = arrays.digest(array)
        if digest.count == count and digest.family == family and wanted.are_in(contents_of(arrays[array])):
            return True
    return False


def _peers(node: Node, ours: Graph) -> list[Node]:
    """What an instruction gave in the same iterations on each device."""
    instance = node.instance
    return [entry.results[node.leaf] for entry in ours.runs[instance.static] if entry.scope == instance.scope]


def _on_devices(node: Node, ours: Graph) -> dict[int, Array]:
    return {peer.device: peer.value for peer in _peers(node, ours)}


def _own(node: Node, groups: Sequence[Sequence[int]]) -> Sequence[int]:
    """The group of a node's device."""
    return next(group for group in groups if node.device in group)


def _total(parts: dict[int, Array], group: Sequence[int]) -> Array:
    total = sum((wide(parts[device]) for device in group[1:]), wide(parts[group[0]]))
    return np.asarray(total).astype(parts[group[0]].dtype)


def _are_parts(parts: dict[int, Array], group: Sequence[int]) -> bool:
    """Whether values may be parts of a sum: where they are all the same, the sum is but a multiple of them, and where
    one is the sum, the others are zero."""
    first, *others = members = [parts[device] for device in group]
    if any(other.shape != first.shape for other in others) or all(is_near(other, first) for other in others):
        return False
    total = _total(parts, group)
    return not any(is_near(part, total) for part in members)


def _groupings(devices: Sequence[int]) -> Iterator[Sequence[Sequence[int]]]:
    """How devices may be divided into groups, as the axes of a mesh divide them: neighbours, or those at equal
    distances."""
    count = len(devices)
    for size in (size for size in range(count, 1, -1) if count % size == 0):
        yield [devices[start : start + size] for start in range(0, count, size)]
        if size < count:
            yield [devices[start :: count // size] for start in range(count // size)]
