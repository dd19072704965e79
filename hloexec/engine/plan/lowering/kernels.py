"""Lowering of operations and library calls: each becomes a step that runs one kernel, or only renames values.

Kernels are those that entries have (`ops.registry`), with what a plan adds to them: it may convert results where it has
other float widths than are declared, order operands in memory, flush denormals, or round at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape, flat_shapes, map_shape
from hloexec.core.structs import define, frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array
from hloexec.engine.plan.kernels import Conversion, InstructionKernel, Leaf, SlotTree, fits, float_types, leaves
from hloexec.engine.plan.lowering.flow import boundary, called, meeting
from hloexec.engine.plan.program import call_reason, needs_of, unknown_call_hint
from hloexec.errors import EvaluationError, UnsupportedError, VerificationError
from hloexec.ops import registry
from hloexec.ops.attributes import computation_names, has_numbers
from hloexec.ops.common import in_order
from hloexec.ops.movement.dynamic_shapes import cut_to_common_extents
from hloexec.ops.policies.backends import (
    FAST_FUNCTIONS,
    XLA_CPU_FUNCTIONS,
    Flushing,
    flushes,
    has_excess,
    reads_excess,
    wide_shape,
    widest_shape,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Entry, MemoryOrder, Role, exchange_of, find_opcode
from hloexec.ops.traits import Rounding, Sums

if TYPE_CHECKING:
    from hloexec.engine.plan.lowering.computation import Lowering
    from hloexec.engine.plan.steps import Plan
    from hloexec.ops.policies.random_rounding import RandomRounding


@define(eq=False)
class Site(registry.Site):
    """An instruction in its computation, and what a plan says of its operands."""

    plans: Mapping[str, Plan] = attrs.field(kw_only=True)
    """Those that are finished, by the names of their computations."""
    computation: Computation = attrs.field(kw_only=True)
    slots: Sequence[int] = attrs.field(kw_only=True)
    """Those of the operands' leaves."""
    operands: Sequence[Leaf] = attrs.field(kw_only=True)
    """The shapes of the operands' leaves, which may have other float widths than are declared."""
    orders: Sequence[MemoryOrder | None] = attrs.field(kw_only=True)
    """The memory orders in which these leaves are stored."""


