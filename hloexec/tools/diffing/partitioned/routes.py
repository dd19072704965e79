"""What a collective could be instead: left out, one step earlier or later, or between other devices; all collectives of
one source line that exchange the same are changed together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import gt, lt
from typing import TypeAlias

import attrs

from hloexec.core.ir import Computation, Instruction, Module, TupleShape
from hloexec.core.ir.editing import map_instructions, rename_operands, replace_computation, replace_instruction
from hloexec.language.origins import source_text
from hloexec.ops.control.flow import make_conversion, make_tuple
from hloexec.ops.registry import is_elementwise
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.localization.edits import moved_otherwise

Place: TypeAlias = tuple[Computation, Instruction]
LEFT_OUT = "left out"


def home_of(module: Module, node: Node) -> Place:
    """The instruction of a node, and the computation in which it is."""
    computation = module.by_name[node.instance.computation.name]
    return computation, computation.by_name[node.instance.instruction.name]


def other_exchanges(node: Node, module: Module) -> Iterator[tuple[Node, str, Module]]:
    """What a collective could be instead, and the module with that."""
    computation, own = home_of(module, node)
    shapes = own.shape.elements if isinstance(own.shape, TupleShape) else (own.shape,)
    if tuple(instruction.shape for instruction in computation.operands_of(own)) == shapes:
        kept = make_tuple(own.name, own.shape, own.operands)
        if own.shape in shapes:
            kept = make_conversion(own.name, own.shape, *own.operands)
        yield node, LEFT_OUT, replace_computation(module, replace_instruction(computation, kept))
    for text, changed in _past_steps(computation, own):
        yield node, text, replace_computation(module, changed)
    for text, is_kept in (
        ("without what comes round from the end", lt),
        ("without what comes round from the start", gt),
    ):
        without = _without_pairs(module, own, is_kept)
        if without is not None:
            yield node, text, without
    twins = twins_of(module, own)
    for edit in moved_otherwise(module, computation, own.name):
        edited = edit.module.by_name[computation.name].by_name[own.name]
        if _routes(edited) != _routes(own):
            yield node, edit.text, _with_routes(edit.module, twins, edited) if len(twins) > 1 else edit.module


def twins_of(module: Module, own: Instruction) -> tuple[tuple[str, str], ...]:
    """The collectives of one line of a program that exchange the same between the same devices, as their computations
    and names: a loop that is unrolled has one for each step."""
    source, routes = source_text(module, own), _routes(own)
    return tuple(
        (computation.name, instruction.name)
        for computation in module
        for instruction in computation
        if instruction is own
        or (
            source is not None
            and instruction.opcode == own.opcode
            and source_text(module, instruction) == source
            and _routes(instruction) == routes
        )
    )


def _without_pairs(module: Module, own: Instruction, is_kept: Callable[[int, int], bool]) -> Module | None:
    """The module without pairs of devices that are in one order, in all that one source line sends; None where there
    are none, or nothing is left."""
    line, has_changed = source_text(module, own), False

    def change(_: Computation, instruction: Instruction) -> Instruction:
        nonlocal has_changed
        pairs: Sequence[tuple[int, int]] = getattr(instruction.attributes, "source_target_pairs", None) or ()
        kept = tuple(pair for pair in pairs if is_kept(*pair))
        is_own = instruction is own or (line is not None and source_text(module, instruction) == line)
        if not is_own or not kept or len(kept) == len(pairs):
            return instruction
        has_changed = True
        return attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, source_target_pairs=kept))

    changed = map_instructions(module, change)
    return changed if has_changed else None


def _with_routes(module: Module, places: Collection[tuple[str, str]], like: Instruction) -> Module:
    """The module with collectives that exchange what another one does, on channels of their own."""

    def change(computation: Computation, instruction: Instruction) -> Instruction:
        if (computation.name, instruction.name) not in places:
            return instruction
        attributes = attrs.evolve(like.attributes, channel_id=instruction.attributes.channel_id)
        return attrs.evolve(instruction, attributes=attributes)

    return map_instructions(module, change)


def _past_steps(computation: Computation, own: Instruction) -> Iterator[tuple[str, Computation]]:
    """The computation with a collective before the elementwise step that it takes, or after that which takes it."""
    for source in computation.operands_of(own):
        if _is_step(source, own) and computation.users[source.name] == [own]:
            for place, operand in enumerate(computation.operands_of(source)):
                if operand.shape == own.shape:
                    moved = attrs.evolve(own, name=source.name, operands=(operand.name,))
                    operands = (*source.operands[:place], source.name, *source.operands[place + 1 :])
                    step = attrs.evolve(source, name=own.name, operands=operands)
                    yield f"before {source.name}", _with_steps(computation, {source.name: (moved,), own.name: (step,)})
    for user in computation.users[own.name][:1]:
        if _is_step(user, own) and computation.users[own.name] == [user] and computation.root is not own:
            step = rename_operands(user, {own.name: own.operands[0]}, name=own.name)
            moved = attrs.evolve(own, name=user.name, operands=(own.name,))
            yield f"after {user.name}", _with_steps(computation, {own.name: (), user.name: (step, moved)})


def _is_step(instruction: Instruction, collective: Instruction) -> bool:
    return is_elementwise(instruction) and instruction.shape == collective.shape and len(collective.operands) == 1


def _with_steps(computation: Computation, steps: Mapping[str, Sequence[Instruction]]) -> Computation:
    instructions = tuple(new for instruction in computation for new in steps.get(instruction.name, (instruction,)))
    return attrs.evolve(computation, instructions=instructions)


def _routes(collective: Instruction) -> dict[str, object]:
    """What a collective exchanges between which devices, however that is written."""
    stated = attrs.asdict(collective.attributes, recurse=False)
    groups = stated.get("replica_groups")
    written = {"channel_id": None, "constrain_layout": None, "use_global_device_ids": None}
    return stated | written | {"replica_groups": groups and [[*group] for group in groups.expand()]}
