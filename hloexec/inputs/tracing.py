"""Following what a module needs of its values back to its parameters.

The counterpart of `hloexec.inputs.facts`, backwards: every demand is traced from the instruction that makes it, through
data movement, arithmetic and tuples, into and out of called computations. Where two uses contradict each other, the
later one in the program wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hloexec.inputs.demands import ANYTHING, BACKWARD, OWN, Demand, Use
from hloexec.inputs.facts import MOVEMENT, Frame, leaf_count, leaf_offset
from hloexec.ir import ArrayShape, Computation, Instruction, Module, TupleShape

__all__ = ["parameter_demands"]

_HANDED_OVER = {"copy": 0, "all-gather": 1, "collective-permute": 1, "AsyncCollective": 1}
"""Which element of the tuple that `X-start` yields, and `X-done` takes, is the result."""

Demands: TypeAlias = tuple[Demand, ...]
"""One demand per leaf of a shape."""


def parameter_demands(module: Module, frame: Frame) -> tuple[Demands, ...]:
    """The demands on the leaves of each parameter of a computation."""
    anything = (ANYTHING,) * leaf_count(frame.computation.result_shape)
    return _Tracing(module).parameters(frame, anything, is_condition=False)


class _Tracing:
    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[tuple[int, Demands, bool], tuple[Demands, ...]] = {}

    def parameters(self, frame: Frame, result: Demands, *, is_condition: bool) -> tuple[Demands, ...]:
        """The demands on a computation's parameters, given those on its result."""
        key = (id(frame), result, is_condition)
        if key not in self._known:
            found = _Demanded(frame.computation)
            found.add(frame.computation.root, 0, result)
            for instruction in reversed(frame.computation.instructions):
                self._trace(frame, instruction, found, is_condition)
            self._known[key] = tuple(found.of(parameter) for parameter in frame.computation.parameters)
        return self._known[key]

    def _trace(self, frame: Frame, instruction: Instruction, found: _Demanded, is_condition: bool) -> None:
        """Hand the demands on an instruction's result, and those it makes itself, on to its operands."""
        computation = frame.computation
        if not instruction.operands or any(name not in computation.by_name for name in instruction.operands):
            return
        operands = computation.operands_of(instruction)
        demands = found.of(instruction)
        if instruction.name in frame.callees:
            self._trace_call(frame, instruction, operands, demands, found, is_condition)
        match instruction.opcode:
            case "get-tuple-element" if isinstance(operands[0].shape, TupleShape):
                found.add(operands[0], leaf_offset(operands[0].shape, instruction.attributes.index), demands)
            case "tuple" | "sort" | "opt-barrier" | "all-reduce" | "all-reduce-start" | "all-reduce-done":
                _distribute(demands, operands, found)
            case _ if not _hand_over(instruction, operands, demands, found):
                self._apply_rules(frame, instruction, operands, demands, found, is_condition)

    def _apply_rules(
        self,
        frame: Frame,
        instruction: Instruction,
        operands: Sequence[Instruction],
        demands: Demands,
        found: _Demanded,
        is_condition: bool,
    ) -> None:
        shapes = tuple(operand.shape for operand in operands if isinstance(operand.shape, ArrayShape))
        if len(shapes) != len(operands):
            return
        facts = tuple(frame.facts[operand.name][0] for operand in operands)
        use = Use(instruction, shapes, facts, is_condition, self._module)
        opcode = instruction.opcode
        made: list[tuple[int, Demand]] = []
        if len(demands) == 1 and demands[0] != ANYTHING:
            if opcode in MOVEMENT:
                made += [(i, demands[0]) for i in MOVEMENT[opcode] or range(len(operands))]
            elif opcode in BACKWARD:
                made += BACKWARD[opcode](use, demands[0])
        if opcode in OWN:
            made += OWN[opcode](use)
        for number, demand in made:
            if number < len(operands):
                found.add(operands[number], 0, (demand,))

    def _trace_call(
        self,
        frame: Frame,
        instruction: Instruction,
        operands: Sequence[Instruction],
        demands: Demands,
        found: _Demanded,
        is_condition: bool,
    ) -> None:
        callees = frame.callees[instruction.name]
        match instruction.opcode:
            case "while":
                condition, body = callees
                found.add(operands[0], 0, self.parameters(condition, (ANYTHING,), is_condition=True)[0])
                found.add(operands[0], 0, self.parameters(body, demands, is_condition=is_condition)[0])
                found.add(operands[0], 0, demands)
                return
            case "conditional":
                found.add(operands[0], 0, (Demand(0, len(callees) - 1),))
                for branch, operand in zip(callees, operands[1:], strict=False):
                    found.add(operand, 0, self.parameters(branch, demands, is_condition=is_condition)[0])
                return
            case "async-start" if isinstance(instruction.shape, TupleShape):
                offset = leaf_offset(instruction.shape, 1)
                demands = demands[offset : offset + leaf_count(callees[0].computation.result_shape)]
        wanted = self.parameters(callees[0], demands, is_condition=is_condition)
        for operand, demand in zip(operands, wanted, strict=False):
            found.add(operand, 0, demand)


class _Demanded:
    """The demands found so far on the values of one computation."""

    def __init__(self, computation: Computation) -> None:
        self._computation = computation
        self._demands: dict[str, list[Demand]] = {}

    def of(self, instruction: Instruction) -> Demands:
        known = self._demands.get(instruction.name)
        return tuple(known) if known is not None else (ANYTHING,) * leaf_count(instruction.shape)

    def add(self, instruction: Instruction, offset: int, demands: Demands) -> None:
        """Merge demands into those on the leaves from `offset` on."""
        if instruction.name not in self._demands:
            self._demands[instruction.name] = [ANYTHING] * leaf_count(instruction.shape)
        known = self._demands[instruction.name]
        for i, demand in enumerate(demands[: len(known) - offset], offset):
            known[i] = known[i].merge(demand)


def _distribute(demands: Demands, operands: Sequence[Instruction], found: _Demanded) -> None:
    """Hand demands on to operands whose leaves, one operand after the other, they belong to."""
    if sum(leaf_count(operand.shape) for operand in operands) != len(demands):
        return
    offset = 0
    for operand in operands:
        count = leaf_count(operand.shape)
        found.add(operand, 0, demands[offset : offset + count])
        offset += count


def _hand_over(instruction: Instruction, operands: Sequence[Instruction], demands: Demands, found: _Demanded) -> bool:
    """Trace through the start or the done of an asynchronous operation that moves data; False for anything else."""
    name = instruction.opcode
    if name == "custom-call" and instruction.attributes is not None:
        name = instruction.attributes.custom_call_target.replace("Start", "-start").replace("Done", "-done")
    kind, _, end = name.rpartition("-")
    element = _HANDED_OVER.get(kind)
    shape = instruction.shape if end == "start" else operands[0].shape
    if element is None or not isinstance(shape, TupleShape) or len(shape.elements) <= element:
        return False
    offset = leaf_offset(shape, element)
    if end == "done":
        found.add(operands[0], offset, demands)
    else:
        _distribute(demands[offset : offset + leaf_count(shape.elements[element])], operands, found)
    return True
