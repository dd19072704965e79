"""Slicing a module: the instructions that one instruction depends on become the entry of a new module.

A slice has an interior, which the new module computes, and a boundary, whose values become its parameters. Names,
layouts and metadata are kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping

import attrs

from hloexec.core.ir import Computation, Instruction, Module, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.wording import argument, quoted
from hloexec.engine.plan.schedule import callees_first
from hloexec.errors import InputError
from hloexec.ops.attributes import computation_names
from hloexec.ops.control.flow import make_parameter
from hloexec.ops.registry import Role, exchanges, find_opcode, role_of, traits_of


@frozen
class Slice:
    """The instructions of a computation that one of them needs."""

    computation: Computation
    target: str
    inside: tuple[str, ...]
    """What is computed, in the order of the text; tokens that the slice begins with are among them."""
    boundary: tuple[str, ...]
    """What is given, in the order of the text."""


def slice_of(
    computation: Computation,
    target: str,
    *,
    depth: int | None = None,
    cuts: Iterable[str] = (),
    keep_devices: bool = True,
) -> Slice:
    """The instructions of `computation` that `target` needs, back to its parameters.

    With `depth`, at most this many levels of operands: 1 is the instruction alone. `cuts` are inputs, too, and so is
    whatever would be another value in another run: random numbers from a state, and what comes from a host. Without
    `keep_devices`, what exchanges values with other devices is given as well, unless it is the target. Constants are
    always inside, unless the text elides their values. Of tuples, only the elements in use are given.

    Raises InputError where an instruction is not there, a cut would go through an asynchronous pair, or the target
    gives no value that a module could.
    """
    by_name = computation.by_name
    given = {name.removeprefix("%") for name in cuts}
    _require_target(computation, target, given, depth)

    def is_cut(instruction: Instruction, steps: int) -> bool:
        role, opens = role_of(instruction), traits_of(instruction).opens
        if role is Role.CONSTANT:
            return bool(instruction.attributes.literal.is_elided)
        if role is Role.PARAMETER or instruction.name in given or _is_unrepeatable(instruction):
            return True
        if not keep_devices and _needs_devices(instruction):
            return not opens
        # A start without its done, and the other way round, are no program.
        return depth is not None and steps >= depth and not opens

    inside: set[str] = set()
    boundary: set[str] = set()
    steps = {target: 0}
    pending = deque([target])
    while pending:
        name = pending.popleft()
        instruction = by_name[name]
        if name != target and is_cut(instruction, steps[name]):
            boundary.add(name)
            continue
        inside.add(name)
        for operand in instruction.operands:
            if operand not in by_name:
                raise InputError(f"%{name} in computation {computation.name} names %{operand}, which is not there")
            if operand not in steps:
                steps[operand] = steps[name] + 1
                pending.append(operand)
    _open_tuples(computation, target, inside, boundary)
    tokens = {name for name in boundary if _is_token(by_name[name].shape)}
    names = [instruction.name for instruction in computation]
    return Slice(
        computation,
        target,
        tuple(name for name in names if name in inside or name in tokens),
        tuple(name for name in names if name in boundary and name not in tokens),
    )


def _require_target(computation: Computation, target: str, given: Collection[str], depth: int | None) -> None:
    """Raise InputError unless `target` can be the result of a slice."""
    by_name = computation.by_name
    for name in (target, *given):
        if name not in by_name:
            raise InputError(f"computation {computation.name} has no instruction {quoted(name)}")
    if depth is not None and depth < 1:
        raise InputError(f"{argument('depth')} must be at least 1, but is {depth}")
    root = by_name[target]
    if role_of(root) is Role.PARAMETER:
        raise InputError(f"%{target} is a parameter of {computation.name}: nothing computes it there")
    if target in given:
        raise InputError(f"%{target} is the instruction to extract, and cannot be given at once")
    if traits_of(root).opens or _is_unrepeatable(root):
        raise InputError(f"%{target} is a {root.opcode}, which cannot be the result of a module; extract what uses it")


def slice_module(module: Module, slice_: Slice, shapes: Mapping[str, Shape] | None = None) -> Module:
    """The module that computes a slice: its boundary are the parameters, in order, and its target is the result.

    `shapes` are those of boundary values that are not as declared (where float widths are mixed). Called computations
    come along. Tokens at the boundary are created by the new module.
    """
    shapes = shapes or {}
    number = {name: position for position, name in enumerate(slice_.boundary)}
    inside = set(slice_.inside)
    instructions = []
    for instruction in slice_.computation:
        name = instruction.name
        if name in number:
            shape, metadata = shapes.get(name, instruction.shape), instruction.metadata
            instructions.append(
                make_parameter(name, shape, number[name], metadata=metadata, sharding=instruction.sharding)
            )
        elif name in inside:
            is_made_here = instruction.operands and inside.issuperset(instruction.operands)
            if role_of(instruction) is not Role.TOKEN and _is_token(instruction.shape) and not is_made_here:
                # A token out of nothing stands for one that came from outside.
                shape, metadata = instruction.shape, instruction.metadata
                instruction = Instruction(name=name, shape=shape, opcode="after-all", metadata=metadata)
            predecessors = tuple(other for other in instruction.control_predecessors if other in inside)
            instructions.append(attrs.evolve(instruction, control_predecessors=predecessors, span=None))
    # Where the text has an instruction before its operands, a parameter still may stand first.
    instructions.sort(key=lambda entry: role_of(entry) is not Role.PARAMETER)
    entry = Computation(name=slice_.computation.name, instructions=tuple(instructions), root_name=slice_.target)
    called = {name for instruction in instructions for name in computation_names(instruction.attributes)}
    needed = {
        computation.name
        for name in called & module.by_name.keys()
        for computation in callees_first(module, module.by_name[name])
    }
    kept = [computation for computation in module if computation.name in needed] if needed else []
    if entry.name in needed:
        raise InputError(f"computation {entry.name} calls itself")
    return Module(
        name=f"{module.name}_{slice_.target}".replace("-", "_"),
        computations=(*kept, entry),
        entry_name=entry.name,
        is_scheduled=module.is_scheduled,
        replica_count=module.replica_count,
        num_partitions=module.num_partitions,
        frontend_attributes=module.frontend_attributes,
        stack_frames=module.stack_frames,
        unknown_attributes=module.unknown_attributes,
    )


def needs_devices(slice_: Slice, module: Module) -> bool:
    """Whether a slice, or what it calls, exchanges values with other devices or asks which one it is."""
    pending = [slice_.computation.by_name[name] for name in slice_.inside]
    seen: set[str] = set()
    while pending:
        instruction = pending.pop()
        if _needs_devices(instruction):
            return True
        for name in computation_names(instruction.attributes):
            if name not in seen:
                seen.add(name)
                pending.extend(module.by_name[name])
    return False


def _needs_devices(instruction: Instruction) -> bool:
    role = role_of(instruction)
    is_open = role is Role.MACHINE and traits_of(instruction).opens
    return is_open or role in (Role.PARTITION_ID, Role.REPLICA_ID) or exchanges(instruction)


def _is_unrepeatable(instruction: Instruction) -> bool:
    """Whether it gives other values in another run, or does something besides: it is cut."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is not Role.MACHINE:
        return entry is not None and not entry.is_pure
    return entry.exchange is None and not entry.traits.opens


def _open_tuples(computation: Computation, target: str, inside: set[str], boundary: set[str]) -> None:
    """Give elements in place of tuples of which only elements are used."""
    by_name = computation.by_name
    users: dict[str, list[str]] = defaultdict(list)
    for name in inside:
        for operand in by_name[name].operands:
            users[operand].append(name)
    pending = list(boundary)
    while pending:
        name = pending.pop()
        if not isinstance(by_name[name].shape, TupleShape):
            continue
        its_users = users[name]
        if target in its_users or any(role_of(by_name[user]) is not Role.GET_TUPLE_ELEMENT for user in its_users):
            continue
        boundary.discard(name)
        inside.difference_update(its_users)
        boundary.update(its_users)
        pending.extend(its_users)


def _is_token(shape: Shape) -> bool:
    return not isinstance(shape, TupleShape) and getattr(shape, "is_token", False)
