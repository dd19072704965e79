"""Lowering of operations and library calls: each becomes a step that runs one kernel, or only renames values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, map_shape
from hloexec.engine.plan.kernels import InstructionKernel, Leaf, SlotTree, float_types, leaves
from hloexec.engine.plan.lowering.binding import Site, instruction_kernel, library_kernel
from hloexec.engine.plan.lowering.exchange import boundary
from hloexec.engine.plan.lowering.flow import called
from hloexec.engine.plan.program import call_reason, unknown_call_hint
from hloexec.errors import UnsupportedError, VerificationError
from hloexec.ops.attributes import has_numbers
from hloexec.ops.policies.excess import has_excess, reads_excess, wide_shape
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Opcode, find_opcode

if TYPE_CHECKING:
    from hloexec.engine.plan.lowering.computation import Lowering


def kernel(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role KERNEL."""
    entry = find_opcode(instruction.opcode)
    assert entry is not None
    context, computation = lowering.context, lowering.computation
    numerics = context.numerics.of(computation.name, instruction.name)
    is_unrounded = numerics.keeps_excess and reads_excess(instruction)
    operands = lowering.unrounded_operands(instruction) if is_unrounded else lowering.operands(instruction)
    if _is_copy(entry, instruction.shape, computation.operands_of(instruction)):
        # No array is written to that something else refers to.
        return lowering.renamed(instruction, operands[0])
    slots = [slot for tree in operands for slot in leaves(tree)]
    is_excess = context.numerics.may_keep_excess and has_excess(computation, instruction, context.numerics)
    computed = attrs.evolve(instruction, shape=wide_shape(instruction.shape)) if is_excess else instruction
    site = _site(lowering, computed, slots, numerics)
    made = _kernel_of(lowering, site, entry)
    tree = map_shape(made.random.shape if made.random else computed.shape, lowering.new_slot)
    is_wide = is_excess or (made.random is not None and numerics.keeps_formats)
    is_wide = is_wide and wide_shape(instruction.shape) is not instruction.shape
    extra = (
        _temporary_bytes(instruction, site.operands) if entry.is_elementwise else _copied_bytes(lowering, made, slots)
    )
    lowering.add(instruction, operands, tree, made, extra_bytes=extra, is_silent=is_wide)
    if is_excess:
        lowering.unrounded[instruction.name] = tree
    if is_wide:
        return lowering.converted(instruction, tree, float_types(instruction.shape))
    if isinstance(tree, int) and slots:
        if made.is_view:
            lowering.viewed[tree] = lowering.viewed.get(slots[0], slots[0])
        if entry.memory_order is not None:
            _set_order(lowering, site, entry, tree)
    return tree


def _is_copy(entry: Opcode, shape: Shape, operands: Sequence[Instruction]) -> bool:
    """Whether a value is its first operand, element by element, layouts aside."""
    if not (entry.traits.keeps_all and entry.traits.keeps_order):
        return False
    source = operands[0].shape
    if not isinstance(shape, ArrayShape) or not isinstance(source, ArrayShape):
        return True
    return shape.dimensions == source.dimensions and not (shape.is_dynamic or source.is_dynamic)


