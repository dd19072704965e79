"""Some elements of what a module gives, as all that another module gives: nothing else is computed for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape
from hloexec.core.ir.editing import change_computations
from hloexec.core.values import Array
from hloexec.engine.devices.equivalents import compiled_by_xla
from hloexec.engine.plan.schedule import after_dependencies
from hloexec.errors import UnsupportedError
from hloexec.ops.control.flow import make_parameter, make_tuple
from hloexec.ops.registry import Role, Site, find_opcode, role_of
from hloexec.ops.traits import Rounding

_ROUNDINGS = (Rounding.NONE, Rounding.ONCE, Rounding.FORMAT, Rounding.FUNCTION)
"""Those of an element by itself."""


def elements_of(module: Module, inputs: Sequence[Any], places: Sequence[Array]) -> tuple[Module, list[Array]]:
    """The module that gives the elements at flat places of each array of a module's result, and its inputs.

    UnsupportedError where other instructions than elementwise ones, and moves of one array, are on the way.
    """
    source = compiled_by_xla(module)
    writer, root = _Writer(source.entry, inputs), source.entry.root
    is_tuple = role_of(root) is Role.TUPLE
    leaves = root.operands if is_tuple else (root.name,)
    names = [writer.take(name, rows) for name, rows in zip(leaves, places, strict=True)]
    for instruction in reversed(after_dependencies(source.entry, [source.entry.by_name[name] for name in leaves])):
        writer.write(instruction)
    made, root_name = [*writer.parameters, *reversed(writer.made)], names[0]
    if is_tuple:
        made.append(make_tuple(root_name := "root", TupleShape(tuple(map(writer.shapes.__getitem__, names))), names))
    entry = Computation(name=source.entry_name, instructions=tuple(made), root_name=root_name)
    return change_computations(source, [entry]), writer.arrays


class _Writer:
    """Writes what gives elements, users before what they use."""

    def __init__(self, source: Computation, inputs: Sequence[Any]) -> None:
        self._source, self._inputs = source, inputs
        self._taken: dict[str, dict[bytes, tuple[str, Array]]] = defaultdict(dict)
        """By the name of an instruction and the flat places of elements, what gives these, and the places."""
        self._indices: dict[str, Array | None] = {}
        self._alike: dict[tuple[Any, int], ArrayShape] = {}
        self.parameters: list[Instruction] = []
        self.made: list[Instruction] = []
        self.shapes: dict[str, Shape] = {}
        """Of what gives elements, by its name."""
        self.arrays: list[Array] = []

    def take(self, name: str, rows: Array) -> str:
        """The name of what gives elements of a value."""
        while (index := self._index(name)) is not None:
            rows = index[np.unravel_index(rows, index.shape)]
            (name,) = self._source.by_name[name].operands
        taken, key = self._taken[name], rows.tobytes()
        if key not in taken:
            shape = self._array_shape(name)
            taken[key] = f"{name}.{len(self.shapes)}", rows
            # Shapes that are one object are sooner known to be alike.
            alike = self._alike.setdefault((shape.element_type, rows.size), ArrayShape(shape.element_type, rows.shape))
            self.shapes[taken[key][0]] = alike
            if len(self.shapes) > 4 * len(self._source.instructions):
                raise UnsupportedError("too many elements are taken of one value")
        return taken[key][0]

    def write(self, instruction: Instruction) -> None:
        """Write what has been taken of an instruction's value."""
        taken = self._taken.pop(instruction.name, {})
        array = self._array(instruction) if taken else None
        for name, rows in taken.values():
            if array is not None:
                self.parameters.append(make_parameter(name, self.shapes[name], len(self.arrays)))
                self.arrays.append(array.reshape(-1)[rows])
                continue
            changes: Any = {"name": name, "shape": self.shapes[name], "control_predecessors": ()}
            operands = tuple(self._operand(operand, instruction, rows) for operand in instruction.operands)
            self.made.append(attrs.evolve(instruction, operands=operands, **changes))

    def _operand(self, name: str, instruction: Instruction, rows: Array) -> str:
        """What gives the elements of an operand that those of an elementwise instruction are made of."""
        shape, entry = self._array_shape(name), find_opcode(instruction.opcode)
        if entry is None or not entry.is_elementwise or not entry.is_pure or entry.rounding not in _ROUNDINGS:
            raise UnsupportedError(f"{instruction.opcode} is not elementwise")
        is_whole = shape.dimensions == self._array_shape(instruction.name).dimensions
        return self.take(name, rows if is_whole else np.zeros_like(rows))

    def _array_shape(self, name: str) -> ArrayShape:
        shape = self._source.by_name[name].shape
        if not isinstance(shape, ArrayShape) or shape.is_dynamic:
            raise UnsupportedError(f"{name} is no array, or of sizes that are known only at run time")
        return shape

    def _index(self, name: str) -> Array | None:
        """Of what moves elements of one array, the flat place from which each element comes; None of anything else."""
        if name not in self._indices:
            instruction = self._source.by_name[name]
            entry, index = find_opcode(instruction.opcode), None
            if entry is not None and entry.traits.moves == (0,) and len(instruction.operands) == 1:
                shapes = self._array_shape(instruction.operands[0]), self._array_shape(name)
                is_plain = entry.role is Role.KERNEL and not entry.traits.fills and not entry.traits.crosses_devices
                kernel = Site(entry, instruction, shapes[:1]).kernel() if is_plain else None
                if kernel is not None and shapes[0].element_type is shapes[1].element_type:
                    places = np.arange(shapes[0].element_count).reshape(shapes[0].dimensions)
                    index = np.atleast_1d(kernel(places))
            self._indices[name] = index
        return self._indices[name]

    def _array(self, instruction: Instruction) -> Array | None:
        """The value of an input, or of what has no operands."""
        entry, array = find_opcode(instruction.opcode), None
        if role_of(instruction) is Role.PARAMETER:
            array = self._inputs[instruction.attributes.number]
        elif role_of(instruction) is Role.CONSTANT:
            array = instruction.attributes.literal.array
        elif not instruction.operands and entry is not None and entry.role is Role.KERNEL and entry.is_pure:
            kernel = Site(entry, instruction, ()).kernel()
            array = None if kernel is None else np.asarray(kernel())
        elif instruction.operands:
            return None
        if not isinstance(array, np.ndarray):
            raise UnsupportedError(f"%{instruction.name} gives no array")
        return array
