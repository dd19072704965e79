"""What only hands values on or moves them and may be to blame, and what makes up for another value or another order.

Where one of these takes another value than it should, each step that uses it seems to take a wrong one, and to put one
of them right puts no result right. So `after` is run again with one of them changed: with another element of the tuple,
with two operands in each other's place, or with another value of an attribute that says where elements lie.

Where a program was written in another way, a step may give another value than the one that it is compared with, and a
later one makes up for that: `(q · c) kᵀ` is `(q kᵀ) · c`, and `x / √v` is `x · v^(-1/2)`. What follows is the same
again. Such a value is right if what follows tells all of it: if only this value gives a value of `before` in the steps
between. What a step may lose, as a maximum with zero does, tells nothing.

What else may have moved elements otherwise than it should.

Elements that lie in a wrong order are put right where they are moved next, before or behind steps that compute element
by element. So what moves elements, or takes them by their dimensions, is to blame for certain only if nothing else that
moves them around it makes the results right as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, permutations
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.analysis.calls import calls_of, passed_operands
from hloexec.core.dtypes import element_type_of, unit_roundoff
from hloexec.core.ir import Computation, Instruction, Module, TupleShape, leaf_shapes
from hloexec.core.ir.editing import replace_computation, replace_instruction
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.exec.observers import path_entry
from hloexec.ops.common import wide
from hloexec.ops.contraction.dot import DotAttributes
from hloexec.ops.registry import Role, is_elementwise, role_of, traits_of
from hloexec.tools.diffing.findings import InstructionRun, run_at
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.edits import edits_of, moved_otherwise
from hloexec.tools.diffing.localization.patches import tried
from hloexec.tools.diffing.localization.relations import NodePair, Relations, Suspect, is_filled
from hloexec.tools.diffing.matching import arranged, is_near, is_same
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Values
from hloexec.tools.diffing.replaying.replay import Given, Replay, State
from hloexec.tools.diffing.replaying.rerun import Rerun
from hloexec.tools.diffing.texts import repeats

_Judge: TypeAlias = Callable[[Module, tuple[str, str] | None], bool]
_MOVER = -1
"""In the place of an operand: what is looked at are the attributes of an instruction that moves elements."""


@frozen
class _Handle:
    """A place where a value is handed on: an operand of an instruction that does nothing else, or an element."""

    computation: str
    instruction: str
    operand: int
    """Which operand of it; 0 of what takes an element, and `_MOVER`."""

    @property
    def place(self) -> tuple[str, str]:
        return self.computation, self.instruction


@frozen(eq=False)
class Rewiring:
    """A change of what hands values on that makes all results right."""

    place: InstructionRun
    text: str
    is_alone: bool
    """Whether all other such changes were tried, and none makes the results right."""
    is_only_one: bool
    """Whether that is so, and several instructions take what is handed on: else it may be the one that does."""
    node: Node
    """The first value that is computed from what it hands on."""
    region: tuple[Node, ...]
    """It, and what moves elements further back, if that would do as well."""


@frozen(eq=False)
class _Use:
    """What takes the value that is handed on at a place."""

    node: Node
    """A value that is computed from it, or it itself as a result."""
    user: tuple[str, str]
    scope: CallPath
    """That of the place."""


def rewired(module: Module, nodes: Sequence[Node], results: Mapping[int, Node], is_right: _Judge) -> Rewiring | None:
    """The change that makes the results right, of what hands on the operands of some nodes, or on results, which are
    given by the numbers of their leaves; None where none does.

    `is_right` runs a module and says whether its results are right, and is told where it moves elements otherwise.
    """
    uses: defaultdict[_Handle, list[_Use]] = defaultdict(list)
    for node in nodes:
        for handle, scope in _handles(module, node.instance):
            uses[handle].append(_Use(node, node.instance.static, scope))
    for number, node in results.items():
        for handle, scope in _ways_of_result(module, number):
            uses[handle].append(_Use(node, ("", str(number)), scope))
    near = [entry for node in nodes for entry in (node, *node.instance.inputs)]
    uses |= {handle: use for handle, use in _moving(near).items() if handle not in uses}
    behind = {handle: use for handle, use in _moving(_behind(near)).items() if handle not in uses}
    changes, are_all = _right_ones(module, uses, is_right)
    uses |= behind
    if not changes:
        changes, are_all = _right_ones(module, behind, is_right)
        behind = {}
    if not changes:
        return None
    # If what computes could as well have its operands exchanged, that is nearer to what is wrong.
    computing = {
        handle: [_Use(node, node.instance.static, node.instance.scope)] for node in nodes for handle in _operands(node)
    }
    nearer, are_all_nearer = _right_ones(module, computing, is_right)
    changes = [*nearer, *changes]
    uses |= computing
    handle, text = changes[0]
    alike = [
        handle_alike
        for handle_alike in uses
        if handle_alike.place == handle.place and text in {edit for edit, _ in _edits(module, handle_alike)}
    ]
    users = {use.user for handle_alike in alike for use in uses[handle_alike]}
    first = min((use for handle_alike in alike for use in uses[handle_alike]), key=lambda use: use.node.number)
    place = run_at(module.by_name[handle.computation], RunPlace(first.scope, handle.instruction, first.node.device))
    is_shared = len(users) > 1 or (handle.operand == _MOVER and first.node in nodes)
    is_alone = are_all and are_all_nearer and len({handle_alike.place for handle_alike, _ in changes}) == 1
    is_only_one, others = is_shared and is_alone, dict[_Handle, str]()
    if is_alone and (is_shared or handle.operand == _MOVER):
        right, are_all = _right_ones(module, behind, is_right)
        others = dict(right)
        is_only_one &= are_all and not others
    region = [uses[handle_alike][0].node for handle_alike in others]
    region = sorted([first.node, *region], key=lambda node: node.number) if region else []
    return Rewiring(place, text, is_alone, is_only_one, first.node, tuple(region[: LIMITS.largest_region]))


def _right_ones(module: Module, handles: Iterable[_Handle], is_right: _Judge) -> tuple[list[tuple[_Handle, str]], bool]:
    """The changes that make the results right, of as many as are tried; and whether these are all."""
    changes: list[tuple[_Handle, str]] = []
    tried: set[tuple[tuple[str, str], str]] = set()
    for handle in handles:
        for text, edited in _edits(module, handle):
            if (handle.place, text) in tried:
                continue
            if len(tried) == LIMITS.rewirings:
                return changes, False
            tried.add((handle.place, text))
            if is_right(edited, handle.place if handle.operand == _MOVER else None):
                changes.append((handle, text))
    return changes, True


def _moving(nodes: Sequence[Node]) -> dict[_Handle, list[_Use]]:
    """What moves elements among some nodes."""
    movers: dict[_Handle, list[_Use]] = {}
    for node in filter(is_mover, nodes):
        instance = node.instance
        movers.setdefault(_Handle(*instance.static, _MOVER), [_Use(node, instance.static, instance.scope)])
    return movers


# The way of an operand


def _handles(module: Module, instance: Instance) -> Iterator[tuple[_Handle, CallPath]]:
    """What hands on each operand of an instance, back to where it was computed; and the scopes."""
    if any(call.computation not in module.by_name for call in instance.scope.calls):
        return
    for name in dict.fromkeys(instance.instruction.operands):
        yield from _way(module, instance.scope, name, [])


def _ways_of_result(module: Module, number: int) -> Iterator[tuple[_Handle, CallPath]]:
    """What hands on a leaf of the module's result."""
    root = module.entry.root
    leaves = [index for index, leaf in leaf_shapes(root.shape) if leaf.is_array]
    return _way(module, CallPath(), root.name, [*reversed(leaves[number])])