def kernel(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role KERNEL."""
    entry = find_opcode(instruction.opcode)
    assert entry is not None
    context, computation = lowering.context, lowering.computation
    numerics = context.numerics.of(computation.name, instruction.name)
    is_unrounded = numerics.keeps_excess and reads_excess(instruction)
    operands = lowering.unrounded_operands(instruction) if is_unrounded else lowering.operands(instruction)
    shapes = tuple([operand.shape for operand in computation.operands_of(instruction)])
    if _is_copy(entry, instruction.shape, shapes):
        # No array is written to that something else refers to.
        return lowering.renamed(instruction, operands[0])
    is_excess = context.numerics.may_keep_excess and has_excess(computation, instruction, context.numerics)
    computed = attrs.evolve(instruction, shape=wide_shape(instruction.shape)) if is_excess else instruction
    site = _site(lowering, computed, operands, entry, shapes, numerics)
    made, slots = _kernel_of(lowering, site), site.slots
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
            _set_order(lowering, site, tree)
    return tree


def kernel_alone(module: Module, numerics: NumericsPolicy) -> Callable[..., Any] | None:
    """What computes the entry of a module that is one instruction of arrays, as a plan without optimizations does; None
    where it takes a plan to say so."""
    computation, root = module.entry, module.entry.root
    entry, operands = find_opcode(root.opcode), [operand.shape for operand in computation.operands_of(root)]
    if entry is None or entry.role is not Role.KERNEL or not entry.is_pure or computation_names(root.attributes):
        return None
    is_special = numerics.overrides or numerics.may_keep_excess or numerics.rounding_seed is not None
    arrays = [met for met in (*operands, root.shape) if isinstance(met, ArrayShape) and not met.is_dynamic]
    if is_special or len(arrays) <= len(operands) or _is_copy(entry, root.shape, operands):
        return None
    if any(True for _ in needs_of(module, computation, root, numerics)):
        return None
    orders = [None] * len(operands)
    site = Site(
        *(entry, root, tuple(operands), None, numerics),
        plans={},
        computation=computation,
        slots=(),
        operands=arrays[:-1],
        orders=orders,
    )
    return instruction_kernel(site).function


def _is_copy(entry: Entry, shape: Shape, operands: Sequence[Shape]) -> bool:
    """Whether a value is its first operand, element by element, layouts aside."""
    if not (entry.traits.keeps_all and entry.traits.keeps_order):
        return False
    source = operands[0]
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
    if exchange_of(entry, instruction) is not None:
        return meeting(lowering, instruction, entry)
    operands = lowering.operands(instruction)
    shapes = tuple([operand.shape for operand in computation.operands_of(instruction)])
    site = _site(lowering, instruction, operands, entry, shapes, numerics)
    made, tree = instruction_kernel(site), map_shape(instruction.shape, lowering.new_slot)
    lowering.add(instruction, operands, tree, made, extra_bytes=_copied_bytes(lowering, made, site.slots))
    return tree


def _invoked(lowering: Lowering, instruction: Instruction, name: str) -> SlotTree:
    """The value of a call that runs a computation; its shapes are not what the verifier looks at."""
    computation = lowering.context.program.module.by_name[name]
    shapes = [operand.shape for operand in lowering.computation.operands_of(instruction)]
    taken = [parameter.shape for parameter in computation.parameters]
    is_fitting = len(shapes) == len(taken) and all(one.compatible(two) for one, two in zip(shapes, taken, strict=True))
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


def _site(
    lowering: Lowering,
    instruction: Instruction,
    operands: Sequence[SlotTree],
    entry: Entry,
    shapes: tuple[Shape, ...],
    numerics: NumericsPolicy,
) -> Site:
    slots = [slot for tree in operands for slot in leaves(tree)]
    return Site(
        entry,
        instruction,
        shapes,
        lowering.context.callee,
        numerics,
        plans=lowering.context.plans,
        computation=lowering.computation,
        slots=slots,
        operands=[lowering.slot_shapes[slot] for slot in slots],
        orders=[lowering.orders.get(slot) for slot in slots],
    )


def _kernel_of(lowering: Lowering, site: Site) -> InstructionKernel:
    """The kernel of an instruction; one for all that are equal but for names, of which large programs are made."""
    instruction, numerics = site.instruction, site.numerics
    kind: type = type(instruction.attributes)
    if not site.entry.is_pure or numerics.rounding_seed is not None or has_numbers(kind):
        return instruction_kernel(site)
    # What is met is kept, so that nothing else gets its identity.
    met = [instruction.shape, *site.operand_shapes, *site.operands]
    key = (
        instruction.opcode,
        instruction.attributes,
        instruction.backend_config,
        id(numerics),
        tuple(site.orders),
        tuple(map(id, met)),
    )
    kernels = lowering.context.kernels
    try:
        entry = kernels.get(key)
    except TypeError:
        # Attributes of modules that a program has made may hold lists.
        return instruction_kernel(site)
    if entry is None:
        entry = kernels[key] = instruction_kernel(site), met
    return entry[0]


def _set_order(lowering: Lowering, site: Site, slot: int) -> None:
    """Note in which memory order a view shows its operand, where that is not row-major."""
    operand, rule = site.operands[0], site.entry.memory_order
    if rule is None or not isinstance(operand, ArrayShape):
        return
    order = rule(site.orders[0] or tuple(range(operand.rank)), **site.given(rule))
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


def instruction_kernel(site: Site) -> InstructionKernel:
    """The kernel of an instruction.

    Elementwise kernels round to the declared type by themselves, and library calls give what is declared. Others may
    give the float width of an operand or of a called computation, so that the result is converted where widths differ.
    """
    entry, shape = site.entry, site.instruction.shape
    assert entry.evaluate is not None
    arguments = site.given(entry.evaluate)
    function, rounded = site.fast(site.operands), None
    if function is None:
        rounded = _rounding_at_random(site, arguments)
        function = rounded or entry.evaluate.bound(arguments)
        if entry.role is Role.LIBRARY and entry.infer is None:
            function = partial(_of_declared_shapes, function, entry.name, flat_shapes(shape))
    arrays = [met for met in site.operand_shapes if isinstance(met, ArrayShape)]
    if entry.is_elementwise and len(arrays) > 1 and any(met.is_dynamic for met in arrays):
        function = partial(_of_common_extents, function, arrays)
    element_types = [met.element_type for met in (*site.operands, shape) if isinstance(met, ArrayShape)]
    types = None if entry.is_elementwise or entry.role is Role.LIBRARY else _result_types(site)
    is_flushed = site.numerics.flushes_denormals and flushes(entry.traits, frozenset(element_types))
    is_free = types is None and rounded is None and not is_flushed
    orders = tuple(site.orders) if entry.is_order_sensitive else None
    # Asked by name, as most programs never need the classes that have these.
    bound = function
    made = Flushing(bound) if is_flushed else getattr(bound, "quick", None) or bound
    if types is not None:
        made = partial(_as_declared, Conversion.to(types).function, made)
    return InstructionKernel(
        _in_orders_of(entry, made, orders) if orders else made,
        overwrites=getattr(bound, "overwrites", entry.overwrites) if is_free else None,
        entry=entry,
        given=arguments,
        bound=getattr(bound, "first", bound),
        orders=orders,
        result_types=types,
        is_flushed=is_flushed,
        random=rounded,
    )


def _of_common_extents(kernel: Callable[..., Any], shapes: Sequence[ArrayShape], *operands: Array) -> Any:
    return kernel(*cut_to_common_extents(operands, shapes))


def _of_declared_shapes(
    function: Callable[..., Any], target: str, shapes: Sequence[Leaf], *operands: object, **given: object
) -> Any:
    """The result of a library call without a shape rule, or EvaluationError where it is not what the text declares."""
    result = function(*operands, **given)
    leaves = flat(result)
    if len(leaves) != len(shapes) or not all(map(fits, leaves, shapes)):
        returned = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves if isinstance(leaf, np.ndarray))
        declared = ", ".join(map(str, shapes))
        raise EvaluationError(f"{target} gives {returned} for these operands, but the text declares {declared}")
    return result


def _rounding_at_random(site: Site, settings: Mapping[str, Any]) -> RandomRounding | None:
    """The kernel under a policy that rounds at random; None under others, and where nothing rounds."""
    entry, instruction, numerics = site.entry, site.instruction, site.numerics
    if numerics.rounding_seed is None or (numerics.keeps_formats and _is_settled(entry, instruction, numerics)):
        return None
    from hloexec.ops.contraction.dot import contraction_split
    from hloexec.ops.policies.random_rounding import random_rounding

    assert entry.evaluate is not None
    rounding, shape = entry.rounding, instruction.shape
    summation = None if entry.summed is None else entry.summed(**site.given(entry.summed))
    split = widest = None
    if entry.role is not Role.LIBRARY and numerics.keeps_formats:
        if rounding is not Rounding.UNKNOWN and not (summation and summation.is_stepwise):
            shape = wide_shape(shape)
            summation = summation and attrs.evolve(summation, narrow_steps=0.0)
        if numerics.has_fast_functions and entry.name in FAST_FUNCTIONS:
            # Errors of a last place, about what is computed; not about the exact value.
            rounding = Rounding.UNKNOWN
        if entry.traits.sums is Sums.PRODUCTS:
            split, settings = contraction_split(settings, numerics)
    elif entry.role is not Role.LIBRARY:
        widest = widest_shape(site.computation, instruction)
    return random_rounding(
        entry.name,
        rounding,
        entry.evaluate.function,
        settings,
        shape,
        site.operand_shapes,
        summation=summation,
        split=split,
        widest=widest,
    )


def _is_settled(entry: Entry, instruction: Instruction, numerics: NumericsPolicy) -> bool:
    """Whether a policy says of an instruction to the bit what it gives."""
    sums_narrowly = numerics.narrows_sums and entry.rounding is Rounding.SUM
    return (
        entry.traits.converts
        or entry.rounding is Rounding.FORMAT
        or (numerics.has_xla_cpu_functions and entry.is_elementwise and entry.name in XLA_CPU_FUNCTIONS)
        or (sums_narrowly and isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_narrow)
    )


def _in_orders_of(entry: Entry, function: Callable[..., Any], orders: tuple[MemoryOrder | None, ...]) -> Any:
    """A kernel whose bits may depend on memory order, applied to operands in the order that the plan assigned."""
    is_library = entry.role is Role.LIBRARY
    if hasattr(function, "of_each"):
        return _EachInOrders(function, orders, is_library)
    if is_library or len(orders) != 2:
        return _InOrders(function, orders, is_library)
    first, second = orders
    return lambda lhs, rhs, **out: function(in_order(lhs, first), in_order(rhs, second), **out)


@frozen(eq=False)
class _InOrders:
    """A kernel that is given operands in their orders.

    Integers that are repeated, as the places beside the values of an argmin, stay as they are: nothing about them
    rounds, and a copy may be the largest array of a run. Only library calls may take arrays to be without gaps.
    """

    kernel: Any
    orders: Sequence[MemoryOrder | None]
    is_library: bool

    def __call__(self, *operands: object, **out: object) -> Any:
        return self.kernel(*map(self.arranged, operands, self.orders), **out)

    def arranged(self, operand: object, order: MemoryOrder | None) -> object:
        if not isinstance(operand, np.ndarray):
            return operand
        is_repeated = not self.is_library and operand.dtype.kind in "biu" and 0 in operand.strides
        return operand if is_repeated else in_order(operand, order)


@frozen(eq=False)
class _EachInOrders(_InOrders):
    """The same of a kernel that rounds at random, also for several lists of operands at once."""

    def of_each(self, rows: Sequence[Sequence[Any]]) -> list[Any] | None:
        arranged = [list(map(self.arranged, operands, self.orders)) for operands in rows]
        found: list[Any] | None = self.kernel.of_each(arranged)
        return found


def _as_declared(convert: Callable[..., Any], kernel: Callable[..., Any], *operands: object) -> Any:
    value = kernel(*operands)
    return convert(*flat(value)) if isinstance(value, tuple) else convert(value)


def _result_types(site: Site) -> tuple[ElementType | None, ...] | None:
    """The float types to convert a result to; None where all that the kernel meets are of one width."""
    types = float_types(site.instruction.shape)
    met = list(site.operands)
    for name in computation_names(site.instruction.attributes):
        plan = site.plans[name]
        met += [plan.slot_shapes[slot] for slot in (*plan.parameters, *plan.results)]
    floats = {float_type for shape in met for float_type in float_types(shape)} | set(types)
    return types if len(floats - {None}) > 1 else None
