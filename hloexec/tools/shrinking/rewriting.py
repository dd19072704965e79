"""A module with other sizes: what a run of it takes, what is rewritten, and what has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from hloexec.core.ir import (
    Alias,
    ArrayShape,
    BufferShape,
    Computation,
    EntryLayout,
    Instruction,
    Literal,
    Module,
    Shape,
    TupleShape,
    leaf_shapes,
    part_at,
)
from hloexec.core.ir.editing import change_computations
from hloexec.core.ir.shape import elements_of, tuple_shape
from hloexec.core.structs import define, frozen
from hloexec.core.tree import fold
from hloexec.core.values import Described
from hloexec.core.wording import argument, byte_text, plural
from hloexec.language.verifier.shapes import share_a_buffer
from hloexec.ops.attributes import Grammar, attribute_fields
from hloexec.ops.registry import Role, entry_of, find_opcode, role_of
from hloexec.ops.relations import LANES, Place, Resizing, Value
from hloexec.ops.traits import Index
from hloexec.tools.shrinking.devices.arrangements import AxisChange
from hloexec.tools.shrinking.dimensions import Dimensions, resized_literal
from hloexec.tools.shrinking.fitting import FittedOperand
from hloexec.tools.shrinking.grouping import Groups
from hloexec.tools.shrinking.positions import ConstantChange


def resized_shape(value: Value, dimensions: Dimensions, sizes: Mapping[int, int]) -> Shape:
    """The shape of a value for new sizes of roots."""
    axes = iter(value.leaves.values())

    def resized(shape: ArrayShape | BufferShape) -> Shape:
        if isinstance(shape, BufferShape):
            return attrs.evolve(shape, element=_resized_array(shape.element, next(axes), dimensions, sizes))
        return _resized_array(shape, next(axes), dimensions, sizes)

    return fold(value.shape, elements_of, resized, tuple_shape)


def _resized_array(
    shape: ArrayShape, axes: tuple[int, ...], dimensions: Dimensions, sizes: Mapping[int, int]
) -> ArrayShape:
    root = dimensions.relations.root
    new_sizes = tuple(sizes.get(root(axis), size) for axis, size in zip(axes, shape.dimensions, strict=True))
    return _with_lanes(shape, _lanes(dimensions, sizes), new_sizes)


def _lanes(dimensions: Dimensions, sizes: Mapping[int, int]) -> int:
    """The length of the rows of tiles for new sizes of roots."""
    lanes = dimensions.relations.lanes
    return LANES if lanes is None else sizes.get(dimensions.relations.root(lanes), LANES)


def _with_lanes(shape: ArrayShape, lanes: int, new_sizes: tuple[int, ...]) -> ArrayShape:
    """The shape with new sizes, and rows of tiles of a new length."""
    if shape.layout is not None and shape.layout.tiles and lanes != LANES:
        tiles = tuple(
            tuple(size // LANES * lanes if size % LANES == 0 else size for size in tile) for tile in shape.layout.tiles
        )
        return attrs.evolve(shape, dimensions=new_sizes, layout=attrs.evolve(shape.layout, tiles=tiles))
    return shape if new_sizes == shape.dimensions else attrs.evolve(shape, dimensions=new_sizes)


@frozen(eq=False)
class Workload:
    """A module's values, to be measured at several sizes."""

    module: Module
    dimensions: Dimensions
    groups: Groups
    devices: int

    def largest(self) -> dict[Index, int]:
        """By the groups of a value's dimensions, the bytes of the largest such value."""
        found: dict[Index, int] = {}
        root, groups = self.dimensions.relations.root, self.groups
        for values in self.dimensions.values.values():
            for value in values.values():
                for (_, leaf), axes in zip(leaf_shapes(value.shape), value.leaves.values(), strict=True):
                    key = tuple(sorted(number for axis in axes for number in groups.numbers(root(axis))))
                    if key:
                        found[key] = max(found.get(key, 1), leaf.byte_size)
        return found

    def argument_bytes(self, sizes: Mapping[int, int]) -> int:
        """Those of all devices' inputs."""
        entry = self.module.entry
        values = self.dimensions.values[entry.name]
        return self.devices * sum(
            resized_shape(values[parameter.name], self.dimensions, sizes).byte_size for parameter in entry.parameters
        )


