"""Building one plan: dependencies become an order, tuples become trees of slots, calls are inlined, kernels are bound.

Nothing here recurses over instructions or computations, whose chains may be very long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import ElementType
from hloexec.errors import VerificationError
from hloexec.exec.binding import Surroundings, bound, bound_kernel, may_overwrite
from hloexec.exec.borders import Crossing, crossings, is_border
from hloexec.exec.contraction import contracted
from hloexec.exec.fill import zeros
from hloexec.exec.in_place import InPlace
from hloexec.exec.lifetimes import finished
from hloexec.exec.memory import temporary_bytes
from hloexec.exec.plan import (
    Branch,
    Communication,
    Conditional,
    DeviceNumber,
    Exchange,
    Flow,
    FromDevice,
    FromHost,
    HostTransfer,
    Invocation,
    Mark,
    Plan,
    Scope,
    SlotTree,
    Step,
    ToDevice,
    ToHost,
    While,
    leaves,
    map_shape,
    rebuilt,
)
from hloexec.exec.regions import with_regions
from hloexec.exec.requirements import call_reason
from hloexec.exec.schedule import computation_named
from hloexec.exec.transfers import transfer_of
from hloexec.exec.widths import conversion, float_types, with_type
from hloexec.ir import ArrayShape, BufferShape, Computation, Instruction, Literal, TupleShape
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Opcode, Role, find_opcode

__all__ = ["FORWARDED", "PlanBuilder", "inlined_computation"]

FORWARDED = {
    "all-gather-done": (1,),
    "all-reduce-done": (),
    "async-done": (1,),
    "async-update": (),
    "collective-permute-done": (1,),
    "copy-done": (0,),
}
"""Machine opcodes that give an element of their operand, at this index."""

_STARTED = frozenset({"all-gather-start", "collective-permute-start"})
"""Collectives whose value is (operands, results, state...)."""


def inlined_computation(instruction: Instruction) -> str | None:
    """The computation that an instruction stands for, where it is a call or a fusion or starts one asynchronously."""
    entry = find_opcode(instruction.opcode)
    if entry is not None and (entry.role is Role.CALL or instruction.opcode == "async-start"):
        return next(computation_names(instruction.attributes), None)
    return None


@attrs.define(eq=False)
class _Frame:
    """A computation that is being inlined, and how far it has come."""

    scope: Scope
    remaining: Iterator[Instruction]
    arguments: tuple[SlotTree, ...]
    values: dict[str, SlotTree] = attrs.field(factory=dict)


class PlanBuilder:
    """Builds one plan."""

    def __init__(self, around: Surroundings, computation: Computation, planned: set[str]) -> None:
        self.around = around
        self.computation = computation
        self.planned = planned
        self.steps: list[Step] = []
        self.slot_shapes: list[ArrayShape | BufferShape] = []
        self.constants: dict[int, Any] = {}
        self.constant_trees: dict[tuple[str, str], SlotTree] = {}
        self.place = {
            Role.PARAMETER: self._parameter,
            Role.CONSTANT: self._constant,
            Role.TUPLE: self._tuple,
            Role.GET_TUPLE_ELEMENT: self._element,
            Role.FORWARD: self._forward,
            Role.TOKEN: self._token,
            Role.CALL: self._invocation,
            Role.WHILE: self._while,
            Role.CONDITIONAL: self._conditional,
            Role.CUSTOM_CALL: self._custom_call,
            Role.MACHINE: self._machine,
            Role.KERNEL: self._kernel,
        }

    # The walk over the instructions

    def build(
        self,
        parameter_types: Sequence[ElementType | None] | None = None,
        result_types: Sequence[ElementType | None] | None = None,
    ) -> Plan:
        """The plan; for callers that have other float types than the computation declares, those by leaf."""
        parameters = self.computation.parameters
        if [parameter.attributes.number for parameter in parameters] != list(range(len(parameters))):
            raise VerificationError(
                f"the parameters of computation {self.computation.name} must be numbered 0 to {len(parameters) - 1}"
            )
        arguments = tuple(map_shape(parameter.shape, self._new_slot) for parameter in parameters)
        parameter_count = len(self.slot_shapes)
        for slot, given in enumerate(parameter_types or ()):
            if given is not None:
                self.slot_shapes[slot] = with_type(self.slot_shapes[slot], given)
        tree = self._inline(arguments)
        if result_types is not None:
            scope = Scope(self.computation)
            tree = self._fitted(scope, self.computation.root, tree, result_types, is_silent=True)
        self.steps = contracted(self.around, self.steps, tree, self.slot_shapes)
        together = with_regions(self.around, self.steps, tree, self.slot_shapes)
        plan = finished(
            self.computation, together, parameter_count, self.slot_shapes, self.constants, tree, plain_steps=self.steps
        )
        if not may_overwrite(self.around):
            plan.depth = None
        return plan

    def _inline(self, arguments: tuple[SlotTree, ...]) -> SlotTree:
        """Add the computation's steps, those of inlined calls included; returns the root's tree."""
        frames = [self._frame(Scope(self.computation), arguments)]
        while True:
            frame = frames[-1]
            for instruction in frame.remaining:
                callee = inlined_computation(instruction)
                if callee is not None and callee not in self.planned:
                    computation = computation_named(self.around.program.module, callee, instruction)
                    operands = tuple(frame.values[name] for name in instruction.operands)
                    frames.append(self._frame(Scope(computation, instruction, frame.scope), operands))
                    break
                entry = find_opcode(instruction.opcode)
                assert entry is not None
                frame.values[instruction.name] = self.place[entry.role](frame, instruction)
            else:
                tree = frame.values[frame.scope.computation.root_name]
                frames.pop()
                if not frames:
                    return tree
                caller = frame.scope.caller
                assert caller is not None
                frames[-1].values[caller.name] = self._called(frames[-1], caller, tree)

    def _frame(self, scope: Scope, arguments: tuple[SlotTree, ...]) -> _Frame:
        computation = scope.computation
        if len(computation.parameters) != len(arguments):
            raise VerificationError(
                f"computation {computation.name} takes {len(computation.parameters)} parameters, but is called with "
                f"{len(arguments)}"
            )
        return _Frame(scope, iter(self.around.program.schedule(computation)), arguments)

    def _new_slot(self, shape: ArrayShape | BufferShape) -> int:
        self.slot_shapes.append(shape)
        return len(self.slot_shapes) - 1

    def _constant_slot(self, shape: ArrayShape | BufferShape, value: Any) -> int:
        slot = self._new_slot(shape)
        self.constants[slot] = value
        return slot

    def _step(
        self,
        frame: _Frame,
        instruction: Instruction,
        operands: tuple[SlotTree, ...],
        function: Callable[..., Any] | None,
        flow: Flow | None = None,
        extra_bytes: int = 0,
    ) -> SlotTree:
        tree = map_shape(instruction.shape, self._new_slot)
        self.steps.append(Step(instruction, frame.scope, operands, tree, function, flow, extra_bytes))
        return tree

    def _marked(self, frame: _Frame, instruction: Instruction, tree: SlotTree) -> SlotTree:
        """A value that another instruction made; a step of its own only where observers want one, or widths differ."""
        fitted = self._fitted(frame.scope, instruction, tree, float_types(instruction.shape))
        if fitted is not tree:
            return fitted
        if self.around.options.is_observed:
            self.steps.append(Step(instruction, frame.scope, (), tree, None, Mark.MARK))
        return tree

    def _fitted(
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
            return self._new_slot(shape if entry is None else with_type(shape, entry))

        result: SlotTree = rebuilt(tree, lambda node: node if isinstance(node, tuple) else None, slot)
        self.steps.append(Step(instruction, scope, (tree,), result, needed, is_silent=is_silent))
        return result

    # One method per role

    def _parameter(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        return self._marked(frame, instruction, frame.arguments[instruction.attributes.number])

    def _constant(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        key = (frame.scope.computation.name, instruction.name)
        if key not in self.constant_trees:
            self.constant_trees[key] = self._literal(instruction, instruction.attributes.literal)
        return self._marked(frame, instruction, self.constant_trees[key])

    def _literal(self, instruction: Instruction, literal: Literal) -> SlotTree:
        def slot(part: Literal) -> SlotTree:
            if part.value is None:
                return map_shape(
                    part.shape, lambda leaf: self._constant_slot(leaf, self.around.elided(instruction, leaf))
                )
            assert isinstance(part.value, np.ndarray)
            assert not isinstance(part.shape, TupleShape)
            return self._constant_slot(part.shape, _read_only(part.value))

        return rebuilt(literal, lambda part: part.value if isinstance(part.value, tuple) else None, slot)  # type: ignore[no-any-return]

    def _tuple(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        return self._marked(frame, instruction, tuple(frame.values[name] for name in instruction.operands))

    def _element(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        return self._marked(frame, instruction, self._element_at(frame, instruction, (instruction.attributes.index,)))

    def _element_at(self, frame: _Frame, instruction: Instruction, index: tuple[int, ...]) -> SlotTree:
        tree = frame.values[instruction.operands[0]]
        for position in index:
            if isinstance(tree, int) or not 0 <= position < len(tree):
                raise VerificationError(
                    f"%{instruction.name} in computation {frame.scope.computation.name} takes element {position} of "
                    f"%{instruction.operands[0]}, which has no such element"
                )
            tree = tree[position]
        return tree

    def _forward(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        return self._marked(frame, instruction, frame.values[instruction.operands[0]])

    def _token(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        return self._marked(frame, instruction, self._zeros(instruction))

    def _zeros(self, instruction: Instruction) -> SlotTree:
        return map_shape(instruction.shape, lambda leaf: self._constant_slot(leaf, zeros(leaf)))

    def _operands(self, frame: _Frame, instruction: Instruction) -> tuple[SlotTree, ...]:
        return tuple(frame.values[name] for name in instruction.operands)

    def _kernel(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        entry = find_opcode(instruction.opcode)
        assert entry is not None and entry.evaluate is not None
        operands = self._operands(frame, instruction)
        if entry.may_be_view and len(operands) == 1 and isinstance(operands[0], tuple):
            # A copy of a tuple: its leaves as they are.
            return self._marked(frame, instruction, operands[0])
        shapes = [self.slot_shapes[slot] for tree in operands for slot in leaves(tree)]
        function = bound_kernel(self.around, frame.scope.computation, instruction, entry, shapes)
        extra = temporary_bytes(instruction, shapes)
        return self._step(frame, instruction, operands, function, extra_bytes=extra)

    def _custom_call(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        entry = self.around.library_call(instruction.attributes.custom_call_target)
        computation = frame.scope.computation
        module = self.around.program.module
        numerics = self.around.options.numerics
        if entry is not None and call_reason(module, computation, instruction, entry, numerics) is None:
            if is_border(instruction):
                return self._border(frame, instruction, crossings(module, computation, instruction))
            if entry.forwards is not None:
                values = [frame.values[name] for name in entry.forwards(computation, instruction)]
                if not isinstance(instruction.shape, TupleShape):
                    return self._marked(frame, instruction, values[0])
                return self._marked(frame, instruction, (*values, *self._state(instruction, len(values))))
            assert entry.evaluate is not None
            function = bound(self.around, computation, instruction, entry.evaluate, entry.evaluate_needs)
            operands = self._operands(frame, instruction)
            if entry.overwrite is not None and may_overwrite(self.around) and len(operands) > entry.overwritten:
                overwrite = bound(self.around, computation, instruction, entry.overwrite, entry.evaluate_needs)
                adds = None if entry.adds is None else entry.adds(instruction, numerics)
                function = InPlace(function, overwrite, entry.overwritten, adds)
            return self._step(frame, instruction, operands, function)
        tree = map_shape(
            instruction.shape,
            lambda leaf: self._constant_slot(leaf, self.around.unknown_result(instruction, leaf)),
        )
        return self._marked(frame, instruction, tree)

    def _invocation(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        """A call of a computation that has a plan of its own."""
        operands = self._operands(frame, instruction)
        shape = instruction.shape
        if self._starts(instruction) and isinstance(shape, TupleShape) and len(shape.elements) > 1:
            shape = shape.elements[1]
        name = next(computation_names(instruction.attributes))
        callee = self.around.plan_as(name, self._types(operands), float_types(shape))
        tree = map_shape(callee.computation.result_shape, self._new_slot)
        for slot, result in zip(leaves(tree), callee.results, strict=True):
            self.slot_shapes[slot] = callee.slot_shapes[result]
        step = Step(instruction, frame.scope, operands, tree, None, Invocation(callee))
        self._check_arguments(step, callee, len(step.operands))
        self.steps.append(step)
        return tree if not self._starts(instruction) else self._started(frame, instruction, operands, tree)

    def _called(self, frame: _Frame, caller: Instruction, tree: SlotTree) -> SlotTree:
        """The value of an inlined call, given its computation's."""
        if self._starts(caller):
            tree = self._started(frame, caller, self._operands(frame, caller), tree)
        return self._marked(frame, caller, tree)

    @staticmethod
    def _starts(instruction: Instruction) -> bool:
        return instruction.opcode == "async-start"

    def _started(
        self, frame: _Frame, instruction: Instruction, operands: tuple[SlotTree, ...], result: SlotTree
    ) -> SlotTree:
        """The value of an asynchronous start: operands, result, and a state that means nothing here."""
        return (operands, result, *self._state(instruction))

    def _state(self, instruction: Instruction, start: int = 2) -> tuple[SlotTree, ...]:
        """Zeros for the elements of a tuple from `start` on, which mean nothing: the state of an asynchronous start."""
        elements = getattr(instruction.shape, "elements", ())[start:]
        return tuple(map_shape(element, lambda leaf: self._constant_slot(leaf, zeros(leaf))) for element in elements)

    def _while(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        types = float_types(instruction.shape)
        (start,) = self._operands(frame, instruction)
        operands = (self._fitted(frame.scope, instruction, start, types, is_silent=True),)
        condition = self.around.plan_as(instruction.attributes.condition, types, (None,))
        flow = While(condition, self.around.plan_as(instruction.attributes.body, types, types))
        tree = self._step(frame, instruction, operands, None, flow)
        step = self.steps[-1]
        for plan in (flow.condition, flow.body):
            self._check_arguments(step, plan, len(step.operands))
        if len(flow.body.results) != len(step.operands) or len(flow.condition.results) != 1:
            raise VerificationError(
                f"body and condition of %{instruction.name} do not fit its {len(step.operands)} leaves"
            )
        return tree

    def _conditional(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        names = list(computation_names(instruction.attributes))
        operands = self._operands(frame, instruction)
        if len(operands) != len(names) + 1:
            raise VerificationError(f"%{instruction.name} must have one operand per branch after the first")
        branches, start = [], 1
        for name, tree in zip(names, operands[1:], strict=True):
            stop = start + len(leaves(tree))
            plan = self.around.plan_as(name, self._types((tree,)), float_types(instruction.shape))
            branches.append(Branch(plan, start, stop))
            start = stop
        tree = self._step(frame, instruction, operands, None, Conditional(tuple(branches)))
        for branch in branches:
            self._check_arguments(self.steps[-1], branch.plan, branch.stop - branch.start)
        return tree

    def _types(self, trees: Sequence[SlotTree]) -> tuple[ElementType | None, ...]:
        """The float types of the leaves of trees."""
        slots = (slot for tree in trees for slot in leaves(tree))
        return tuple(entry for slot in slots for entry in float_types(self.slot_shapes[slot]))

    def _check_arguments(self, step: Step, plan: Plan, count: int) -> None:
        if plan.parameter_count != count:
            raise VerificationError(
                f"computation {plan.computation.name} takes {plan.parameter_count} arrays, but "
                f"%{step.instruction.name} gives it {count}"
            )

    def _machine(self, frame: _Frame, instruction: Instruction) -> SlotTree:
        """What has to do with other devices or the host, and asynchronous pairs."""
        opcode = instruction.opcode
        if opcode in FORWARDED:
            return self._marked(frame, instruction, self._element_at(frame, instruction, FORWARDED[opcode]))
        if opcode == "copy-start":
            operand = frame.values[instruction.operands[0]]
            return self._marked(frame, instruction, (operand, operand, *self._state(instruction)))
        if opcode == "async-start":
            return self._invocation(frame, instruction)
        if opcode in ("partition-id", "replica-id"):
            return self._communication(frame, instruction, (), DeviceNumber(opcode == "replica-id"))
        entry = find_opcode(opcode)
        if entry is not None and entry.exchange is not None:
            return self._collective(frame, instruction, entry)
        transfer = transfer_of(frame.scope.computation, instruction)
        if transfer is not None:
            return self._transfer(frame, instruction, transfer)
        return self._marked(frame, instruction, self._zeros(instruction))

    def _communication(
        self, frame: _Frame, instruction: Instruction, operands: tuple[SlotTree, ...], flow: Communication
    ) -> SlotTree:
        tree = self._step(frame, instruction, operands, None, flow)
        self.around.communication.append(self.steps[-1])
        return tree

    def _collective(self, frame: _Frame, instruction: Instruction, entry: Opcode) -> SlotTree:
        assert entry.exchange is not None
        operands = self._operands(frame, instruction)
        shape = instruction.shape
        has_state = instruction.opcode in _STARTED
        if has_state and isinstance(shape, TupleShape):
            shape = shape.elements[1]
        types = float_types(shape)
        if len(types) == len(operands):
            operands = tuple(
                self._fitted(frame.scope, instruction, operand, types[number : number + 1], is_silent=True)
                for number, operand in enumerate(operands)
            )
        kernel = bound(self.around, frame.scope.computation, instruction, entry.exchange, entry.exchange_needs)
        tree = map_shape(shape, self._new_slot)
        step = Step(instruction, frame.scope, operands, tree, None, Exchange(kernel), is_silent=has_state)
        self.steps.append(step)
        self.around.communication.append(step)
        if not has_state:
            return tree
        given = operands[0] if len(operands) == 1 else operands
        return self._marked(frame, instruction, (given, tree, *self._state(instruction)))

    def _border(self, frame: _Frame, instruction: Instruction, arrays: Sequence[Crossing]) -> SlotTree:
        """Where a manual region begins or ends: one exchange per array that changes."""
        found: list[SlotTree] = []
        for operand, crossing in zip(self._operands(frame, instruction), arrays, strict=True):
            tree = operand
            if not crossing.is_identity:
                types = float_types(crossing.shape)
                operand = self._fitted(frame.scope, instruction, operand, types, is_silent=True)
                tree = self._new_slot(crossing.shape)
                flow = Exchange(crossing.exchange, crossing.groups)
                step = Step(instruction, frame.scope, (operand,), tree, None, flow, is_silent=True)
                self.steps.append(step)
                self.around.communication.append(step)
            found.append(tree)
        return self._marked(frame, instruction, tuple(found) if isinstance(instruction.shape, TupleShape) else found[0])

    def _transfer(
        self, frame: _Frame, instruction: Instruction, transfer: HostTransfer | FromDevice | ToDevice
    ) -> SlotTree:
        """A step at which data move between the device and its host or another device."""
        operands = self._operands(frame, instruction)
        if instruction.opcode == "send":
            sent = instruction.shape.elements[0] if isinstance(instruction.shape, TupleShape) else instruction.shape
            operands = (
                self._fitted(frame.scope, instruction, operands[0], float_types(sent), is_silent=True),
                *operands[1:],
            )
        tree = self._communication(frame, instruction, operands, transfer)
        is_incoming = isinstance(transfer, (FromHost, FromDevice))
        if is_incoming and (isinstance(tree, int) or len(tree) != 2):
            raise VerificationError(f"%{instruction.name} must have the shape (data, token[]), not {instruction.shape}")
        if isinstance(transfer, (FromHost, ToHost)):
            self.around.host_transfers.setdefault(transfer, self.steps[-1])
        return tree


def _read_only(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view
