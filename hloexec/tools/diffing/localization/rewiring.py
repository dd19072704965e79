"""What hands values on and computes none of its own: elements taken from tuples, operands given to fusions, calls and
tuples, and parts of arrays.

Where one of these takes another value than it should, each step that uses it seems to take a wrong one, and to put one
of them right puts no result right. So `after` is run again with one of them changed: with another element of the tuple,
with two operands in each other's place, or with another value of an attribute that says where elements lie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from hloexec.analysis.calls import calls_of, passed_operands
from hloexec.core.ir import Computation, Instruction, Module, TupleShape, leaf_shapes
from hloexec.core.ir.editing import replace_computation, replace_instruction
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.structs import frozen
from hloexec.engine.exec.observers import path_entry
from hloexec.ops.registry import Role, is_elementwise, role_of, traits_of
from hloexec.tools.diffing.findings import InstructionRun, run_at
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.edits import moved_otherwise

_Judge: TypeAlias = Callable[[Module, tuple[str, str] | None], bool]
_MOVER = -1
"""In the place of an operand: what is looked at are the attributes of an instruction that moves elements."""


@frozen
class _Handle:
    """A place where a value is handed on: an operand of an instruction that does nothing else, or an element."""

    computation: str
    instruction: str
    operand: int
    """Which operand of it; 0 of what takes an element, and `_MOVER`."""

    @property
    def place(self) -> tuple[str, str]:
        return self.computation, self.instruction


@frozen(eq=False)
class Rewiring:
    """A change of what hands values on that makes all results right."""

    place: InstructionRun
    text: str
    is_alone: bool
    """Whether all other such changes were tried, and none makes the results right."""
    is_only_one: bool
    """Whether that is so, and several instructions take what is handed on: else it may be the one that does."""
    node: Node
    """The first value that is computed from what it hands on."""
    region: tuple[Node, ...]
    """It, and what moves elements further back, if that would do as well."""


@frozen(eq=False)
class _Use:
    """What takes the value that is handed on at a place."""

    node: Node
    """A value that is computed from it, or it itself as a result."""
    user: tuple[str, str]
    scope: CallPath
    """That of the place."""


def rewired(module: Module, nodes: Sequence[Node], results: Mapping[int, Node], is_right: _Judge) -> Rewiring | None:
    """The change that makes the results right, of what hands on the operands of some nodes, or on results, which are
    given by the numbers of their leaves; None where none does.

    `is_right` runs a module and says whether its results are right, and is told where it moves elements otherwise.
    """
    uses: defaultdict[_Handle, list[_Use]] = defaultdict(list)
    for node in nodes:
        for handle, scope in _handles(module, node.instance):
            uses[handle].append(_Use(node, node.instance.static, scope))
    for number, node in results.items():
        for handle, scope in _ways_of_result(module, number):
            uses[handle].append(_Use(node, ("", str(number)), scope))
    near = [entry for node in nodes for entry in (node, *node.instance.inputs)]
    uses |= {handle: use for handle, use in _moving(near).items() if handle not in uses}
    behind = {handle: use for handle, use in _moving(_behind(near)).items() if handle not in uses}
    found, are_all = _right_ones(module, uses, is_right)
    uses |= behind
    if not found:
        found, are_all = _right_ones(module, behind, is_right)
        behind = {}
    if not found:
        return None
    # If what computes could as well have its operands exchanged, that is nearer to what is wrong.
    computing = {
        handle: [_Use(node, node.instance.static, node.instance.scope)] for node in nodes for handle in _operands(node)
    }
    nearer, are_all_nearer = _right_ones(module, computing, is_right)
    found = [*nearer, *found]
    uses |= computing
    handle, text = found[0]
    alike = [each for each in uses if each.place == handle.place and text in {edit for edit, _ in _edits(module, each)}]
    users = {use.user for each in alike for use in uses[each]}
    first = min((use for each in alike for use in uses[each]), key=lambda use: use.node.number)
    place = run_at(module.by_name[handle.computation], RunPlace(first.scope, handle.instruction, first.node.device))
    is_shared = len(users) > 1 or (handle.operand == _MOVER and first.node in nodes)
    is_alone = are_all and are_all_nearer and len({each.place for each, _ in found}) == 1
    is_only_one, others = is_shared and is_alone, dict[_Handle, str]()
    if is_alone and (is_shared or handle.operand == _MOVER):
        right, are_all = _right_ones(module, behind, is_right)
        others = dict(right)
        is_only_one &= are_all and not others
    region = [uses[each][0].node for each in others]
    region = sorted([first.node, *region], key=lambda node: node.number) if region else []
    return Rewiring(place, text, is_alone, is_only_one, first.node, tuple(region[: LIMITS.largest_region]))


def _right_ones(module: Module, handles: Iterable[_Handle], is_right: _Judge) -> tuple[list[tuple[_Handle, str]], bool]:
    """The changes that make the results right, of as many as are tried; and whether these are all."""
    found: list[tuple[_Handle, str]] = []
    tried: set[tuple[tuple[str, str], str]] = set()
    for handle in handles:
        for text, edited in _edits(module, handle):
            if (handle.place, text) in tried:
                continue
            if len(tried) == LIMITS.rewirings:
                return found, False
            tried.add((handle.place, text))
            if is_right(edited, handle.place if handle.operand == _MOVER else None):
                found.append((handle, text))
    return found, True


def _moving(nodes: Sequence[Node]) -> dict[_Handle, list[_Use]]:
    """What moves elements among some nodes."""
    found: dict[_Handle, list[_Use]] = {}
    for node in filter(is_mover, nodes):
        instance = node.instance
        found.setdefault(_Handle(*instance.static, _MOVER), [_Use(node, instance.static, instance.scope)])
    return found


# The way of an operand


def _handles(module: Module, instance: Instance) -> Iterator[tuple[_Handle, CallPath]]:
    """What hands on each operand of an instance, back to where it was computed; and the scopes."""
    if any(call.computation not in module.by_name for call in instance.scope.calls):
        return
    for name in dict.fromkeys(instance.instruction.operands):
        yield from _way(module, instance.scope, name, [])


def _ways_of_result(module: Module, number: int) -> Iterator[tuple[_Handle, CallPath]]:
    """What hands on a leaf of the module's result."""
    root = module.entry.root
    leaves = [index for index, leaf in leaf_shapes(root.shape) if leaf.is_array]
    return _way(module, CallPath(), root.name, [*reversed(leaves[number])])


