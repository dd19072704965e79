"""Iterations of a loop that are run, exactly and as they are, before their errors are accounted for.

The steps are those of the loop's condition and of its body, as they are written, over one numbering of slots. Loops
that hold other loops, conditionals, collectives, sorts, library calls or numbers of 64 bits have no such program: their
instructions are looked at one by one.
"""

from __future__ import annotations

import enum
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import define, frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import NO_SLOT, InstructionKernel, Leaf
from hloexec.engine.plan.steps import Mark, Plan, Step, While
from hloexec.ops.common import is_inexact
from hloexec.ops.indexing.dynamic_slice import writeable
from hloexec.ops.indexing.fast.indexing import WindowWriter
from hloexec.ops.registry import Kernel, Role
from hloexec.ops.traits import Rounding
from hloexec.tools.shadowing.computing.elements import Sample, energy_in, spread, subtracted, taken
from hloexec.tools.shadowing.computing.evaluation import Evaluation
from hloexec.tools.shadowing.computing.wholes import operand_weights
from hloexec.tools.shadowing.computing.widening import WIDE
from hloexec.tools.shadowing.store import Blame, Shadow, Shadows, finite_energy_of, wide

_SAMPLED = 256
"""Elements of a large array that are looked at of each iteration."""

Evaluations = Callable[[Step], tuple[Evaluation, int]]
"""How an instruction is computed on shadows, and the number of its place."""


class Kind(enum.Enum):
    """What becomes of errors in an instruction."""

    VALUE = enum.auto()
    """Its result has none: it is no float, or its bits are read from elsewhere."""
    MOVED = enum.auto()
    ELEMENTWISE = enum.auto()
    WHOLE = enum.auto()
    """It is computed on whole arrays."""


@frozen(eq=False)
class Node:
    """An instruction of an iteration."""

    step: Step
    evaluation: Evaluation
    number: int
    """Of its place."""
    kind: Kind
    function: Kernel
    operands: tuple[int, ...]
    result: int
    shape: ArrayShape
    kernel: Kernel | None
    """For f64."""

    @property
    def is_accounted(self) -> bool:
        """Whether it may add errors, or make inherited ones larger or smaller."""
        return self.kind in (Kind.ELEMENTWISE, Kind.WHOLE)

    @property
    def shown_operands(self) -> tuple[int, ...]:
        """The slots of the operands that have an element for each of the result's."""
        if self.kind is Kind.WHOLE:
            return self.operands[:1] if self.evaluation.accumulates else ()
        return self.operands

    @property
    def may_round(self) -> bool:
        """Whether its result may have an error where its operands have none."""
        entry = self.evaluation.entry
        return self.is_accounted and (entry is None or entry.rounding is not Rounding.NONE)

    @property
    def is_choice(self) -> bool:
        """Whether it moves one of its operands' elements to each of its own."""
        return self.kind is Kind.MOVED and self.evaluation.is_elementwise


@frozen
class Wrong:
    """Which slots may have errors, and what has to be kept of each iteration for that."""

    slots: frozenset[int]
    asked: frozenset[int]
    """The slots whose numbers without rounding others are computed from."""
    recorded: frozenset[int]
    """The slots whose values are needed once the iterations have run."""
    weighed: frozenset[int]
    """The slots of which only the sum of the squared errors is."""
    is_sampled: bool
    """Whether large arrays are recorded at some places only."""
    elements: int
    """How many numbers are recorded of an iteration."""
    held: int
    """How many it makes without rounding, those of stacks aside."""

    def places(self, shape: ArrayShape) -> Array | None:
        """Which elements of an array are recorded; None for all."""
        is_large = self.is_sampled and shape.element_count > _SAMPLED
        return spread(shape.element_count, _SAMPLED) if is_large else None