def _way(module: Module, scope: CallPath, name: str, path: list[int]) -> Iterator[tuple[_Handle, CallPath]]:
    """What hands on the value that a name stands for in a scope, or an element of it, of which the outermost index is
    the last."""
    for _ in range(LIMITS.way_steps):
        own = scope.computation(module.entry_name)
        instruction = module.by_name[own].by_name[name]
        role = role_of(instruction)
        if role is Role.GET_TUPLE_ELEMENT:
            yield _Handle(own, name, 0), scope
            path.append(instruction.attributes.index)
            name = instruction.operands[0]
        elif role is Role.TUPLE and path:
            number = path.pop()
            yield _Handle(own, name, number), scope
            name = instruction.operands[number]
        elif role is Role.FORWARD:
            name = instruction.operands[0]
        elif role is Role.CALL:
            callee = calls_of(instruction)[0].computation
            scope = scope.to(path_entry(instruction, callee))
            name = module.by_name[callee].root_name
        elif role is Role.PARAMETER and scope.calls:
            call, scope = scope.calls[-1], scope.outer
            if call.iteration:
                # The iteration before has handed it on.
                scope = scope.to(attrs.evolve(call, iteration=call.iteration - 1))
                name = module.by_name[own].root_name
                continue
            caller, number = call.instruction, instruction.attributes.number
            if role_of(caller) is Role.CALL:
                yield _Handle(scope.computation(module.entry_name), caller.name, number), scope
            given = passed_operands(caller, own)
            if number >= len(given):
                return
            name = given[number]
        elif role is Role.KERNEL and repeats(instruction):
            name = instruction.operands[0]
        else:
            return


