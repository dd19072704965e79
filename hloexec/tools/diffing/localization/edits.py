"""What an instruction could have been, had one thing about it not been wrong.

An edit changes one attribute, the order of two operands or the opcode of an instruction, or of the root of a
computation that it calls. Which edits there are follows from the grammar of its attributes and from the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, combinations, islice, permutations
from typing import Any

import attrs

from hloexec.core.ir import (
    ArrayShape,
    Computation,
    Instruction,
    Layout,
    Module,
    PaddingDimension,
    SliceDimension,
    Window,
    WindowDimension,
)
from hloexec.core.ir.editing import replace_computation, replace_instruction
from hloexec.core.ir.sharding import ReplicaGroups
from hloexec.core.structs import frozen
from hloexec.language.origins import hlo_line
from hloexec.language.verifier import is_well_formed
from hloexec.ops.attributes import AttributeField, Grammar, attribute_fields, computation_names
from hloexec.ops.registry import OPCODES, Role, find_opcode, role_of
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.extraction.running import Slice, slice_module


@frozen(eq=False)
class Edit:
    """A module whose root is another instruction than it was, or calls another one."""

    module: Module
    text: str
    """The instruction that was edited, as it is now, without its name and shape."""
    is_called: bool
    """Whether it stands in a called computation."""


def edits_of(module: Module) -> Iterator[Edit]:
    """The edits of the root of a module's entry, those of attributes first; each is well-formed."""
    entry = module.entry
    called = [module.by_name[name] for name in computation_names(entry.root.attributes)]
    for computation in (entry, *called):
        moved = chain(_other_attributes(computation, _devices(module)), _other_layouts(computation))
        for instruction in chain(moved, _other_order(computation), _other_opcodes(computation)):
            changed = replace_instruction(computation, instruction)
            edited = replace_computation(module, changed, entry_computation_layout=None)
            if is_well_formed(edited):
                yield Edit(edited, _text(instruction), computation is not entry)


def moved_otherwise(module: Module, computation: Computation, name: str) -> Iterator[Edit]:
    """The module with an instruction of one of its computations edited in its attributes, or a bitcast in its layout;
    each is well-formed."""
    rooted = attrs.evolve(computation, root_name=name)
    root, part = rooted.root, None
    if role_of(root) is Role.KERNEL and root is not module.entry.root:
        # All else is as well-formed as it was.
        part = slice_module(module, Slice(computation, name, (name,), tuple(dict.fromkeys(root.operands))))
    for instruction in chain(_other_attributes(rooted, _devices(module)), _other_layouts(rooted)):
        edited = replace_computation(module, replace_instruction(computation, instruction))
        alone = attrs.evolve(instruction, control_predecessors=())
        checked = edited if part is None else replace_computation(part, replace_instruction(part.entry, alone))
        if is_well_formed(checked):
            yield Edit(edited, _text(instruction), is_called=False)


def _devices(module: Module) -> int:
    return module.replica_count * module.num_partitions


def _text(instruction: Instruction) -> str:
    line = hlo_line(attrs.evolve(instruction, backend_config=None))
    # Of a bitcast, the shape says what it does.
    what = " = " if instruction.opcode == "bitcast" else f" {instruction.opcode}("
    return line[line.index(what) + 1 :].removeprefix("= ")


def _other_attributes(computation: Computation, devices: int) -> Iterator[Instruction]:
    root = computation.root
    declarations = {} if root.attributes is None else attribute_fields(type(root.attributes))
    for declared in declarations.values():
        vary = _VARIATIONS.get(declared.grammar)
        value = getattr(root.attributes, declared.field)
        if vary is None or value is None:
            continue
        sizes = [getattr(each.shape, "dimensions", ()) for each in (*computation.operands_of(root), root)]
        around = _Around(min(max([1, *map(len, sizes)]), LIMITS.permuted_dimensions), sizes[0], devices)
        # Of hundreds of devices, there are more pairs than are ever tried.
        for other in dict.fromkeys(islice(vary(declared, value, around), LIMITS.edits)):
            if other != value:
                yield attrs.evolve(root, attributes=attrs.evolve(root.attributes, **{declared.field: other}))