@define(eq=False)
class LoopProgram:
    """The instructions of an iteration: those of the condition, which fills `again`, and then those of the body."""

    nodes: tuple[Node, ...]
    conditions: int
    """How many of the nodes are the condition's."""
    parameters: tuple[int, ...]
    """Of the body; of the condition `condition_parameters`."""
    condition_parameters: tuple[int, ...]
    again: int
    results: tuple[int, ...]
    constants: Mapping[int, Array]
    shapes: Sequence[Leaf]
    events: int
    """How many instructions an observer would be shown."""
    _wrong: dict[tuple[frozenset[int], bool], Wrong] = attrs.field(factory=dict)

    @cached_property
    def carried(self) -> list[tuple[int, ...]]:
        """Of each leaf that the loop carries, its slots: in the body, in the condition, and as a result."""
        return list(zip(self.parameters, self.condition_parameters, self.results, strict=True))

    @cached_property
    def invariant(self) -> frozenset[int]:
        """The slots that hold the same array in all iterations."""
        same = {slot for ours, theirs, result in self.carried if ours == result for slot in (ours, theirs)}
        return frozenset(same | self.constants.keys())

    @cached_property
    def stacks(self) -> tuple[int, ...]:
        """The nodes of the body that write a part of an array that the loop carries, and that nothing else looks at."""
        uses = Counter(slot for node in self.nodes for slot in node.operands)
        uses.update(self.results)
        carried = {
            (ours, result)
            for ours, theirs, result in self.carried
            if uses[ours] == uses[result] == 1 and not uses[theirs]
        }
        return tuple(
            number
            for number, node in enumerate(self.nodes)
            if isinstance(node.function, WindowWriter)
            and isinstance(node.kernel, WindowWriter)
            and (node.operands[0], node.result) in carried
        )

    def array_shape(self, slot: int) -> ArrayShape:
        """The shape of what a slot holds."""
        shape = self.shapes[slot]
        assert isinstance(shape, ArrayShape)
        return shape

    def wrong(self, leaves: frozenset[int], *, is_sampled: bool) -> Wrong:
        """What may have errors where these carried leaves do at the start."""
        wrong = self._wrong.get((leaves, is_sampled))
        if wrong is None:
            wrong = self._wrong[leaves, is_sampled] = self._spread(leaves, is_sampled=is_sampled)
        return wrong

    def _spread(self, leaves: frozenset[int], *, is_sampled: bool) -> Wrong:
        wrong: set[int] = set()
        before = -1
        while before != len(wrong):
            before = len(wrong)
            for number, (ours, theirs, result) in enumerate(self.carried):
                if number in leaves or result in wrong:
                    wrong |= {ours, theirs}
            for node in self.nodes:
                if node.kind is not Kind.VALUE and (node.may_round or _wrong_operands(node, wrong)):
                    wrong.add(node.result)
        asked: set[int] = set()
        recorded: set[int] = set()
        weighed: set[int] = set()
        for node in self.nodes:
            inherits = _wrong_operands(node, wrong)
            if node.result in wrong or inherits:
                asked.update(node.operands)
            if node.result in wrong and (node.is_accounted or node.is_choice):
                recorded.update((node.result, *node.shown_operands))
            elif node.result in wrong and len(inherits) > 1:
                weighed.update(inherits)
        before = -1
        while before != len(asked):
            # What an iteration hands on unchanged is asked for as what it began as.
            before = len(asked)
            asked.update(
                result for *leaf, result in self.carried if not (asked.isdisjoint(leaf) and wrong.isdisjoint(leaf))
            )
        recorded -= self.invariant
        most = _SAMPLED if is_sampled else sys.maxsize
        counts = {slot: min(self.array_shape(slot).element_count, most) for slot in recorded}
        elements = sum(count * (2 if slot in wrong else 1) for slot, count in counts.items())
        made = {node.result for node in self.nodes} - {self.nodes[number].result for number in self.stacks}
        return Wrong(
            slots=frozenset(wrong),
            asked=frozenset(asked),
            recorded=frozenset(recorded),
            weighed=frozenset(weighed),
            is_sampled=is_sampled,
            elements=elements,
            held=sum(self.array_shape(slot).element_count for slot in wrong & made),
        )


def _wrong_operands(node: Node, wrong: set[int]) -> list[int]:
    return [slot for slot in node.operands if slot in wrong]


