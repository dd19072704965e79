"""Results that are indices into another value: those of argmax, of top-k and of sorts.

If two elements are equal up to rounding, either index is right; only the selected value counts. An integer leaf is
recognized as an index by the module: it is the second result of a topk, or an iota that a sort or a selecting reduce
carries along. Copies, calls, fusions, reshapes and transposes between it and the result are followed, and inverted on
the leaf before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.calls import calls_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, flat_shapes, leaf_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value
from hloexec.engine.exec import run
from hloexec.engine.exec.observers import Event
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.reduction.reducers import chooses_by_order
from hloexec.ops.registry import Role, operation_name, role_of, traits_of
from hloexec.ops.traits import Index

_MOST_STEPS = 10_000
_TOP_K = ("topk", "TopK", "__gpu$TopK")

Steps: TypeAlias = tuple[tuple[str, Any], ...]
"""What to do to a leaf, one after the other: to reshape or to transpose it."""


@frozen
class ModuleValue:
    """A value in a module: an instruction, the calls that lead to its computation, and which part of its tuple."""

    computation: Computation
    instruction: Instruction
    element: tuple[int, ...] = ()
    callers: tuple[tuple[Computation, Instruction], ...] = ()

    def operand(self, number: int, element: tuple[int, ...] = ()) -> ModuleValue:
        """An operand of the instruction."""
        operand = self.computation.by_name[self.instruction.operands[number]]
        return ModuleValue(self.computation, operand, element, self.callers)


@frozen
class Selection:
    """How an index leaf is to be read."""

    sources: tuple[ModuleValue, ...]
    """The values that are selected from; of several, the indices select from each."""
    dimension: int
    """Along which dimension of the sources the indices count."""
    is_reduced: bool
    """Whether the dimension is missing in the leaf, as in argmax's; else no index may occur twice along it."""
    steps: Steps
    """What gives the leaf the dimensions of the instruction that makes the indices."""
    instruction: Instruction
    """What makes the indices."""
    values_leaf: Index | None = None
    """The leaf of the result that holds the selected values themselves, where there is one."""


def selections_of(module: Module) -> dict[Index, Selection]:
    """The index leaves of a module's result, by their index paths."""
    leaves = dict(leaf_shapes(module.entry.result_shape))
    origins = {index: _origin(module, ModuleValue(module.entry, module.entry.root, index)) for index in leaves}
    selections = {}
    for index, leaf in leaves.items():
        if isinstance(leaf, ArrayShape) and leaf.element_type.is_integral:
            selection = _selection(module, *origins[index])
            if selection is not None:
                selections[index] = attrs.evolve(selection, values_leaf=_values_leaf(origins, index))
    return selections


def _origin(module: Module, place: ModuleValue) -> tuple[ModuleValue, Steps]:
    """The instruction that makes a value, behind all that only moves it as a whole; and how to undo the moving."""
    steps: list[tuple[str, Any]] = []
    for _ in range(_MOST_STEPS):
        inner = _shown(module, place)
        if inner is not None:
            place = inner
            continue
        instruction = place.instruction
        if _keeps_order(place):
            before = place.operand(0)
            if _dimensions(before.instruction) != _dimensions(instruction):
                steps.append(("reshape", _dimensions(before.instruction)))
            place = before
        elif instruction.opcode == "transpose":
            steps.append(("transpose", tuple(np.argsort(instruction.attributes.dimensions).tolist())))
            place = place.operand(0)
        elif instruction.opcode == "slice":
            # Whole in all other dimensions, or the values would not lie beside the indices any more: seen to later.
            place = place.operand(0)
        else:
            break
    return place, tuple(steps)


def _shown(module: Module, place: ModuleValue) -> ModuleValue | None:
    """The place whose value an instruction shows as it is: a part of a tuple, a call's result, its argument."""
    instruction = place.instruction
    match role_of(instruction):
        case Role.GET_TUPLE_ELEMENT:
            return place.operand(0, (instruction.attributes.index, *place.element))
        case Role.TUPLE if place.element:
            return place.operand(place.element[0], place.element[1:])
        case Role.FORWARD:
            return place.operand(0, place.element)
        case Role.CALL:
            inner = module.by_name[calls_of(instruction)[0].computation]
            return ModuleValue(inner, inner.root, place.element, (*place.callers, (place.computation, instruction)))
        case Role.PARAMETER if place.callers:
            computation, caller = place.callers[-1]
            operand = computation.by_name[caller.operands[instruction.attributes.number]]
            return ModuleValue(computation, operand, place.element, place.callers[:-1])
    return None