def keeps_places(node: Node) -> bool:
    """Whether an order of elements may show in what is computed from them: in what computes element by element, moves
    elements, or adds up those of one value along some of three dimensions or more."""
    instruction = node.instance.instruction
    traits = traits_of(instruction)
    has_others = traits.contraction is None and any(len(entry.shape) > 2 for entry in node.instance.inputs)
    return is_elementwise(instruction) or traits.moves is not None or (traits.sums is not None and has_others)


def is_mover(node: Node) -> bool:
    """Whether it moves elements of one value on one device."""
    instance = node.instance
    return len(instance.inputs) == 1 and not instance.others and traits_of(instance.instruction).moves == (0,)


def _behind(nodes: Sequence[Node]) -> list[Node]:
    """Some nodes, and what they are computed from so that elements may have been moved there just as well."""
    behind = list(dict.fromkeys(nodes))
    most = len(behind) + LIMITS.rewired_steps
    seen = set(behind)
    for node in behind:
        if len(behind) < most and keeps_places(node):
            new = [entry for entry in node.instance.inputs if entry not in seen]
            seen.update(new)
            behind += new
    return behind


def _operands(node: Node) -> Iterator[_Handle]:
    """The operands of what computes a node, if it matters in which order it takes them."""
    instruction = node.instance.instruction
    count = len(instruction.operands)
    if role_of(instruction) is Role.KERNEL and not traits_of(instruction).commutes:
        yield from (_Handle(*node.instance.static, number) for number in range(min(count, LIMITS.exchanged_operands)))


# What may be changed


def _edits(module: Module, handle: _Handle) -> Iterator[tuple[str, Module]]:
    """The module with what hands a value on changed, and what it is then."""
    computation = module.by_name[handle.computation]
    instruction = computation.by_name[handle.instruction]
    if handle.operand == _MOVER:
        for edit in moved_otherwise(module, computation, handle.instruction):
            yield edit.text, edit.module
        return
    for edited in _others(computation, instruction, handle.operand):
        changed = replace_instruction(computation, edited)
        text = f"{edited.opcode}({', '.join(f'%{name}' for name in edited.operands)})"
        if edited.attributes != instruction.attributes:
            text += f", index={edited.attributes.index}"
        yield text, replace_computation(module, changed)


