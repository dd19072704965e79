"""Choosing the instructions to extract, in the data flow of one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import TypeAlias

from hloexec.core.ir import ArrayShape, parts_of
from hloexec.core.structs import frozen
from hloexec.ops.registry import Role, find_opcode, role_of
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS

Key: TypeAlias = tuple[str, int, int]
"""What a value is: its family, its number of elements, and its numbers in row-major order."""


@frozen(eq=False)
class Part:
    """What computes a value, and from which values."""

    target: Node
    inside: tuple[Node, ...]
    """What is computed, in data-flow order; one node per instruction. Not the target, where it is given itself."""
    boundary: tuple[Node, ...]
    """What is given."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Those that it needs, where it exchanges values between them."""
        return tuple(sorted(self.target.instance.others)) if self.inside else ()


def key_of(node: Node) -> Key:
    return node.digest.family, node.digest.count, node.digest.in_order


def can_stand_alone(instance: Instance) -> bool:
    """Whether an instruction gives the same in a module of its own; not what stands for a number that no run gave."""
    entry = find_opcode(instance.opcode)
    if (
        instance.number < 0
        or entry is None
        or not entry.is_pure
        or instance.opcode.endswith(("-start", "-done", "-update"))
    ):
        return False
    if instance.is_source:
        is_elided = instance.is_constant and bool(instance.instruction.attributes.literal.is_elided)
        return role_of(instance.instruction) in (Role.CONSTANT, Role.KERNEL) and not is_elided
    given, shape = instance.operands, instance.instruction.shape
    leaves = parts_of(shape)
    is_flat = all(isinstance(leaf, ArrayShape) for leaf in leaves) and all(len(part) == 1 for part in given)
    return is_flat and len(given) == len(instance.instruction.operands)


def part_of(target: Node, members: Collection[Node]) -> Part:
    """The part of a module that computes a value with some instructions only, and what is made of constants."""
    numbers = {node.instance.number for node in members} | {target.instance.number}
    return _part(target, lambda node, _: node.instance.number in numbers)


def part_behind(target: Node, known: Collection[Key], matched: Container[int]) -> Part:
    """The part that computes a value from `known` ones, or else from the next that are `matched`, by their numbers."""

    def goes_on(node: Node, count: int) -> bool:
        if count >= LIMITS.part_steps or key_of(node) in known:
            return False
        return node.number not in matched or _reaches(node, known, LIMITS.part_near)

    return _part(target, goes_on)


def way_between(end: Node, start: Node) -> list[Node]:
    """The nodes on the shortest way from one to another, both included; none if there is none of few steps."""
    ways = [[end]]
    seen = {end.number}
    for way in ways:
        if way[-1].number == start.number:
            return way
        if len(way) <= LIMITS.way_steps:
            for entry in way[-1].instance.inputs:
                if entry.number not in seen:
                    seen.add(entry.number)
                    ways.append([*way, entry])
    return []


def _part(target: Node, goes_on: Callable[[Node, int], bool]) -> Part:
    """What computes a value, as far back as `goes_on` says of a node and the number of instructions so far."""
    inside: dict[int, Node] = {}
    boundary: dict[int, Node] = {}
    count = 0
    pending = [target]
    for node in pending:
        instance = node.instance
        if instance.number in inside or node.number in boundary:
            continue
        is_cut = bool(instance.others) and node is not target
        is_literal = _is_literal(node, LIMITS.literal_steps)
        # What another device computes an operand from is not known here.
        is_wanted = node is target or is_literal or (not target.instance.others and goes_on(node, count))
        if is_cut or not can_stand_alone(instance) or not is_wanted:
            boundary[node.number] = node
            continue
        inside[instance.number] = node
        count += not is_literal
        pending.extend(entry for part in instance.operands for entry in part)
    return Part(target, tuple(inside[number] for number in sorted(inside)), tuple(boundary.values()))


def _is_literal(node: Node, steps: int) -> bool:
    """Whether a value is made of constants, in a few steps."""
    instance = node.instance
    if not can_stand_alone(instance) or instance.others:
        return False
    if instance.is_source:
        return True
    return steps > 1 and all(_is_literal(entry, steps - 1) for entry in instance.inputs)


def _reaches(node: Node, known: Collection[Key], steps: int) -> bool:
    """Whether a value is computed from known ones in a few steps."""
    layer: Sequence[Node] = [node]
    for _ in range(steps):
        layer = [entry for each in layer if can_stand_alone(each.instance) for entry in each.instance.inputs]
        if any(key_of(entry) in known for entry in layer):
            return True
    return False
