"""Which one change of one instruction makes a value right that different steps computed.

Where a wrong value is computed in several steps that have no counterparts, replacing values cannot tell which of them
is wrong. But the steps can be computed with one of them changed: with another attribute, opcode or order of operands
(`edits`), without the step, with another constant, or on another value. If the value is right then, that step is to
blame, and what it should have been is known, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.tools.diffing.agreement import aligned, comes_near, is_near, is_right, is_same
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.edits import Edit, edits_of
from hloexec.tools.diffing.localization.relations import NodePair, Relations, constant_of
from hloexec.tools.diffing.replaying.evaluation import Overlay
from hloexec.tools.diffing.replaying.replay import Replay
from hloexec.tools.diffing.replaying.rerun import Rerun


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
    text: str
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
            node, text = change.node, change.text
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
            text = text if is_everywhere else f"on device {node.device}, {text}"
            repair = Repair(node, text, operand=change.operand, is_everywhere=is_everywhere)
            if is_right(now, pair.theirs.value):
                last = min(last, self._tried + LIMITS.more_edits)
                right.append(repair)
            near.append(repair)
        if len(self._replay.graph.outputs) > 1 and (found := [repair for repair in near if repair.is_everywhere]):
            # What comes near on all devices may be meant as well as what is right to within two roundings.
            return _one_of(sorted(found, key=lambda repair: repair not in right))
        return _one_of(right) or next(iter(near), None)

    def _on_all_devices(self, change: _Change) -> dict[int, Array]:
        """What an instruction that is changed gives on each device, by its nodes: it is one instruction."""
        found = {change.node.number: change.array}
        for peer in _peers(change.node, self._replay.graph):
            array = change.given_by(peer)
            if array is not None:
                found[peer.number] = array
        return found

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
                yield _Change(node, array, f"its value is right if it is {edit.text}", given_by)

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
                    yield _Change(node, value, text, partial(self._given_as_it_is, place))

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
                        yield _Change(node, array, text, given_by)

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
                    given_by = partial(self._given_on, place, {each.device: each.value for each in peers})
                    array = given_by(node)
                    if array is not None:
                        ours, theirs = (each.instance.instruction.name for each in (entry, other))
                        text = f"its value is right if it uses %{theirs} of the module before instead of %{ours}"
                        yield _Change(node, array, text, given_by, NodePair(entry, other))

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