@frozen(eq=False)
class _Rewriting:
    module: Module
    dimensions: Dimensions
    sizes: Mapping[int, int]
    literals: Mapping[Place, Literal]

    def shape(self, value: Value) -> Shape:
        return resized_shape(value, self.dimensions, self.sizes)

    def starts(self, place: Place) -> dict[int, int]:
        """Where a slice starts that is what others were put together to, by dimension."""
        root, before = self.dimensions.relations.root, self.dimensions.relations.sizes
        parts_by_axis = self.dimensions.relations.starts.get(place, {})
        return {
            axis: sum(self.sizes.get(root(part), before[part]) for part in parts)
            for axis, parts in parts_by_axis.items()
        }

    def computation(self, computation: Computation) -> Computation:
        values = self.dimensions.values[computation.name]
        shapes = {name: self.shape(value) for name, value in values.items()}
        instructions = tuple(
            self.instruction(computation, instruction, shapes) for instruction in computation.instructions
        )
        return attrs.evolve(computation, instructions=instructions)

    def instruction(
        self, computation: Computation, instruction: Instruction, shapes: Mapping[str, Shape]
    ) -> Instruction:
        operands = [name for name in instruction.operands if name in shapes]
        change = Resizing(
            attributes=instruction.attributes,
            operands=tuple(computation.by_name[name].shape for name in operands),
            result=instruction.shape,
            new_operands=tuple(shapes[name] for name in operands),
            new_result=shapes[instruction.name],
            backend_config=instruction.backend_config,
            starts=self.starts((computation.name, instruction.name)),
        )
        entry = entry_of(instruction)
        if entry is not None and entry.role is Role.LIBRARY and entry.resize is not None:
            change = entry.resize(change)
        literal = self.literals.get((computation.name, instruction.name))
        attributes = _attributes(instruction, change, literal, _lanes(self.dimensions, self.sizes))
        return attrs.evolve(
            instruction,
            shape=change.new_result,
            attributes=attributes,
            backend_config=change.backend_config,
            original_value=None,
            statistics=None,
        )


def _attributes(instruction: Instruction, change: Resizing, given: Literal | None, lanes: int) -> Any:
    entry = find_opcode(instruction.opcode)
    attributes = change.attributes
    if entry is None or attributes is None:
        return attributes
    if entry.role is Role.CONSTANT:
        literal = attributes.literal if given is None else given
        return attrs.evolve(attributes, literal=resized_literal(literal, change.new_result))
    if entry.resize is not None:
        is_resized = (change.operands, change.result) != (change.new_operands, change.new_result)
        return entry.resize(change) if is_resized else attributes
    changes: dict[str, Any] = {}
    for field in attribute_fields(type(attributes)).values():
        if field.grammar is Grammar.SHAPE_LIST and getattr(attributes, field.field):
            stated = getattr(attributes, field.field)
            changes[field.field] = tuple(map(partial(_in_layout_of, lanes=lanes), stated, change.new_operands))
    return attrs.evolve(attributes, **changes) if changes else attributes


def _in_layout_of(stated: Shape, shape: Shape, lanes: int) -> Shape:
    """A stated shape with the sizes of another, and rows of tiles of a new length."""

    def parts(node: tuple[Shape, Shape]) -> list[tuple[Shape, Shape]] | None:
        ours, theirs = map(elements_of, node)
        return None if ours is None or theirs is None else list(zip(ours, theirs, strict=False))

    def leaf(node: tuple[Shape, Shape]) -> Shape:
        ours, theirs = node
        if isinstance(ours, TupleShape) or isinstance(theirs, TupleShape):
            return ours
        if isinstance(ours, BufferShape) or isinstance(theirs, BufferShape):
            return theirs
        return _with_lanes(ours, lanes, theirs.dimensions)

    return fold((stated, shape), parts, leaf, tuple_shape)


