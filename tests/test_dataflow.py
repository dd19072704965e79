"""Facts that follow the data flow hold in a run, also where the condition of a loop looks like its body."""

from __future__ import annotations

import attrs
import pytest

import hloexec
from hloexec.analysis.dataflow import Fact, ForwardAnalysis
from hloexec.core.ir import Computation, Instruction
from hloexec.core.structs import frozen
from hloexec.ops.relations import Place


@frozen
class _Preds(Fact["_Preds"]):
    """The values that a pred may have."""

    values: frozenset[bool] = frozenset()

    def joined(self, other: _Preds) -> _Preds:
        return attrs.evolve(self, values=self.values | other.values)


class _Analysis(ForwardAnalysis[_Preds]):
    """Of modules that compute nothing but preds, with `not`."""

    @property
    def nothing(self) -> _Preds:
        return _Preds(frozenset((False, True)))

    def constant(self, instruction: Instruction, place: Place) -> _Preds:
        return _Preds(frozenset((bool(instruction.attributes.literal.value),)))

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[_Preds], place: Place
    ) -> _Preds:
        values = operands[0].values
        return _Preds(frozenset(not value for value in values) if instruction.opcode == "not" else values)


@pytest.mark.parametrize("order", ["condition={}, body={}", "body={1}, condition={0}"])
@pytest.mark.parametrize(
    ("condition", "body", "values"),
    [
        ("copy(p)", "not(p)", {False, True}),
        ("copy(p)", "constant(false)", {False, True}),
        ("not(p)", "constant(true)", {True}),
        ("constant(false)", "not(p)", {False, True}),
    ],
)
def test_a_loop_that_carries_one_pred(condition: str, body: str, values: set[bool], order: str) -> None:
    module = hloexec.parse(
        f"""HloModule m
c {{ p = pred[] parameter(0)
 ROOT q = pred[] {condition} }}
b {{ p = pred[] parameter(0)
 ROOT q = pred[] {body} }}
ENTRY e {{ z = pred[] constant(true)
 ROOT w = pred[] while(z), {order.format("c", "b")} }}"""
    )
    found = _Analysis(module).run(module.entry, [])
    assert found.values == values
    assert bool(hloexec.run(module)) in values
