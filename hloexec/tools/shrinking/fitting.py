"""Making integers fit the sizes of a smaller module, where it is not proven that they do.

What a call requires of lengths, offsets or sizes of groups (`ops.relations.contents`) is proven on the smaller module
(`ranges`). Where that fails and they are constants, these shrink with the sizes; others go through a computation that
leaves what fits as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module
from hloexec.core.ir.editing import change_computations, inline, rename, take_name
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.language.text import parse
from hloexec.ops.attributes import rename_computations
from hloexec.ops.control.flow import make_constant
from hloexec.ops.registry import entry_of, operation_name
from hloexec.ops.relations import GroupSizes, Place, Requirement, RunningSums, Starts, Within
from hloexec.tools.shrinking.ranges import Ranges, has_requirements, operands_read, requirements_of


@frozen
class FittedOperand:
    """An operand whose integers may be too large for the smaller sizes, so that they are made to fit."""

    computation: str
    instruction: str
    """The instruction that takes the operand."""
    operation: str
    """The opcode of that, or the target of the library call."""
    operand: int
    """The number of the operand."""
    requirement: str
    """What they have to be."""
    is_constant: bool
    """Whether they are constants, which became smaller ones; else what does not fit is cut off in each run."""


def fitted(before: Module, after: Module) -> tuple[Module, tuple[FittedOperand, ...]]:
    """The smaller module with operands that fit, and which ones were made to; `before` is the module as it was."""
    if not has_requirements(after):
        return after, ()
    unproven = Ranges.of(after).unproven
    if not unproven:
        return after, ()
    by_place: dict[Place, list[Requirement]] = {}
    for place, requirement in unproven:
        by_place.setdefault(place, []).append(requirement)
    fitting = _Fitting(before, after, Ranges.of(before), by_place)
    computations = [fitting.computation(computation) for computation in after]
    module = change_computations(after, [*fitting.added.values(), *computations])
    return (module, tuple(fitting.operands)) if fitting.operands else (after, ())


@define(eq=False)
class _Fitting:
    before: Module
    after: Module
    ranges: Ranges
    """Those of the module as it was."""
    unproven: Mapping[Place, list[Requirement]]
    operands: list[FittedOperand] = attrs.field(factory=list)
    added: dict[str, Computation] = attrs.field(factory=dict)
    """Computations that are called, by the names that texts have for them."""

    def computation(self, computation: Computation) -> Computation:
        if not any(place[0] == computation.name for place in self.unproven):
            return computation
        names = {instruction.name for instruction in computation}
        instructions: list[Instruction] = []
        fits: dict[object, tuple[str, bool]] = {}
        for instruction in computation.instructions:
            for requirement in self.unproven.get((computation.name, instruction.name), ()):
                key = _like(requirement), tuple(instruction.operands[number] for number in operands_read(requirement))
                if key not in fits:
                    more, root = self._fit(computation, instruction, requirement, names)
                    fits[key] = root, len(more) == 1
                    instructions += more
                root, is_constant = fits[key]
                if root:
                    operands = list(instruction.operands)
                    operands[requirement.operand] = root
                    instruction = attrs.evolve(instruction, operands=tuple(operands))
                    self._note(computation, instruction, requirement, is_constant=is_constant)
            instructions.append(instruction)
        return attrs.evolve(computation, instructions=tuple(instructions))

    def _fit(
        self, computation: Computation, instruction: Instruction, requirement: Requirement, names: set[str]
    ) -> tuple[list[Instruction], str]:
        """What makes an operand of an instruction fit, and its name; nothing where the instruction sees to it."""
        place, number = (computation.name, instruction.name), requirement.operand
        own = self.after.by_name[place[0]].by_name[place[1]]
        shapes = [operand.shape for operand in computation.operands_of(own)]
        shape, entry = shapes[number], entry_of(instruction)
        assert isinstance(shape, ArrayShape)
        constant = self._constant(place, requirement, shape)
        if constant is not None:
            name = take_name(f"{own.operands[number]}.fitting", names)
            return [make_constant(name, constant)], name
        if entry is None or entry.clamps:
            return [], ""
        operands = [instruction.operands[number]]
        of_operands = [shape]
        if isinstance(requirement, Starts):
            operands.append(instruction.operands[requirement.lengths])
            of_operands.append(shapes[requirement.lengths])  # type: ignore[arg-type]
        module = parse(_text(requirement, of_operands))
        for called in module.computations:
            if called.name != module.entry_name and called.name not in self.added:
                taken = {computation.name for computation in self.after}
                self.added[called.name] = attrs.evolve(called, name=take_name(called.name, taken))
        own_names = {one.name: f"fitting.{one.name}" for one in module.entry}
        called_names = {name: called.name for name, called in self.added.items()}
        ordered = [
            rename(one, own_names, attributes=rename_computations(one.attributes, called_names))
            for one in module.entry.instructions
        ]
        entry_computation = attrs.evolve(
            module.entry, instructions=tuple(ordered), root_name=own_names[module.entry.root_name]
        )
        return inline(entry_computation, ordered, operands, names)

    def _constant(self, place: Place, requirement: Requirement, shape: ArrayShape) -> Literal | None:
        """What a constant operand becomes that shrinks with the sizes; None where it is none."""
        array = self.ranges.constants.get((place, requirement.operand))
        computation = self.before.by_name.get(place[0])
        original = None if computation is None else computation.by_name.get(place[1])
        if computation is None or original is None:
            return None
        required = requirements_of(original, [operand.shape for operand in computation.operands_of(original)])
        like = [one for one in required if (type(one), one.operand) == (type(requirement), requirement.operand)]
        if array is None or not like or (place, like[0]) in self.ranges.unproven or array.shape != shape.dimensions:
            return None
        return Literal.from_array(_shrunken(array, like[0], requirement).astype(shape.element_type.storage), shape)

    def _note(
        self, computation: Computation, instruction: Instruction, requirement: Requirement, *, is_constant: bool
    ) -> None:
        place, number = (computation.name, instruction.name), requirement.operand
        name = operation_name(instruction)
        self.operands.append(FittedOperand(*place, name, number, str(requirement), is_constant=is_constant))


def _like(requirement: Requirement) -> Requirement:
    """What is required of whatever operands."""
    same = attrs.evolve(requirement, operand=0)
    return attrs.evolve(same, lengths=1) if isinstance(same, Starts) else same


def _shrunken(array: Array, before: Requirement, after: Requirement) -> Array:
    """Constants in the proportion of the sizes, before and after, rounded down."""
    match before, after:
        case Within(), Within():
            return np.asarray(np.clip(array * after.high // max(before.high, 1), after.low, after.high))
        case RunningSums(), RunningSums():
            return array * after.most // max(before.most, 1)
        case GroupSizes(), GroupSizes():
            ends = array.cumsum(-1) * after.room // max(before.room, 1)
            return np.asarray(np.diff(ends, prepend=0, axis=-1))
        case Starts(), Starts():
            return array // before.unit * after.room // max(before.room, 1) * after.unit
    return array


_ADD = """fitting_add {
  x = s64[] parameter(0)
  y = s64[] parameter(1)
  ROOT z = s64[] add(x, y)
}

