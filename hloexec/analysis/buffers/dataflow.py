"""The flattened schedule of a module, its values, and the positions at which each of them appears.

The schedule of a whole module as one list, in which the instructions of a called computation precede the caller. A
computation that is called from several instructions is listed once, at the first. Fusions, reducers and comparators are
part of their instruction and not listed. Source: XLA, HloLiveRange::FlattenSchedule.

A *value* is what an instruction defines at one index of its shape; tuple, get-tuple-element, bitcast and similar
instructions forward values of their operands to further *positions*. Where control flow joins, a *phi* represents one
of several values, unless they are all the same. Source: XLA, HloDataflowAnalysis in SSA form, in which bitcasts define
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from hloexec.analysis.calls import CallKind, calls_of
from hloexec.core.ir import Computation, Instruction, Module, Shape, TupleShape, subshapes
from hloexec.core.places import Place
from hloexec.core.structs import define, frozen
from hloexec.engine.plan.schedule import callees_first, computation_named, effectful_computations, schedule
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.ops.traits import Index


@frozen
class FlatSchedule:
    """Instructions with their times, and the computations they belong to.

    `spans` gives for each listed computation its first time and the one after its last; callees come before callers.
    """

    sequence: tuple[tuple[Computation, Instruction], ...]
    times: dict[tuple[str, str], int]
    """By names of computation and instruction."""
    spans: dict[str, tuple[int, int]]
    async_callers: dict[str, tuple[Computation, Instruction]]
    """For computations that an asynchronous instruction runs, and those called there: the one that starts it."""
    passed_over: dict[str, tuple[tuple[int, int], ...]]
    """By computation, the spans of branches before it that do not run where it does, in order, one for those in a row:
    those listed before the branch that it is, or is in."""


def listed_callees(instruction: Instruction) -> tuple[str, ...]:
    """The computations whose instructions are in the schedule beside those of their caller, in its order."""
    return tuple(call.computation for call in calls_of(instruction) if call.kind is not CallKind.FUSED)


def flatten(module: Module) -> FlatSchedule:
    """The flat schedule of a module: the order of the text where that is a schedule, else the one hloexec runs in.

    Raises VerificationError where a computation calls itself, or names what is not there.
    """
    order = callees_first(module, module.entry)
    effectful = effectful_computations(order)
    sequence: list[tuple[Computation, Instruction]] = []
    times: dict[tuple[str, str], int] = {}
    starts: dict[str, int] = {}
    spans: dict[str, tuple[int, int]] = {}
    asynchronous: dict[str, tuple[Computation, Instruction]] = {}

    def instructions(computation: Computation) -> Sequence[Instruction]:
        if module.is_scheduled and _defines_before_it_uses(computation):
            return computation.instructions
        order = schedule(computation, effectful, is_scheduled=False)
        needed = {instruction.name for instruction in order}
        # Arguments that nothing needs are there all the same.
        return [*(entry for entry in computation.parameters if entry.name not in needed), *order]

    def steps(computation: Computation) -> Iterator[Computation]:
        """Lists a computation; yields each callee that has to be listed first."""
        starts[computation.name] = len(sequence)
        for instruction in instructions(computation):
            for name in listed_callees(instruction):
                if role_of(instruction) is Role.ASYNC_START:
                    asynchronous.setdefault(name, (computation, instruction))
                elif computation.name in asynchronous:
                    asynchronous.setdefault(name, asynchronous[computation.name])
                if name not in starts:
                    yield computation_named(module, name, instruction)
            times[computation.name, instruction.name] = len(sequence)
            sequence.append((computation, instruction))
        spans[computation.name] = starts[computation.name], len(sequence)

    stack = [steps(module.entry)]
    while stack:
        callee = next(stack[-1], None)
        if callee is None:
            stack.pop()
        else:
            stack.append(steps(callee))
    return FlatSchedule(tuple(sequence), times, spans, asynchronous, _passed_over(module, sequence, spans))


def _passed_over(
    module: Module, sequence: Sequence[tuple[Computation, Instruction]], spans: dict[str, tuple[int, int]]
) -> dict[str, tuple[tuple[int, int], ...]]:
    """`FlatSchedule.passed_over`; a computation with several callers runs in more places than where it is listed."""
    callers = Counter(name for _, instruction in sequence for name in listed_callees(instruction))
    passed_spans: dict[str, tuple[tuple[int, int], ...]] = {module.entry_name: ()}
    for computation, instruction in reversed(sequence):  # callers first
        before = passed_spans[computation.name]
        for name in listed_callees(instruction):
            passed_spans[name] = before if callers[name] == 1 else ()
            if role_of(instruction) is Role.CONDITIONAL and callers[name] == 1:
                begin, end = spans[name]
                follows = bool(before) and before[-1][1] == begin
                before = (*before[:-1], (before[-1][0], end)) if follows else (*before, (begin, end))
    return passed_spans


def _defines_before_it_uses(computation: Computation) -> bool:
    """Whether the text is in an order that can run; a module may call itself scheduled without."""
    defined: set[str] = set()
    for instruction in computation.instructions:
        if not defined.issuperset(instruction.operands):
            return False
        defined.add(instruction.name)
    return True


@frozen(eq=False)
class Value:
    """What is defined at a place; `number` counts the values of a module."""

    number: int
    place: Place
    instruction: Instruction
    shape: Shape
    is_phi: bool


@frozen
class Dataflow:
    """All values, and which of them may show at each place (one, unless a computation is called from several)."""

    values: tuple[Value, ...]
    at: dict[tuple[str, str], dict[Index, tuple[Value, ...]]]

    def values_at(self, place: Place) -> tuple[Value, ...]:
        return self.at.get((place.computation, place.instruction), {}).get(place.index, ())

    def places(self) -> dict[int, list[Place]]:
        """By number of the value, the places where it shows other than that of its definition."""
        found: dict[int, list[Place]] = {value.number: [] for value in self.values}
        for (computation, instruction), shown in self.at.items():
            for index, values in shown.items():
                place = Place(computation, instruction, index)
                for value in values:
                    if value.place != place:
                        found[value.number].append(place)
        return found


@define(eq=False)
class _Node:
    """What shows at a place: a value, or one of the inputs of a merge, which may turn out to be all the same."""

    place: Place
    instruction: Instruction
    shape: Shape
    inputs: list[_Node] | None = None
    is_phi: bool = False
    value: Value | None = None


_Shown = dict[Index, _Node]


def analyse(module: Module, flat: FlatSchedule) -> Dataflow:
    """The values of the computations in a flat schedule."""
    return _Analysis(module, flat).run()


class _Analysis:
    def __init__(self, module: Module, flat: FlatSchedule) -> None:
        self._module = module
        self._flat = flat
        self._shown: dict[tuple[str, str], _Shown] = {}
        self._merges: list[_Node] = []
        self._by_element: dict[tuple[str, str], dict[int, _Shown]] = {}

    def run(self) -> Dataflow:
        for name in self._flat.spans:  # callees first
            computation = self._module.by_name[name]
            for parameter in computation.parameters:
                if name == self._module.entry_name:
                    self._show(computation, parameter, {})
                else:
                    self._merge(computation, parameter)
        for computation, instruction in self._flat.sequence:
            if role_of(instruction) is not Role.PARAMETER:
                self._visit(computation, instruction)
        return self._dataflow(_resolve(self._merges))

    def _show(self, computation: Computation, instruction: Instruction, forwarded: dict[Index, _Shown]) -> None:
        """Record the values visible at an instruction: those forwarded from other instructions, and its own."""
        own_tables = traits_of(instruction).owns_tuple
        shown = self._shown[computation.name, instruction.name] = {}
        depths = sorted({len(index) for index in forwarded}, reverse=True)
        for index, shape in subshapes(instruction.shape):
            node = None
            if not (own_tables and isinstance(shape, TupleShape)):
                parts = ((depth, forwarded.get(index[:depth])) for depth in depths)
                node = next((part.get(index[depth:]) for depth, part in parts if part is not None), None)
            if node is None:
                node = _Node(Place(computation.name, instruction.name, index), instruction, shape)
            shown[index] = node

    def _merge(self, computation: Computation, instruction: Instruction) -> None:
        """A place where values join that are linked later; what joins nothing is a value of its own."""
        shown = self._shown[computation.name, instruction.name] = {
            index: _Node(Place(computation.name, instruction.name, index), instruction, shape, [])
            for index, shape in subshapes(instruction.shape)
        }
        self._merges += shown.values()

    def _visit(self, computation: Computation, instruction: Instruction) -> None:
        match role_of(instruction):
            case Role.WHILE:
                self._while(computation, instruction)
            case Role.CONDITIONAL:
                self._conditional(computation, instruction)
            case Role.CALL if not traits_of(instruction).fuses:
                callee = self._callees(instruction)[0]
                self._pass(computation, instruction.operands, callee)
                self._show(computation, instruction, {(): self._root(callee)})
            case _:
                self._show(computation, instruction, self._forwarded(computation, instruction))

    def _forwarded(self, computation: Computation, instruction: Instruction) -> dict[Index, _Shown]:
        """By index of the result, the parts of operands or callees that show there and below."""
        operands = [self._shown[computation.name, name] for name in instruction.operands]
        role, traits = role_of(instruction), traits_of(instruction)
        if role is Role.TUPLE:
            return {(i,): operand for i, operand in enumerate(operands)}
        if role is Role.GET_TUPLE_ELEMENT:
            elements = self._elements((computation.name, instruction.operands[0]))
            return {(): elements.get(instruction.attributes.index, {})}
        if instruction.opcode == "copy" and isinstance(instruction.shape, TupleShape):
            elements = self._elements((computation.name, instruction.operands[0]))
            return {(number,): element for number, element in elements.items()}
        if traits.begins:
            return self._started(computation, instruction, operands)
        return {index: _part(operands[0], source) for index, source in traits.aliases}

    def _elements(self, place: tuple[str, str]) -> dict[int, _Shown]:
        """What shows at and below each element of a tuple."""
        if place not in self._by_element:
            elements: dict[int, _Shown] = {}
            for index, node in self._shown[place].items():
                if index:
                    elements.setdefault(index[0], {})[index[1:]] = node
            self._by_element[place] = elements
        return self._by_element[place]

    def _started(
        self, computation: Computation, instruction: Instruction, operands: list[_Shown]
    ) -> dict[Index, _Shown]:
        shape = instruction.shape
        first = shape.elements[0] if isinstance(shape, TupleShape) and shape.elements else None
        is_call = role_of(instruction) is Role.ASYNC_START
        is_nested = is_call or (
            len(operands) > 1 and isinstance(first, TupleShape) and len(first.elements) == len(operands)
        )
        nodes: dict[Index, _Shown] = {(0, i) if is_nested else (0,): operand for i, operand in enumerate(operands)}
        if is_call:
            callee = self._callees(instruction)[0]
            self._pass(computation, instruction.operands, callee)
            nodes[(1,)] = self._root(callee)
        return nodes

    def _callees(self, instruction: Instruction) -> list[Computation]:
        return [self._module.by_name[call.computation] for call in calls_of(instruction)]

    def _root(self, computation: Computation) -> _Shown:
        return self._shown[computation.name, computation.root_name]

    def _pass(self, computation: Computation, operands: Iterable[str], callee: Computation) -> None:
        """Link the arguments of a call to the callee's parameters."""
        for parameter, operand in zip(callee.parameters, operands, strict=False):
            self._link((callee.name, parameter.name), self._shown[computation.name, operand], is_phi=False)

    def _link(self, place: tuple[str, str], source: _Shown, *, is_phi: bool) -> None:
        for index, node in self._shown[place].items():
            if node.inputs is not None and index in source:
                node.inputs.append(source[index])
                node.is_phi = node.is_phi or is_phi

    def _while(self, computation: Computation, instruction: Instruction) -> None:
        initial = self._shown[computation.name, instruction.operands[0]]
        condition, body = self._callees(instruction)
        self._merge(computation, instruction)
        joining = [(computation.name, instruction.name)]
        joining += [(callee.name, callee.parameters[0].name) for callee in (condition, body) if callee.parameters]
        for place in joining:
            for source in (self._root(body), initial):
                self._link(place, source, is_phi=True)

    def _conditional(self, computation: Computation, instruction: Instruction) -> None:
        self._merge(computation, instruction)
        for branch, operand in zip(self._callees(instruction), instruction.operands[1:], strict=False):
            source = self._shown[computation.name, operand]
            if branch.parameters:
                self._link((branch.name, branch.parameters[0].name), source, is_phi=True)
            self._link((computation.name, instruction.name), self._root(branch), is_phi=True)

    def _dataflow(self, resolved: dict[int, tuple[_Node, ...]]) -> Dataflow:
        values: list[Value] = []
        at: dict[tuple[str, str], dict[Index, tuple[Value, ...]]] = {}

        def value_of(node: _Node) -> Value:
            if node.value is None:
                node.value = Value(len(values), node.place, node.instruction, node.shape, node.is_phi)
                values.append(node.value)
            return node.value

        for computation, instruction in self._flat.sequence:
            place = (computation.name, instruction.name)
            at[place] = {
                index: tuple(value_of(part) for part in resolved.get(id(node), (node,)))
                for index, node in self._shown[place].items()
            }
        return Dataflow(tuple(values), at)