@frozen
class _Around:
    """What an attribute is about."""

    rank: int
    """The most dimensions that an operand or the result has."""
    sizes: tuple[int, ...]
    """The dimensions of the first operand."""
    devices: int
    """On how many devices the module runs."""


def _other_layouts(computation: Computation) -> Iterator[Instruction]:
    """A bitcast to the same dimensions, in another order in memory."""
    root = computation.root
    if root.opcode == "bitcast" and isinstance(root.shape, ArrayShape):
        for order in islice(permutations(range(root.shape.rank)), LIMITS.permutations):
            layout = Layout(order)
            if layout != root.shape.layout:
                yield attrs.evolve(root, shape=attrs.evolve(root.shape, layout=layout))


def _other_order(computation: Computation) -> Iterator[Instruction]:
    """Two operands of one shape exchanged."""
    root = computation.root
    operands = root.operands
    if len(operands) > LIMITS.exchanged_operands:
        return
    shapes = [each.shape for each in computation.operands_of(root)]
    for first, second in combinations(range(len(operands)), 2):
        if shapes[first] == shapes[second] and operands[first] != operands[second]:
            order = list(operands)
            order[first], order[second] = order[second], order[first]
            yield attrs.evolve(root, operands=tuple(order))


def _other_opcodes(computation: Computation) -> Iterator[Instruction]:
    """Elementwise opcodes without attributes that take as many operands."""
    root = computation.root
    entry = find_opcode(root.opcode)
    if entry is None or not entry.is_elementwise or (entry.attributes is not None and not _is_plain(entry.attributes)):
        return
    for name, attributes in _plain_opcodes().get(len(root.operands), {}).items():
        if name != root.opcode:
            yield attrs.evolve(root, opcode=name, attributes=None if attributes is None else attributes())


@cache
def _plain_opcodes() -> Mapping[int, Mapping[str, Any]]:
    """The elementwise opcodes without attributes that have to be stated, by how many operands they take."""
    found: dict[int, dict[str, Any]] = {}
    for name, entry in OPCODES.items():
        is_plain = entry.attributes is None or _is_plain(entry.attributes)
        if entry.is_elementwise and entry.role is Role.KERNEL and is_plain and entry.maximum_operands:
            found.setdefault(entry.maximum_operands, {})[name] = entry.attributes
    return found


def _is_plain(attributes: type) -> bool:
    return all(not declared.is_required for declared in attribute_fields(attributes).values())


def _flag(_: AttributeField, value: bool, __: _Around) -> Iterator[bool]:
    yield not value


def _dimension(_: AttributeField, value: int, around: _Around) -> Iterator[int]:
    yield from range(around.rank)


def _word(declared: AttributeField, _: str, __: _Around) -> Iterator[str]:
    yield from declared.choices or ()


def _dimensions(_: AttributeField, value: Sequence[int], around: _Around) -> Iterator[tuple[int, ...]]:
    """Two of them exchanged, or one replaced."""
    for first, second in combinations(range(len(value)), 2):
        found = list(value)
        found[first], found[second] = found[second], found[first]
        yield tuple(found)
    for place in range(len(value)):
        for other in range(around.rank):
            if other not in value:
                yield (*value[:place], other, *value[place + 1 :])


def _one_changed(entries: Sequence[Any], change: Callable[[Any], Iterator[Any]]) -> Iterator[tuple[Any, ...]]:
    for place, entry in enumerate(entries):
        for other in change(entry):
            yield (*entries[:place], other, *entries[place + 1 :])


