"""Some elements of what a module gives, as all that another module gives: nothing else is computed for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
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
        self._alike: dict[tuple[Any, int], ArrayShape] = {}
        """Shapes that are one object are sooner known to be alike."""
        self._index = cache(self._index_of)
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
            taken[key] = f"{name}.{len(self.shapes)}", rows
            of = self._array_shape(name).element_type
            self.shapes[taken[key][0]] = self._alike.setdefault((of, rows.size), ArrayShape(of, rows.shape))
            if len(self.shapes) > 4 * len(self._source.instructions):
                raise UnsupportedError("too many elements are taken of one value")
        return taken[key][0]

    def write(self, instruction: Instruction) -> None:
        """Write what has been taken of an instruction's value."""
        entry = find_opcode(instruction.opcode)
        for name, rows in self._taken.pop(instruction.name, {}).values():
            if not instruction.operands:
                self.parameters.append(make_parameter(name, self.shapes[name], len(self.arrays)))
                self.arrays.append(self._array(instruction).reshape(-1)[rows])
                continue
            if entry is None or not entry.is_elementwise or not entry.is_pure or entry.rounding not in _ROUNDINGS:
                raise UnsupportedError(f"{instruction.opcode} is not elementwise")
            *sizes, own = (self._array_shape(part).dimensions for part in (*instruction.operands, instruction.name))
            pairs = zip(instruction.operands, sizes, strict=True)
            operands = tuple(self.take(part, rows if size == own else np.zeros_like(rows)) for part, size in pairs)
            changes: Any = {"name": name, "shape": self.shapes[name], "control_predecessors": ()}
            self.made.append(attrs.evolve(instruction, operands=operands, **changes))

    def _array_shape(self, name: str) -> ArrayShape:
        shape = self._source.by_name[name].shape
        if not isinstance(shape, ArrayShape) or shape.is_dynamic:
            raise UnsupportedError(f"%{name} is no array of known sizes")
        return shape

    def _index_of(self, name: str) -> Array | None:
        """Of what moves elements of one array, the flat place from which each element comes; None of anything else."""
        instruction = self._source.by_name[name]
        entry = find_opcode(instruction.opcode)
        if entry is None or entry.role is not Role.KERNEL or entry.traits.moves != (0,) or entry.traits.fills:
            return None
        shapes = [*map(self._array_shape, (*instruction.operands, name))]
        if len(shapes) > 2 or shapes[0].element_type is not shapes[1].element_type:
            return None
        kernel: Any = Site(entry, instruction, (shapes[0],)).kernel()
        return np.atleast_1d(kernel(np.arange(shapes[0].element_count).reshape(shapes[0].dimensions)))

    def _array(self, instruction: Instruction) -> Array:
        """The value of an input, or of what has no operands."""
        entry, role, array = find_opcode(instruction.opcode), role_of(instruction), None
        if role is Role.PARAMETER:
            array = self._inputs[instruction.attributes.number]
        elif role is Role.CONSTANT:
            array = instruction.attributes.literal.array
        elif entry is not None and role is Role.KERNEL and entry.is_pure:
            kernel: Any = Site(entry, instruction, ()).kernel()
            array = np.asarray(kernel())
        if not isinstance(array, np.ndarray):
            raise UnsupportedError(f"%{instruction.name} gives no array")
        return array
