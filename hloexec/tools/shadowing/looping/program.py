"""What one iteration of a loop does, where many of them can be run before their errors are accounted for.

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

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import NO_SLOT, InstructionKernel, Leaf
from hloexec.engine.plan.steps import Mark, Plan, Step, While
from hloexec.ops.indexing.fast.indexing import WindowWriter
from hloexec.ops.registry import Role
from hloexec.ops.traits import Rounding
from hloexec.tools.shadowing.computing.elements import spread
from hloexec.tools.shadowing.computing.evaluation import Evaluation
from hloexec.tools.shadowing.computing.widening import WIDE

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
    function: Callable[..., Any]
    operands: tuple[int, ...]
    result: int
    shape: ArrayShape
    kernel: Callable[..., Any] | None
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
    def invariant(self) -> frozenset[int]:
        """The slots that hold the same array in all iterations."""
        carried = zip(self.parameters, self.condition_parameters, self.results, strict=True)
        same = {slot for ours, theirs, result in carried if ours == result for slot in (ours, theirs)}
        return frozenset(same | self.constants.keys())

    @cached_property
    def stacks(self) -> tuple[int, ...]:
        """The nodes of the body that write a part of an array that the loop carries, and that nothing else looks at."""
        uses = Counter(slot for node in self.nodes for slot in node.operands)
        uses.update(self.results)
        carried = {
            (ours, result)
            for ours, theirs, result in zip(self.parameters, self.condition_parameters, self.results, strict=True)
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
        found = self._wrong.get((leaves, is_sampled))
        if found is None:
            found = self._wrong[leaves, is_sampled] = self._spread(leaves, is_sampled=is_sampled)
        return found

    def _spread(self, leaves: frozenset[int], *, is_sampled: bool) -> Wrong:
        wrong: set[int] = set()
        before = -1
        while before != len(wrong):
            before = len(wrong)
            for number, (ours, theirs, result) in enumerate(
                zip(self.parameters, self.condition_parameters, self.results, strict=True)
            ):
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
        carried = list(zip(self.parameters, self.condition_parameters, self.results, strict=True))
        before = -1
        while before != len(asked):
            # What an iteration hands on unchanged is asked for as what it began as.
            before = len(asked)
            asked.update(result for *leaf, result in carried if not (asked.isdisjoint(leaf) and wrong.isdisjoint(leaf)))
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
    constants = dict(flow.body.constants) | {offset + slot: each for slot, each in flow.condition.constants.items()}
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
    known = {*plan.parameters, *plan.constants}
    if not all(map(_is_simple, plan.slot_shapes)):
        return None
    found = []
    for step in plan.program:
        if step.flow is Mark.MARK or (step.results and known.issuperset(step.results)):
            # What was hoisted out of the loop was looked at in its first iteration.
            continue
        node = None if step.result == NO_SLOT else _node(step, plan, offset, evaluations)
        if node is None:
            return None
        found.append(node)
    return found


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
        kernel=None if evaluation.traits.reads_bits else evaluation.in_range(kernel),
    )


def _kind(evaluation: Evaluation, shape: ArrayShape) -> Kind:
    if not shape.element_type.is_floating or evaluation.traits.reads_bits:
        return Kind.VALUE
    if evaluation.traits.moves is not None:
        return Kind.MOVED
    return Kind.ELEMENTWISE if evaluation.is_elementwise else Kind.WHOLE
