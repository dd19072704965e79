"""What stands for instructions that optimized modules have: fusions, asynchronous pairs, bitcasts, transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, Kind, element_type, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Literal, ReplicaGroups, Shape, TupleShape, parts_of
from hloexec.core.ir.editing import take_name
from hloexec.core.ir.literal import map_literal
from hloexec.errors import UnsupportedError
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import array_shape, higher_precision
from hloexec.ops.equivalents.writing import Writer, array_of, plain_shape, sizes_of
from hloexec.ops.movement.bitcast import bits_plan
from hloexec.ops.registry import OPCODES, Role, role_of, traits_of

Values: TypeAlias = Sequence[Instruction]
Rule: TypeAlias = Callable[[Writer, Instruction, Values], Instruction]
"""From an instruction and what stands for its operands, what stands for it."""

_NONE_ON_CPU = "XLA:CPU has no code for it"
_NONE_IN_STABLEHLO = "StableHLO has no such operation"
_FROM_HOST = "XLA's client for CPUs exchanges nothing with the host while a module runs"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys("acos acosh asin asinh atanh cosh sinh".split(), _NONE_ON_CPU),
    **dict.fromkeys("ragged-all-to-all ragged-dot".split(), _NONE_ON_CPU),
    **dict.fromkeys("scaled-dot shuffle collective-reduce".split(), _NONE_IN_STABLEHLO),
    **dict.fromkeys("infeed outfeed".split(), _FROM_HOST),
}


def forward(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    return operands[0]


def _copy(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The operand, in the type of the result, which TPUs' copies may change."""
    shape = instruction.shape
    return write.convert(operands[0], shape.element_type) if isinstance(shape, ArrayShape) else operands[0]


