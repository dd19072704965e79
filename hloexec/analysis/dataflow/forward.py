"""Forward dataflow analysis of a module: facts about values, through tuples, calls, fusions, loops and conditionals.

An analysis says what a *fact* is (the numbers that devices compute, the sums that a value is) and what constants and
operations make of facts; this says how control flow passes them on. What holds of the state of a loop holds in every
iteration: facts of its initial state are joined with those of what the body makes of them, until none changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import attrs

from hloexec.analysis.calls import calls_of
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import define, frozen
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.ops.relations import Place

F = TypeVar("F", bound="Fact[Any]")


@frozen
class Fact(ABC, Generic[F]):
    """What is known of a value, and of the elements of a tuple; `F` is the kind of fact itself."""

    parts: tuple[F, ...] = attrs.field(default=(), kw_only=True)

    @abstractmethod
    def joined(self, other: F) -> F:
        """What is known of a value that is this one or the other, its parts aside."""


def _joined(first: F, second: F) -> F:
    if first is second or first == second:
        return first
    parts: tuple[F, ...] = ()
    if len(first.parts) == len(second.parts):
        parts = tuple(_joined(*pair) for pair in zip(first.parts, second.parts, strict=True))
    joined: F = first.joined(second)
    return attrs.evolve(joined, parts=parts)


@define(eq=False)
class ForwardAnalysis(ABC, Generic[F]):
    """An analysis that begins in the entry computation, and analyses a computation anew for each of its calls."""

    module: Module

    @property
    def most_rounds(self) -> int:
        """After so many rounds through a loop in which facts change, nothing is known of its state."""
        return 4

    @property
    @abstractmethod
    def nothing(self) -> F:
        """The fact that says nothing."""

    @abstractmethod
    def constant(self, instruction: Instruction, place: Place) -> F:
        """What is known of a constant."""

    @abstractmethod
    def computed(self, computation: Computation, instruction: Instruction, operands: list[F], place: Place) -> F:
        """What is known of the result of any operation that is no control flow."""

    def looped(self, condition: Computation, body: Computation, state: F) -> F:
        """What is known of the result of a loop beyond its state, which is what holds in every iteration."""
        return state

    def chosen(self, choice: F, fact: F) -> F:
        """What is known of the result of a conditional beyond the results of its branches, of which one is chosen."""
        return fact

    def found(self, place: Place, fact: F) -> None:
        """Take note of a fact that is final."""

    def run(self, computation: Computation, arguments: Sequence[F], *, is_final: bool = True) -> F:
        """Analyse a computation; what is known of its result."""
        facts: dict[str, F] = {}
        for instruction in computation.instructions:
            operands = [facts.get(name, self.nothing) for name in instruction.operands]
            facts[instruction.name] = self._of(computation, instruction, operands, arguments, is_final)
            if is_final:
                self.found((computation.name, instruction.name), facts[instruction.name])
        return facts[computation.root_name]

    def _of(
        self,
        computation: Computation,
        instruction: Instruction,
        operands: list[F],
        arguments: Sequence[F],
        is_final: bool,
    ) -> F:
        role, place = role_of(instruction), (computation.name, instruction.name)
        if role is Role.PARAMETER:
            number = instruction.attributes.number
            return arguments[number] if number < len(arguments) else self.nothing
        if role is Role.CONSTANT:
            return self.constant(instruction, place)
        if role is Role.TUPLE:
            return self._tuple(operands)
        if role is Role.GET_TUPLE_ELEMENT:
            return self._part(operands[0], (instruction.attributes.index,))
        if role is Role.FORWARD:
            return operands[0]
        if role is Role.PART:
            return self._part(operands[0], traits_of(instruction).part)
        if role is Role.WHILE:
            condition, body = (self.module.by_name[call.computation] for call in calls_of(instruction))
            return self._loop(condition, body, operands[0], is_final)
        called = [self.module.by_name[call.computation] for call in calls_of(instruction)]
        if role is Role.CONDITIONAL:
            pairs = zip(called, operands[1:], strict=True)
            first, *others = [self.run(branch, [operand], is_final=is_final) for branch, operand in pairs]
            for other in others:
                first = _joined(first, other)
            return self.chosen(operands[0], first)
        if role in (Role.CALL, Role.ASYNC_START):
            result = self.run(called[0], operands, is_final=is_final)
            return result if role is Role.CALL else self._tuple([self._tuple(operands), result])
        return self.computed(computation, instruction, operands, place)

    def _tuple(self, parts: Sequence[F]) -> F:
        return attrs.evolve(self.nothing, parts=tuple(parts))

    def _part(self, fact: F, index: Sequence[int]) -> F:
        for number in index:
            fact = fact.parts[number] if number < len(fact.parts) else self.nothing
        return fact

    def _loop(self, condition: Computation, body: Computation, state: F, is_final: bool) -> F:
        for _ in range(self.most_rounds):
            after = _joined(state, self.run(body, [state], is_final=False))
            if after == state:
                break
            state = after
        else:
            state = self.nothing
        if is_final:
            for called in (condition, body):
                self.run(called, [state])
        return self.looped(condition, body, state)
