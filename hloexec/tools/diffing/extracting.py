"""The part of either module that shows what a diff has found: two small modules with the same parameters.

Each run of an instruction becomes an instruction of the entry, which takes the values that it took in the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from itertools import permutations
from typing import Literal, TypeAlias

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of, unit_roundoff
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, TupleShape, parts_of
from hloexec.core.ir.editing import take_name
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.devices.topology import Topology
from hloexec.language.origins import hlo_line
from hloexec.language.text import format_shape, parse
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Role, find_opcode, role_of
from hloexec.tools.diffing.findings import ExtractedPair, InstructionRun, RegionStep
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.blaming import Blamed
from hloexec.tools.diffing.matching import is_same
from hloexec.tools.diffing.replaying.replay import State
from hloexec.tools.extraction.running import Slice, slice_module


@frozen
class Fit:
    """Steps from a value to another."""

    order: tuple[int, ...] = ()
    """How its dimensions that are not 1 are permuted; empty where they are not."""
    dimensions: tuple[int, ...] | None = None
    """Its new dimensions; None where they stay."""
    element_type: ElementType | None = None
    """Its new type; None where it stays."""

    def of(self, value: Array) -> Array:
        if self.order:
            value = value.reshape(_squeezed(value.shape)).transpose(self.order)
        if self.dimensions is not None:
            value = value.reshape(self.dimensions)
        return value if self.element_type is None else value.astype(self.element_type.storage)

    def steps(self, shape: ArrayShape) -> Iterator[tuple[ArrayShape, str]]:
        """The instructions that do this to an array of a shape: what each gives, and its text behind that, with `%` for
        the operand."""
        kind, dimensions = shape.element_type, shape.dimensions
        if self.order:
            squeezed = _squeezed(dimensions)
            if squeezed != dimensions:
                yield ArrayShape(kind, squeezed), "reshape(%)"
            dimensions = tuple(squeezed[axis] for axis in self.order)
            yield ArrayShape(kind, dimensions), f"transpose(%), dimensions={{{','.join(map(str, self.order))}}}"
        if self.dimensions is not None and self.dimensions != dimensions:
            dimensions = self.dimensions
            yield ArrayShape(kind, dimensions), "reshape(%)"
        if self.element_type is not None:
            yield ArrayShape(self.element_type, dimensions), "convert(%)"


def fit_of(value: Array, wanted: Array) -> Fit | None:
    """How a value becomes exactly the one that is wanted; None where it does not."""
    if value.size != wanted.size:
        return None
    kind = None if value.dtype == wanted.dtype else element_type_of(wanted.dtype)
    dimensions = None if value.shape == wanted.shape else wanted.shape
    squeezed = _squeezed(value.shape)
    orders = permutations(range(len(squeezed))) if len(squeezed) <= LIMITS.permuted_dimensions else iter([()])
    for number, order in enumerate(orders):
        fit = Fit(order, wanted.shape, kind) if number else Fit((), dimensions, kind)
        with np.errstate(all="ignore"):
            if is_same(fit.of(value), wanted):
                return fit
    return None


def step(name: str, shape: ArrayShape, text: str, operand: str, given: ArrayShape | TupleShape) -> Instruction:
    """An instruction that takes one operand, from its text with `%` for that."""
    lines = [
        "HloModule m",
        "ENTRY e {",
        f"operand = {format_shape(given)} parameter(0)",
        f"ROOT it = {format_shape(shape)} {text.replace('%', 'operand')}",
        "}",
    ]
    return attrs.evolve(parse("\n".join(lines)).entry.root, name=name, operands=(operand,), span=None)


def _squeezed(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dimensions if size != 1)


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
    operands, shape = instance.operands, instance.instruction.shape
    leaves = parts_of(shape)
    is_flat = all(isinstance(leaf, ArrayShape) for leaf in leaves) and all(len(part) == 1 for part in operands)
    return is_flat and len(operands) == len(instance.instruction.operands)


def part_of(target: Node, members: Collection[Node]) -> Part:
    """The part of a module that computes a value with some instructions only, and what is made of constants."""
    numbers = {node.instance.number for node in members} | {target.instance.number}
    return _part(target, lambda node, _: node.instance.number in numbers)


def part_behind(target: Node, keys: Collection[Key], matched: Container[int]) -> Part:
    """The part that computes a value from `keys` ones, or else from the next that are `matched`, by their numbers."""

    def goes_on(node: Node, count: int) -> bool:
        if count >= LIMITS.part_steps or key_of(node) in keys:
            return False
        return node.number not in matched or _reaches(node, keys, LIMITS.part_near)

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


def _reaches(node: Node, keys: Collection[Key], steps: int) -> bool:
    """Whether a value is computed from known ones in a few steps."""
    layer: Sequence[Node] = [node]
    for _ in range(steps):
        layer = [entry for member in layer if can_stand_alone(member.instance) for entry in member.instance.inputs]
        if any(key_of(entry) in keys for entry in layer):
            return True
    return False


@frozen(eq=False)
class Feed:
    """A parameter, and the values of a part that are it."""

    name: str
    shape: ArrayShape
    fits: tuple[tuple[Node, Fit], ...]


def flat_module(module: Module, part: Part, feeds: Sequence[Feed], result: Fit) -> Module:
    """The module that computes the target of a part from parameters, and makes of it what `result` says."""
    return _Flat(module, part).module(feeds, result)


def shape_of(node: Node, value: Array) -> ArrayShape:
    """What a module declares a value to be, or what it is, where that is something else."""
    declared = node.instance.instruction.shape
    if isinstance(declared, TupleShape) and node.leaf < len(declared.elements):
        declared = declared.elements[node.leaf]
    kind = element_type_of(value.dtype)
    if isinstance(declared, ArrayShape) and declared.dimensions == tuple(value.shape):
        return declared.with_element_type(kind)
    return ArrayShape(kind, tuple(value.shape))


class _Flat:
    """The instructions of an entry, one after the other."""

    def __init__(self, module: Module, part: Part) -> None:
        self._module = module
        self._part = part
        self._instructions: list[Instruction] = []
        self._names: set[str] = set()
        self._held: dict[int, tuple[str, ArrayShape]] = {}
        """By number, what holds a node's value."""

    def module(self, feeds: Sequence[Feed], result: Fit) -> Module:
        boundary = []
        for feed in feeds:
            name = self._name(feed.name)
            # `slice_module` makes a parameter of what stands in its place.
            self._instructions.append(step(name, feed.shape, "copy(%)", name, feed.shape))
            boundary.append((name, feed))
        for name, feed in boundary:
            for node, fit in feed.fits:
                self._held[node.number] = self._fitted(name, feed.shape, fit)
        for node in self._part.inside:
            self._compute(node)
        root, _ = self._fitted(*self._held[self._part.target.number], result)
        parameters = tuple(name for name, _ in boundary)
        inside = tuple(entry.name for entry in self._instructions if entry.name not in parameters)
        entry = Computation(name=self._module.entry_name, instructions=tuple(self._instructions), root_name=root)
        return slice_module(self._module, Slice(entry, root, inside, parameters))

    def _compute(self, node: Node) -> None:
        """Add the run of an instruction, and what takes its arrays out of a tuple or cuts a tile out of them."""
        instance = node.instance
        source = instance.instruction
        name = self._name(source.name)
        operands = tuple(self._held[part[0].number][0] for part in instance.operands)
        made = attrs.evolve(
            source, name=name, operands=operands, control_predecessors=(), sharding=None, original_value=None, span=None
        )
        self._instructions.append(made)
        for entry in instance.results:
            shape = source.shape
            if isinstance(shape, TupleShape):
                leaf = shape.elements[entry.leaf]
                assert isinstance(leaf, ArrayShape)
                text = f"get-tuple-element(%), index={entry.leaf}"
                self._held[entry.number] = self._added(name, shape, leaf, text)
                continue
            assert isinstance(shape, ArrayShape)
            self._held[entry.number] = name, shape
            if cut := instance.cut:
                limits = zip(cut, shape.dimensions, strict=True)
                places = ", ".join("[{}:{}]".format(*interval.indices(size)[:2]) for interval, size in limits)
                tile = ArrayShape(shape.element_type, entry.shape)
                self._held[entry.number] = self._added(name, shape, tile, f"slice(%), slice={{{places}}}")

    def _fitted(self, name: str, shape: ArrayShape, fit: Fit) -> tuple[str, ArrayShape]:
        """What makes of a value what a fit says."""
        for made, text in fit.steps(shape):
            name, shape = self._added(name, shape, made, text)
        return name, shape

    def _added(self, name: str, shape: ArrayShape | TupleShape, made: ArrayShape, text: str) -> tuple[str, ArrayShape]:
        new = self._name(text.partition("(")[0])
        self._instructions.append(step(new, made, text, name, shape))
        return new, made

    def _name(self, wanted: str) -> str:
        return take_name(wanted, self._names, 1)