def _way(module: Module, scope: CallPath, name: str, path: list[int]) -> Iterator[tuple[_Handle, CallPath]]:
    """What hands on the value that a name stands for in a scope, or an element of it, of which the outermost index is
    the last."""
    for _ in range(LIMITS.way_steps):
        own = scope.computation(module.entry_name)
        instruction = module.by_name[own].by_name[name]
        role = role_of(instruction)
        if role is Role.GET_TUPLE_ELEMENT:
            yield _Handle(own, name, 0), scope
            path.append(instruction.attributes.index)
            name = instruction.operands[0]
        elif role is Role.TUPLE and path:
            number = path.pop()
            yield _Handle(own, name, number), scope
            name = instruction.operands[number]
        elif role is Role.FORWARD:
            name = instruction.operands[0]
        elif role is Role.CALL:
            callee = calls_of(instruction)[0].computation
            scope = scope.to(path_entry(instruction, callee))
            name = module.by_name[callee].root_name
        elif role is Role.PARAMETER and scope.calls:
            call, scope = scope.calls[-1], scope.outer
            if call.iteration:
                # The iteration before has handed it on.
                scope = scope.to(attrs.evolve(call, iteration=call.iteration - 1))
                name = module.by_name[own].root_name
                continue
            caller, number = call.instruction, instruction.attributes.number
            if role_of(caller) is Role.CALL:
                yield _Handle(scope.computation(module.entry_name), caller.name, number), scope
            given = passed_operands(caller, own)
            if number >= len(given):
                return
            name = given[number]
        elif role is Role.KERNEL and repeats(instruction):
            name = instruction.operands[0]
        else:
            return


