"""A computation's instructions become the steps of a plan, one by one, in the order in which they run.

Tuples become trees of slots, kernels are bound, calls become steps that run another plan. Nothing here recurses,
because chains of instructions may be very long.

Lowering also assigns a memory order (an order of dimensions) to each value: row-major, except for views that permute
dimensions. Kernels whose bits depend on that order receive their operands in it, however the arrays are stored.
Parameters are row-major, so the result of a computation does not depend on its caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Computation, Instruction, Literal, TupleShape, map_shape
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import (
    Conversion,
    Forward,
    Kernel,
    Leaf,
    SlotTree,
    float_types,
    leaves,
    map_tree,
    needs_conversion,
    with_type,
)
from hloexec.engine.plan.lowering.flow import (
    conditional,
    copy_start,
    device_number,
    exchange,
    invocation,
    part,
    while_loop,
)
from hloexec.engine.plan.lowering.kernels import custom_call, kernel
from hloexec.engine.plan.steps import Flow, Mark, Plan, Scope, Step
from hloexec.engine.plan.synthesis import zeros
from hloexec.errors import VerificationError
from hloexec.ops.registry import MemoryOrder, Role, find_opcode

if TYPE_CHECKING:
    from hloexec.engine.plan.planner import Planner


class Lowering:
    """One computation on its way to a plan: its steps, slots and constants, as far as they are there."""

    def __init__(
        self,
        context: Planner,
        computation: Computation,
        parameter_types: Sequence[ElementType | None] | None = None,
    ) -> None:
        """`parameter_types` are those of a caller's floats by leaf, where they are not the computation's own."""
        self.context = context
        self.computation = computation
        self.scope = Scope(computation)
        self.steps: list[Step] = []
        self.slot_shapes: list[Leaf] = []
        self.constants: dict[int, Any] = {}
        self.orders: dict[int, MemoryOrder] = {}
        """The slots whose assigned memory order is not row-major."""
        self.viewed: dict[int, int] = {}
        """Of slots whose values are views, the slots whose memory they show."""
        self.values: dict[str, SlotTree] = {}
        self.unrounded: dict[str, SlotTree] = {}
        """Of values that some instruction uses with more precision than they are declared to have."""
        self.arguments = [map_shape(parameter.shape, self.new_slot) for parameter in _parameters(computation)]
        self.parameters = tuple(range(len(self.slot_shapes)))
        for slot, parameter_type in enumerate(parameter_types or ()):
            if parameter_type is not None:
                self.slot_shapes[slot] = with_type(self.slot_shapes[slot], parameter_type)

    def plan(self, result_types: Sequence[ElementType | None] | None = None) -> Plan:
        """The plan; its floats converted to these types, where a caller wants others than the computation's own."""
        for instruction in self.context.program.schedule(self.computation):
            entry = find_opcode(instruction.opcode)
            assert entry is not None
            self.values[instruction.name] = _LOWERED[entry.role](self, instruction)
        root = self.computation.root
        tree = self.values[root.name]
        if result_types is not None:
            tree = self.converted(root, tree, result_types, is_silent=True)
        steps = [step for step in self.steps if not step.is_shown_only]
        return Plan(
            computation=self.computation,
            steps=steps if len(steps) < len(self.steps) else self.steps,
            program=self.steps,
            parameters=self.parameters,
            constants=self.constants,
            result_tree=tree,
            slot_shapes=self.slot_shapes,
            result_orders=tuple(map(self.orders.get, leaves(tree))),
        )

    # Slots

    def new_slot(self, shape: Leaf) -> int:
        """A slot for values of this shape."""
        self.slot_shapes.append(shape)
        return len(self.slot_shapes) - 1

    def constant_slot(self, shape: Leaf, value: object) -> int:
        """A slot that always holds this value."""
        slot = self.new_slot(shape)
        self.constants[slot] = value
        return slot

    def zeros(self, instruction: Instruction) -> SlotTree:
        """Zeros of an instruction's shape."""
        return map_shape(instruction.shape, lambda leaf: self.constant_slot(leaf, zeros(leaf)))

    def state(self, instruction: Instruction, start: int = 2) -> tuple[SlotTree, ...]:
        """Zeros for the elements of a tuple from `start` on, which mean nothing: the state of an asynchronous start."""
        elements = getattr(instruction.shape, "elements", ())[start:]
        return tuple(map_shape(element, lambda leaf: self.constant_slot(leaf, zeros(leaf))) for element in elements)

    # Values

    def operands(self, instruction: Instruction) -> tuple[SlotTree, ...]:
        """The values of an instruction's operands."""
        return tuple(self.values[name] for name in instruction.operands)

    def element(self, instruction: Instruction, index: tuple[int, ...]) -> SlotTree:
        """What an instruction's operand holds at this index; VerificationError where it holds nothing there."""
        tree = self.values[instruction.operands[0]]
        for position in index:
            if isinstance(tree, int) or not 0 <= position < len(tree):
                raise VerificationError(
                    f"%{instruction.name} in computation {self.computation.name} takes element {position} of "
                    f"%{instruction.operands[0]}, which has no such element"
                )
            tree = tree[position]
        return tree

    def types(self, trees: Sequence[SlotTree]) -> tuple[ElementType | None, ...]:
        """The float types of the leaves of trees."""
        slots = (slot for tree in trees for slot in leaves(tree))
        return tuple(entry for slot in slots for entry in float_types(self.slot_shapes[slot]))

    def unrounded_operands(self, instruction: Instruction) -> tuple[SlotTree, ...]:
        """The same, as they were before they were rounded where that is known."""
        return tuple(self.unrounded.get(name, self.values[name]) for name in instruction.operands)

    # Steps

    def add(
        self,
        instruction: Instruction,
        operands: tuple[SlotTree, ...],
        tree: SlotTree,
        kernel: Kernel | None,
        flow: Flow | None = None,
        **how: Any,
    ) -> Step:
        """Add a step that gives `tree`."""
        step = Step(instruction, self.scope, operands, tree, kernel, flow, **how)
        self.steps.append(step)
        return step

    def renamed(self, instruction: Instruction, tree: SlotTree) -> SlotTree:
        """A value that another instruction made; a step of its own only where observers want one, or widths differ."""
        if not isinstance(tree, int) or self.slot_shapes[tree] is not instruction.shape:
            converted = self.converted(instruction, tree, float_types(instruction.shape))
            if converted is not tree:
                return converted
        if self.context.is_controlled:
            tree = map_tree(tree, lambda slot: self.forwarded(instruction, slot))
        if self.context.is_observed:
            self.add(instruction, (), tree, None, Mark.MARK, is_shown_only=True)
        return tree

    def forwarded(self, instruction: Instruction, slot: int) -> int:
        """A slot of its own for the value of a slot."""
        new = self.new_slot(self.slot_shapes[slot])
        if slot in self.orders:
            self.orders[new] = self.orders[slot]
        self.viewed[new] = self.viewed.get(slot, slot)
        self.add(instruction, (slot,), new, Forward(), is_silent=True)
        return new

    def converted(
        self,
        instruction: Instruction,
        tree: SlotTree,
        types: Sequence[ElementType | None],
        *,
        is_silent: bool = False,
    ) -> SlotTree:
        """The tree itself where its floats are of these types, else that of a step that converts them."""
        if not needs_conversion([self.slot_shapes[slot] for slot in leaves(tree)], types):
            return tree
        wanted = iter(types)

        def slot(old: int) -> int:
            shape, entry = self.slot_shapes[old], next(wanted)
            return self.new_slot(shape if entry is None else with_type(shape, entry))

        result = map_tree(tree, slot)
        self.add(instruction, (tree,), result, Conversion.to(types, isinstance(result, tuple)), is_silent=is_silent)
        return result

    # One method per role

    def parameter(self, instruction: Instruction) -> SlotTree:
        return self.renamed(instruction, self.arguments[instruction.attributes.number])

    def constant(self, instruction: Instruction) -> SlotTree:
        """The value of a constant; what its text leaves out is synthesized."""

        def slot(part: Literal) -> SlotTree:
            if part.value is None:
                return map_shape(
                    part.shape, lambda leaf: self.constant_slot(leaf, self.context.elided(instruction, leaf))
                )
            assert isinstance(part.value, np.ndarray) and not isinstance(part.shape, TupleShape)
            return self.constant_slot(part.shape, _read_only(part.value))

        return self.renamed(instruction, instruction.attributes.literal.mapped(slot))


