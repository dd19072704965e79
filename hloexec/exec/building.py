"""Building one plan: dependencies become an order, tuples become trees of slots, calls are inlined, kernels are bound.

Control flow and what has to do with other devices become steps in `hloexec.exec.flow_steps` and
`hloexec.exec.exchange_steps`. Nothing here recurses over instructions or computations, whose chains may be very long.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.dtypes import ElementType
from hloexec.errors import VerificationError
from hloexec.exec.binding import Surroundings, bound, bound_kernel, may_overwrite
from hloexec.exec.borders import crossings, is_border
from hloexec.exec.contraction import contracted
from hloexec.exec.drafts import Draft, Frame
from hloexec.exec.exchange_steps import border, exchange
from hloexec.exec.flow_steps import (
    conditional,
    inlined_computation,
    invocation,
    iterations_to_inline,
    returned,
    while_loop,
)
from hloexec.exec.in_place import InPlace
from hloexec.exec.lifetimes import finished
from hloexec.exec.memory import temporary_bytes
from hloexec.exec.plan import Plan, Scope, SlotTree, leaves, map_shape
from hloexec.exec.regions import with_regions
from hloexec.exec.requirements import call_reason
from hloexec.exec.schedule import computation_named
from hloexec.exec.widths import with_type
from hloexec.ir import Computation, Instruction, TupleShape
from hloexec.ops.registry import Role, find_opcode

__all__ = ["PlanBuilder"]


class PlanBuilder:
    """Builds one plan."""

    def __init__(self, around: Surroundings, computation: Computation, planned: set[str]) -> None:
        self.around = around
        self.computation = computation
        self.planned = planned
        self.draft = Draft(around)
        self.constant_trees: dict[tuple[str, str], SlotTree] = {}
        self.place = {
            Role.PARAMETER: self._parameter,
            Role.CONSTANT: self._constant,
            Role.TUPLE: self._tuple,
            Role.GET_TUPLE_ELEMENT: self._element,
            Role.FORWARD: self._forward,
            Role.TOKEN: self._token,
            Role.CALL: lambda frame, instruction: invocation(self.draft, frame, instruction),
            Role.WHILE: lambda frame, instruction: while_loop(self.draft, frame, instruction),
            Role.CONDITIONAL: lambda frame, instruction: conditional(self.draft, frame, instruction),
            Role.CUSTOM_CALL: self._custom_call,
            Role.MACHINE: lambda frame, instruction: exchange(self.draft, frame, instruction),
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
        draft = self.draft
        arguments = tuple(map_shape(parameter.shape, draft.new_slot) for parameter in parameters)
        parameter_count = len(draft.slot_shapes)
        for slot, given in enumerate(parameter_types or ()):
            if given is not None:
                draft.slot_shapes[slot] = with_type(draft.slot_shapes[slot], given)
        tree = self._inline(arguments)
        if result_types is not None:
            scope = Scope(self.computation)
            tree = draft.fitted(scope, self.computation.root, tree, result_types, is_silent=True)
        steps = contracted(self.around, draft.steps, tree, draft.slot_shapes)
        together = with_regions(self.around, steps, tree, draft.slot_shapes)
        plan = finished(
            self.computation, together, parameter_count, draft.slot_shapes, draft.constants, tree, plain_steps=steps
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
                    operands = frame.operands(instruction)
                    frames.append(self._frame(Scope(computation, instruction, frame.scope), operands))
                    break
                entry = find_opcode(instruction.opcode)
                assert entry is not None
                times = iterations_to_inline(self.draft, frame, instruction) if entry.role is Role.WHILE else 0
                if times:
                    body = computation_named(self.around.program.module, instruction.attributes.body, instruction)
                    scope = Scope(body, instruction, frame.scope, iteration=0)
                    frames.append(self._frame(scope, frame.operands(instruction), times))
                    break
                frame.values[instruction.name] = self.place[entry.role](frame, instruction)
            else:
                tree = frame.values[frame.scope.computation.root_name]
                frames.pop()
                if not frames:
                    return tree
                number = frame.scope.iteration
                if number is not None and number + 1 < frame.iterations:
                    scope = attrs.evolve(frame.scope, iteration=number + 1)
                    frames.append(self._frame(scope, (tree,), frame.iterations))
                    continue
                caller = frame.scope.caller
                assert caller is not None
                frames[-1].values[caller.name] = returned(self.draft, frames[-1], caller, tree)

    def _frame(self, scope: Scope, arguments: tuple[SlotTree, ...], iterations: int = 0) -> Frame:
        computation = scope.computation
        if len(computation.parameters) != len(arguments):
            raise VerificationError(
                f"computation {computation.name} takes {len(computation.parameters)} parameters, but is called with "
                f"{len(arguments)}"
            )
        return Frame(scope, iter(self.around.program.schedule(computation)), arguments, iterations)

    # One method per role

    def _parameter(self, frame: Frame, instruction: Instruction) -> SlotTree:
        return self.draft.marked(frame, instruction, frame.arguments[instruction.attributes.number])

    def _constant(self, frame: Frame, instruction: Instruction) -> SlotTree:
        key = (frame.scope.computation.name, instruction.name)
        if key not in self.constant_trees:
            self.constant_trees[key] = self.draft.literal(instruction, instruction.attributes.literal)
        return self.draft.marked(frame, instruction, self.constant_trees[key])

    def _tuple(self, frame: Frame, instruction: Instruction) -> SlotTree:
        return self.draft.marked(frame, instruction, frame.operands(instruction))

    def _element(self, frame: Frame, instruction: Instruction) -> SlotTree:
        return self.draft.marked(frame, instruction, frame.element(instruction, (instruction.attributes.index,)))

    def _forward(self, frame: Frame, instruction: Instruction) -> SlotTree:
        return self.draft.marked(frame, instruction, frame.values[instruction.operands[0]])

    def _token(self, frame: Frame, instruction: Instruction) -> SlotTree:
        return self.draft.marked(frame, instruction, self.draft.zeros(instruction))

    def _kernel(self, frame: Frame, instruction: Instruction) -> SlotTree:
        entry = find_opcode(instruction.opcode)
        assert entry is not None and entry.evaluate is not None
        operands = frame.operands(instruction)
        if entry.may_be_view and len(operands) == 1 and isinstance(operands[0], tuple):
            # A copy of a tuple: its leaves as they are.
            return self.draft.marked(frame, instruction, operands[0])
        shapes = [self.draft.slot_shapes[slot] for tree in operands for slot in leaves(tree)]
        function = bound_kernel(self.around, frame.scope.computation, instruction, entry, shapes)
        extra = temporary_bytes(instruction, shapes)
        return self.draft.step(frame, instruction, operands, function, extra_bytes=extra)

    def _custom_call(self, frame: Frame, instruction: Instruction) -> SlotTree:
        entry = self.around.library_call(instruction.attributes.custom_call_target)
        computation = frame.scope.computation
        module = self.around.program.module
        numerics = self.around.options.numerics
        draft = self.draft
        if entry is not None and call_reason(module, computation, instruction, entry, numerics) is None:
            if is_border(instruction):
                return border(draft, frame, instruction, crossings(module, computation, instruction))
            if entry.forwards is not None:
                values = [frame.values[name] for name in entry.forwards(computation, instruction)]
                if not isinstance(instruction.shape, TupleShape):
                    return draft.marked(frame, instruction, values[0])
                return draft.marked(frame, instruction, (*values, *draft.state(instruction, len(values))))
            assert entry.evaluate is not None
            function = bound(self.around, computation, instruction, entry.evaluate, entry.evaluate_needs)
            operands = frame.operands(instruction)
            if entry.overwrite is not None and may_overwrite(self.around) and len(operands) > entry.overwritten:
                overwrite = bound(self.around, computation, instruction, entry.overwrite, entry.evaluate_needs)
                adds = None if entry.adds is None else entry.adds(instruction, numerics)
                function = InPlace(function, overwrite, entry.overwritten, adds)
            return draft.step(frame, instruction, operands, function)
        tree = map_shape(
            instruction.shape, lambda leaf: draft.constant_slot(leaf, self.around.unknown_result(instruction, leaf))
        )
        return draft.marked(frame, instruction, tree)