def custom_call(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role CUSTOM_CALL; of an unknown call, what the options say."""
    context, computation = lowering.context, lowering.computation
    entry = context.library_call(instruction.attributes.custom_call_target)
    module = context.program.module
    numerics = context.numerics.of(computation.name, instruction.name)
    reason = None if entry is None else call_reason(module, computation, instruction, entry, numerics)
    if entry is None or reason is not None:
        if context.refuses_unknown:
            operands = lowering.operands(instruction)
            tree = map_shape(instruction.shape, lowering.new_slot)
            lowering.add(instruction, operands, tree, InstructionKernel(partial(_refuse, instruction, reason)))
            return tree

        def unknown(leaf: Leaf) -> int:
            return lowering.constant_slot(leaf, context.unknown_result(instruction, leaf))

        return lowering.renamed(instruction, map_shape(instruction.shape, unknown))
    # Imported late, as most programs have no custom calls.
    from hloexec.engine.devices.manual_regions import crossings, is_boundary

    if is_boundary(instruction):
        return boundary(lowering, instruction, crossings(module, computation, instruction))
    if entry.forwards is not None:
        values = [lowering.values[name] for name in entry.forwards(computation, instruction)]
        if not isinstance(instruction.shape, TupleShape):
            return lowering.renamed(instruction, values[0])
        return lowering.renamed(instruction, (*values, *lowering.state(instruction, len(values))))
    if entry.invokes is not None:
        return _invoked(lowering, instruction, entry.invokes(instruction))
    operands = lowering.operands(instruction)
    slots = [slot for tree in operands for slot in leaves(tree)]
    made = library_kernel(_site(lowering, instruction, slots, numerics), entry)
    tree = map_shape(instruction.shape, lowering.new_slot)
    lowering.add(instruction, operands, tree, made, extra_bytes=_copied_bytes(lowering, made, slots))
    return tree


def _invoked(lowering: Lowering, instruction: Instruction, name: str) -> SlotTree:
    """The value of a call that runs a computation; its shapes are not what the verifier looks at."""
    computation = lowering.context.program.module.by_name[name]
    given = [operand.shape for operand in lowering.computation.operands_of(instruction)]
    taken = [parameter.shape for parameter in computation.parameters]
    is_fitting = len(given) == len(taken) and all(one.compatible(two) for one, two in zip(given, taken, strict=True))
    if not is_fitting or not instruction.shape.compatible(computation.result_shape):
        raise VerificationError(
            f"%{instruction.name} in computation {lowering.computation.name} calls {name}, whose parameters and result "
            f"are not those of the call"
        )
    return called(lowering, instruction, name, lowering.operands(instruction))


def _refuse(instruction: Instruction, reason: str | None, *operands: object) -> None:
    """Fail where a run has reached a custom call that only a branch of a conditional has."""
    because = f", where {reason}" if reason else ""
    raise UnsupportedError(
        f'hloexec does not run custom call "{instruction.attributes.custom_call_target}"{because}. '
        f"{unknown_call_hint()}"
    )


def _site(lowering: Lowering, instruction: Instruction, slots: Sequence[int], numerics: NumericsPolicy) -> Site:
    shapes, orders = [lowering.slot_shapes[slot] for slot in slots], [lowering.orders.get(slot) for slot in slots]
    return Site(lowering.context, lowering.computation, instruction, shapes, orders, numerics)


def _kernel_of(lowering: Lowering, site: Site, entry: Opcode) -> InstructionKernel:
    """The kernel of an instruction; one for all that are equal but for names, of which large programs are made."""
    instruction, numerics = site.instruction, site.numerics
    kind: type = type(instruction.attributes)
    if not entry.is_pure or numerics.rounding_seed is not None or has_numbers(kind):
        return instruction_kernel(site, entry)
    # What is met is kept, so that nothing else gets its identity.
    met = [instruction.shape, *site.declared, *site.operands]
    key = (
        instruction.opcode,
        instruction.attributes,
        instruction.backend_config,
        id(numerics),
        tuple(site.orders),
        tuple(map(id, met)),
    )
    known = lowering.context.kernels
    try:
        found = known.get(key)
    except TypeError:
        # Attributes of modules that a program has made may hold lists.
        return instruction_kernel(site, entry)
    if found is None:
        found = known[key] = instruction_kernel(site, entry), met
    return found[0]


def _set_order(lowering: Lowering, site: Site, entry: Opcode, slot: int) -> None:
    """Note in which memory order a view shows its operand, where that is not row-major."""
    operand = site.operands[0]
    if entry.memory_order is None or not isinstance(operand, ArrayShape):
        return
    given: Mapping[str, Any] = {
        "attributes": site.instruction.attributes,
        "shape": site.instruction.shape,
        "operand_shapes": site.declared[:1],
    }
    order = entry.memory_order(site.orders[0] or tuple(range(operand.rank)), **given)
    if order != tuple(range(len(order))):
        lowering.orders[slot] = order


def _copied_bytes(lowering: Lowering, made: InstructionKernel, slots: Sequence[int]) -> int:
    """Bytes of the broadcast operands that a kernel with a required memory order copies."""
    if made.orders is None:
        return 0
    shapes = lowering.slot_shapes
    pairs = [(shapes[slot], shapes[lowering.viewed.get(slot, slot)]) for slot in slots]
    return sum(
        shape.byte_size
        for shape, shown in pairs
        if shape.byte_size > shown.byte_size and not made.keeps_repeated(shape)
    )


def _temporary_bytes(instruction: Instruction, operands: Sequence[Leaf]) -> int:
    """Bytes that an elementwise kernel takes for its operands and result in their compute types."""
    total = 0
    for shape in (*operands, instruction.shape):
        if isinstance(shape, ArrayShape) and shape.element_type.is_narrow:
            total += shape.element_count * shape.element_type.compute.itemsize
    return total
