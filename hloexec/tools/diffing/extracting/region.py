"""A region as a small graph: what comes in, the steps, and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hloexec.language.origins import hlo_line
from hloexec.tools.diffing.findings import InstructionRun, RegionStep
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.replaying.states import State


def region_graph(nodes: Sequence[Node], state: State) -> tuple[RegionStep, ...]:
    """The last right values, and what is computed from them, in data-flow order; nothing of less than two steps."""
    if len(nodes) < 2:
        return ()
    members = {node.number: node for node in sorted(nodes, key=lambda node: node.number)}
    used = {entry.number: entry for node in members.values() for entry in node.instance.inputs}
    given = [used[number] for number in sorted(used.keys() - members.keys())]
    steps = [
        RegionStep(node.place, "input", hlo_line(node.instance.instruction), (), _before(node, state)) for node in given
    ]
    for number, node in members.items():
        operands = tuple(entry.place for entry in node.instance.inputs)
        role: Literal["step", "output"] = "step" if number in used else "output"
        steps.append(RegionStep(node.place, role, hlo_line(node.instance.instruction), operands))
    return tuple(steps)


def _before(node: Node, state: State) -> InstructionRun | None:
    match = state.matches[node.number]
    return None if match is None else match.node.place
