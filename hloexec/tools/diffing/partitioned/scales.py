"""Constants that depend on how many devices a function is for: by the size of a shard, a mean over one divides.

A function that is traced for one device and for many is the same graph twice. With the constants of the other, the
function for one device gives what devices give whose sums nothing divides: a mean over shards times their number, until
something divides it. So other faults are told from a scale that is wrong, and what lacks it is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, parts_of
from hloexec.core.ir.editing import rename_operands, replace_computation
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, arrays_of
from hloexec.engine.devices.manual_regions import is_boundary
from hloexec.engine.exec.running import run
from hloexec.errors import HloError
from hloexec.language.origins import source_text
from hloexec.ops.attributes import computation_names
from hloexec.ops.equivalents.products import times
from hloexec.ops.equivalents.writing import Writer, untranslated
from hloexec.ops.registry import Role, exchanges, role_of, traits_of
from hloexec.tools.diffing.matching import is_near
from hloexec.tools.diffing.partitioned.constants import Use, by_source, with_constants


@frozen(eq=False)
class _Frame:
    """A computation where it is called."""

    module: Module
    computation: Computation
    caller: _Frame | None = None
    call: Instruction | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """The calls on the way to it."""
        outer = () if self.caller is None else self.caller.path
        return outer if self.call is None else (*outer, self.call.name)


_Value: TypeAlias = tuple[_Frame, Instruction, tuple[int, ...]]
"""An instruction, and which part of its result."""


def _resolved(frame: _Frame, name: str, part: tuple[int, ...] = ()) -> _Value:
    """What computes a value, through tuples, calls, and boundaries of manual regions."""
    while True:
        instruction = frame.computation.by_name[name]
        match role_of(instruction):
            case Role.GET_TUPLE_ELEMENT:
                name, part = instruction.operands[0], (instruction.attributes.index, *part)
            case Role.TUPLE if part:
                name, part = instruction.operands[part[0]], part[1:]
            case Role.CUSTOM_CALL if is_boundary(instruction):
                place, part = (part[0], part[1:]) if parts_of(instruction.shape) and part else (0, part)
                name = instruction.operands[place]
            case Role.CALL:
                (callee,) = computation_names(instruction.attributes)
                frame = _Frame(frame.module, frame.module.by_name[callee], frame, instruction)
                name = frame.computation.root_name
            case Role.PARAMETER if frame.caller is not None and frame.call is not None:
                name, frame = frame.call.operands[instruction.attributes.number], frame.caller
            case _:
                return frame, instruction, part


@frozen
class Scaled:
    """A function for one device with constants of that for many."""

    one: Module
    """The function for one device."""
    many: Module
    """The function for many."""
    constants: dict[Use, Literal]
    """Where the one uses another floating-point number than the other: the number that the other uses."""
    users: dict[Use, Use]
    """From each of these places to that in the function for many."""
    sums: tuple[tuple[Use, Use], ...]
    """What adds up over devices in either."""

    @property
    def module(self) -> Module:
        """The function for one device with all these constants."""
        return with_constants(self.one, self.constants)


def scaled_by_devices(one: Module, many: Module) -> Scaled | None:
    """A function for one device with the constants of that for many, as far as the graphs are the same from the results
    on; None where all constants are the same."""
    constants: dict[Use, Literal] = {}
    users: dict[Use, Use] = {}
    sums: dict[tuple[Use, Use], None] = {}
    pending = [*_roots(_Frame(one, one.entry), _Frame(many, many.entry))]
    seen = set()
    while pending:
        pair = (first, ours, _), (second, theirs, _) = pending.pop()
        key = tuple((frame.path, frame.computation.name, instruction.name) for frame, instruction, _ in pair)
        if key in seen:
            continue
        seen.add(key)
        if ours.opcode != theirs.opcode or len(ours.operands) != len(theirs.operands):
            continue
        if exchanges(ours) and traits_of(ours).moves is None:
            sums[(first.computation.name, ours.name, 0), (second.computation.name, theirs.name, 0)] = None
        for place, names in enumerate(zip(ours.operands, theirs.operands, strict=True)):
            operands = (_resolved(first, names[0]), _resolved(second, names[1]))
            other = _other_constant(operands[0][1], operands[1][1])
            if other is not None:
                use = first.computation.name, ours.name, place
                constants[use], users[use] = other, (second.computation.name, theirs.name, place)
            pending.append(operands)
        for called in zip(computation_names(ours.attributes), computation_names(theirs.attributes), strict=True):
            pending += _roots(_Frame(one, one.by_name[called[0]]), _Frame(many, many.by_name[called[1]]))
    return Scaled(one, many, constants, users, tuple(sums)) if constants else None


def _roots(ours: _Frame, theirs: _Frame) -> Iterator[tuple[_Value, _Value]]:
    """The results of two computations, part by part."""
    names = (ours.computation.root_name, theirs.computation.root_name)
    count = len(parts_of(ours.computation.root.shape))
    parts: list[tuple[int, ...]] = [(place,) for place in range(count)] or [()]
    for part in parts:
        yield _resolved(ours, names[0], part), _resolved(theirs, names[1], part)


def _other_constant(ours: Instruction, theirs: Instruction) -> Literal | None:
    """The number that one constant is where the other is another number."""
    if role_of(ours) is not Role.CONSTANT or role_of(theirs) is not Role.CONSTANT or ours.shape != theirs.shape:
        return None
    literals: list[Literal] = [ours.attributes.literal, theirs.attributes.literal]
    shape = ours.shape
    if not isinstance(shape, ArrayShape) or shape.rank or not shape.element_type.is_inexact:
        return None
    arrays = [literal.array for literal in literals]
    return None if arrays[0] == arrays[1] else literals[1]


@frozen(eq=False)
class Scale:
    """What scales results wrongly."""

    module: Module
    instruction: Instruction
    """Of the function for many devices."""
    reason: str


def wrong_scale(scaled: Scaled, inputs: Sequence[Value], devices: int) -> Scale | None:
    """What makes results differ between a function for one device and that with the constants for many: a sum over
    devices that nothing divides, or else a constant. None where nothing alone does, or they do not differ."""
    expected, actual = (_results(module, inputs) for module in (scaled.one, scaled.module))
    if expected is None or actual is None:
        return None
    wrong = [place for place, pair in enumerate(zip(actual, expected, strict=True)) if not is_near(*pair)]
    rights = [place for place in range(len(expected)) if place not in wrong]

    def count_right(module: Module) -> int:
        """How many of the wrong results come right; none where right ones do not stay so."""
        now = _results(module, inputs)
        if now is None or not all(is_near(now[place], expected[place]) for place in rights):
            return 0
        return sum(is_near(now[place], expected[place]) for place in wrong)

    for candidates in (_unscaled_sums(scaled, devices), _wrong_constants(scaled)) if wrong else ():
        counts = [(count_right(module), scale) for module, scale in candidates]
        # What is scaled in several places comes right result by result: the first place is told then, and rather what
        # is written than what a gradient has of it.
        counts.sort(key=lambda entry: "transpose(" in (entry[1].instruction.op_name or ""))
        most, best = max(counts, key=itemgetter(0), default=(0, None))
        if most:
            return best
    return None


def _results(module: Module, inputs: Sequence[Value]) -> list[Array] | None:
    try:
        return [*arrays_of(run(module, *inputs))]
    except HloError:
        return None


def _unscaled_sums(scaled: Scaled, devices: int) -> Iterator[tuple[Module, Scale]]:
    """The sums over devices of one source line divided by a number of devices, the first one of the program first."""
    numbers = [number for number in range(2, devices + 1) if devices % number == 0]
    for pairs in by_source(scaled.many, _in_order(scaled)):
        for number in numbers:
            computation, name, _ = pairs[0][0]
            reason = f"the results are right if it is divided by {number}, as a mean over devices is"
            scale = Scale(scaled.many, scaled.many.by_name[computation].by_name[name], reason)
            yield _times(scaled.module, [ours for _, ours in pairs], 1 / number), scale


def _in_order(scaled: Scaled) -> dict[Use, Use]:
    """What adds up over devices, in the order of the program, with what stands for it on one."""
    ours = {theirs: use for use, theirs in scaled.sums}
    uses = ((computation.name, instruction.name, 0) for computation in scaled.many for instruction in computation)
    return {use: ours[use] for use in uses if use in ours}


def _wrong_constants(scaled: Scaled) -> Iterator[tuple[Module, Scale]]:
    """The instructions of one source line with the constant for one device."""
    uses = {theirs: ours for ours, theirs in scaled.users.items()}
    for pairs in by_source(scaled.many, uses):
        left = {use for _, use in pairs}
        kept = {use: literal for use, literal in scaled.constants.items() if use not in left}
        computation_name, name, _ = pairs[0][0]
        computation = scaled.many.by_name[computation_name]
        user = next(iter(computation.users[name]), None)
        has_source = user is None or source_text(scaled.many, computation.by_name[name])
        instruction = computation.by_name[name] if has_source or user is None else user
        constant = np.asarray(scaled.constants[pairs[0][1]].array).item()
        reason = f"it uses {constant:g}, which for one device is another number"
        yield with_constants(scaled.one, kept), Scale(scaled.many, instruction, reason)


def _times(module: Module, uses: Sequence[Use], number: float) -> Module:
    """The module with the results of some instructions multiplied by a number."""
    for computation_name, name, _ in uses:
        computation = module.by_name[computation_name]
        write = Writer(module, computation, {}, untranslated, prefix=name, taken={*computation.by_name})
        product = times(write, computation.by_name[name], number)
        instructions: list[Instruction] = []
        for instruction in computation:
            instructions.append(rename_operands(instruction, {name: product.name}))
            if instruction.name == name:
                instructions += write.made
        root = product.name if computation.root_name == name else computation.root_name
        changed = attrs.evolve(computation, instructions=tuple(instructions), root_name=root)
        module = replace_computation(module, changed)
    return module
