"""What a run of a module with other sizes takes: bytes and floating-point operations, without rewriting it first."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hloexec.core.ir import ArrayShape, BufferShape, Module, Shape, TupleShape, leaf_shapes
from hloexec.core.structs import frozen
from hloexec.ops.costs import contraction_of
from hloexec.ops.registry import Role, role_of
from hloexec.ops.relations import Value
from hloexec.tools.shrinking.dimensions import Dimensions
from hloexec.tools.shrinking.grouping import Groups
from hloexec.tools.summary import run_counts


def resized_shape(value: Value, dimensions: Dimensions, sizes: Mapping[int, int]) -> Shape:
    """The shape of a value for new sizes of roots."""
    axes = iter(value.leaves.values())

    def resized(shape: Shape) -> Shape:
        if isinstance(shape, TupleShape):
            return TupleShape(tuple(map(resized, shape.elements)))
        if isinstance(shape, BufferShape):
            return attrs.evolve(shape, element=_resized_array(shape.element, next(axes), dimensions, sizes))
        return _resized_array(shape, next(axes), dimensions, sizes)

    return resized(value.shape)


def _resized_array(
    shape: ArrayShape, axes: tuple[int, ...], dimensions: Dimensions, sizes: Mapping[int, int]
) -> ArrayShape:
    root = dimensions.relations.root
    found = tuple(sizes.get(root(axis), size) for axis, size in zip(axes, shape.dimensions, strict=True))
    return shape if found == shape.dimensions else attrs.evolve(shape, dimensions=found)


@frozen(eq=False)
class Workload:
    """A module's values and how often its computations run, to be measured at several sizes."""

    module: Module
    dimensions: Dimensions
    groups: Groups
    devices: int

    def largest(self) -> dict[tuple[int, ...], int]:
        """By the groups of a value's dimensions, the bytes of the largest such value."""
        found: dict[tuple[int, ...], int] = {}
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

    def value_bytes(self, sizes: Mapping[int, int]) -> int:
        """Of all arrays that instructions outside of fusions make: a measure for what is alive at once."""
        total = 0
        for name in run_counts(self.module):
            for instruction in self.module.by_name[name]:
                if role_of(instruction) in _NO_ARRAYS:
                    continue
                value = self.dimensions.values[name][instruction.name]
                total += resized_shape(value, self.dimensions, sizes).byte_size
        return total

    def flops(self, sizes: Mapping[int, int]) -> int:
        """Of all contractions, on all devices."""
        total = 0
        for name, runs in run_counts(self.module).items():
            values = self.dimensions.values[name]
            for instruction in self.module.by_name[name]:
                if len(instruction.operands) < 2 or role_of(instruction) not in (Role.KERNEL, Role.CUSTOM_CALL):
                    continue
                operands = [resized_shape(values[each], self.dimensions, sizes) for each in instruction.operands[:2]]
                shape = resized_shape(values[instruction.name], self.dimensions, sizes)
                contraction = contraction_of(attrs.evolve(instruction, shape=shape), operands)
                if contraction is not None:
                    total += contraction.flops * runs
        return total * self.devices


_NO_ARRAYS = (Role.PARAMETER, Role.CONSTANT, Role.TUPLE, Role.GET_TUPLE_ELEMENT, Role.FORWARD)
