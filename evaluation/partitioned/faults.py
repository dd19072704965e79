"""Faults of the kinds that a partitioner makes, planted in a partitioned module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, ReplicaGroups
from hloexec.engine.devices.topology import groups_of, topology_of
from hloexec.tools.diffing import InstructionRun

LOOKED_THROUGH = frozenset({"broadcast", "reshape", "copy", "transpose", "convert", "bitcast"})
"""What only moves or converts a value."""
_OTHER_OPCODES = {"add": "subtract", "subtract": "add", "multiply": "add"}
_SUMS = ("add", "maximum")


@attrs.frozen(eq=False)
class Fault:
    """A module with one wrong instruction."""

    kind: str
    module: Module
    computation: str
    instruction: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.instruction}"


def faults(module: Module) -> Iterator[Fault]:
    """Every fault that can be planted."""
    for computation in module:
        for instruction in computation:
            for kind, change in _CHANGES.items():
                for changed in change(module, computation, instruction):
                    yield Fault(
                        kind, with_instruction(module, computation, changed), computation.name, instruction.name
                    )


def is_near(fault: Fault, found: InstructionRun) -> bool:
    """Whether an instruction is the wrong one, or one of its operands or users; what only moves a value on the way is
    looked through."""
    if found.computation != fault.computation:
        return False
    computation = fault.module.by_name[fault.computation]
    names = {fault.instruction}
    pending = [fault.instruction]
    for name in pending:
        users = [user for user in computation.users[name] if user.opcode != "tuple"]
        names.update(user.name for user in users)
        pending += [user.name for user in users if user.opcode in LOOKED_THROUGH]
    pending = list(computation.by_name[fault.instruction].operands)
    for name in pending:
        names.add(name)
        instruction = computation.by_name[name]
        pending += instruction.operands if instruction.opcode in LOOKED_THROUGH else ()
    return found.instruction in names


def with_instruction(module: Module, computation: Computation, changed: Instruction) -> Module:
    """The module with one instruction changed."""
    instructions = tuple(changed if entry.name == changed.name else entry for entry in computation)
    made = attrs.evolve(computation, instructions=instructions)
    return attrs.evolve(module, computations=tuple(made if entry is computation else entry for entry in module))


def regrouped(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """A collective between other devices."""
    for change in (_groups, _order, _pairs):
        yield from change(module, computation, instruction)


def _attributes(instruction: Instruction, **changes: Any) -> Instruction:
    return attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, **changes))


def _groups(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """The groups along another axis, or other neighbours."""
    if not isinstance(getattr(instruction.attributes, "replica_groups", None), ReplicaGroups):
        return
    groups = [list(group.values()) for group in groups_of(instruction, topology_of(module))]
    size, count = len(groups[0]), sum(map(len, groups))
    for numbers in (np.arange(count).reshape(-1, size), np.arange(count).reshape(size, -1).T):
        other = [list(map(int, row)) for row in numbers]
        if size < count and sorted(map(sorted, other)) != sorted(map(sorted, groups)):
            yield _attributes(instruction, replica_groups=ReplicaGroups(groups=tuple(map(tuple, other))))


def _order(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """Members of groups in another order."""
    if instruction.opcode in ("all-to-all", "all-gather"):
        groups = [list(group.values()) for group in groups_of(instruction, topology_of(module))]
        turned = tuple((*group[1:], group[0]) for group in groups)
        yield _attributes(instruction, replica_groups=ReplicaGroups(groups=turned))


def _dropped(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    if instruction.opcode == "all-reduce" and isinstance(instruction.shape, ArrayShape):
        yield Instruction(name=instruction.name, shape=instruction.shape, opcode="copy", operands=instruction.operands)


def _reducer(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """The largest in place of the sum, and the other way round, by a reducer that the module has."""
    if instruction.opcode != "all-reduce":
        return
    own = module.by_name[instruction.attributes.to_apply].root
    for other in module:
        root = other.root
        if (
            root.opcode in _SUMS
            and root.opcode != own.opcode
            and root.shape == own.shape
            and len(other.parameters) == 2
        ):
            yield _attributes(instruction, to_apply=other.name)
            return


def _pairs(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    pairs = getattr(instruction.attributes, "source_target_pairs", None)
    if pairs:
        targets = [target for _, target in pairs]
        turned = zip((source for source, _ in pairs), [*targets[1:], targets[0]], strict=True)
        yield _attributes(instruction, source_target_pairs=tuple(turned))


def _table(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """Places along another axis of the mesh."""
    array = _constant(instruction)
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu" or array.size not in (4, 8):
        return
    other = array.reshape(2, 4).T.reshape(-1) if array.size == 8 else np.roll(array, 1)
    other = np.ascontiguousarray(other)
    if not np.array_equal(other, array):
        yield _with_constant(instruction, other)


def _number(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    array = _constant(instruction)
    if isinstance(array, np.ndarray) and array.ndim == 0 and array.dtype.kind == "f" and np.isfinite(array):
        yield _with_constant(instruction, np.asarray(array * 1.25 + 0.05, array.dtype))


def _opcode(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    shape = instruction.shape
    if instruction.opcode in _OTHER_OPCODES and isinstance(shape, ArrayShape) and shape.rank:
        yield attrs.evolve(instruction, opcode=_OTHER_OPCODES[instruction.opcode])


def _dimensions(module: Module, computation: Computation, instruction: Instruction) -> Iterator[Instruction]:
    """Two dimensions of one size exchanged by a transpose, as after an all-to-all along the wrong ones."""
    shape = instruction.shape
    if instruction.opcode != "transpose" or not isinstance(shape, ArrayShape):
        return
    order = list(instruction.attributes.dimensions)
    for second in range(len(order)):
        for first in range(second):
            if shape.dimensions[first] == shape.dimensions[second] > 1:
                order[first], order[second] = order[second], order[first]
                yield _attributes(instruction, dimensions=tuple(order))
                return


def _constant(instruction: Instruction) -> Any:
    return instruction.attributes.literal.value if instruction.opcode == "constant" else None


def _with_constant(instruction: Instruction, array: Any) -> Instruction:
    return _attributes(instruction, literal=Literal.from_array(array, instruction.shape))


_CHANGES: dict[str, Callable[[Module, Computation, Instruction], Iterator[Instruction]]] = {
    "groups": _groups,
    "order": _order,
    "dropped": _dropped,
    "reducer": _reducer,
    "pairs": _pairs,
    "table": _table,
    "number": _number,
    "opcode": _opcode,
    "dimensions": _dimensions,
}