def region_graph(nodes: Sequence[Node], state: State) -> tuple[RegionStep, ...]:
    """The last right values, and what is computed from them, in data-flow order; nothing of less than two steps."""
    if len(nodes) < 2:
        return ()
    members = {node.number: node for node in sorted(nodes, key=lambda node: node.number)}
    used = {entry.number: entry for node in members.values() for entry in node.instance.inputs}
    inputs = [used[number] for number in sorted(used.keys() - members.keys())]
    steps = [
        RegionStep(node.place, "input", hlo_line(node.instance.instruction), (), _before(node, state))
        for node in inputs
    ]
    for number, node in members.items():
        operands = tuple(entry.place for entry in node.instance.inputs)
        role: Literal["step", "output"] = "step" if number in used else "output"
        steps.append(RegionStep(node.place, role, hlo_line(node.instance.instruction), operands))
    return tuple(steps)


def _before(node: Node, state: State) -> InstructionRun | None:
    match = state.matches[node.number]
    return None if match is None else match.node.place


_AS_IT_IS = Fit()


@frozen(eq=False)
class _Input:
    """A parameter of both modules."""

    arrays: list[Array]
    """Its value on each device of the new modules."""
    shape: ArrayShape
    name: str
    ours: list[tuple[Node, Fit]] = attrs.field(factory=list)
    """The values of `after` that it is."""
    theirs: list[tuple[Node, Fit]] = attrs.field(factory=list)


