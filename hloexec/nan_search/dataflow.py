"""Where a value comes from, across calls, fusions, loops and branches.

A *place* is an instruction on a path of calls, and an index into its value. Instructions that only rename values
(tuples, parameters, calls, loops …) have one source, any other the operands that it computes with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs

from hloexec.exec.observers import PathEntry
from hloexec.ir import Computation, Instruction, Module, leaf_shapes
from hloexec.operations import traits_of
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, role_of

__all__ = ["Path", "ResultLeaf", "Sources", "path_of"]

Path: TypeAlias = tuple[tuple[str, str, int | None], ...]
"""The calling instruction, the called computation, and for loops the iteration, outermost first."""


@attrs.frozen
class ResultLeaf:
    """A leaf of what an instruction gives in one run of it."""

    path: Path
    instruction: str
    index: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """As `Event.name`, without the names of computations."""
        calls = (caller if count is None else f"{caller}[{count}]" for caller, _, count in self.path)
        return "/".join([*calls, self.instruction])


def path_of(entries: tuple[PathEntry, ...]) -> Path:
    return tuple((entry.instruction.name, entry.computation, entry.iteration) for entry in entries)


@attrs.frozen
class Sources:
    """Answers for one module, given what has run."""

    module: Module
    entry: str
    """The computation that runs."""
    last_iteration: Callable[[Path, str, str, str], int | None]
    """The last iteration of a loop, named by its path, itself, and its body's root and name; None where it did not go
    round."""
    has_run: Callable[[Path, str], bool]
    """Whether an instruction has run on a path."""

    def computation(self, path: Path) -> Computation:
        return self.module.by_name[path[-1][1] if path else self.entry]

    def instruction(self, place: ResultLeaf) -> Instruction:
        return self.computation(place.path).by_name[place.instruction]

    def is_renaming(self, instruction: Instruction) -> bool:
        """Whether the instruction's value is made of others', without arithmetic."""
        return role_of(instruction) in _RENAMING

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
            body = instruction.attributes.body
            root = self.module.by_name[body].root_name
            last = self.last_iteration(here, instruction.name, root, body)
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
        for name in computation_names(instruction.attributes):
            path = (*place.path, (instruction.name, name, None))
            root = self.module.by_name[name].root_name
            if self.has_run(path, root):
                found.append(ResultLeaf(path, root, index))
        return found

    def _of_parameter(self, place: ResultLeaf, instruction: Instruction) -> list[ResultLeaf]:
        if not place.path:
            return []
        *above, (caller_name, computation, iteration) = place.path
        path = tuple(above)
        caller = self.computation(path).by_name[caller_name]
        role = role_of(caller)
        number = instruction.attributes.number
        if role is Role.WHILE:
            if iteration:
                body = caller.attributes.body
                root = self.module.by_name[body].root_name
                return [ResultLeaf((*path, (caller_name, body, iteration - 1)), root, place.index)]
            return [ResultLeaf(path, caller.operands[0], place.index)]
        if role is Role.CONDITIONAL:
            branch = list(computation_names(caller.attributes)).index(computation)
            return [ResultLeaf(path, caller.operands[branch + 1], place.index)]
        return [ResultLeaf(path, caller.operands[number], place.index)] if number < len(caller.operands) else []


_RENAMING = frozenset(
    {
        Role.PARAMETER,
        Role.TUPLE,
        Role.GET_TUPLE_ELEMENT,
        Role.FORWARD,
        Role.TOKEN,
        Role.CALL,
        Role.WHILE,
        Role.CONDITIONAL,
        Role.ASYNC_START,
        Role.COPY_START,
        Role.PART,
    }
)