"""
_BOUND = 2**30


def _text(requirement: Requirement, shapes: Sequence[ArrayShape]) -> str:
    """A module whose entry makes its first parameter fit, and leaves what fits as it is."""
    count = shapes[0].element_count
    lines = [f"array = {shapes[0]} parameter(0)", f"flat = {_flat(shapes[0])} reshape(array)"]
    lines.append(f"wide = s64[{count}] convert(flat)")
    match requirement:
        case RunningSums():
            used, body = requirement.count + 1, _running_sums(requirement)
        case Starts():
            used, body = requirement.count, _starts(requirement, shapes[1])
        case Within():
            used, body = count, _clamped("fit", "wide", count, str(requirement.low), str(requirement.high))
        case GroupSizes():
            raise AssertionError("what takes sizes of groups sees to it")
    lines += body
    if used < count:
        lines.append(f"rest = s64[{count - used}] slice(wide), slice={{[{used}:{count}]}}")
        lines.append(f"whole = s64[{count}] concatenate(fit, rest), dimensions={{0}}")
    lines.append(f"narrow = {_flat(shapes[0])} convert({'whole' if used < count else 'fit'})")
    lines.append(f"ROOT result = {shapes[0]} reshape(narrow)")
    return "HloModule fitting\n\n" + _ADD + "ENTRY fitting {\n  " + "\n  ".join(lines) + "\n}\n"


def _flat(shape: ArrayShape) -> str:
    return f"{shape.element_type.name}[{shape.element_count}]"


def _clamped(name: str, value: str, count: int, low: str, high: str) -> list[str]:
    """The elements of a value between two numbers."""
    return [
        f"{name}.low = s64[] constant({low})",
        f"{name}.high = s64[] constant({high})",
        f"{name} = s64[{count}] clamp({name}.low, {value}, {name}.high)",
    ]


def _steps(name: str, value: str, count: int) -> list[str]:
    """By how much each of so many elements after the first one is larger than that before."""
    return [
        f"{name}.after = s64[{count}] slice({value}), slice={{[1:{count + 1}]}}",
        f"{name}.before = s64[{count}] slice({value}), slice={{[0:{count}]}}",
        f"{name} = s64[{count}] subtract({name}.after, {name}.before)",
    ]


def _running_sums(requirement: RunningSums) -> list[str]:
    """The first sum, and after it no step that is too large; those that are negative are of no sequence."""
    count, most = requirement.count, requirement.most
    return [
        "start = s64[1] slice(wide), slice={[0:1]}",
        *_clamped("first", "start", 1, str(-_BOUND), str(_BOUND)),
        *_steps("steps", "wide", count),
        *_clamped("lengths", "steps", count, str(-count * most - 1), str(most)),
        f"parts = s64[{count + 1}] concatenate(first, lengths), dimensions={{0}}",
        "zero = s64[] constant(0)",
        f"fit = s64[{count + 1}] reduce-window(parts, zero), window={{size={count + 1} pad={count}_0}}, "
        "to_apply=fitting_add",
    ]


def _starts(requirement: Starts, lengths: ArrayShape) -> list[str]:
    """Starts from which there is room for the lengths."""
    count, total = requirement.count, lengths.element_count
    lines = [
        f"lengths.array = {lengths} parameter(1)",
        f"lengths.flat = {_flat(lengths)} reshape(lengths.array)",
        f"lengths.wide = s64[{total}] convert(lengths.flat)",
    ]
    if requirement.are_sums:
        lines += _steps("lengths", "lengths.wide", count)
    else:
        lines.append(f"lengths = s64[{count}] slice(lengths.wide), slice={{[0:{count}]}}")
    lines += [
        f"starts = s64[{count}] slice(wide), slice={{[0:{count}]}}",
        "zero = s64[] constant(0)",
        f"zeros = s64[{count}] broadcast(zero), dimensions={{}}",
        f"taken = s64[{count}] maximum(lengths, zeros)",
        f"room = s64[] constant({requirement.room})",
        f"rooms = s64[{count}] broadcast(room), dimensions={{}}",
        f"left = s64[{count}] subtract(rooms, taken)",
        f"unit = s64[] constant({requirement.unit})",
        f"units = s64[{count}] broadcast(unit), dimensions={{}}",
        f"last = s64[{count}] multiply(left, units)",
        f"within = s64[{count}] clamp(zeros, starts, last)",
    ]
    if not requirement.may_be_empty:
        return [*lines, f"fit = s64[{count}] copy(within)"]
    return [
        *lines,
        f"is_used = pred[{count}] compare(lengths, zeros), direction=GT",
        f"fit = s64[{count}] select(is_used, within, starts)",
    ]
