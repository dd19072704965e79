"""What an instruction could have been, had one thing not been wrong, and which such change makes a value right.

An edit changes one attribute, the order of two operands or the opcode of an instruction, or of the root of a
computation that it calls. Which edits there are follows from the grammar of its attributes and from the registry.

Where a wrong value is computed in several steps that have no counterparts, replacing values cannot tell which of them
is wrong. But the steps can be computed with one of them changed: with another attribute, opcode or order of operands
(`edits`), without the step, with another constant, or on another value. If the value is right then, that step is to
blame, and what it should have been is known, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, combinations, islice, permutations
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import (
    ArrayShape,
    Computation,
    Instruction,
    Layout,
    Module,
    PaddingDimension,
    SliceDimension,
    Window,
    WindowDimension,
)
from hloexec.core.ir.editing import replace_computation, replace_instruction
from hloexec.core.ir.sharding import ReplicaGroups
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.language.origins import hlo_line
from hloexec.language.verifier import is_well_formed
from hloexec.ops.attributes import AttributeField, Grammar, attribute_fields, computation_names
from hloexec.ops.registry import OPCODES, Role, find_opcode, role_of
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.relations import NodePair, Relations, constant_of
from hloexec.tools.diffing.matching import aligned, comes_near, is_near, is_right, is_same
from hloexec.tools.diffing.replaying.evaluation import Overlay
from hloexec.tools.diffing.replaying.replay import Replay
from hloexec.tools.diffing.replaying.rerun import Rerun
from hloexec.tools.extraction.running import Slice, slice_module


@frozen(eq=False)
class Edit:
    """A module whose root is another instruction than it was, or calls another one."""

    module: Module
    instruction: Instruction
    """What was edited, as it is now."""
    is_called: bool
    """Whether it stands in a called computation."""

    @property
    def text(self) -> str:
        """The instruction, without its name and shape."""
        line = hlo_line(attrs.evolve(self.instruction, backend_config=None))
        # Of a bitcast, the shape says what it does.
        what = " = " if self.instruction.opcode == "bitcast" else f" {self.instruction.opcode}("
        return line[line.index(what) + 1 :].removeprefix("= ")


def edits_of(module: Module) -> Iterator[Edit]:
    """The edits of the root of a module's entry, those of attributes first; each is well-formed."""
    entry = module.entry
    called = [module.by_name[name] for name in computation_names(entry.root.attributes)]
    for computation in (entry, *called):
        moved = chain(_other_attributes(computation, _devices(module)), _other_layouts(computation))
        for instruction in chain(moved, _other_order(computation), other_opcodes(computation)):
            changed = replace_instruction(computation, instruction)
            edited = replace_computation(module, changed)
            if is_well_formed(edited):
                yield Edit(edited, instruction, computation is not entry)


def moved_otherwise(module: Module, computation: Computation, name: str) -> Iterator[Edit]:
    """The module with an instruction of one of its computations edited in its attributes, or a bitcast in its layout;
    each is well-formed."""
    rooted = attrs.evolve(computation, root_name=name)
    root, part = rooted.root, None
    if role_of(root) is Role.KERNEL and root is not module.entry.root:
        # All else is as well-formed as it was.
        part = slice_module(module, Slice(computation, name, (name,), tuple(dict.fromkeys(root.operands))))
    for instruction in chain(_other_attributes(rooted, _devices(module)), _other_layouts(rooted)):
        edited = replace_computation(module, replace_instruction(computation, instruction))
        alone = attrs.evolve(instruction, control_predecessors=())
        checked = edited if part is None else replace_computation(part, replace_instruction(part.entry, alone))
        if is_well_formed(checked):
            yield Edit(edited, instruction, is_called=False)


def _devices(module: Module) -> int:
    return module.replica_count * module.num_partitions


