"""A module that computes the same under other names, in another order and in other computations.

What a compiler's passes do to a program between two dumps: nothing in it can be recognised by its name, its place in
the text or the computation it stands in; much not even by its opcode. Everything follows from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import attrs

from evaluation.faults import refusing
from evaluation.faults.editing import Draft
from evaluation.faults.naming import renamed, uniquely_named
from evaluation.faults.rewriting import rewrite_exactly, rewrite_sums
from hloexec.core.ir import ArrayShape, Instruction, Layout, Module
from hloexec.ops.registry import OPCODES, Role


@attrs.frozen
class Disguised:
    """A module in disguise."""

    module: Module
    origins: Mapping[str, str]
    """From its instructions to those that they come from; what is there only for the program's form has none."""


def disguise(module: Module, seed: int, *, reorders: bool = False, unrolls: bool = False) -> Disguised:
    """Disguise a module. Its results keep their bits, unless sums are to be reordered, too; loops may be written out."""
    random = Random(seed)
    module, origins = _numbered(uniquely_named(module))
    draft = Draft(module)
    if unrolls:
        refusing.unroll(draft)
    refusing.inline_calls(draft, random, random.choice((0.3, 0.6, 1)))
    refusing.forward_tuples(draft, random, random.choice((0.5, 1)))
    draft.clean()
    if reorders:
        rewrite_sums(draft, random, 0.7)
    rewrite_exactly(draft, random, 0.2)
    refusing.repeat_cheap_work(draft, random, 0.3)
    _change_layouts(draft, random)
    refusing.outline(draft, random, random.choice((0.3, 0.5, 0.7)), as_calls=False)
    refusing.outline(draft, random, 0.2, as_calls=True)
    _change_metadata(draft, random)
    draft.clean()
    return _in_new_names(draft, origins, random)


def shuffle_names(module: Module, seed: int) -> Disguised:
    """The module with other names and metadata, in another order of its text; nothing else changes."""
    random = Random(seed)
    module, origins = _numbered(uniquely_named(module))
    draft = Draft(module)
    _change_metadata(draft, random)
    return _in_new_names(draft, origins, random)


def _in_new_names(draft: Draft, origins: Mapping[str, str], random: Random) -> Disguised:
    disguised, names = _named_anew(draft.module(random.random), random)
    known = {new: origins.get(refusing.base(old)) for new, old in names.items()}
    return Disguised(disguised, {new: old for new, old in known.items() if old is not None})


def _numbered(module: Module) -> tuple[Module, dict[str, str]]:
    """The module with `v` and a number for names, and what they stand for."""
    names: dict[str, dict[str, str]] = {}
    origins: dict[str, str] = {}
    for computation in module:
        names[computation.name] = {}
        for instruction in computation:
            name = names[computation.name][instruction.name] = f"v{len(origins)}"
            origins[name] = instruction.name
    return renamed(module, names, {}), origins


def _named_anew(module: Module, random: Random) -> tuple[Module, dict[str, str]]:
    """The module with names as XLA gives them, whose numbers mean nothing; and what those stood for."""
    numbers = random.sample(range(2 * module.instruction_count), module.instruction_count)
    names: dict[str, dict[str, str]] = {}
    found: dict[str, str] = {}
    for computation in module:
        names[computation.name] = {}
        for instruction in computation:
            name = names[computation.name][instruction.name] = f"{instruction.opcode}.{numbers.pop()}"
            found[name] = instruction.name
    computations = random.sample(range(len(module.computations)), len(module.computations))
    callees = {each.name: f"computation.{number}" for each, number in zip(module, computations, strict=True)}
    return renamed(module, names, callees), found


def _change_metadata(draft: Draft, random: Random) -> None:
    """Take the metadata away, or give it to others."""
    everything = list(draft.instructions())
    metadata = [each.metadata for each in everything]
    strips = random.random() < 0.5
    random.shuffle(metadata)
    for instruction, other in zip(everything, metadata, strict=True):
        draft.change(instruction.name, metadata=None if strips else other)


def _change_layouts(draft: Draft, random: Random) -> None:
    """Lay arrays out in other orders; some transposes and reshapes become bitcasts by that."""
    for home in list(refusing.code(draft)):
        for instruction in list(draft.computations[home].values()):
            shape = instruction.shape
            if not isinstance(shape, ArrayShape) or shape.rank < 1 or instruction.opcode == "bitcast":
                continue
            if OPCODES[instruction.opcode].role is Role.KERNEL and _may_lie_anyhow(draft, instruction):
                _change_layout(draft, instruction, shape, random)


def _may_lie_anyhow(draft: Draft, instruction: Instruction) -> bool:
    """Whether nobody asks in which order an array lies."""
    users = draft.users(instruction.name)
    return not draft.is_root(instruction.name) and all(
        OPCODES[user.opcode].role is Role.KERNEL and user.opcode != "bitcast" for user in users
    )


def _change_layout(draft: Draft, instruction: Instruction, shape: ArrayShape, random: Random) -> None:
    layout = Layout(tuple(random.sample(range(shape.rank), shape.rank)))
    operand = draft.operand(instruction).shape if instruction.operands else None
    becomes_bitcast = random.random() < 0.5 and isinstance(operand, ArrayShape) and operand.layout is not None
    if instruction.opcode == "transpose" and becomes_bitcast and isinstance(operand, ArrayShape):
        assert operand.layout is not None
        if operand.layout.tiles:
            return
        place = {axis: number for number, axis in enumerate(instruction.attributes.dimensions)}
        layout = Layout(tuple(place[axis] for axis in operand.layout.minor_to_major))
        draft.change(instruction.name, opcode="bitcast", shape=attrs.evolve(shape, layout=layout), attributes=None)
    elif instruction.opcode == "reshape" and becomes_bitcast and isinstance(operand, ArrayShape):
        if operand.layout == _row_major(operand.rank):
            layout = _row_major(shape.rank)
            draft.change(instruction.name, opcode="bitcast", shape=attrs.evolve(shape, layout=layout), attributes=None)
    elif random.random() < 0.3:
        draft.change(instruction.name, shape=attrs.evolve(shape, layout=layout))


def _row_major(rank: int) -> Layout:
    return Layout(tuple(reversed(range(rank))))