def program_of(flow: While, evaluations: Evaluations) -> LoopProgram | None:
    """The program of a loop; None where its instructions have to be looked at one by one."""
    offset = len(flow.body.slot_shapes)
    conditions = _nodes(flow.condition, offset, evaluations)
    nodes = None if conditions is None else _nodes(flow.body, 0, evaluations)
    if conditions is None or nodes is None:
        return None
    constants = dict(flow.body.constants) | {
        offset + slot: constant for slot, constant in flow.condition.constants.items()
    }
    return LoopProgram(
        nodes=(*conditions, *nodes),
        conditions=len(conditions),
        parameters=flow.body.parameters,
        condition_parameters=tuple(offset + slot for slot in flow.condition.parameters),
        again=offset + flow.condition.results[0],
        results=flow.body.results,
        constants=constants,
        shapes=(*flow.body.slot_shapes, *flow.condition.slot_shapes),
        events=sum(1 for plan in (flow.condition, flow.body) for step in plan.program if not step.is_silent),
    )


def _nodes(plan: Plan, offset: int, evaluations: Evaluations) -> list[Node] | None:
    slots = {*plan.parameters, *plan.constants}
    if not all(map(_is_simple, plan.slot_shapes)):
        return None
    nodes = []
    for step in plan.program:
        if step.flow is Mark.MARK or (step.results and slots.issuperset(step.results)):
            # What was hoisted out of the loop was looked at in its first iteration.
            continue
        node = None if step.result == NO_SLOT else _node(step, plan, offset, evaluations)
        if node is None:
            return None
        nodes.append(node)
    return nodes


def _is_simple(shape: Leaf) -> bool:
    if not isinstance(shape, ArrayShape) or shape.dynamic_dimensions:
        return False
    entry = shape.element_type
    return not entry.is_complex and not (entry.is_floating and entry.bits > 32)


def _node(step: Step, plan: Plan, offset: int, evaluations: Evaluations) -> Node | None:
    shape = plan.slot_shapes[step.result]
    assert isinstance(shape, ArrayShape)
    if not isinstance(step.kernel, InstructionKernel) or step.function is None:
        return None
    evaluation, number = evaluations(step)
    entry = evaluation.entry
    if entry is None or entry.role is not Role.KERNEL or not entry.is_pure or entry.order is not None:
        return None
    kernel, kind = evaluation.kernel(WIDE), _kind(evaluation, shape)
    if evaluation.is_failing or kernel is None or evaluation.traits.only_compared or not shape.element_count:
        return None
    return Node(
        step=step,
        evaluation=evaluation,
        number=number,
        kind=kind,
        function=step.function,
        operands=tuple(offset + slot for slot in step.operands),
        result=offset + step.result,
        shape=shape,
        kernel=None if evaluation.traits.reads_bits else evaluation.exact_kernel,
    )


def _kind(evaluation: Evaluation, shape: ArrayShape) -> Kind:
    if not shape.element_type.is_floating or evaluation.traits.reads_bits:
        return Kind.VALUE
    if evaluation.traits.moves is not None:
        return Kind.MOVED
    return Kind.ELEMENTWISE if evaluation.is_elementwise else Kind.WHOLE


@frozen(eq=False)
class Recording:
    """Some iterations, in which the condition gave true."""

    program: LoopProgram
    wrong: Wrong
    rows: int
    """How many there are."""
    state: list[Array]
    """What the loop carries after them."""
    exact: dict[int, Array]
    """Of that what may have errors, without rounding."""
    values: dict[int, Array]
    """By slot, the values of all iterations; of what is the same in all, that alone; of large arrays, at places."""
    numbers: dict[int, Array]
    """The same in f64 without rounding, of slots that may have errors."""
    energies: dict[int, Array]
    """The sums of the squared errors, for each iteration; of what is not recorded at places, those of finite ones."""
    scales: dict[int, Array]
    """Of what is recorded at places, the sums of the squared numbers without rounding, for each iteration."""
    zeros: dict[int, list[tuple[int, Sample]]]
    """By node whose result is recorded at places, the elements that are zero and exactly are not, of iterations that
    have some."""
    here: dict[int, Array]
    """By node that computes whole arrays of wrong operands, what it gives in f64 for them as they are."""
    weights: dict[int, Array]
    """By such a node with several wrong operands, how much of what it inherits comes from each: [rows, operands]."""
    decisions: dict[int, tuple[int, int]]
    """By node, how many elements would be others without rounding, and of how many."""

    def values_of(self, slot: int, places: Array | None) -> Array:
        """The values in f64, integers and preds as they are, at places (None for all): [rows, elements], or
        [1, elements] where all iterations have the same."""
        return wide(self._at(self.values[slot], slot, places))

    def numbers_of(self, slot: int, places: Array | None) -> Array:
        """The same without rounding."""
        return self._at(self.numbers[slot], slot, places)

    def _at(self, array: Array, slot: int, places: Array | None) -> Array:
        if slot not in self.program.invariant:
            return array.reshape(self.rows, -1)
        return (array if places is None else taken(array, places)).reshape(1, -1)