def _slices(
    _: AttributeField, value: Sequence[SliceDimension], around: _Around
) -> Iterator[tuple[SliceDimension, ...]]:
    """One range moved by one, to the beginning, or to the end."""
    for place, (entry, size) in enumerate(zip(value, around.sizes, strict=False)):
        for step in (-1, 1, -entry.start, size - entry.limit):
            if entry.start + step >= 0:
                moved = SliceDimension(entry.start + step, entry.limit + step, entry.stride)
                yield (*value[:place], moved, *value[place + 1 :])


def _padding(
    _: AttributeField, value: Sequence[PaddingDimension], __: _Around
) -> Iterator[tuple[PaddingDimension, ...]]:
    """One dimension padded on the other side, or by one more on one and one less on the other."""

    def moved(entry: PaddingDimension) -> Iterator[PaddingDimension]:
        low, high = entry.edge_padding_low, entry.edge_padding_high
        for now in ((high, low), (low + 1, high - 1), (low - 1, high + 1)):
            yield PaddingDimension(*now, entry.interior_padding)

    yield from _one_changed(value, moved)


def _window(_: AttributeField, value: Window, __: _Around) -> Iterator[Window]:
    def moved(entry: WindowDimension) -> Iterator[WindowDimension]:
        low, high = entry.padding_low, entry.padding_high
        for now in ((high, low), (low + 1, high - 1), (low - 1, high + 1)):
            yield attrs.evolve(entry, padding_low=now[0], padding_high=now[1])
        yield attrs.evolve(entry, window_reversal=not entry.window_reversal)

    yield from map(Window, _one_changed(value.dimensions, moved))


def _routes(
    _: AttributeField, value: Sequence[tuple[int, int]], around: _Around
) -> Iterator[tuple[tuple[int, int], ...]]:
    """All the other way; one more between devices that have none; all equally far; two targets exchanged; one less."""
    pairs = tuple((source, target) for source, target in value)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    devices = range(around.devices)
    yield tuple((target, source) for source, target in pairs)
    for source in devices:
        for target in devices:
            if source not in sources and target not in targets:
                yield tuple(sorted((*pairs, (source, target))))
    for senders in (devices, sources):
        for far in devices[1:]:
            yield tuple((source, (source + far) % around.devices) for source in senders)
    for first, second in combinations(range(len(pairs)), 2):
        turned = list(targets)
        turned[first], turned[second] = turned[second], turned[first]
        yield tuple(zip(sources, turned, strict=True))
    for place in range(len(pairs)):
        yield pairs[:place] + pairs[place + 1 :]


def _groups(_: AttributeField, value: ReplicaGroups, __: _Around) -> Iterator[ReplicaGroups]:
    """The members of all groups by their places instead; all together; in their order; neighbours, or those equally
    far apart, in groups of each size."""
    groups = value.expand()
    members = sorted(chain(*groups))
    if len({len(group) for group in groups}) == 1:
        yield ReplicaGroups(groups=tuple(zip(*groups, strict=True)))
        yield ReplicaGroups(groups=(tuple(members),))
    yield ReplicaGroups(groups=tuple(tuple(sorted(group)) for group in groups))
    count = len(members)
    for size in (size for size in range(2, count) if count % size == 0):
        yield ReplicaGroups(groups=tuple(tuple(members[place : place + size]) for place in range(0, count, size)))
        yield ReplicaGroups(groups=tuple(tuple(members[place :: count // size]) for place in range(count // size)))


_VARIATIONS: Mapping[Grammar, Callable[[AttributeField, Any, _Around], Iterator[Any]]] = {
    Grammar.BOOL: _flag,
    Grammar.INT: _dimension,
    Grammar.INT_IN_LIST: _dimension,
    Grammar.ENUM: _word,
    Grammar.INT_LIST: _dimensions,
    Grammar.SLICE: _slices,
    Grammar.PADDING: _padding,
    Grammar.WINDOW: _window,
    Grammar.INT_PAIRS: _routes,
    Grammar.REPLICA_GROUPS: _groups,
}
"""By the grammar of an attribute, which other values it could have."""