def _other_attributes(computation: Computation, devices: int) -> Iterator[Instruction]:
    root = computation.root
    declarations = {} if root.attributes is None else attribute_fields(type(root.attributes))
    for declared in declarations.values():
        vary = _VARIATIONS.get(declared.grammar)
        value = getattr(root.attributes, declared.field)
        if vary is None or value is None:
            continue
        sizes = [getattr(instruction.shape, "dimensions", ()) for instruction in (*computation.operands_of(root), root)]
        around = _Around(min(max([1, *map(len, sizes)]), LIMITS.permuted_dimensions), sizes[0], devices)
        # Of hundreds of devices, there are more pairs than are ever tried.
        for other in dict.fromkeys(islice(vary(declared, value, around), LIMITS.edits)):
            if other != value:
                yield attrs.evolve(root, attributes=attrs.evolve(root.attributes, **{declared.field: other}))


@frozen
class _Around:
    """What an attribute is about."""

    rank: int
    """The most dimensions that an operand or the result has."""
    sizes: tuple[int, ...]
    """The dimensions of the first operand."""
    devices: int
    """On how many devices the module runs."""


def _other_layouts(computation: Computation) -> Iterator[Instruction]:
    """A bitcast to the same dimensions, in another order in memory."""
    root = computation.root
    if root.opcode == "bitcast" and isinstance(root.shape, ArrayShape):
        for order in islice(permutations(range(root.shape.rank)), LIMITS.permutations):
            layout = Layout(order)
            if layout != root.shape.layout:
                yield attrs.evolve(root, shape=attrs.evolve(root.shape, layout=layout))


def _other_order(computation: Computation) -> Iterator[Instruction]:
    """Two operands of one shape exchanged."""
    root = computation.root
    operands = root.operands
    if len(operands) > LIMITS.exchanged_operands:
        return
    shapes = [operand.shape for operand in computation.operands_of(root)]
    for first, second in combinations(range(len(operands)), 2):
        if shapes[first] == shapes[second] and operands[first] != operands[second]:
            order = list(operands)
            order[first], order[second] = order[second], order[first]
            yield attrs.evolve(root, operands=tuple(order))


def other_opcodes(computation: Computation) -> Iterator[Instruction]:
    """Elementwise opcodes without attributes that take as many operands."""
    root = computation.root
    entry = find_opcode(root.opcode)
    if entry is None or not entry.is_elementwise or (entry.attributes is not None and not _is_plain(entry.attributes)):
        return
    for name, attributes in _plain_opcodes().get(len(root.operands), {}).items():
        if name != root.opcode:
            yield attrs.evolve(root, opcode=name, attributes=None if attributes is None else attributes())


@cache
def _plain_opcodes() -> Mapping[int, Mapping[str, Any]]:
    """The elementwise opcodes without attributes that have to be stated, by how many operands they take."""
    opcodes_by_count: dict[int, dict[str, Any]] = {}
    for name, entry in OPCODES.items():
        is_plain = entry.attributes is None or _is_plain(entry.attributes)
        if entry.is_elementwise and entry.role is Role.KERNEL and is_plain and entry.maximum_operands:
            opcodes_by_count.setdefault(entry.maximum_operands, {})[name] = entry.attributes
    return opcodes_by_count


def _is_plain(attributes: type) -> bool:
    return all(not declared.is_required for declared in attribute_fields(attributes).values())


def _flag(_: AttributeField, value: bool, __: _Around) -> Iterator[bool]:
    yield not value


def _dimension(_: AttributeField, value: int, around: _Around) -> Iterator[int]:
    yield from range(around.rank)


def _word(declared: AttributeField, _: str, __: _Around) -> Iterator[str]:
    yield from declared.choices or ()


def _dimensions(_: AttributeField, value: Sequence[int], around: _Around) -> Iterator[tuple[int, ...]]:
    """Two of them exchanged, or one replaced."""
    for first, second in combinations(range(len(value)), 2):
        dimensions = list(value)
        dimensions[first], dimensions[second] = dimensions[second], dimensions[first]
        yield tuple(dimensions)
    for place in range(len(value)):
        for other in range(around.rank):
            if other not in value:
                yield (*value[:place], other, *value[place + 1 :])