class Recorder:
    """Keeps what a recording has of each iteration."""

    def __init__(self, program: LoopProgram, wrong: Wrong, most: int) -> None:
        """There is room for so many iterations."""
        self._program, self._wrong = program, wrong
        self._rows = 0
        shapes = {slot: program.array_shape(slot) for slot in wrong.recorded}
        self._places = {slot: wrong.places(shape) for slot, shape in shapes.items()}
        sizes = {
            slot: shape.dimensions if (places := self._places[slot]) is None else places.shape
            for slot, shape in shapes.items()
        }
        self._values = {
            slot: np.empty((most, *sizes[slot]), shape.element_type.storage) for slot, shape in shapes.items()
        }
        self._numbers = {slot: np.empty((most, *sizes[slot])) for slot in wrong.recorded & wrong.slots}
        made = {
            number: node
            for number, node in enumerate(program.nodes)
            if node.is_accounted and node.result in wrong.slots
        }
        self._sampled = {
            node.result: (number, node) for number, node in made.items() if self._places[node.result] is not None
        }
        self._zeros: dict[int, list[tuple[int, Sample]]] = {number: [] for number, _ in self._sampled.values()}
        self._scales = {slot: np.empty(most) for slot in self._sampled}
        self._energies = {slot: np.empty(most) for slot in wrong.weighed.union(self._sampled)}
        self._wholes = {
            number: _Whole(node, wrong, most)
            for number, node in made.items()
            if node.kind is Kind.WHOLE and not wrong.slots.isdisjoint(node.operands)
        }
        self._deciding = [(number, node) for number, node in enumerate(program.nodes) if _decides(node, wrong)]
        self._decisions: dict[int, tuple[int, int]] = {}

    def note(self, values: Sequence[Array], exact: Sequence[Array], outside: dict[int, float]) -> None:
        """Keep what an iteration has computed, by slot. Of slots in `outside`, the sum of the squared errors is what it
        says."""
        row = self._rows
        for kept, arrays in ((self._values, values), (self._numbers, exact)):
            for slot, rows in kept.items():
                places = self._places[slot]
                rows[row] = arrays[slot] if places is None else taken(arrays[slot], places)
        for whole in self._wholes.values():
            whole.note(row, values, exact)
        for slot, rows in self._energies.items():
            if slot in outside:
                rows[row] = outside[slot]
                continue
            difference, zeros = subtracted(exact[slot], values[slot])
            if slot not in self._sampled:
                rows[row] = finite_energy_of(difference)
                continue
            rows[row], self._scales[slot][row] = energy_in(difference), energy_in(exact[slot])
            if zeros.size:
                number, node = self._sampled[slot]
                self._zeros[number].append((row, self._sample(number, node, values, exact, zeros)))
        for number, node in self._deciding:
            changed, count = self._decisions.get(number, (0, 0))
            its = _decided(node, values, exact)
            self._decisions[number] = changed + its[0], count + its[1]
        self._rows += 1

    def _sample(
        self, number: int, node: Node, values: Sequence[Array], exact: Sequence[Array], places: Array
    ) -> Sample:
        """What a node has at places in the last iteration."""
        ours, theirs = wide(taken(values[node.result], places)), taken(exact[node.result], places)
        if node.kind is Kind.WHOLE:
            here = taken(self._wholes[number].last, places) if number in self._wholes else theirs
            return Sample(ours, theirs, here, ours - here, here - theirs)
        assert node.kernel is not None
        operands = [wide(taken(values[slot], places)) for slot in node.operands]
        exact_operands = [taken(exact[slot], places) if slot in self._wrong.slots else None for slot in node.operands]
        return Sample.of_elements(node.kernel, operands, exact_operands, ours)

    @property
    def rows(self) -> int:
        """How many iterations have been kept."""
        return self._rows

    def recording(self, values: Sequence[Array], exact: Sequence[Array]) -> Recording:
        """All of it, and what the loop carries now."""
        program, wrong, rows = self._program, self._wrong, self._rows
        same = program.invariant
        return Recording(
            program=program,
            wrong=wrong,
            rows=rows,
            state=[values[slot] for slot in program.parameters],
            exact={number: exact[slot] for number, slot in enumerate(program.parameters) if slot in wrong.slots},
            values={slot: array[:rows] for slot, array in self._values.items()} | {slot: values[slot] for slot in same},
            numbers={slot: array[:rows] for slot, array in self._numbers.items()}
            | {slot: exact[slot] for slot in same & wrong.slots},
            energies={slot: array[:rows] for slot, array in self._energies.items()},
            scales={slot: array[:rows] for slot, array in self._scales.items()},
            zeros=self._zeros,
            here={number: whole.here[:rows] for number, whole in self._wholes.items()},
            weights={
                number: whole.weights[:rows] for number, whole in self._wholes.items() if whole.weights is not None
            },
            decisions=self._decisions,
        )