def rewritten(
    module: Module, dimensions: Dimensions, sizes: Mapping[int, int], literals: Mapping[Place, Literal]
) -> Module:
    """The module with new sizes of roots, and other constants where `literals` gives some."""
    rewriting = _Rewriting(module, dimensions, sizes, literals)
    resized = change_computations(module, map(rewriting.computation, module), origin_recovery_table=None)
    resized = attrs.evolve(resized, input_output_alias=tuple(_fitting_aliases(resized)))
    layout = module.entry_computation_layout
    if layout is None:
        return resized
    entry = resized.entry
    in_layout = partial(_in_layout_of, lanes=_lanes(dimensions, sizes))
    parameters = tuple(map(in_layout, layout.parameters, entry.parameter_shapes))
    return attrs.evolve(
        resized, entry_computation_layout=EntryLayout(parameters, in_layout(layout.result, entry.result_shape))
    )


def _fitting_aliases(module: Module) -> Iterator[Alias]:
    """The aliases of outputs and parameters that have buffers of one size still: those padded to tiles may not."""
    parameters, result = module.entry.parameter_shapes, module.entry.result_shape
    for alias in module.input_output_alias:
        output = part_at(result, alias.output_index)
        parameter = part_at(parameters[alias.parameter_number], alias.parameter_index)
        if output is not None and parameter is not None and share_a_buffer(output, parameter):
            yield alias


_MOST_ROLES = 3


@frozen
class SizeChange:
    """A size that became another, everywhere where it is the same dimension."""

    before: int
    """The size, as it was."""
    after: int
    """What it became."""
    arrays: int
    """Of how many arrays it is a dimension."""
    parameters: tuple[str, ...]
    """Inputs of which it is a dimension, such as `tokens[1]`."""
    roles: tuple[str, ...]
    """The operations in which it occurs most often, by the names that a framework gave them."""


@frozen
class KeptSize:
    """A size that stays, and why, with one place where that was found."""

    size: int
    """The size of a dimension."""
    arrays: int
    """Of how many arrays it is a dimension."""
    reason: str
    computation: str
    instruction: str


@frozen
class HoldingSize:
    """A size that keeps a module large, with one place where that shows, and what would make it smaller."""

    before: int
    """The size, as it was."""
    after: int
    """What it becomes at the least; the same where it stays."""
    reason: str
    computation: str
    instruction: str
    bytes: int
    """What the arrays of which it is a dimension would take less if it were 1, on one device."""
    released: int | None
    """What `dims` can make of it; None where it was tried in vain."""
    released_bytes: int | None
    """What a run takes then, inputs included."""

    def __str__(self) -> str:
        size = f"{self.before}" if self.before == self.after else f"{self.before}, which becomes {self.after}"
        where = f" (%{self.instruction} in {self.computation})" if self.instruction else ""
        if self.released is None:
            return f"{size}: {self.reason}{where}; no {argument('dims')} releases it"
        pair = argument("dims", f"{self.before}={self.released}", f"dims={{{self.before}: {self.released}}}")
        return f"{size}: {self.reason}{where}; with {pair}, a run takes {byte_text(self.released_bytes or 0)}"


@frozen
class Shrinkage(Described):
    """A smaller module, and how it differs from the given one.

    Bytes and floating-point operations are those of a run on all devices; `peak_bytes` is what the run allocates
    beyond its inputs, None where the module cannot run.
    """

    module: Module
    changes: tuple[SizeChange, ...]
    """The sizes of dimensions that changed."""
    kept: tuple[KeptSize, ...]
    """The sizes of dimensions that stay, and why."""
    holding: tuple[HoldingSize, ...]
    """Where the module does not become as small as it should, the sizes that hold it up; else none."""
    constants: tuple[ConstantChange, ...]
    """Constants that may encode a size; those that are not certain were guessed, or left as they are."""
    fitted: tuple[FittedOperand, ...]
    """Operands whose integers are made to fit the sizes, as nothing proves that they do."""
    is_proven: bool
    """Whether the sizes are the best for their bound; else the search for better ones was ended at its limit."""
    devices: int
    """How many devices the module runs on."""
    devices_before: int
    """How many it ran on before."""
    axes: tuple[AxisChange, ...]
    """Of the grid of devices, major to minor; none where the number of devices stays."""
    argument_bytes_before: int
    """The size of the inputs of all devices, as it was."""
    argument_bytes: int
    """The size of the inputs of all devices."""
    peak_bytes: int | None
    """What a run allocates beyond its inputs; None where the module cannot run."""
    flops_before: int
    """Operations of contractions on all devices, as they were."""
    flops: int
    """Operations of contractions on all devices."""

    @property
    def total_bytes(self) -> int | None:
        """Those of the inputs, and what a run allocates beyond them."""
        return None if self.peak_bytes is None else self.argument_bytes + self.peak_bytes

    @property
    def devices_text(self) -> str:
        """How many devices there are, of how many, and along which axes."""
        if not self.axes:
            return "one device" if self.devices == 1 else plural(self.devices, "device")
        grids = [
            " × ".join(map(str, sizes))
            for sizes in zip(*((axis.after, axis.before) for axis in self.axes), strict=True)
        ]
        grid = f" ({grids[0]} of {grids[1]})" if len(self.axes) > 1 else ""
        return f"{plural(self.devices, 'device')} of {self.devices_before}{grid}"

    def __str__(self) -> str:
        return f"{self.module}, {len(self.changes)} sizes changed"