def _others(computation: Computation, instruction: Instruction, operand: int) -> Iterator[Instruction]:
    if role_of(instruction) is Role.GET_TUPLE_ELEMENT:
        shape = computation.operands_of(instruction)[0].shape
        elements: Iterable[tuple[int, object]] = enumerate(shape.elements if isinstance(shape, TupleShape) else ())
        for index, element in elements:
            if index != instruction.attributes.index and element == instruction.shape:
                yield attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, index=index))
        return
    shapes = [operand_instruction.shape for operand_instruction in computation.operands_of(instruction)]
    is_kernel = role_of(instruction) is Role.KERNEL
    for other, shape in enumerate(shapes):
        if other != operand and shape == shapes[operand] and (other > operand or not is_kernel):
            operands = list(instruction.operands)
            operands[operand], operands[other] = operands[other], operands[operand]
            if tuple(operands) != instruction.operands:
                yield attrs.evolve(instruction, operands=tuple(operands))


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
    moved = [node]
    left = LIMITS.movements
    rerun = Rerun(replay, state, proof.ours)
    for other in _around(node, replay):
        if _is_in_before(other, replay):
            continue
        for otherwise in _otherwise(other, replay, state):
            left -= 1
            if left < 0 or is_over():
                return attrs.evolve(suspect, is_certain=False)
            now = rerun.value(otherwise(other.instance, state))
            if now is not None and not any(is_near(now, value) for value in arranged(proof.theirs.value, now)):
                # What follows from it is not right.
                continue
            first = replay.graph.runs[other.instance.static][0]
            if tried(replay, state, first, otherwise, wrong, is_over, LIMITS.haste_with_moved) is not None:
                moved.append(other)
                break
    if len(moved) == 1:
        return suspect
    region = sorted({*moved, *suspect.region}, key=lambda entry: entry.number)
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

    return any(
        candidate.instance.inputs and key(candidate) == key(node)
        for candidate in replay.index.graph.has_digest(node.digest)
    )


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
        sizes = [[size for size in side.shape if size != 1] for side in (node.instance.inputs[0], node)]
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


class Compensations:
    """What is made up for in one state of a replay."""

    def __init__(self, replay: Replay, relations: Relations) -> None:
        self._replay = replay
        self._relations = relations
        self._state = relations.state
        self._known: dict[tuple[int, int], bool] = {}
        """By the numbers of each pair, whether a later value tells that it is none."""

    def has(self, pair: NodePair, *, is_guessed: bool = False) -> bool:
        """Whether a value that differs from its counterpart is right: a value of `before` that follows from it tells
        so, and would not be right if it were its counterpart.

        A value that is another one of `before` may be used in the wrong place, unless its counterpart is guessed.
        """
        if self._state.has(pair.ours) and not is_guessed:
            return False
        if pair.numbers not in self._known:
            self._known[pair.numbers] = self._has(pair)
        return self._known[pair.numbers]

    def _has(self, pair: NodePair) -> bool:
        raw = self._state.raw[pair.ours.number]
        if not element_type_of(raw.dtype).is_floating:
            return False
        others = [value for value in arranged(pair.theirs.value, raw) if not is_same(value, raw)]
        if not others:
            return False
        others.append(_nudged(raw))
        return any(self._tells_apart(pair.ours, node, others) for node in self._told(pair.ours))

    def _told(self, node: Node) -> Iterator[Node]:
        """The first values of `before` behind a value, that only this value gives in the steps between."""
        pending, seen = [node], {node.number}
        for current in pending:
            for instance in self._replay.users[current.number]:
                if len(instance.results) != 1 or instance.results[0].number in seen:
                    continue
                result = instance.results[0]
                seen.add(result.number)
                if len(seen) > LIMITS.compensating_steps:
                    return
                if not self._tells(current, instance, node):
                    continue
                if instance.is_movement or not self._state.has(result):
                    pending.append(result)
                elif self._is_its_own(result, node):
                    yield result

    def _tells(self, node: Node, instance: Instance, first: Node) -> bool:
        """Whether different values of an operand have different results, given that the other operands are right."""
        parts, traits = instance.operands, traits_of(instance.instruction)
        if instance.others or any(len(part) != 1 for part in parts):
            return False
        operands = [part[0] for part in parts]
        others = [entry for entry in operands if entry.number != node.number]
        entry = element_type_of(instance.results[0].dtype)
        if len(others) != len(operands) - 1 or not entry.is_floating:
            return False
        if unit_roundoff(entry) > unit_roundoff(element_type_of(node.dtype)):
            return False
        if any(not self._is_right(other) or is_computed_from(other, first) for other in others):
            return False
        if instance.is_movement or traits.is_injective or traits.converts:
            return True
        if traits.moves is not None:
            return traits.keeps_all and traits.moves == (0,) and operands[0].number == node.number
        if not others:
            return False
        factor = wide(self._state.values[others[0].number])
        if not np.isfinite(factor).all():
            return False
        if traits.is_product or traits.is_quotient:
            return bool(factor.all())
        if traits.cancels:
            # What is small beside the other operand is lost in rounding.
            lost = float(np.abs(factor).max(initial=0.0)) * LIMITS.roundings * unit_roundoff(entry)
            return lost <= LIMITS.nudge * self._state.raw.digest(node.number).root_mean_square
        is_dot = isinstance(instance.instruction.attributes, DotAttributes)
        return is_dot and _has_full_rank(instance, factor, operands[0].number == node.number)

    def _is_right(self, node: Node) -> bool:
        return is_filled(node) or node.instance.is_source or self._state.has(node)

    def _is_its_own(self, node: Node, first: Node) -> bool:
        """Whether a value is one of `before` by no accident, and `after` has it nowhere but behind the first one."""
        match = self._state.matches[node.number]
        if match is None or not self._relations.is_evidence(node):
            return False
        if not np.isfinite(wide(self._state.raw[node.number])).all():
            return False
        runs = self._replay.graph.runs
        holders = [runs[static] for static in self._relations.holders(match.node)]
        if sum(map(len, holders)) > LIMITS.compensating_steps:
            return False
        return all(is_computed_from(entry, first) for each in holders for run in each for entry in run.results)

    def _tells_apart(self, node: Node, later: Node, others: list[Array]) -> bool:
        """Whether a later value is not near what it should be if the first one is any of the others."""
        match = self._state.matches[later.number]
        if match is None:
            return False
        rerun = Rerun(self._replay, self._state, later)
        for other in others:
            now = rerun.value({node.number: other})
            if now is None or any(is_near(now, value) for value in arranged(match.node.value, now)):
                return False
        return True