class _Whole:
    """What an instruction that computes whole arrays gives in each iteration for its operands as they are."""

    def __init__(self, node: Node, wrong: Wrong, most: int) -> None:
        self._node = node
        self._wrong = [place for place, slot in enumerate(node.operands) if slot in wrong.slots]
        self._places = wrong.places(node.shape)
        self.here = np.empty((most, node.shape.element_count if self._places is None else self._places.size))
        self.last: Array = self.here[0]
        """All of the last iteration's."""
        self.weights = np.empty((most, len(node.operands))) if len(self._wrong) > 1 else None

    def note(self, row: int, values: Sequence[Array], exact: Sequence[Array]) -> None:
        kernel, slots = self._node.kernel, self._node.operands
        assert kernel is not None
        operands = [values[slot] for slot in slots]
        exact_operands = [
            wide(values[slot]) if place in self._wrong else exact[slot] for place, slot in enumerate(slots)
        ]
        self.last = here = np.asarray(flat(kernel(*exact_operands))[0])
        self.here[row] = taken(here, self._places)
        if self.weights is not None:
            shadows: list[Shadow | None] = [None] * len(operands)
            for place in self._wrong:
                energy = finite_energy_of(exact[slots[place]] - wide(operands[place]))
                shadows[place] = Shadow(exact[slots[place]], True, energy, 0, Blame()) if energy else None
            self.weights[row], _ = operand_weights(kernel, operands, shadows, 0, here, None)


def _decides(node: Node, wrong: Wrong) -> bool:
    is_number = node.kind is Kind.VALUE and not node.shape.element_type.is_inexact
    return is_number and node.kernel is not None and not wrong.slots.isdisjoint(node.operands)


def _decided(node: Node, values: Sequence[Array], exact: Sequence[Array]) -> tuple[int, int]:
    """How many elements would be others without rounding, and of how many: of none where no operand has an error."""
    assert node.kernel is not None
    pairs = [(values[slot], exact[slot]) for slot in node.operands]
    if not any(is_inexact(value) and np.any(wide(value) != number) for value, number in pairs):
        return 0, 0
    value = values[node.result]
    return int(np.count_nonzero(value != node.kernel(*[number for _, number in pairs]))), value.size


