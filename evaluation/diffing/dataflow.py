"""Which instructions a value comes from and goes to, through tuples, parameters, fusions, calls, loops and branches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from hloexec.core.ir import Instruction, Module
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import OPCODES, Role

Path = tuple[int, ...]
"""Which element of a tuple."""
_SHOWN_THROUGH = frozenset(
    "tuple get-tuple-element parameter fusion call while conditional optimization-barrier".split()
)


class DataFlow:
    """The data flow of a module whose instructions have names of their own."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._instructions = {each.name: each for computation in module for each in computation}
        self._home = {each.name: computation.name for computation in module for each in computation}
        self._sites: dict[str, list[tuple[Instruction, str]]] = defaultdict(list)
        for each in self._instructions.values():
            for role, callee in _callees(each):
                self._sites[callee].append((each, role))
        self._sources: dict[str, set[str]] = {}
        self._users: dict[str, set[str]] = defaultdict(set)
        for each in self._instructions.values():
            if each.opcode not in _SHOWN_THROUGH:
                found = self._sources[each.name] = {
                    source for operand in each.operands for source in self.sources(operand)
                }
                for source in found:
                    self._users[source].add(each.name)
            for deciding in self._deciding(each):
                self._users[deciding].add(each.name)

    def opcode(self, name: str) -> str:
        return self._instructions[name].opcode

    def is_library_call(self, name: str) -> bool:
        """Whether an instruction stands for something that is computed outside of the module."""
        instruction = self._instructions[name]
        kind = getattr(instruction.attributes, "kind", None)
        return instruction.opcode == "custom-call" or (instruction.opcode == "fusion" and kind == "kCustom")

    def inside(self, name: str) -> set[str]:
        """What stands in the computations that an instruction calls."""
        callees = computation_names(self._instructions[name].attributes)
        return {each.name for callee in callees for each in self._module.by_name[callee]}

    def sources(self, name: str, path: Path = ()) -> set[str]:
        """The instructions that a value, or an element of it, comes from."""
        found: set[str] = set()
        pending: list[tuple[str, Path]] = [(name, path)]
        seen = set(pending)
        while pending:
            here = pending.pop()
            following = self._behind(*here)
            if following is None:
                found.add(here[0])
                continue
            new = [each for each in following if each not in seen]
            seen.update(new)
            pending += new
        return found

    def neighbours(self, names: Iterable[str], elements: dict[str, set[int]]) -> set[str]:
        """The operands and users of instructions; of tuples, those of some elements only."""
        found: set[str] = set()
        for name in names:
            instruction = self._instructions[name]
            if instruction.opcode == "tuple" and elements.get(name):
                for number in elements[name]:
                    found |= self.sources(instruction.operands[number])
                    found |= self._takers(name, number)
            elif instruction.opcode in _SHOWN_THROUGH:
                sources = self.sources(name)
                found |= sources.union(*(self._users[source] for source in sources))
                found |= {source for operand in instruction.operands for source in self.sources(operand)}
            else:
                found |= self._sources[name] | self._users[name]
        return found

    def near(self, names: Iterable[str], through: Collection[str]) -> set[str]:
        """Instructions, what gives to them and takes from them, and the same of those of some opcodes on the way."""
        found = set(names)
        pending = [*found]
        while pending:
            new = self.neighbours([pending.pop()], {}) - found
            found |= new
            pending += [each for each in new if self.opcode(each) in through]
        return found

    def _takers(self, name: str, number: int) -> set[str]:
        """Who takes an element of a tuple: what comes from its operand, but only by way of it."""
        found: set[str] = set()
        for each in self._instructions.values():
            is_element = each.opcode == "get-tuple-element" and each.attributes.index == number
            if is_element and self._passes(each.operands[0], name):
                found.add(each.name)
                found |= {user.name for user in self._instructions.values() if each.name in user.operands}
        return found

    def _passes(self, name: str, wanted: str) -> bool:
        """Whether a whole tuple may be one that a `tuple` made."""
        pending, seen = [name], {name}
        while pending:
            here = pending.pop()
            if here == wanted:
                return True
            if self._instructions[here].opcode == "tuple":
                continue
            new = [name for name, path in self._behind(here, ()) or () if name not in seen and not path]
            seen.update(new)
            pending += new
        return False

    def _behind(self, name: str, path: Path) -> list[tuple[str, Path]] | None:
        """Where a value that is only passed on comes from; None for one that is computed."""
        instruction = self._instructions[name]
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "tuple":
            return [(operands[path[0]], path[1:])] if path else [(operand, ()) for operand in operands]
        if opcode == "get-tuple-element":
            return [(operands[0], (instruction.attributes.index, *path))]
        if opcode == "optimization-barrier":
            return [(operands[0], path)]
        if opcode == "parameter":
            return self._given(instruction, path)
        if opcode == "while":
            return [(operands[0], path), (self._root(instruction.attributes.body), path)]
        if opcode in ("fusion", "call", "conditional"):
            return [(self._root(callee), path) for _, callee in _callees(instruction)]
        return None

    def _given(self, parameter: Instruction, path: Path) -> list[tuple[str, Path]] | None:
        found: list[tuple[str, Path]] = []
        for site, role in self._sites[self._home[parameter.name]]:
            if site.opcode == "while":
                found += [(site.operands[0], path), (self._root(site.attributes.body), path)]
            elif site.opcode == "conditional":
                found.append((site.operands[1 + int(role)], path))
            elif OPCODES[site.opcode].role is Role.CALL:
                found.append((site.operands[parameter.attributes.number], path))
        return found or None

    def _root(self, computation: str) -> str:
        return self._module.by_name[computation].root_name

    def _deciding(self, instruction: Instruction) -> set[str]:
        """What decides where a loop or a conditional goes."""
        if instruction.opcode == "while":
            return self.sources(self._root(instruction.attributes.condition))
        return self.sources(instruction.operands[0]) if instruction.opcode == "conditional" else set()


def _callees(instruction: Instruction) -> list[tuple[str, str]]:
    """The computations that an instruction calls, each with what it is to it: for branches, their number."""
    if instruction.opcode == "conditional":
        return [(str(number), name) for number, name in enumerate(instruction.attributes.branches)]
    return [("", name) for name in computation_names(instruction.attributes)]