def call(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """A fusion or a call."""
    return write.call(computation_names(instruction.attributes)[0], operands)


def _start(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """(what is given, the result, state...), computed at once."""
    callee = computation_names(instruction.attributes)[0]
    operand_part, _, *state = parts_of(instruction.shape)
    if len(parts_of(operand_part)) < len(write.computation(callee).parameters):
        raise UnsupportedError("it is given some operands by an async-update")
    value = write.call(callee, operands)
    return write.join(write.join(*operands), value, *map(write.zeros, state))


def _start_copy(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    return write.join(operands[0], operands[0], *map(write.zeros, parts_of(instruction.shape)[2:]))


def _part(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """What ends, or goes on with, something asynchronous."""
    if len(operands) > 1:
        raise UnsupportedError("it brings further operands")
    return write.element(operands[0], *traits_of(instruction).part)


def _exchange(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """A collective, or the start of one, which takes place at once."""
    opcode = instruction.opcode.removesuffix("-start")
    if not traits_of(instruction).begins:
        return _collective(write, instruction, opcode, operands, instruction.shape)
    operand_part, result, *state = parts_of(instruction.shape)
    value = _collective(write, instruction, opcode, operands, result)
    first = operands[0] if not isinstance(operand_part, TupleShape) else write.join(*operands)
    return write.join(first, value, *map(write.zeros, state))


def _collective(write: Writer, instruction: Instruction, opcode: str, operands: Values, shape: Shape) -> Instruction:
    attributes = instruction.attributes
    if getattr(attributes, "slice_sizes", ()):
        raise UnsupportedError("it sends slices")
    if getattr(attributes, "constrain_layout", False):
        attributes = attrs.evolve(attributes, constrain_layout=False)
    attributes = _among_replicas(attributes, write.replicas, write.partitions)
    if not isinstance(shape, TupleShape) or getattr(attributes, "dimension", 0) is None:
        return write.emit(opcode, *operands, shape=plain_shape(shape), attributes=attributes)
    # XLA's conversions from and to StableHLO do not agree in how several operands are written: each goes by itself.
    results = zip(operands, shape.elements, strict=True)
    return write.join(
        *(write.emit(opcode, operand, shape=plain_shape(result), attributes=attributes) for operand, result in results)
    )


def _among_replicas(attributes: Any, replicas: int, partitions: int) -> Any:
    """The attributes of a collective among replicas, each of which stands for a device, replica · partitions +
    partition. (XLA: CollectiveOpGroupMode)"""
    has_channel = attributes.channel_id is not None

    def of_replicas(groups: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[replica * partitions + part for replica in group] for part in range(partitions) for group in groups]

    def of_partitions(groups: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[replica * partitions + part for part in group] for replica in range(replicas) for group in groups]

    if hasattr(attributes, "source_target_pairs"):
        flatten = of_partitions if has_channel else of_replicas
        pairs = tuple(map(tuple, flatten(attributes.source_target_pairs)))
        return attrs.evolve(attributes, channel_id=None, source_target_pairs=pairs)
    groups, changes = attributes.replica_groups.expand(), {}
    if getattr(attributes, "use_global_device_ids", False):
        changes["use_global_device_ids"] = False
        devices = groups or [range(replicas * partitions)]
    elif not has_channel:
        devices = of_replicas(groups or [range(replicas)])
    elif hasattr(attributes, "use_global_device_ids"):
        devices = [
            [replica * partitions + part for replica in group for part in range(partitions)]
            for group in groups or [range(replicas)]
        ]
    else:
        devices = of_partitions(groups or [range(partitions)])
    # Not all conversions to and from StableHLO read other forms of groups than lists.
    lists = ReplicaGroups(tuple(map(tuple, devices)))
    return attrs.evolve(attributes, channel_id=None, replica_groups=lists, **changes)


def _device_part(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The number of the partition or of the replica, out of that of the device."""
    opcode = "remainder" if role_of(instruction) is Role.PARTITION_ID else "divide"
    device = write.emit("replica-id")
    return write.emit(opcode, device, write.constant(write.partitions, array_of(device).element_type))


def bitcast(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The operand in physical order, and the result's way there backwards."""
    (value,) = operands
    (before,) = write.source.operands_of(instruction)
    return reinterpret(write, value, array_shape(before.shape, "its operand"), array_shape(instruction.shape, "it"))


def reinterpret(write: Writer, value: Instruction, source: ArrayShape, result: ArrayShape) -> Instruction:
    """A value of a shape with a layout as another shape with a layout, as bitcast has it."""
    if source.is_dynamic or result.is_dynamic:
        raise UnsupportedError("sizes of its arrays are known only at run time")
    plan = bits_plan(source, result)
    value = write.transpose(value, plan.major_to_minor)
    for split in plan.tiling.splits:
        value = write.pad(write.reshape(value, split.sizes), split.padded)
        value = write.transpose(write.reshape(value, split.paired), split.axes)
    sizes = plan.result_tiling.sizes
    if not (plan.is_whole and plan.is_same_width):
        value = write.reshape(value, (prod(sizes_of(value)),))
    value = _read_as(write, value, result.element_type)
    if prod(sizes_of(value)) != prod(sizes):
        value = write.slice(value, (0, prod(sizes)))
    value = write.reshape(value, sizes)
    splits = plan.result_tiling.splits
    for split, size in zip(
        splits[::-1], [*(split.result for split in splits[-2::-1]), plan.result_tiling.logical], strict=bool(splits)
    ):
        value = write.reshape(write.transpose(value, np.argsort(split.axes)), split.padded)
        value = write.reshape(write.slice(value, *((0, limit) for limit in split.sizes)), size)
    return write.transpose(value, plan.result_axes)


def _read_as(write: Writer, value: Instruction, to: ElementType) -> Instruction:
    """The bits of an array as elements of a type; those of a flat one where its width is another."""
    of, bytes_ = array_of(value).element_type, element_type("u8")
    if of is to:
        return value
    if of.is_complex or to.is_complex:
        raise UnsupportedError(f"it reads {of} as {to}, which bitcast-convert does not do")
    if of.kind is Kind.PRED:
        return _read_as(write, write.convert(value, bytes_), to)
    if to.kind is Kind.PRED:
        value = _read_as(write, value, bytes_)
        return write.emit("compare", value, write.full(0, value), direction="NE")
    sizes, count = sizes_of(value), to.bits // of.bits
    if of.bits > to.bits:
        shape = ArrayShape(to, (*sizes, of.bits // to.bits))
        return write.reshape(write.emit("bitcast-convert", value, shape=shape), (prod(shape.dimensions),))
    if count > 1:
        whole = sizes[0] // count
        value = write.reshape(write.slice(value, (0, whole * count)), (whole, count))
        sizes = (whole,)
    return write.emit("bitcast-convert", value, shape=ArrayShape(to, sizes))


def _send(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    raise UnsupportedError(
        f"{_FROM_HOST}" if instruction.attributes.is_host_transfer else "XLA:CPU has no transfers between devices"
    )


def _high_half(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The higher half of a product, out of one twice as wide."""
    of = array_of(operands[0]).element_type
    if of.bits > 32:
        raise UnsupportedError("StableHLO has no integers of 128 bits, which hold the product")
    wide = element_type("s64" if of.kind is Kind.SIGNED else "u64")
    product = write.emit("multiply", *(write.convert(operand, wide) for operand in operands))
    shift = write.full(of.bits, product)
    return write.convert(write.emit("shift-right-arithmetic", product, shift), of)


def same(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """The instruction itself, without what says only how it is compiled."""
    attributes = instruction.attributes
    widest = _widest_of_several(instruction, operands)
    if widest is not None:
        return _in_type(write, instruction, operands, widest)
    literal = getattr(attributes, "literal", None)
    if literal is not None:
        attributes = attrs.evolve(attributes, literal=map_literal(literal, _plain_literal))
    return write.add(
        Instruction(
            name=take_name(instruction.name, write.taken),
            shape=plain_shape(instruction.shape),
            opcode=instruction.opcode,
            operands=tuple(operand.name for operand in operands),
            attributes=attributes,
        )
    )


def _in_type(write: Writer, instruction: Instruction, operands: Values, wide: ElementType) -> Instruction:
    """The instruction on floats of one type, rounded to its own."""
    floats = (
        write.convert(operand, wide) if array_of(operand).element_type.is_floating else operand for operand in operands
    )
    shape = array_shape(plain_shape(instruction.shape), "it")
    attributes = instruction.attributes
    value = write.emit(instruction.opcode, *floats, shape=shape.with_element_type(wide), attributes=attributes)
    return write.convert(value, shape.element_type)


def _product(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """Of operands of two float types, which XLA:CPU's code reads as one, in the type in which both are exact."""
    types = {array_of(operand).element_type for operand in operands}
    if len(types) == 1 or not all(of.is_floating for of in types):
        return same(write, instruction, operands)
    wide = element_type_of(np.result_type(*(of.accumulate for of in types)))
    result = array_shape(instruction.shape, "it").element_type
    return _in_type(write, instruction, operands, higher_precision(wide, result))


def _reduce(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """In the types of the reducer, rounded to those of the result, which TPUs' reductions may change."""
    reducer = write.computation(computation_names(instruction.attributes)[0])
    count = len(operands) // 2
    types = [array_of(parameter).element_type for parameter in reducer.parameters]
    own = [write.convert(*pair) for pair in zip(operands, (*types[count:], *types[:count]), strict=True)]
    results = [array_shape(part, "a result") for part in parts_of(plain_shape(instruction.shape))]
    shapes = tuple(part.with_element_type(of) for part, of in zip(results, types[:count], strict=True))
    is_tuple = isinstance(instruction.shape, TupleShape)
    changed = attrs.evolve(instruction, shape=TupleShape(shapes) if is_tuple else shapes[0])
    value = same(write, changed, own)
    if shapes == tuple(results):
        return value
    parts = [write.element(value, number) for number in range(count)] if is_tuple else [value]
    rounded = [write.convert(part, shape.element_type) for part, shape in zip(parts, results, strict=True)]
    return write.join(*rounded) if is_tuple else rounded[0]


def _order(write: Writer, instruction: Instruction, operands: Values) -> Instruction:
    """A token, whatever comes before."""
    return write.emit("after-all")


def _widest_of_several(instruction: Instruction, operands: Values) -> ElementType | None:
    """The widest float type of operands and result where they have several, which StableHLO does not allow."""
    entry, shape = OPCODES[instruction.opcode], instruction.shape
    if entry.role is not Role.KERNEL or not (entry.is_elementwise or entry.traits.moves is not None):
        return None
    shapes = [shape, *(operand.shape for operand in operands)]
    types = {part.element_type for part in shapes if isinstance(part, ArrayShape) and part.element_type.is_floating}
    if not isinstance(shape, ArrayShape) or not shape.element_type.is_floating or len(types) < 2:
        return None
    changes_type = entry.traits.converts or entry.traits.reads_bits or computation_names(instruction.attributes)
    return None if changes_type else reduce(higher_precision, types)


def _plain_literal(literal: Literal) -> Literal:
    return attrs.evolve(literal, shape=plain_shape(literal.shape))


_OF_ROLE: Mapping[Role, Rule] = {
    Role.FORWARD: forward,
    Role.CALL: call,
    Role.ASYNC_START: _start,
    Role.COPY_START: _start_copy,
    Role.PART: _part,
    Role.PARTITION_ID: _device_part,
    Role.REPLICA_ID: _device_part,
}
_OF_OPCODE: Mapping[str, Rule] = {
    "bitcast": bitcast,
    "copy": _copy,
    **dict.fromkeys(("dot", "convolution"), _product),
    **dict.fromkeys(("reduce", "reduce-window"), _reduce),
    "after-all": _order,
    "mulhi": _high_half,
    **dict.fromkeys(("send", "recv", "send-done", "recv-done"), _send),
}


def rule_of(instruction: Instruction) -> Rule:
    """What makes of an instruction, which is no library call, what stands for it."""
    opcode, role = instruction.opcode, role_of(instruction)
    if opcode in REFUSED:
        raise UnsupportedError(REFUSED[opcode])
    if opcode in _OF_OPCODE:
        return _OF_OPCODE[opcode]
    if role is Role.MACHINE:
        return _exchange
    return same if role is None else _OF_ROLE.get(role, same)