def recorded(program: LoopProgram, wrong: Wrong, state: Sequence[Array], shadows: Shadows, most: int) -> Recording:
    """Run at most so many iterations on what a loop carries; fewer, where its condition gives false."""
    values: list[Any] = [None] * len(program.shapes)
    exact: list[Any] = [None] * len(program.shapes)
    for slot, constant in program.constants.items():
        values[slot] = constant
        exact[slot] = wide(constant) if slot in wrong.asked else None
    carried = program.carried
    for (ours, theirs, _), array, shadow in zip(carried, state, shadows, strict=True):
        values[ours] = values[theirs] = array
        if ours in wrong.slots or not wrong.asked.isdisjoint((ours, theirs)):
            exact[ours] = exact[theirs] = wide(array) if shadow is None else shadow.exact(array)
    changing = [entry for entry in carried if entry[0] != entry[2]]
    recorder = Recorder(program, wrong, most)
    stacks = {number: _Stack(program.nodes[number], wrong, values, exact) for number in program.stacks}
    conditions = [_step(node, wrong, None) for node in program.nodes[: program.conditions]]
    body = [
        _step(node, wrong, stacks.get(number))
        for number, node in enumerate(program.nodes[program.conditions :], program.conditions)
    ]
    while recorder.rows < most:
        _run(conditions, values, exact)
        if not values[program.again]:
            break
        _run(body, values, exact)
        recorder.note(values, exact, {stack.slot: stack.outside(values, exact) for stack in stacks.values()})
        after = [(values[result], exact[result]) for _, _, result in changing]
        for (ours, theirs, _), (value, number) in zip(changing, after, strict=True):
            values[ours] = values[theirs] = value
            exact[ours] = exact[theirs] = number
    return recorder.recording(values, exact)


_CANCELLED = 1e-6
"""Where less of a sum is left, it is added up again."""


class _Stack:
    """An array that a loop carries, and that each iteration writes a part of and does nothing else with."""

    def __init__(self, node: Node, wrong: Wrong, values: Sequence[Array], exact: Sequence[Array]) -> None:
        self.slot, self._update, *_ = node.operands
        self._is_wrong = node.result in wrong.slots
        self.function, self.kernel = _Writing(node.function), _Writing(node.kernel)
        self._energy = finite_energy_of(exact[self.slot] - wide(values[self.slot])) if self._is_wrong else 0.0

    def outside(self, values: Sequence[Array], exact: Sequence[Array]) -> float:
        """The sum of the squared finite errors of all that the last iteration has not written."""
        if not self._is_wrong:
            return 0.0
        written = finite_energy_of(exact[self._update] - wide(values[self._update]))
        rest = self._energy - finite_energy_of(self.kernel.replaced - wide(self.function.replaced))
        if rest < _CANCELLED * self._energy:
            rest = max(0.0, finite_energy_of(exact[self.slot] - wide(values[self.slot])) - written)
        self._energy = rest + written
        return rest


class _Writing:
    """Writes parts of an array, which is copied the first time."""

    def __init__(self, function: Kernel | None) -> None:
        assert isinstance(function, WindowWriter)
        self._function = function
        self._own: Array | None = None
        self.replaced: Array
        """What was there before the last time."""

    def __call__(self, operand: Array, update: Array, *starts: Any) -> Array:
        out = operand if operand is self._own else writeable(operand)
        self.replaced = out[self._function.index(starts)].copy()
        self._own = self._function(operand, update, *starts, out=out)
        return self._own


_Step = tuple[Kernel, tuple[int, ...], int, Kernel | None, bool]
"""A kernel, its operands and its result; the kernel for f64 where there may be errors; and whether something else needs
the value in f64."""


def _step(node: Node, wrong: Wrong, stack: _Stack | None) -> _Step:
    function, kernel = (node.function, node.kernel) if stack is None else (stack.function, stack.kernel)
    is_wrong, is_asked = node.result in wrong.slots, node.result in wrong.asked
    return function, node.operands, node.result, kernel if is_wrong else None, is_asked


def _run(steps: Sequence[_Step], values: list[Any], exact: list[Any]) -> None:
    for function, operands, result, kernel, is_asked in steps:
        values[result] = value = function(*[values[slot] for slot in operands])
        if kernel is not None:
            exact[result] = np.asarray(kernel(*[exact[slot] for slot in operands]))
        elif is_asked:
            exact[result] = value.astype(np.float64) if value.dtype == np.float32 else wide(value)