def is_computed_from(node: Node, other: Node) -> bool:
    """Whether one value is computed from another; it counts as such if that is far to see."""
    pending = {node.number: node}
    for _ in range(LIMITS.steps_between):
        if not pending:
            return False
        current = pending.pop(max(pending))
        if current.number == other.number:
            return True
        pending |= {entry.number: entry for entry in current.instance.inputs if entry.number >= other.number}
    return True


def _nudged(value: Array) -> Array:
    """A value that is a little off, by turns to either side."""
    signs = np.where(np.arange(value.size) % 2 == 0, 1.0, -1.0).reshape(value.shape)
    with np.errstate(all="ignore"):
        return (wide(value) * (1 + LIMITS.nudge * signs)).astype(value.dtype)


def _has_full_rank(instance: Instance, factor: Array, is_first: bool) -> bool:
    """Whether a product tells what it multiplies by a factor: its columns along what is added up are independent."""
    attributes = instance.instruction.attributes
    sides = (
        (attributes.lhs_batch_dims, attributes.lhs_contracting_dims),
        (attributes.rhs_batch_dims, attributes.rhs_contracting_dims),
    )
    batch, contracting = sides[1 if is_first else 0]
    free = [axis for axis in range(factor.ndim) if axis not in (*batch, *contracting)]
    sizes = [int(np.prod([factor.shape[axis] for axis in axes], dtype=np.int64)) for axes in (batch, free, contracting)]
    matrices = factor.transpose([*batch, *free, *contracting]).reshape(sizes)
    if not matrices.size or sizes[1] < sizes[2]:
        return False
    # Near to it, what is told is lost in rounding.
    sizes_of_axes = np.linalg.svd(matrices, compute_uv=False)
    return bool((sizes_of_axes[:, -1] > LIMITS.nudge * sizes_of_axes[:, 0]).all())