@frozen(eq=False)
class Extractor:
    """Extracts from both modules what is to blame."""

    modules: tuple[Module, Module]
    """`before` and `after`."""
    numerics: tuple[NumericsPolicy, NumericsPolicy]
    topology: Topology
    """That of `after`."""
    state: State
    """The replay before anything is corrected."""

    def extract(self, blamed: Blamed) -> ExtractedPair:
        """The part of `after` that is to blame, and what its counterpart is computed from."""
        ours, theirs, notes = self._parts(blamed)
        inputs = self._inputs(ours, theirs)
        results, remarks = self._results(ours, theirs, blamed)
        counts = (self.topology.replicas, self.topology.partitions) if ours.devices else (1, 1)
        made: list[Module | None] = [None, None]
        for side, part in enumerate((theirs, ours)):
            if part is not None:
                feeds = [
                    Feed(parameter.name, parameter.shape, tuple((parameter.theirs, parameter.ours)[side]))
                    for parameter in inputs
                ]
                module = flat_module(self.modules[side], part, feeds, results[side])
                made[side] = attrs.evolve(module, replica_count=counts[0], num_partitions=counts[1])
        before, after = made
        assert after is not None
        return ExtractedPair(
            before,
            after,
            [[parameter.arrays[row] for parameter in inputs] for row in range(counts[0] * counts[1])],
            None if theirs is None else theirs.target.instance.name,
            ours.target.instance.name,
            ours.target.device,
            self.numerics,
            (*notes, *remarks),
            is_comparable=not remarks,
        )

    def _parts(self, blamed: Blamed) -> tuple[Part, Part | None, list[str]]:
        """The parts of `after` and of `before`, and what could not be extracted."""
        target, counterpart, members = _ends(blamed)
        ours = part_of(target, members)
        if ours.devices and len(ours.devices) < self.topology.count:
            ours = Part(target, (), (target,))
        notes = []
        if blamed.place is not None:
            # What hands on the values of a loop, or chooses a branch.
            notes.append(f"%{blamed.place.instruction} computes nothing itself; what it hands on is extracted")
        if not ours.inside:
            notes.append(f"{_named(target, 'after')}, and after.hlo has what it gave as its input")
        if counterpart is None:
            notes.append(f"no instruction of before corresponds to %{_name(target)}")
            return ours, None, notes
        theirs = self._counterpart(ours, counterpart, notes)
        return ours, theirs, notes

    def _counterpart(self, ours: Part, counterpart: Node, notes: list[str]) -> Part | None:
        matches = [self.state.matches[node.number] for node in ours.boundary]
        matched_keys = {key_of(match.node) for match in matches if match is not None}
        part = part_behind(counterpart, matched_keys, self.state.matched)
        if part.devices != ours.devices:
            which = counterpart if part.devices else ours.target
            notes.append(
                f"%{_name(which)} exchanges values between devices, and its counterpart does not "
                "exchange the same; nothing of before is extracted"
            )
            return None
        if not part.inside and not _is_parameter(counterpart):
            notes.append(f"{_named(counterpart, 'before')}, and before.hlo has what it gave as its input")
        return part

    def _inputs(self, ours: Part, theirs: Part | None) -> list[_Input]:
        """The parameters: values of `before` that `after` has as well, and what only one of them has."""
        of_before = [] if theirs is None else [_input(node, _peers(node, theirs)) for node in theirs.boundary]
        by_key: dict[Key, list[_Input]] = defaultdict(list)
        for entry in of_before:
            by_key[key_of(entry.theirs[0][0])].append(entry)
        inputs: list[_Input] = []
        for node in ours.boundary:
            wanted = [self.state.values[peer.number] for peer in _peers(node, ours)]
            match = self.state.matches[node.number]
            shared = None if match is None else _fitting(by_key[key_of(match.node)], wanted)
            if shared is None:
                inputs.append(_Input(wanted, shape_of(node, wanted[0]), _name(node), [(node, _AS_IT_IS)]))
                continue
            entry, fit = shared
            entry.ours.append((node, fit))
            if len(entry.ours) == 1:
                inputs.append(entry)
        return inputs + [entry for entry in of_before if not entry.ours]

    def _results(self, ours: Part, theirs: Part | None, blamed: Blamed) -> tuple[tuple[Fit, Fit], list[str]]:
        """What is done to the results of `before` and `after` so that they can be compared."""
        if theirs is None:
            return (_AS_IT_IS, _AS_IT_IS), []
        is_named = ours.target is blamed.node and blamed.value is not None
        right, wrong = theirs.target.value, ours.target.value
        arranged = fit_of(right, blamed.value) if is_named and blamed.value is not None else None
        if arranged is None and right.size != wrong.size:
            return (_AS_IT_IS, _AS_IT_IS), ["the results have different dimensions, so that diff cannot compare them"]
        if arranged is None:
            arranged = Fit((), None if right.shape == wrong.shape else wrong.shape)
        kinds = element_type_of(right.dtype), element_type_of(wrong.dtype)
        wide = _wider(*kinds)
        if wide is None:
            return (_AS_IT_IS, _AS_IT_IS), ["the results are of different types, so that diff cannot compare them"]
        first, second = (None if wide is kind else wide for kind in kinds)
        return (attrs.evolve(arranged, element_type=first), Fit(element_type=second)), []