_LOWERED = {
    Role.PARAMETER: Lowering.parameter,
    Role.CONSTANT: Lowering.constant,
    Role.TUPLE: lambda lowering, instruction: lowering.renamed(instruction, lowering.operands(instruction)),
    Role.GET_TUPLE_ELEMENT: lambda lowering, instruction: lowering.renamed(
        instruction, lowering.element(instruction, (instruction.attributes.index,))
    ),
    Role.FORWARD: lambda lowering, instruction: lowering.renamed(instruction, lowering.values[instruction.operands[0]]),
    Role.TOKEN: lambda lowering, instruction: lowering.renamed(instruction, lowering.zeros(instruction)),
    Role.CALL: invocation,
    Role.WHILE: while_loop,
    Role.CONDITIONAL: conditional,
    Role.CUSTOM_CALL: custom_call,
    Role.ASYNC_START: invocation,
    Role.COPY_START: copy_start,
    Role.PART: part,
    Role.PARTITION_ID: device_number,
    Role.REPLICA_ID: device_number,
    Role.MACHINE: exchange,
    Role.KERNEL: kernel,
}
"""What gives the value of an instruction, by the role of its opcode."""


def _parameters(computation: Computation) -> Sequence[Instruction]:
    """The parameters; VerificationError unless they are numbered in order."""
    parameters = computation.parameters
    if [parameter.attributes.number for parameter in parameters] != list(range(len(parameters))):
        raise VerificationError(
            f"the parameters of computation {computation.name} must be numbered 0 to {len(parameters) - 1}"
        )
    return parameters


def _read_only(value: Array) -> Array:
    if not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view