def _one_changed(entries: Sequence[Any], change: Callable[[Any], Iterator[Any]]) -> Iterator[tuple[Any, ...]]:
    for place, entry in enumerate(entries):
        for other in change(entry):
            yield (*entries[:place], other, *entries[place + 1 :])


def _slices(
    _: AttributeField, value: Sequence[SliceDimension], around: _Around
) -> Iterator[tuple[SliceDimension, ...]]:
    """One range moved by one, to the beginning, or to the end."""
    for place, (entry, size) in enumerate(zip(value, around.sizes, strict=False)):
        for step in (-1, 1, -entry.start, size - entry.limit):
            if entry.start + step >= 0:
                moved = SliceDimension(entry.start + step, entry.limit + step, entry.stride)
                yield (*value[:place], moved, *value[place + 1 :])


def _padding(
    _: AttributeField, value: Sequence[PaddingDimension], __: _Around
) -> Iterator[tuple[PaddingDimension, ...]]:
    """One dimension padded on the other side, or by one more on one and one less on the other."""

    def moved(entry: PaddingDimension) -> Iterator[PaddingDimension]:
        low, high = entry.edge_padding_low, entry.edge_padding_high
        for now in ((high, low), (low + 1, high - 1), (low - 1, high + 1)):
            yield PaddingDimension(*now, entry.interior_padding)

    yield from _one_changed(value, moved)


def _window(_: AttributeField, value: Window, __: _Around) -> Iterator[Window]:
    def moved(entry: WindowDimension) -> Iterator[WindowDimension]:
        low, high = entry.padding_low, entry.padding_high
        for now in ((high, low), (low + 1, high - 1), (low - 1, high + 1)):
            yield attrs.evolve(entry, padding_low=now[0], padding_high=now[1])
        yield attrs.evolve(entry, window_reversal=not entry.window_reversal)

    yield from map(Window, _one_changed(value.dimensions, moved))


def _routes(
    _: AttributeField, value: Sequence[tuple[int, int]], around: _Around
) -> Iterator[tuple[tuple[int, int], ...]]:
    """All the other way; one more between devices that have none; all equally far; two targets exchanged; one less."""
    pairs = tuple((source, target) for source, target in value)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    devices = range(around.devices)
    yield tuple((target, source) for source, target in pairs)
    for source in devices:
        for target in devices:
            if source not in sources and target not in targets:
                yield tuple(sorted((*pairs, (source, target))))
    for senders in (devices, sources):
        for far in devices[1:]:
            yield tuple((source, (source + far) % around.devices) for source in senders)
    for first, second in combinations(range(len(pairs)), 2):
        turned = list(targets)
        turned[first], turned[second] = turned[second], turned[first]
        yield tuple(zip(sources, turned, strict=True))
    for place in range(len(pairs)):
        yield pairs[:place] + pairs[place + 1 :]


