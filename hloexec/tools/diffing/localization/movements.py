"""What else may have moved elements otherwise than it should.

Elements that lie in a wrong order are put right where they are moved next, before or behind steps that compute element
by element. So what moves elements, or takes them by their dimensions, is to blame for certain only if nothing else that
moves them around it makes the results right as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, permutations
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.core.ir import Module
from hloexec.core.values import Array
from hloexec.ops.operations import is_elementwise
from hloexec.tools.diffing.agreement import arranged, is_near, is_same
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.edits import edits_of
from hloexec.tools.diffing.localization.patches import tried
from hloexec.tools.diffing.localization.relations import NodePair, Suspect
from hloexec.tools.diffing.localization.rewiring import is_mover, keeps_places
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Values
from hloexec.tools.diffing.replaying.replay import Given, Replay
from hloexec.tools.diffing.replaying.rerun import Rerun
from hloexec.tools.diffing.replaying.states import State

_Way: TypeAlias = Callable[[Instance, Values], Array | None]
"""What an instruction could give instead, from the values by node."""


def only_moved(
    suspect: Suspect,
    proof: NodePair,
    replay: Replay,
    state: State,
    wrong: Sequence[NodePair],
    is_over: Callable[[], bool],
) -> Suspect:
    """A suspect that is certain, unless it takes elements by their places, and others may have moved these as well;
    `proof` is what was put right."""
    node = suspect.pair.ours
    is_settled = suspect.place is not None or (suspect.region and not suspect.is_certain)
    if is_settled or node.instance.is_source or is_elementwise(node.instance.instruction):
        return suspect
    found = [node]
    left = LIMITS.movements
    rerun = Rerun(replay, state, proof.ours)
    for other in _around(node, replay):
        if _is_in_before(other, replay):
            continue
        for given in _otherwise(other, replay, state):
            left -= 1
            if left < 0 or is_over():
                return attrs.evolve(suspect, is_certain=False)
            now = rerun.value(given(other.instance, state))
            if now is not None and not any(is_near(now, value) for value in arranged(proof.theirs.value, now)):
                # What follows from it is not right.
                continue
            first = replay.graph.runs[other.instance.static][0]
            if tried(replay, state, first, given, wrong, is_over, LIMITS.haste_with_moved) is not None:
                found.append(other)
                break
    if len(found) == 1:
        return suspect
    region = sorted({*found, *suspect.region}, key=lambda entry: entry.number)
    region = region[: LIMITS.largest_region]
    return attrs.evolve(suspect, is_certain=False, is_proven=not suspect.is_end, region=tuple(region))


def _around(node: Node, replay: Replay) -> Iterator[Node]:
    """What moves elements around a node, with steps between that keep their places; the nearest first."""
    pending, seen = [node], {node.instance.static}

    def add(nodes: Sequence[Node]) -> None:
        for entry in nodes:
            if entry.instance.static not in seen and entry.device == node.device and not entry.instance.is_source:
                seen.add(entry.instance.static)
                pending.append(entry)

    for current in pending:
        is_passed = current is node or keeps_places(current)
        if current is not node and is_mover(current):
            yield current
        add(current.instance.inputs if is_passed else ())
        for user in replay.users[current.number] if is_passed else ():
            add(user.results)
            add(user.inputs)


def _is_in_before(node: Node, replay: Replay) -> bool:
    """Whether the other side moves the same elements by the same instruction."""

    def key(entry: Node) -> tuple[object, ...]:
        instruction, source = entry.instance.instruction, entry.instance.inputs[0]
        return instruction.opcode, instruction.shape, instruction.attributes, source.shape, source.digest.in_order

    return any(each.instance.inputs and key(each) == key(node) for each in replay.index.graph.has_digest(node.digest))


def _otherwise(node: Node, replay: Replay, state: State) -> Iterator[Given]:
    """The ways in which what moves elements could move them instead, whenever it runs."""
    seen = [state.values[node.number]]
    for way in _ways(node, replay, state):
        array = way(node.instance, state.values)
        if array is None or any(is_same(array, other) for other in seen):
            continue
        seen.append(array)

        def given(instance: Instance, now: State, way: _Way = way) -> Mapping[int, Array]:
            moved = way(instance, now.values) if instance.static == node.instance.static else None
            return {} if moved is None else {instance.results[0].number: moved}

        yield given


def _ways(node: Node, replay: Replay, state: State) -> Iterator[_Way]:
    """As a transpose, or as a reshape; and with other attributes or another layout."""
    if node.instance.is_movement:
        sizes = [[size for size in each.shape if size != 1] for each in (node.instance.inputs[0], node)]
        for order in islice(permutations(range(len(sizes[0]))), LIMITS.permutations):
            if [sizes[0][axis] for axis in order] == sizes[1] or order == tuple(sorted(order)):
                yield partial(_transposed, order)
    module = replay.evaluator.alone(node.instance, state.values)
    for edit in () if module is None else edits_of(module):
        yield partial(_edited, replay.evaluator, edit.module)


def _transposed(order: Sequence[int], instance: Instance, values: Values) -> Array:
    value, now = (values[entry.number] for entry in (instance.inputs[0], instance.results[0]))
    squeezed = value.reshape([size for size in value.shape if size != 1])
    return np.ascontiguousarray(squeezed.transpose(order).reshape(now.shape).astype(now.dtype))


def _edited(evaluator: Evaluator, module: Module, instance: Instance, values: Values) -> Array | None:
    arrays = evaluator.results_of(module, instance, values)
    return None if arrays is None else arrays[0]