def _keeps_order(place: ModuleValue) -> bool:
    """Whether an instruction gives the elements of its operand, as they are, in the same order."""
    instruction = place.instruction
    traits = traits_of(instruction)
    if traits.converts:
        return _is_integral(instruction) and _is_integral(place.operand(0).instruction)
    return traits.keeps_order or (instruction.opcode == "bitcast" and _is_plain_bitcast(place))


def _selection(module: Module, place: ModuleValue, steps: Steps) -> Selection | None:
    """The selection that an instruction makes in one of its results, if it is one."""
    instruction = place.instruction
    if len(place.element) != 1:
        return None
    number = place.element[0]
    operands = [place.operand(k) for k in range(len(instruction.operands))]
    if operation_name(instruction) in _TOP_K:
        last = len(_dimensions(operands[0].instruction)) - 1
        return Selection((operands[0],), last, False, steps, instruction) if number == 1 else None
    if instruction.opcode == "sort":
        dimension = instruction.attributes.dimension
        used = _compared(module.by_name[instruction.attributes.to_apply])
        sources = tuple(operand for k, operand in enumerate(operands) if k in used and k != number)
        if sources and _counts_along(module, operands[number], dimension):
            return Selection(sources, dimension, False, steps, instruction)
    if instruction.opcode == "reduce" and len(instruction.attributes.dimensions) == 1:
        (dimension,) = instruction.attributes.dimensions
        values = operands[: len(operands) // 2]
        reducer = module.by_name[instruction.attributes.to_apply]
        if len(values) == 2 and chooses_by_order(reducer) and _counts_along(module, values[number], dimension):
            return Selection((values[1 - number],), dimension, True, steps, instruction)
    return None


def order_of(module: Module, place: ModuleValue) -> tuple[int, int, int | None] | None:
    """Of what chooses by the order of floats: which operand they are, along which dimension it goes, and how many are
    chosen, None for all; None where there is no such order of one operand."""
    instruction, attributes = place.instruction, place.instruction.attributes
    if operation_name(instruction) in _TOP_K:
        chosen = next(leaf for leaf in flat_shapes(instruction.shape) if isinstance(leaf, ArrayShape))
        return 0, chosen.rank - 1, chosen.dimensions[-1]
    if instruction.opcode == "sort":
        keys, dimensions, count = _compared(module.by_name[attributes.to_apply]), (attributes.dimension,), None
    elif instruction.opcode == "reduce" and len(instruction.operands) == 4:
        keys, dimensions, count = {0, 1}, attributes.dimensions, 1
    else:
        return None
    floats = [key for key in sorted(keys) if _is_float(place.operand(key).instruction)]
    return (floats[0], dimensions[0], count) if len(floats) == len(dimensions) == 1 else None


def _compared(comparator: Computation) -> set[int]:
    """Which operands of a sort its comparator looks at."""
    used = {name for instruction in comparator for name in instruction.operands}
    return {
        parameter.attributes.number // 2
        for parameter in comparator.parameters
        if parameter.name in used or parameter.name == comparator.root_name
    }


def _counts_along(module: Module, place: ModuleValue, dimension: int) -> bool:
    """Whether a value is 0, 1, 2, … along a dimension."""
    for _ in range(_MOST_STEPS):
        inner = _shown(module, place)
        if inner is not None:
            place = inner
            continue
        instruction = place.instruction
        if instruction.opcode == "iota":
            return bool(instruction.attributes.iota_dimension == dimension)
        if role_of(instruction) is Role.CONSTANT:
            return _is_counting(instruction.attributes.literal.value, dimension)
        if instruction.opcode == "broadcast":
            dimensions = instruction.attributes.dimensions
            if dimension not in dimensions:
                return False
            dimension = dimensions.index(dimension)
        elif instruction.opcode == "transpose":
            dimension = instruction.attributes.dimensions[dimension]
        elif _keeps_order(place):
            sizes = _dimensions(place.operand(0).instruction), _dimensions(instruction)
            mapped = dimension if sizes[0] == sizes[1] else _before_reshape(*sizes, dimension)
            if mapped is None:
                return False
            dimension = mapped
        else:
            return False
        place = place.operand(0)
    return False


def _is_counting(value: object, dimension: int) -> bool:
    if not isinstance(value, np.ndarray) or value.ndim <= dimension or value.dtype.kind not in "iu":
        return False
    numbers = np.arange(value.shape[dimension]).reshape([-1] + [1] * (value.ndim - dimension - 1))
    return bool((value == numbers).all())


def _before_reshape(before: Sequence[int], after: Sequence[int], dimension: int) -> int | None:
    """Which dimension before a reshape is this one after it, where dimensions of size 1 alone come or go."""
    if [size for size in before if size != 1] != [size for size in after if size != 1] or after[dimension] == 1:
        return None
    place = sum(size != 1 for size in after[:dimension])
    return [k for k, size in enumerate(before) if size != 1][place]


def _is_plain_bitcast(place: ModuleValue) -> bool:
    """Whether a bitcast does what a reshape would: the same elements in the usual order on both sides."""
    after, before = place.instruction.shape, place.operand(0).instruction.shape
    if not isinstance(after, ArrayShape) or not isinstance(before, ArrayShape):
        return False
    return _is_in_usual_order(after) and _is_in_usual_order(before) and after.element_count == before.element_count


def _is_in_usual_order(shape: ArrayShape) -> bool:
    layout = shape.layout
    return layout is None or (not layout.tiles and layout.minor_to_major == tuple(reversed(range(shape.rank))))


def _dimensions(instruction: Instruction) -> tuple[int, ...]:
    return instruction.shape.dimensions if isinstance(instruction.shape, ArrayShape) else ()


def _is_float(instruction: Instruction) -> bool:
    return isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_floating


def _is_integral(instruction: Instruction) -> bool:
    return isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_integral


def _values_leaf(origins: Mapping[Index, tuple[ModuleValue, Steps]], index: Index) -> tuple[int, ...] | None:
    """The leaf that comes from another result of the same instruction in the same way."""
    place, steps = origins[index]
    for other, (its_place, its_steps) in origins.items():
        if its_place.instruction is place.instruction and its_place.element != place.element and its_steps == steps:
            return other
    return None


def apply_steps(leaf: Array, steps: Steps) -> Array | None:
    """An index leaf in the dimensions of the instruction that made it; None where it was cut on the way."""
    for kind, dimensions in steps:
        if kind == "transpose":
            leaf = leaf.transpose(dimensions)
        elif leaf.size == prod(dimensions):
            leaf = leaf.reshape(dimensions)
        else:
            return None
    return leaf


def observed_sources(
    module: Module, inputs: Sequence[Value], places: Sequence[ModuleValue], numerics: str | NumericsPolicy
) -> dict[ModuleValue, Array]:
    """The values at places in a module, from a run on `inputs`; those that occur several times are left out.

    Raises what `hloexec.run` raises.
    """
    watcher = Watcher(places)
    run(module, *inputs, numerics=numerics, observers=[watcher])
    return {place: array for place, array in watcher.found.items() if array is not None}


class Watcher:
    """Keeps the values of some places."""

    def __init__(self, places: Sequence[ModuleValue]) -> None:
        self.found: dict[ModuleValue, Array | None] = {}
        self._wanted: dict[tuple[str, str], list[ModuleValue]] = {}
        for place in places:
            self._wanted.setdefault((place.computation.name, place.instruction.name), []).append(place)

    def on_instruction(self, event: Event) -> None:
        for place in self._wanted.get((event.computation.name, event.instruction.name), ()):
            value = event.value
            for number in place.element:
                value = value[number] if isinstance(value, tuple) else value
            is_new = place not in self.found and isinstance(value, np.ndarray)
            self.found[place] = np.array(value) if is_new else None