@define
class _Uses:
    arrays: int = 0
    parameters: list[str] = attrs.field(factory=list)
    roles: Counter[str] = attrs.field(factory=Counter)


def _uses(module: Module, dimensions: Dimensions) -> dict[int, _Uses]:
    """Where each root occurs."""
    uses_by_root: dict[int, _Uses] = {}
    root = dimensions.relations.root
    for computation in module:
        values = dimensions.values[computation.name]
        for instruction in computation.instructions:
            role = _role(instruction.op_name)
            is_input = computation is module.entry and role_of(instruction) is Role.PARAMETER
            for axes in values[instruction.name].leaves.values():
                for number, axis in enumerate(axes):
                    uses = uses_by_root.setdefault(root(axis), _Uses())
                    uses.arrays += 1
                    if role:
                        uses.roles[role] += 1
                    if is_input and len(uses.parameters) < _MOST_ROLES:
                        uses.parameters.append(f"{instruction.name}[{number}]")
    return uses_by_root


def _role(op_name: str | None) -> str:
    """The last two parts of the name that a framework gave an operation."""
    parts = (op_name or "").rsplit("/", 2)[-2:]
    return "/".join(part.partition("[")[0].strip() for part in parts)


def size_changes(
    module: Module, dimensions: Dimensions, groups: Groups, sizes: Mapping[int, int]
) -> tuple[SizeChange, ...]:
    """The roots that changed, those of the same size, group and new size together, the most frequent first."""
    uses = _uses(module, dimensions)
    merged: dict[tuple[int, int, int], _Uses] = {}
    for root, after in sizes.items():
        before = dimensions.relations.sizes[root]
        if before != after and root in uses:  # else it is an axis of devices
            total = merged.setdefault((groups.of_root.get(root, -1 - root), before, after), _Uses())
            one = uses[root]
            total.arrays += one.arrays
            total.parameters += one.parameters
            total.roles += one.roles
    changes = [
        SizeChange(
            before,
            after,
            merged_uses.arrays,
            tuple(merged_uses.parameters[:_MOST_ROLES]),
            tuple(
                role
                for role, _ in sorted(merged_uses.roles.items(), key=lambda item: (-item[1], item[0]))[:_MOST_ROLES]
            ),
        )
        for (_, before, after), merged_uses in merged.items()
    ]
    return tuple(sorted(changes, key=lambda change: (-change.arrays, -change.before, change.parameters, change.roles)))


def kept_sizes(module: Module, dimensions: Dimensions, groups: Groups) -> tuple[KeptSize, ...]:
    """The sizes that stay, those of one size and reason together, the largest first."""
    uses = _uses(module, dimensions)
    sizes_by_key: dict[tuple[int, str], KeptSize] = {}
    for root, (reason, place) in groups.kept.items():
        if root not in uses:
            continue
        size = dimensions.relations.sizes[root]
        key = size, reason
        before = sizes_by_key.get(key, KeptSize(size, 0, reason, *place))
        sizes_by_key[key] = attrs.evolve(before, arrays=before.arrays + uses[root].arrays)
    return tuple(sorted(sizes_by_key.values(), key=lambda kept: (-kept.size, -kept.arrays, kept.reason)))