def _ends(blamed: Blamed) -> tuple[Node, Node | None, Collection[Node]]:
    """Where the part of `after` and that of `before` end, and what of `after` is between the blamed instruction and the
    end."""
    compared = blamed.compared
    if compared is None or compared.ours is blamed.node:
        return blamed.node, blamed.counterpart, blamed.region
    way = blamed.region or way_between(compared.ours, blamed.node)
    if any(node is blamed.node for node in way):
        return compared.ours, compared.theirs, way
    return blamed.node, blamed.counterpart, ()


def _input(node: Node, peers: Sequence[Node]) -> _Input:
    """A value of `before`, as a parameter."""
    return _Input([peer.value for peer in peers], shape_of(node, node.value), _name(node), [], [(node, _AS_IT_IS)])


def _fitting(candidates: Sequence[_Input], wanted: Sequence[Array]) -> tuple[_Input, Fit] | None:
    """The parameter that becomes a value of `after` on every device, and how."""
    for entry in candidates:
        fits = {fit_of(source, array) for source, array in zip(entry.arrays, wanted, strict=True)}
        fit = next(iter(fits))
        if len(fits) == 1 and fit is not None:
            return entry, fit
    return None


def _peers(node: Node, part: Part) -> list[Node]:
    """What an operand of a part is on each device of the new module."""
    instance = part.target.instance
    if not part.devices:
        return [node]
    place = next(place for place, operand in enumerate(instance.operands) if operand[0].number == node.number)
    return [instance.others[device][place][0] for device in part.devices]


def _wider(first: ElementType, second: ElementType) -> ElementType | None:
    """The type that has the numbers of both."""
    if first is second:
        return first
    if not (first.is_floating and second.is_floating):
        return None
    return min(first, second, key=unit_roundoff)


def _name(node: Node) -> str:
    return node.instance.instruction.name


def _is_parameter(node: Node) -> bool:
    return node.instance.is_source and not can_stand_alone(node.instance)


def _named(node: Node, side: str) -> str:
    """Why an instruction is not computed."""
    instruction = node.instance.instruction
    if _is_parameter(node):
        return f"%{instruction.name} of {side} comes from outside, so that nothing computes it"
    return f"%{instruction.name} of {side} is a {instruction.opcode}, which cannot stand alone"