def _groups(_: AttributeField, value: ReplicaGroups, __: _Around) -> Iterator[ReplicaGroups]:
    """The members of all groups by their places instead; all together; in their order; neighbours, or those equally
    far apart, in groups of each size."""
    groups = value.expand()
    members = sorted(chain(*groups))
    if len({len(group) for group in groups}) == 1:
        yield ReplicaGroups(groups=tuple(zip(*groups, strict=True)))
        yield ReplicaGroups(groups=(tuple(members),))
    yield ReplicaGroups(groups=tuple(tuple(sorted(group)) for group in groups))
    count = len(members)
    for size in (size for size in range(2, count) if count % size == 0):
        yield ReplicaGroups(groups=tuple(tuple(members[place : place + size]) for place in range(0, count, size)))
        yield ReplicaGroups(groups=tuple(tuple(members[place :: count // size]) for place in range(count // size)))


_VARIATIONS: Mapping[Grammar, Callable[[AttributeField, Any, _Around], Iterator[Any]]] = {
    Grammar.BOOL: _flag,
    Grammar.INT: _dimension,
    Grammar.INT_IN_LIST: _dimension,
    Grammar.ENUM: _word,
    Grammar.INT_LIST: _dimensions,
    Grammar.SLICE: _slices,
    Grammar.PADDING: _padding,
    Grammar.WINDOW: _window,
    Grammar.INT_PAIRS: _routes,
    Grammar.REPLICA_GROUPS: _groups,
}
"""By the grammar of an attribute, which other values it could have."""


@frozen(eq=False)
class Repair:
    """An instruction, and the change that makes a value right."""

    node: Node
    text: str
    alike: tuple[Node, ...] = ()
    """Where several changes make the value right, all that they change, in the order of data flow."""
    operand: NodePair | None = None
    """Where it is right on another operand, the one that it has, and that of `before`."""
    is_everywhere: bool = True
    """Whether the value is right on the other devices, too, if all of them run the instruction that is changed."""


@frozen(eq=False)
class _Change:
    """What a node gives with one thing about it changed."""

    node: Node
    array: Array
    text: Callable[[], str]
    given_by: Callable[[Node], Array | None]
    """What the same change makes of what the instruction gave on another device."""
    operand: NodePair | None = None


class Repairs:
    """The repairs of one state of a replay."""

    def __init__(self, replay: Replay, relations: Relations, is_over: Callable[[], bool]) -> None:
        self._replay = replay
        self._relations = relations
        self._state = relations.state
        self._is_over = is_over
        self._tried = 0

    def of(self, pair: NodePair, steps: Sequence[Node], others: Sequence[Node]) -> Repair | None:
        """The change of one of some steps that makes a pair right, the specific ones first; `others` are the values
        from which `before` computes it."""
        if not tells_something(pair.theirs):
            return None
        rerun = Rerun(self._replay, self._state, pair.ours)
        before = self._state.raw[pair.ours.number]
        near: list[Repair] = []
        right: list[Repair] = []
        last = LIMITS.edits
        for change in self._changes(steps, others):
            node = change.node
            self._tried += 1
            if self._tried > last or self._is_over():
                break
            changed = self._on_all_devices(change)
            is_everywhere = self._is_right_on_all(pair, changed, rerun)
            now = rerun.value(changed if is_everywhere else {node.number: change.array})
            if now is None or not comes_near(now, before, pair.theirs.value):
                continue
            as_it_is = rerun.value({node.number: self._state.raw[node.number]})
            if as_it_is is not None and comes_near(as_it_is, before, pair.theirs.value):
                # What an earlier patch had put wrong comes right by being computed again, whatever the change.
                continue
            text = change.text() if is_everywhere else f"on device {node.device}, {change.text()}"
            repair = Repair(node, text, operand=change.operand, is_everywhere=is_everywhere)
            if is_right(now, pair.theirs.value):
                last = min(last, self._tried + LIMITS.more_edits)
                right.append(repair)
            near.append(repair)
        if len(self._replay.graph.outputs) > 1 and (
            common_repairs := [repair for repair in near if repair.is_everywhere]
        ):
            # What comes near on all devices may be meant as well as what is right to within two roundings.
            return _one_of(sorted(common_repairs, key=lambda repair: repair not in right))
        return _one_of(right) or next(iter(near), None)

    def _on_all_devices(self, change: _Change) -> dict[int, Array]:
        """What an instruction that is changed gives on each device, by its nodes: it is one instruction."""
        arrays = {change.node.number: change.array}
        for peer in _peers(change.node, self._replay.graph):
            array = change.given_by(peer)
            if array is not None:
                arrays[peer.number] = array
        return arrays

    def _is_right_on_all(self, pair: NodePair, changed: Mapping[int, Array], rerun: Rerun) -> bool:
        """Whether a value that comes right on one device does so where all run the instruction that is changed, and is
        right on the others, as far as the change reaches them."""
        if len(self._replay.graph.outputs) < 2:
            return True
        now = rerun.value(changed)
        if now is None or not comes_near(now, self._state.raw[pair.ours.number], pair.theirs.value):
            return False
        theirs = {node.device: node for node in _peers(pair.theirs, self._replay.index.graph)}
        for peer in _peers(pair.ours, self._replay.graph):
            counterpart = theirs.get(peer.device)
            if counterpart is None:
                continue
            now = Rerun(self._replay, self._state, peer).value(changed)
            if now is None:
                continue
            if not any(is_near(now, value) for value in aligned(counterpart.value, now.shape)):
                return False
        return True

    def _changes(self, steps: Sequence[Node], others: Sequence[Node]) -> Iterator[_Change]:
        if len(self._replay.graph.outputs) > 1:
            # An instruction is changed on all devices at once.
            steps = list({node.instance.name: node for node in reversed(steps)}.values())[::-1]
        for kind in (self._left_out, self._with_constants, self._edited, self._from_others):
            yield from kind(steps, others)

    def _edited(self, steps: Sequence[Node], _: Sequence[Node]) -> Iterator[_Change]:
        """Other attributes, operands in another order, other opcodes."""
        edits = [(node, edit) for node in steps for edit in self._edits_of(node)]
        for node, edit in sorted(edits, key=lambda entry: entry[1].is_called):
            given_by = partial(self._given_by_edit, edit)
            array = given_by(node)
            if array is not None and not self._changes_little(node, array, given_by):
                yield _Change(node, array, partial(_as_edited, edit), given_by)

    def _given_by_edit(self, edit: Edit, node: Node) -> Array | None:
        arrays = self._replay.evaluator.results_of(edit.module, node.instance, self._state.values)
        return None if arrays is None else arrays[node.leaf]

    def _changes_little(self, node: Node, now: Array, given_by: Callable[[Node], Array | None]) -> bool:
        """Whether a node as it is now is what it was, or is one of its operands, perhaps but for roundings, as the sine
        of small numbers is; of what exchanges values, on all devices."""
        if not self._is_as_it_was(node, now):
            return False
        others = _peers(node, self._replay.graph) if node.instance.others else []
        return all(array is None or self._is_as_it_was(peer, array) for peer in others for array in [given_by(peer)])

    def _is_as_it_was(self, node: Node, now: Array) -> bool:
        values = (self._state.raw[node.number], *(self._state.values[entry.number] for entry in _taken(node)))
        return any(value.shape == now.shape and is_near(now, value) for value in values)

    def _edits_of(self, node: Node) -> Iterator[Edit]:
        if all(map(constant_of, _taken(node))):
            # Whatever gives another number of constants may be meant.
            return
        module = self._replay.evaluator.alone(node.instance, self._state.values)
        if module is not None and len(node.instance.results) == 1:
            yield from edits_of(module)

    def _left_out(self, steps: Sequence[Node], _: Sequence[Node]) -> Iterator[_Change]:
        """An operand in the place of a result of its shape."""
        for node in steps:
            raw = self._state.raw[node.number]
            for place, entry in enumerate(_taken(node)):
                value = self._state.values[entry.number]
                is_alike = value.shape == raw.shape and entry.digest.family == node.digest.family
                if is_alike and not constant_of(entry) and not is_same(value, raw):
                    text = (
                        f"its value is right if it is left out, and %{entry.instance.instruction.name} is used as it is"
                    )
                    yield _Change(node, value, text.__str__, partial(self._given_as_it_is, place))

    def _given_as_it_is(self, place: int, node: Node) -> Array:
        return self._state.values[_taken(node)[place].number]

    def _with_constants(self, steps: Sequence[Node], others: Sequence[Node]) -> Iterator[_Change]:
        """A constant of `before` in the place of one."""
        theirs = {
            (str(entry.dtype), entry.value.reshape(-1)[0].item()): entry
            for entry in others
            if constant_of(entry) and entry.digest.is_uniform
        }
        for node in steps:
            for place, entry in enumerate(_taken(node)):
                if not constant_of(entry) or not entry.digest.is_uniform:
                    continue
                for (kind, number), other in theirs.items():
                    if kind != str(entry.dtype):
                        continue
                    changed = np.full(entry.shape, other.value.reshape(-1)[0], entry.dtype)
                    given_by = partial(self._given_on, place, dict.fromkeys(self._replay.graph.outputs, changed))
                    array = given_by(node)
                    if array is not None:
                        text = f"its value is right if %{entry.instance.instruction.name} is {number}"
                        yield _Change(node, array, text.__str__, given_by)

    def _from_others(self, steps: Sequence[Node], others: Sequence[Node]) -> Iterator[_Change]:
        """A value that `before` uses in the place of an operand."""
        for node in steps:
            for place, entry in enumerate(_taken(node)):
                for other in others:
                    # What another device has comes from there by an exchange only.
                    is_alike = other.shape == entry.shape and other.dtype == entry.dtype
                    is_alike &= other.device == entry.device
                    if not is_alike or constant_of(other) or other.digest == entry.digest:
                        continue
                    peers = (other, *_peers(other, self._replay.index.graph))
                    given_by = partial(self._given_on, place, {peer.device: peer.value for peer in peers})
                    array = given_by(node)
                    if array is not None:
                        ours, theirs = (peer.instance.instruction.name for peer in (entry, other))
                        text = f"its value is right if it uses %{theirs} of the module before instead of %{ours}"
                        yield _Change(node, array, text.__str__, given_by, NodePair(entry, other))

    def _given_on(self, place: int, values: Mapping[int, Array], node: Node) -> Array | None:
        """What a node is with another value, by its device, in the place of an operand; None where nothing changes."""
        entry = _taken(node)[place]
        if entry.device not in values:
            return None
        changes = {entry.number: values[entry.device]}
        # What exchanges values takes the operand of each device.
        for peer in _peers(entry, self._replay.graph) if node.instance.others else ():
            if peer.device in values:
                changes[peer.number] = values[peer.device]
        arrays = self._replay.evaluator.results(node.instance, Overlay(self._state.values, changes))
        if arrays is None or is_same(arrays[node.leaf], self._state.raw[node.number]):
            return None
        return arrays[node.leaf]


def _as_edited(edit: Edit) -> str:
    return f"its value is right if it is {edit.text}"


def _taken(node: Node) -> list[Node]:
    """The operands of a node on its own device."""
    return list(dict.fromkeys(entry for part in node.instance.operands for entry in part))


def _peers(node: Node, graph: Graph) -> list[Node]:
    """What the same run of an instruction gave on the other devices."""
    instance, leaf = node.instance, node.leaf
    if len(graph.outputs) < 2 or instance.number < 0:
        return []
    return [
        entry.results[leaf]
        for entry in graph.runs[instance.static]
        if entry.scope == instance.scope and entry.device != instance.device and leaf < len(entry.results)
    ]


def _one_of(repairs: Sequence[Repair]) -> Repair | None:
    """The first of some repairs, or of many, the one that is nearest to the value; with what the others change."""
    if not repairs:
        return None
    # One change of what runs on several devices, or several times, may be found for each of the runs on its own.
    firsts = {repair.node.instance.name: repair.node for repair in reversed(repairs)}
    nodes = {node.number: node for node in firsts.values()}
    is_many = len(nodes) > LIMITS.largest_region
    first = max(repairs, key=lambda repair: repair.node.number) if is_many else repairs[0]
    return attrs.evolve(first, alike=tuple(nodes[number] for number in sorted(nodes)))


def tells_something(node: Node) -> bool:
    """Whether having the right value is no accident."""
    digest = node.digest
    fewest = {"pred": LIMITS.fewest_flags, "integer": LIMITS.fewest_integers}.get(digest.family, 1)
    return digest.count >= fewest and (digest.count == 1 or not digest.is_uniform)
