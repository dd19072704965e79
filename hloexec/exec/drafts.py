"""A plan in the making: its steps, slots and constants, and the computations that are being inlined into it.

Values are trees of slots. What makes an instruction into steps (`hloexec.exec.building` and what it calls) asks the
draft for slots and adds steps to it; nothing here knows opcodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import ElementType
from hloexec.errors import VerificationError
from hloexec.exec.binding import Surroundings
from hloexec.exec.fill import zeros
from hloexec.exec.plan import Flow, Mark, Scope, SlotTree, Step, leaves, map_shape, rebuilt
from hloexec.exec.widths import conversion, float_types, with_type
from hloexec.ir import ArrayShape, BufferShape, Instruction, Literal, TupleShape

__all__ = ["Draft", "Frame"]


@attrs.define(eq=False)
class Frame:
    """A computation that is being inlined, and how far it has come."""

    scope: Scope
    remaining: Iterator[Instruction]
    arguments: tuple[SlotTree, ...]
    iterations: int = 0
    """Of a loop's body, how often it is inlined."""
    values: dict[str, SlotTree] = attrs.field(factory=dict)

    def operands(self, instruction: Instruction) -> tuple[SlotTree, ...]:
        """The values of an instruction's operands."""
        return tuple(self.values[name] for name in instruction.operands)

    def element(self, instruction: Instruction, index: tuple[int, ...]) -> SlotTree:
        """What an instruction's operand holds at this index; VerificationError where it holds nothing there."""
        tree = self.values[instruction.operands[0]]
        for position in index:
            if isinstance(tree, int) or not 0 <= position < len(tree):
                raise VerificationError(
                    f"%{instruction.name} in computation {self.scope.computation.name} takes element {position} of "
                    f"%{instruction.operands[0]}, which has no such element"
                )
            tree = tree[position]
        return tree


class Draft:
    """The steps, slots and constants of one plan, as far as they are there."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.steps: list[Step] = []
        self.slot_shapes: list[ArrayShape | BufferShape] = []
        self.constants: dict[int, Any] = {}

    # Slots

    def new_slot(self, shape: ArrayShape | BufferShape) -> int:
        """A slot for values of this shape."""
        self.slot_shapes.append(shape)
        return len(self.slot_shapes) - 1

    def constant_slot(self, shape: ArrayShape | BufferShape, value: Any) -> int:
        """A slot that always holds this value."""
        slot = self.new_slot(shape)
        self.constants[slot] = value
        return slot

    def literal(self, instruction: Instruction, literal: Literal) -> SlotTree:
        """The value of a constant, what its text leaves out made up."""

        def slot(part: Literal) -> SlotTree:
            if part.value is None:
                return map_shape(
                    part.shape, lambda leaf: self.constant_slot(leaf, self.around.elided(instruction, leaf))
                )
            assert isinstance(part.value, np.ndarray)
            assert not isinstance(part.shape, TupleShape)
            return self.constant_slot(part.shape, _read_only(part.value))

        return rebuilt(literal, lambda part: part.value if isinstance(part.value, tuple) else None, slot)  # type: ignore[no-any-return]

    def zeros(self, instruction: Instruction) -> SlotTree:
        """Zeros of an instruction's shape."""
        return map_shape(instruction.shape, lambda leaf: self.constant_slot(leaf, zeros(leaf)))

    def state(self, instruction: Instruction, start: int = 2) -> tuple[SlotTree, ...]:
        """Zeros for the elements of a tuple from `start` on, which mean nothing: the state of an asynchronous start."""
        elements = getattr(instruction.shape, "elements", ())[start:]
        return tuple(map_shape(element, lambda leaf: self.constant_slot(leaf, zeros(leaf))) for element in elements)

    def types(self, trees: Sequence[SlotTree]) -> tuple[ElementType | None, ...]:
        """The float types of the leaves of trees."""
        slots = (slot for tree in trees for slot in leaves(tree))
        return tuple(entry for slot in slots for entry in float_types(self.slot_shapes[slot]))

    # Steps

    def step(
        self,
        frame: Frame,
        instruction: Instruction,
        operands: tuple[SlotTree, ...],
        function: Callable[..., Any] | None,
        flow: Flow | None = None,
        extra_bytes: int = 0,
    ) -> SlotTree:
        """Add a step that gives the instruction's value, which is returned."""
        tree = map_shape(instruction.shape, self.new_slot)
        self.steps.append(Step(instruction, frame.scope, operands, tree, function, flow, extra_bytes))
        return tree

    def marked(self, frame: Frame, instruction: Instruction, tree: SlotTree) -> SlotTree:
        """A value that another instruction made; a step of its own only where observers want one, or widths differ."""
        fitted = self.fitted(frame.scope, instruction, tree, float_types(instruction.shape))
        if fitted is not tree:
            return fitted
        if self.around.options.is_observed:
            self.steps.append(Step(instruction, frame.scope, (), tree, None, Mark.MARK))
        return tree

    def fitted(
        self,
        scope: Scope,
        instruction: Instruction,
        tree: SlotTree,
        types: Sequence[ElementType | None],
        *,
        is_silent: bool = False,
    ) -> SlotTree:
        """The tree itself where its floats are of these types, else that of a step that converts them."""
        needed = conversion([self.slot_shapes[slot] for slot in leaves(tree)], types)
        if needed is None:
            return tree
        wanted = iter(needed.types)

        def slot(old: int) -> int:
            shape, entry = self.slot_shapes[old], next(wanted)
            return self.new_slot(shape if entry is None else with_type(shape, entry))

        result: SlotTree = rebuilt(tree, lambda node: node if isinstance(node, tuple) else None, slot)
        self.steps.append(Step(instruction, scope, (tree,), result, needed, is_silent=is_silent))
        return result


def _read_only(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view