def _part(shown: _Shown, prefix: Index) -> _Shown:
    """What shows at and below an index."""
    if not prefix:
        return shown
    depth = len(prefix)
    return {index[depth:]: node for index, node in shown.items() if index[:depth] == prefix}


def _resolve(merges: list[_Node]) -> dict[int, tuple[_Node, ...]]:
    """What each merge amounts to: itself where it is a needed phi, else the one node, or the several, that it joins.

    Optimistic: a merge stands for what its inputs stand for, as far as is known, until two of them differ. So loops
    that pass the same value around in a cycle need no phi.
    """
    stands_for: dict[int, _Node] = {}
    kept: set[int] = set()

    def final(node: _Node) -> _Node | None:
        return node if node.inputs is None or id(node) in kept else stands_for.get(id(node))

    joined_by: dict[int, list[_Node]] = {}
    for node in merges:
        for source in node.inputs or ():
            joined_by.setdefault(id(source), []).append(node)
    # Callers come last in the list, and most values flow from them.
    pending = list(merges)
    while pending:
        node = pending.pop()
        if id(node) in kept:
            continue
        sources = {id(found): found for found in map(final, node.inputs or ()) if found is not None}
        if len(sources) > 1:
            kept.add(id(node))
            # What was believed of the places behind it was believed too early.
            pending += _forget(node, stands_for, joined_by, kept)
        elif sources and id(node) not in stands_for:
            (stands_for[id(node)],) = sources.values()
        else:
            continue
        pending += joined_by.get(id(node), ())
    resolved: dict[int, tuple[_Node, ...]] = {}
    for node in merges:
        target = final(node) or node
        is_union = target.inputs and not target.is_phi
        resolved[id(node)] = tuple(_united(target, final)) if is_union else (target,)
    return resolved


def _forget(
    start: _Node, stands_for: dict[int, _Node], joined_by: Mapping[int, list[_Node]], kept: Container[int]
) -> list[_Node]:
    """Make unknown again what merges behind `start` stand for, up to those that are needed; returns these merges."""
    stands_for.pop(id(start), None)
    forgotten: list[_Node] = []
    stack = list(joined_by.get(id(start), ()))
    while stack:
        node = stack.pop()
        if id(node) not in kept and stands_for.pop(id(node), None) is not None:
            forgotten.append(node)
            stack += joined_by.get(id(node), ())
    return forgotten


def _united(start: _Node, final: Callable[[_Node], _Node | None]) -> Iterator[_Node]:
    """The values and phis that a union of calls joins, through unions of unions."""
    seen: set[int] = set()
    stack = [start]
    while stack:
        node = final(stack.pop())
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.inputs and not node.is_phi:
            stack.extend(node.inputs)
        else:
            yield node
