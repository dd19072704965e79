"""The sources of a value across calls, fusions, loops and branches, and the chain of instructions that led to a
nonfinite one.

Instructions that only forward values (tuples, parameters, calls, loops …) have one source; all others have their
operands as sources.
"""

from __future__ import annotations

from hloexec.analysis.calls import CallKind, call_of, calls_of, passed_operands
from hloexec.core.ir import Computation, Instruction, Module, leaf_shapes
from hloexec.core.structs import frozen
from hloexec.language.origins import hlo_line, source_text
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools.nan_search.findings import Link
from hloexec.tools.nan_search.history import History, Path, ResultLeaf
from hloexec.tools.nan_search.magnitudes import Range
from hloexec.tools.nan_search.symptoms import Symptom

_MOST_STEPS = 400
_MOST_LINKS = 12
_GROWTH = 2.0
"""An instruction is worth a line where it changes the magnitude at least so much."""
_COMPUTING = (Role.KERNEL, Role.CUSTOM_CALL, Role.CONSTANT, Role.MACHINE, Role.PARTITION_ID, Role.REPLICA_ID)
RENAMING = frozenset(Role).difference(_COMPUTING)
"""Of instructions whose values are made of others', without arithmetic."""


@frozen
class Sources:
    """Answers for one module, given what has run."""

    module: Module
    entry: str
    """The computation that runs."""
    history: History

    def computation(self, path: Path) -> Computation:
        return self.module.by_name[path[-1][1] if path else self.entry]

    def instruction(self, place: ResultLeaf) -> Instruction:
        return self.computation(place.path).by_name[place.instruction]

    def of(self, place: ResultLeaf) -> list[ResultLeaf]:
        """The leaves that a leaf is made of."""
        instruction = self.instruction(place)
        role = role_of(instruction)
        index = place.index
        here = place.path
        if role is Role.PARAMETER:
            return self._of_parameter(place, instruction)
        if role is Role.TUPLE:
            return [ResultLeaf(here, instruction.operands[index[0]], index[1:])] if index else []
        if role is Role.GET_TUPLE_ELEMENT:
            return [ResultLeaf(here, instruction.operands[0], (instruction.attributes.index, *index))]
        if role is Role.PART:
            return [ResultLeaf(here, instruction.operands[0], (*traits_of(instruction).part, *index))]
        if role is Role.FORWARD:
            return [ResultLeaf(here, instruction.operands[0], index)]
        if role is Role.COPY_START:
            return [ResultLeaf(here, instruction.operands[0])] if index[:1] in ((0,), (1,)) else []
        if role is Role.ASYNC_START:
            if index[:1] == (0,):
                return [ResultLeaf(here, instruction.operands[index[1]], index[2:])] if len(index) > 1 else []
            return self._roots(place, index[1:]) if index[:1] == (1,) else []
        if role is Role.WHILE:
            body = call_of(instruction, CallKind.BODY)
            root = self.module.by_name[body].root_name
            last = self.history.last_iteration(here, instruction.name, root, body)
            if last is None:
                return [ResultLeaf(here, instruction.operands[0], index)]
            return [ResultLeaf((*here, (instruction.name, body, last)), root, index)]
        if role in (Role.CALL, Role.CONDITIONAL):
            return self._roots(place, index)
        by_name = self.computation(here).by_name
        return [
            ResultLeaf(here, name, leaf_index)
            for name in instruction.operands
            for leaf_index, _ in leaf_shapes(by_name[name].shape)
        ]

    def _roots(self, place: ResultLeaf, index: tuple[int, ...]) -> list[ResultLeaf]:
        """The roots of the computations that an instruction calls, as far as they have run."""
        instruction = self.instruction(place)
        found = []
        for call in calls_of(instruction):
            path = (*place.path, (instruction.name, call.computation, None))
            root = self.module.by_name[call.computation].root_name
            if self.history.has_run(path, root):
                found.append(ResultLeaf(path, root, index))
        return found

    def _of_parameter(self, place: ResultLeaf, instruction: Instruction) -> list[ResultLeaf]:
        if not place.path:
            return []
        *above, (caller_name, computation, iteration) = place.path
        path = tuple(above)
        caller = self.computation(path).by_name[caller_name]
        number = instruction.attributes.number
        if iteration:
            body = call_of(caller, CallKind.BODY)
            root = self.module.by_name[body].root_name
            return [ResultLeaf((*path, (caller_name, body, iteration - 1)), root, place.index)]
        given = passed_operands(caller, computation)
        return [ResultLeaf(path, given[number], place.index)] if number < len(given) else []


def chain_to(place: ResultLeaf, symptom: Symptom, device: int, sources: Sources) -> tuple[Link, ...]:
    """What led to a bad number at a place, the earliest instruction first.

    From operand to operand, that with the largest magnitude is followed (the one nearest to zero for poles and
    underflows), through calls, fusions, branches and the iterations of loops as far as they are remembered.
    Instructions that do not change the magnitude much are passed over.
    """
    towards_zero = symptom.kind in ("pole", "underflow")
    walked: list[tuple[ResultLeaf, Range]] = []
    seen: set[ResultLeaf] = {place}
    current = place
    for _ in range(_MOST_STEPS):
        candidates = []
        for number, source in enumerate(sources.of(current)):
            leaf = sources.history.leaf(source, device)
            if leaf is not None and leaf.range is not None and source not in seen:
                size, least = leaf.range.magnitude, leaf.range.least
                extremity = (-least, -size) if towards_zero else (size, 0.0)
                candidates.append((extremity, -number, source, leaf.range))
        if not candidates:
            break
        _, _, current, found = max(candidates, key=lambda entry: entry[:2])
        seen.add(current)
        walked.append((current, found))
    return tuple(_link(entry, found, sources) for entry, found in reversed(_worth_showing(walked, sources)))


def _worth_showing(walked: list[tuple[ResultLeaf, Range]], sources: Sources) -> list[tuple[ResultLeaf, Range]]:
    """The walk, without what only hands a value on: its ends, and where magnitudes change most."""
    own = [entry for entry in walked if role_of(sources.instruction(entry[0])) not in RENAMING]
    if walked and (not own or own[-1][0] != walked[-1][0]):
        own.append(walked[-1])
    changes = []
    for number in range(1, len(own) - 1):
        after, before = own[number][1].magnitude, own[number + 1][1].magnitude
        ratio = max(after, before) / min(after, before) if min(after, before) > 0 else float("inf")
        if after == before:
            ratio = 1.0
        if not ratio < _GROWTH:
            changes.append((ratio, number))
    kept = {number for _, number in sorted(changes, reverse=True)[: _MOST_LINKS - 2]} | {0, len(own) - 1}
    return [entry for number, entry in enumerate(own) if number in kept]


def _link(place: ResultLeaf, found: Range, sources: Sources) -> Link:
    instruction = sources.instruction(place)
    source = source_text(sources.module, instruction)
    return Link(place.name, hlo_line(instruction), source, found.low, found.high)
