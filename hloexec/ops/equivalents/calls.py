"""What stands for library calls."""

from __future__ import annotations

import attrs

from hloexec.core.ir import ArrayShape, Computation, Instruction, TupleShape
from hloexec.core.ir.editing import take_name
from hloexec.errors import UnsupportedError
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import array_shape, operand_shapes
from hloexec.ops.control.flow import make_parameter
from hloexec.ops.equivalents import attention, products
from hloexec.ops.equivalents.instructions import Rule, Values, reinterpret
from hloexec.ops.equivalents.writing import Writer, array_of, plain_shape, sizes_of
from hloexec.ops.library_calls.compiler import put_together
from hloexec.ops.registry import CUSTOM_CALLS, Entry, entry_of

_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def rule_of_call(entry: Entry, instruction: Instruction) -> Rule:
    """What makes of a library call what stands for it."""
    target = instruction.attributes.custom_call_target
    reason = entry.reason_against(instruction)
    if target in RULES and reason is None:
        return RULES[target]
    if target.startswith(_OF_JAXLIB):
        return _keep
    if reason is not None:
        raise UnsupportedError(reason)
    if entry.forwards is not None:
        return _forward
    if entry.invokes is not None:
        return _invoke
    if entry.traits.moves == (0,) and entry.traits.keeps_order and entry.traits.keeps_all:
        return _first
    raise UnsupportedError("no operations of StableHLO stand for it")


_OF_JAXLIB = "lapack_"
"""What the targets begin with that XLA:CPU calls, in jaxlib."""


def _keep(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The call, with the layouts that its code relies on."""
    names = tuple(operand.name for operand in operands)
    return write.add(
        attrs.evolve(
            instruction,
            name=take_name(instruction.name, write.taken),
            operands=names,
            metadata=None,
            control_predecessors=(),
        )
    )


def _first(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    return operands[0]


def _forward(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The values that it hands over; whatever else it declares is state that means nothing."""
    entry = entry_of(instruction)
    assert entry is not None and entry.forwards is not None
    values = [write.values[name] for name in entry.forwards(write.source, instruction)]
    value = write.in_form(values, instruction.shape)
    if plain_shape(value.shape) != plain_shape(instruction.shape):
        raise UnsupportedError("devices take their shards of an array here, or put them together")
    return value


def _invoke(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    entry = entry_of(instruction)
    assert entry is not None and entry.invokes is not None
    return write.call(entry.invokes(instruction), operands)


def _nothing(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    return write.zeros(instruction.shape)


def _concat_bitcast(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    result = array_shape(instruction.shape, "its result")
    before = operand_shapes([operand.shape for operand in write.source.operands_of(instruction)], "ConcatBitcast")
    dimension, whole = put_together(before, result)
    value = operands[0]
    if len(operands) > 1:
        value = write.emit("concatenate", *operands, dimension=dimension or 0)
    return value if dimension is not None else reinterpret(write, value, whole, result)


def _threefry(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): keys k0, k1 and counters x0, x1."""
    k0, k1, x0, x1 = operands[:4]

    def add(left: Instruction, right: Instruction | int) -> Instruction:
        return write.emit("add", left, write.full(right, left) if isinstance(right, int) else right)

    def xor(left: Instruction, right: Instruction) -> Instruction:
        return write.emit("xor", left, right)

    keys = (k0, k1, xor(xor(k0, k1), write.full(0x1BD11BDA, k0)))
    x0, x1 = add(x0, k0), add(x1, k1)
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x0 = add(x0, x1)
            left = write.emit("shift-left", x1, write.full(rotation, x1))
            right = write.emit("shift-right-logical", x1, write.full(32 - rotation, x1))
            x1 = xor(write.emit("or", left, right), x0)
        x0 = add(x0, keys[(group + 1) % 3])
        x1 = add(add(x1, keys[(group + 2) % 3]), group + 1)
    return write.join(x0, x1)


def _topk(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The first elements in the comparator's order; the k largest without one."""
    (value,) = operands
    shape = instruction.shape
    assert isinstance(shape, TupleShape)
    count, index_type = (
        array_shape(shape.elements[0], "").dimensions[-1],
        array_shape(shape.elements[1], "").element_type,
    )
    comparators = computation_names(instruction.attributes)
    if not comparators:
        chosen = write.emit("topk", value, k=count)
        return write.join(write.element(chosen, 0), write.convert(write.element(chosen, 1), index_type))
    last = len(sizes_of(value)) - 1
    places = write.emit("iota", shape=ArrayShape(index_type, sizes_of(value)), iota_dimension=last)
    comparator = _comparator_of_pairs(write, comparators[0], (array_of(value), array_of(places)))
    attributes = {"dimension": last, "is_stable": True, "to_apply": comparator}
    ordered = write.emit("sort", value, places, shape=TupleShape((value.shape, places.shape)), **attributes)
    ranges = [(0, size) for size in (*sizes_of(value)[:-1], count)]
    return write.join(*(write.slice(write.element(ordered, number), *ranges) for number in range(2)))


def _comparator_of_pairs(write: Writer, name: str, shapes: tuple[ArrayShape, ...]) -> str:
    """A comparator of numbers as one of numbers and their places."""
    comparator = write.computation(name)
    if len(comparator.parameters) > 2:
        return name
    taken = set(comparator.by_name)
    places = [
        make_parameter(take_name("place", taken), ArrayShape(shapes[1].element_type), number) for number in (2, 3)
    ]
    made = Computation(
        name=f"{name}.of_pairs", instructions=(*comparator.instructions, *places), root_name=comparator.root_name
    )
    write.computations[made.name] = made
    return made.name


RULES: dict[str, Rule] = {
    **products.RULES,
    **attention.RULES,
    **dict.fromkeys((target for target in CUSTOM_CALLS if "threefry2x32" in target), _threefry),
    "ConcatBitcast": _concat_bitcast,
    **dict.fromkeys(("AllocateBuffer", "CreateBuffer", "NopReturnToken", "xla.sdy.ShardingGroup"), _nothing),
    **dict.fromkeys(("TopK", "__gpu$TopK"), _topk),
    **dict.fromkeys(("Pin", "Unpin", "stablehlo.shape_refinement_operand_wrapper"), _first),
}
"""What stands for library calls, by their targets."""
