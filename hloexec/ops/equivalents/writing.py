"""Writing instructions that stand for another one: their shapes follow from their operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type
from hloexec.core.ir import (
    ArrayShape,
    BufferShape,
    Computation,
    Instruction,
    Literal,
    Module,
    PaddingDimension,
    Shape,
    SliceDimension,
    TupleShape,
    parts_of,
)
from hloexec.core.ir.editing import take_name
from hloexec.core.ir.shape import elements_of, tuple_shape
from hloexec.core.structs import define
from hloexec.core.tree import fold
from hloexec.core.values import Dimensions
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape
from hloexec.ops.control.flow import make_constant, make_element, make_parameter, make_tuple
from hloexec.ops.registry import OPCODES

F32 = element_type("f32")
PRED = element_type("pred")


def plain_shape(shape: Shape) -> Shape:
    """The shape without layouts, with arrays for buffers."""
    return fold(shape, elements_of, _plain_array, tuple_shape)


def _plain_array(leaf: ArrayShape | BufferShape) -> Shape:
    return attrs.evolve(leaf.array_shape, layout=None)


def array_of(value: Instruction) -> ArrayShape:
    """The shape of a value that is an array."""
    return array_shape(value.shape, f"%{value.name}")


def sizes_of(value: Instruction) -> Dimensions:
    """The dimensions of a value that is an array."""
    return array_of(value).dimensions


def untranslated(write: Writer, instruction: Instruction, operands: list[Instruction]) -> Instruction:
    """The `translate` of a writer that only adds instructions."""
    raise AssertionError(f"{instruction.name} is written as it is")


@define(eq=False)
class Writer:
    """Writes the instructions of one computation."""

    module: Module
    source: Computation
    """The computation that they stand for."""
    computations: dict[str, Computation]
    """Those that have been added to the module."""
    translate: Callable[[Writer, Instruction, list[Instruction]], Instruction]
    """Writes what stands for an instruction on these operands."""
    replicas: int = 1
    partitions: int = 1
    prefix: str = ""
    """What names of instructions begin with."""
    made: list[Instruction] = attrs.Factory(list)
    values: dict[str, Instruction] = attrs.Factory(dict)
    """What stands for instructions of the source, by their names."""
    taken: set[str] = attrs.Factory(set)
    """Names of instructions that are in use."""

    def write(self) -> Instruction:
        """What stands for the root of the source, after all that stands for what comes before it."""
        # Texts may use values before they define them.
        pending, begun = [*self.source][::-1], set[str]()
        while pending:
            instruction = pending[-1]
            later = [part for part in self.source.operands_of(instruction) if part.name not in self.values]
            if later and instruction.name not in self.values:
                if instruction.name in begun:
                    raise UnsupportedError(f"%{instruction.name} depends on itself")
                begun.add(instruction.name)
                pending += later
                continue
            pending.pop()
            if instruction.name not in self.values:
                self.prefix = instruction.name
                operands = [self.values[name] for name in instruction.operands]
                count = len(self.made)
                value = self.translate(self, instruction, operands)
                if len(self.made) > count and self.made[-1] is value and instruction.name not in self.taken:
                    self.taken.add(instruction.name)
                    self.made[-1] = value = attrs.evolve(value, name=instruction.name)
                self.values[instruction.name] = value
        return self.values[self.source.root_name]

    def emit(
        self, opcode: str, *operands: Instruction, shape: Shape | None = None, attributes: Any = None, **fields: Any
    ) -> Instruction:
        """An instruction with these attributes. Of `shape`, what does not follow from the operands is taken."""
        entry = OPCODES[opcode]
        if attributes is None and entry.attributes is not None:
            attributes = entry.attributes(**fields)
        shapes = [operand.shape for operand in operands]
        if entry.infer is not None and "computations" not in entry.infer.needs:
            shape = entry.infer(*shapes, attributes=attributes, shape=shape)
        assert shape is not None
        names = tuple(operand.name for operand in operands)
        name = take_name(f"{self.prefix}.{opcode}", self.taken)
        return self.add(Instruction(name=name, shape=shape, opcode=opcode, operands=names, attributes=attributes))

    def add(self, instruction: Instruction) -> Instruction:
        """The instruction, which comes next."""
        self.made.append(instruction)
        return instruction

    def constant(self, number: complex, of: ElementType) -> Instruction:
        """A number without dimensions."""
        name = take_name(f"{self.prefix}.constant", self.taken)
        return self.add(make_constant(name, Literal.from_array(np.array(number).astype(of.storage), ArrayShape(of))))

    def full(self, number: complex, like: Instruction) -> Instruction:
        """A number in each element of an array like another one."""
        shape = array_of(like)
        return self.broadcast(self.constant(number, shape.element_type), shape.dimensions)

    def zeros(self, shape: Shape) -> Instruction:
        """Zeros of any shape, tokens where it has tokens."""

        def leaf(part: Any) -> Instruction:
            if part.is_token:
                return self.emit("after-all")
            return self.broadcast(self.constant(0, part.element_type), part.dimensions)

        return fold(plain_shape(shape), elements_of, leaf, lambda _, elements: self.join(*elements))

    def join(self, *elements: Instruction) -> Instruction:
        """A tuple of these."""
        shape = TupleShape(tuple(element.shape for element in elements))
        name = take_name(f"{self.prefix}.tuple", self.taken)
        return self.add(make_tuple(name, shape, [element.name for element in elements]))

    def element(self, value: Instruction, *index: int) -> Instruction:
        """The part of a nested tuple at an index path."""
        for number in index:
            name = take_name(f"{self.prefix}.element", self.taken)
            value = self.add(make_element(name, value.shape, value.name, number))
        return value

    def in_form(self, results: Sequence[Instruction], shape: Shape) -> Instruction:
        """The results in the form of the declared shape, zeros for the scratch memory declared behind them."""
        if not isinstance(shape, TupleShape):
            return results[0]
        return self.join(*results, *map(self.zeros, parts_of(shape)[len(results) :]))

    def computation(self, name: str) -> Computation:
        """A computation of the module."""
        return self.module.by_name[name]

    def call(self, name: str, operands: Sequence[Instruction]) -> Instruction:
        """What a computation of the module gives, its instructions among those of the caller."""
        callee = self.computation(name)
        values = {parameter.name: value for parameter, value in zip(callee.parameters, operands, strict=True)}
        return attrs.evolve(self, source=callee, values=values).write()

    def convert(self, value: Instruction, to: ElementType) -> Instruction:
        if array_of(value).element_type is to:
            return value
        return self.emit("convert", value, shape=ArrayShape(to, sizes_of(value)))

    def broadcast(self, value: Instruction, sizes: Dimensions, dimensions: Dimensions = ()) -> Instruction:
        if sizes_of(value) == sizes:
            return value
        return self.emit(
            "broadcast", value, shape=attrs.evolve(array_of(value), dimensions=sizes), dimensions=dimensions
        )

    def reshape(self, value: Instruction, sizes: Dimensions) -> Instruction:
        if sizes_of(value) == sizes:
            return value
        return self.emit("reshape", value, shape=attrs.evolve(array_of(value), dimensions=sizes))

    def transpose(self, value: Instruction, order: Iterable[int]) -> Instruction:
        dimensions = tuple(map(int, order))
        if dimensions == tuple(range(len(dimensions))):
            return value
        return self.emit("transpose", value, dimensions=dimensions)

    def pad(self, value: Instruction, sizes: Dimensions) -> Instruction:
        """Zeros behind each dimension, up to these sizes."""
        if sizes_of(value) == sizes:
            return value
        padding = (PaddingDimension(0, high - low) for low, high in zip(sizes_of(value), sizes, strict=True))
        return self.emit("pad", value, self.constant(0, array_of(value).element_type), padding=tuple(padding))

    def slice(self, value: Instruction, *ranges: tuple[int, int]) -> Instruction:
        """These ranges of the dimensions, all of those that follow."""
        sizes = sizes_of(value)
        ranges = (*ranges, *((0, size) for size in sizes[len(ranges) :]))
        if ranges == tuple((0, size) for size in sizes):
            return value
        shape = attrs.evolve(array_of(value), dimensions=tuple(limit - start for start, limit in ranges))
        return self.emit("slice", value, shape=shape, slice=tuple(SliceDimension(*part) for part in ranges))

    def put(self, array: Instruction, part: Instruction, number: Instruction) -> Instruction:
        """An array with a part in the place of that of this number along the first dimension."""
        zeros = [self.constant(0, array_of(number).element_type) for _ in sizes_of(part)]
        return self.emit("dynamic-update-slice", array, self.reshape(part, (1, *sizes_of(part))), number, *zeros)

    def successor(self, number: Instruction) -> Instruction:
        """One more than a number."""
        return self.emit("add", number, self.constant(1, array_of(number).element_type))

    def dot(self, lhs: Instruction, rhs: Instruction, numbers: Any, of: ElementType) -> Instruction:
        """A product with these dimension numbers in an element type."""
        return self.emit("dot", lhs, rhs, shape=ArrayShape(of), attributes=numbers)

    def reduce(self, opcode: str, value: Instruction, initial: complex, dimensions: Dimensions) -> Instruction:
        """What an opcode of two operands makes of all along these dimensions."""
        array = array_of(value)
        kept = tuple(size for axis, size in enumerate(array.dimensions) if axis not in dimensions)
        return self.emit(
            "reduce",
            value,
            self.constant(initial, array.element_type),
            shape=ArrayShape(array.element_type, kept),
            dimensions=dimensions,
            to_apply=self.combiner(opcode, array.element_type),
        )

    def combiner(self, opcode: str, of: ElementType) -> str:
        """A computation that applies an opcode to two numbers."""
        name, shape = f"equivalent.{opcode}.{of.name}", ArrayShape(of)
        parameters = [make_parameter(f"{name}.{letter}", shape, number) for number, letter in enumerate("xy")]
        names = tuple(parameter.name for parameter in parameters)
        root = Instruction(name=f"{name}.z", shape=shape, opcode=opcode, operands=names)
        self.computations[name] = Computation(name=name, instructions=(*parameters, root), root_name=root.name)
        return name