def repeats(instruction: Instruction) -> bool:
    """Whether a result is the only operand's elements, perhaps several times, in another order or in another format."""
    traits = traits_of(instruction)
    return len(instruction.operands) == 1 and (traits.converts or traits.moves == (0,))


def keeps_places(node: Node) -> bool:
    """Whether an order of elements may show in what is computed from them: in what computes element by element, moves
    elements, or adds up those of one value along some of three dimensions or more."""
    instruction = node.instance.instruction
    traits = traits_of(instruction)
    has_others = traits.contraction is None and any(len(entry.shape) > 2 for entry in node.instance.inputs)
    return is_elementwise(instruction) or traits.moves is not None or (traits.sums is not None and has_others)


def is_mover(node: Node) -> bool:
    """Whether it moves elements of one value on one device."""
    instance = node.instance
    return len(instance.inputs) == 1 and not instance.others and traits_of(instance.instruction).moves == (0,)


def _behind(nodes: Sequence[Node]) -> list[Node]:
    """Some nodes, and what they are computed from so that elements may have been moved there just as well."""
    found = list(dict.fromkeys(nodes))
    most = len(found) + LIMITS.rewired_steps
    seen = set(found)
    for each in found:
        if len(found) < most and keeps_places(each):
            new = [entry for entry in each.instance.inputs if entry not in seen]
            seen.update(new)
            found += new
    return found


def _operands(node: Node) -> Iterator[_Handle]:
    """The operands of what computes a node, if it matters in which order it takes them."""
    instruction = node.instance.instruction
    count = len(instruction.operands)
    if role_of(instruction) is Role.KERNEL and not traits_of(instruction).commutes:
        yield from (_Handle(*node.instance.static, number) for number in range(min(count, LIMITS.exchanged_operands)))


# What may be changed


def _edits(module: Module, handle: _Handle) -> Iterator[tuple[str, Module]]:
    """The module with what hands a value on changed, and what it is then."""
    computation = module.by_name[handle.computation]
    instruction = computation.by_name[handle.instruction]
    if handle.operand == _MOVER:
        for edit in moved_otherwise(module, computation, handle.instruction):
            yield edit.text, edit.module
        return
    for edited in _others(computation, instruction, handle.operand):
        changed = replace_instruction(computation, edited)
        entry_layout = None if computation is module.entry else module.entry_computation_layout
        text = f"{edited.opcode}({', '.join(f'%{name}' for name in edited.operands)})"
        if edited.attributes != instruction.attributes:
            text += f", index={edited.attributes.index}"
        yield text, replace_computation(module, changed, entry_computation_layout=entry_layout)


def _others(computation: Computation, instruction: Instruction, operand: int) -> Iterator[Instruction]:
    if role_of(instruction) is Role.GET_TUPLE_ELEMENT:
        shape = computation.operands_of(instruction)[0].shape
        elements: Iterable[tuple[int, object]] = enumerate(shape.elements if isinstance(shape, TupleShape) else ())
        for index, element in elements:
            if index != instruction.attributes.index and element == instruction.shape:
                yield attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, index=index))
        return
    shapes = [each.shape for each in computation.operands_of(instruction)]
    is_kernel = role_of(instruction) is Role.KERNEL
    for other, shape in enumerate(shapes):
        if other != operand and shape == shapes[operand] and (other > operand or not is_kernel):
            operands = list(instruction.operands)
            operands[operand], operands[other] = operands[other], operands[operand]
            if tuple(operands) != instruction.operands:
                yield attrs.evolve(instruction, operands=tuple(operands))
