"""An analysis that one file makes follows values through control flow, and is tried on drawn modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import Phase
from hypothesis import strategies as st

import hloexec
from hloexec.analysis.dataflow import Fact, ForwardAnalysis
from hloexec.core.ir import Computation, Instruction
from hloexec.core.structs import define, frozen
from hloexec.core.tree import leaves
from hloexec.ops.registry import traits_of
from hloexec.ops.relations import Place
from tests.analysis.test_soundness import MODULES, require_sound

MOST = 32


@frozen
class Numbers(Fact["Numbers"]):
    """Of which constants the elements of a value are."""

    elements: frozenset[bytes] | None = None
    """The bytes of each; None where they may be others."""

    def joined(self, other: Numbers) -> Numbers:
        return Numbers(None if self.elements is None or other.elements is None else self.elements | other.elements)


@define(eq=False)
class Constants(ForwardAnalysis[Numbers]):
    """The values that consist of elements of constants, only moved."""

    known: dict[Place, Numbers] = attrs.field(factory=dict)
    """Of each instruction, in all its runs."""

    @property
    def nothing(self) -> Numbers:
        return Numbers()

    def constant(self, instruction: Instruction, place: Place) -> Numbers:
        value = instruction.attributes.literal.held
        return Numbers(elements_of(value) if isinstance(value, np.ndarray) and value.size <= MOST else None)

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[Numbers], place: Place
    ) -> Numbers:
        traits = traits_of(instruction)
        moved = [operands[number] for number in traits.moved_operands(len(operands))]
        if not moved or traits.fills or traits.crosses_devices or traits.is_leafwise:
            return self.nothing
        first, *others = moved
        for other in others:
            first = first.joined(other)
        return first

    def found(self, place: Place, fact: Numbers) -> None:
        self.known[place] = self.known[place].joined(fact) if place in self.known else fact


class Forgetful(Constants):
    """A wrong analysis: it takes what is computed for what is moved."""

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[Numbers], place: Place
    ) -> Numbers:
        return operands[0] if operands else self.nothing


def elements_of(array: Any) -> frozenset[bytes]:
    """The bytes of each element."""
    return frozenset(element.tobytes() for element in np.asarray(array).reshape(-1))


def _check(
    analysis: type[Constants], module: hloexec.Module, inputs: Sequence[Any], told: set[Place] | None = None
) -> None:
    found = analysis(module)
    found.run(module.entry, ())

    class Elements:
        def on_instruction(self, event: Any) -> None:
            place = event.computation.name, event.instruction.name
            fact = found.known.get(place)
            if fact is None or fact.elements is None:
                return
            for _, array in leaves(event.value):
                assert elements_of(array) <= fact.elements
                if told is not None:
                    told.add(place)

    hloexec.run(module, *inputs, observers=[Elements()])


@pytest.mark.parametrize("kind", MODULES)
def test_what_it_says_before_a_run_holds_in_it(kind: str) -> None:
    require_sound(lambda module, inputs, _: _check(Constants, module, inputs), kind)


def test_drawn_modules_contradict_one_that_is_wrong() -> None:
    def check(module: hloexec.Module, inputs: Sequence[Any], _: st.DataObject) -> None:
        _check(Forgetful, module, inputs)

    with pytest.raises(hloexec.EvaluationError, match="AssertionError"):
        require_sound(check, "nested", (Phase.generate,))


MODULE = """HloModule m
goes_on {
  p = (s32[], s32[2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  three = s32[] constant(3)
  ROOT c = pred[] compare(i, three), direction=LT
}
turned {
  p = (s32[], s32[2]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = s32[2] get-tuple-element(p), index=1
  y = s32[2] reverse(x), dimensions={0}
  ROOT r = (s32[], s32[2]) tuple(next, y)
}
fused {
  p = s32[2] parameter(0)
  ROOT r = s32[2] copy(p)
}
same { ROOT p = s32[2] parameter(0) }
ENTRY e {
  zero = s32[] constant(0)
  pair = s32[2] constant({5, 7})
  other = s32[2] constant({9, 7})
  start = (s32[], s32[2]) tuple(zero, pair)
  loop = (s32[], s32[2]) while(start), condition=goes_on, body=turned
  y = s32[2] get-tuple-element(loop), index=1
  z = s32[2] fusion(y), kind=kLoop, calls=fused
  choice = pred[] parameter(0)
  chosen = s32[2] conditional(choice, z, other), true_computation=same, false_computation=same
  sum = s32[2] add(chosen, chosen)
  ROOT r = (s32[2], s32[2]) tuple(chosen, sum)
}
"""


def test_it_follows_loops_calls_tuples_and_branches() -> None:
    module = hloexec.parse(MODULE)
    analysis = Constants(module)
    result = analysis.run(module.entry, ())
    five, seven, nine = (np.int32(number).tobytes() for number in (5, 7, 9))
    chosen, total = result.parts
    assert chosen.elements == {five, seven, nine} and total.elements is None
    assert analysis.known["turned", "y"].elements == {five, seven}
    told: set[Place] = set()
    for choice in (True, False):
        _check(Constants, module, [np.array(choice)], told)
    assert told >= {("turned", "y"), ("fused", "r"), ("e", "chosen")}
