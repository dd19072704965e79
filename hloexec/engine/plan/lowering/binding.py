"""Binding: an opcode or a library call becomes a kernel, for attributes, shapes, memory orders and the numerics policy.

Nothing of this is looked at again when the kernel runs. Where element types, shapes and policy decide how a value is
computed, the entry binds a function of its own (`Opcode.bind`); otherwise its `evaluate` is given what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Computation, Instruction, Shape, TupleShape, flat_shapes, parts_of
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, flat
from hloexec.engine.plan.kernels import Conversion, InstructionKernel, Leaf, fits, float_types
from hloexec.errors import EvaluationError
from hloexec.ops.attributes import computation_names
from hloexec.ops.library_calls.registry import CustomCall
from hloexec.ops.movement.copying import in_order
from hloexec.ops.movement.extents import cut_to_common_extents
from hloexec.ops.policies.excess import wide_shape, widest_shape
from hloexec.ops.policies.fast_functions import FAST_FUNCTIONS
from hloexec.ops.policies.flushing import Flushing, flushes
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.policies.xla_cpu import XLA_CPU_FUNCTIONS
from hloexec.ops.registry import Callee, MemoryOrder, Opcode
from hloexec.ops.rounding import Rounding, Sums

if TYPE_CHECKING:
    from hloexec.engine.plan.steps import Plan
    from hloexec.ops.policies.random_rounding import RandomRounding


class KernelContext(Protocol):
    """What the binding of kernels needs to know of the program."""

    @property
    def numerics(self) -> NumericsPolicy: ...

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plans that are finished, by the names of their computations; callees come before their callers."""

    def callee(self, name: str) -> Callee:
        """A planned computation as kernels see it."""


_GIVEN: dict[str, Callable[[KernelContext, Computation, Instruction], Any]] = {
    "attributes": lambda context, computation, instruction: instruction.attributes,
    "shape": lambda context, computation, instruction: instruction.shape,
    "operand_shapes": lambda context, computation, instruction: tuple(
        operand.shape for operand in computation.operands_of(instruction)
    ),
    "computations": lambda context, computation, instruction: tuple(
        map(context.callee, computation_names(instruction.attributes))
    ),
    "numerics": lambda context, computation, instruction: context.numerics.of(computation.name, instruction.name),
    "backend_config": lambda context, computation, instruction: instruction.backend_config,
}
"""What kernels may ask for by the names of their keyword-only parameters."""


def bound(
    context: KernelContext, computation: Computation, instruction: Instruction, needs: frozenset[str]
) -> dict[str, Any]:
    """The keyword arguments that a kernel declares."""
    return {need: _GIVEN[need](context, computation, instruction) for need in needs}


@define(eq=False)
class Site:
    """An instruction in its computation, and what a plan says of its operands."""

    context: KernelContext
    computation: Computation
    instruction: Instruction
    operands: Sequence[Leaf]
    """The shapes of the operands' leaves, which may have other float widths than are declared."""
    orders: Sequence[MemoryOrder | None]
    """The memory orders in which these leaves are stored."""

    numerics: NumericsPolicy
    """The policy for this instruction."""

    @property
    def declared(self) -> tuple[Shape, ...]:
        """The declared shapes of the operands."""
        return tuple([operand.shape for operand in self.computation.operands_of(self.instruction)])

    def given(self, needs: frozenset[str]) -> dict[str, Any]:
        """The keyword arguments that a kernel declares."""
        return bound(self.context, self.computation, self.instruction, needs)


def instruction_kernel(site: Site, entry: Opcode) -> InstructionKernel:
    """The kernel of an instruction.

    Elementwise kernels round to the declared type by themselves. Others may give the float width of an operand or of a
    called computation, so that the result is converted where widths differ.
    """
    assert entry.evaluate is not None
    numerics, shape = site.numerics, site.instruction.shape
    given = site.given(entry.evaluate_needs)
    function = None
    results = parts_of(shape)
    shapes = (*site.declared, *results), (*site.operands, *results)
    if entry.bind is not None and _is_decided(numerics, *shapes, is_elementwise=entry.is_elementwise):
        function = entry.bind(**site.given(entry.bind.needs))
    rounded = _rounding_at_random(site, entry, given) if function is None else None
    function = function or rounded or (partial(entry.evaluate, **given) if given else entry.evaluate)
    arrays = [met for met in site.declared if isinstance(met, ArrayShape)]
    if entry.is_elementwise and len(arrays) > 1 and any(met.is_dynamic for met in arrays):
        function = partial(_of_common_extents, function, arrays)
    found = [met.element_type for met in (*site.operands, shape) if isinstance(met, ArrayShape)]
    is_flushed = numerics.flushes_denormals and flushes(entry.traits, frozenset(found))
    types = None if entry.is_elementwise else _result_types(site)
    return _assembled(
        entry,
        given,
        function,
        site.orders if entry.is_order_sensitive else None,
        result_types=types,
        is_flushed=is_flushed,
        overwrites=entry.overwrites if types is None and rounded is None and not is_flushed else None,
        random=rounded,
    )


def library_kernel(site: Site, entry: CustomCall) -> InstructionKernel:
    """The kernel of a library call."""
    assert entry.evaluate is not None
    instruction, declared, orders = site.instruction, site.declared, site.orders
    given = site.given(entry.evaluate_needs - {"config"})
    if entry.config is not None and "config" in entry.evaluate_needs:
        given["config"] = entry.config(instruction)
    results = flat_shapes(instruction.shape)
    function = None
    if entry.bind is not None and _is_decided(site.numerics, (*declared, *results[:1]), (*site.operands, *results[:1])):
        function = entry.bind(
            backend_config=instruction.backend_config, shape=instruction.shape, operand_shapes=declared
        )
    if function is None:
        function = _rounding_at_random(site, entry, given)
        if function is None:
            function = partial(entry.evaluate, **given) if given else entry.evaluate
        if entry.infer is None:
            function = partial(_of_declared_shapes, function, entry.target, results)
        return _assembled(entry, given, function, orders)
    zeros = None
    if isinstance(instruction.shape, TupleShape):
        zeros = partial(_and_zeros, function, tuple(shape for shape in results[1:] if isinstance(shape, ArrayShape)))
    from hloexec.ops.contraction.product_sums import AddedProduct

    overwrites = 2 if isinstance(function, AddedProduct) else None
    return attrs.evolve(_assembled(entry, given, zeros or function, orders, overwrites=overwrites), bound=function)


def _of_common_extents(kernel: Callable[..., Any], shapes: Sequence[ArrayShape], *operands: Array) -> Any:
    return kernel(*cut_to_common_extents(operands, shapes))


def _of_declared_shapes(
    function: Callable[..., Any], target: str, shapes: Sequence[Leaf], *operands: object, **given: object
) -> Any:
    """The result of a library call without a shape rule, or EvaluationError where it is not what the text declares."""
    result = function(*operands, **given)
    leaves = flat(result)
    if len(leaves) != len(shapes) or not all(map(fits, leaves, shapes)):
        found = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves if isinstance(leaf, np.ndarray))
        declared = ", ".join(map(str, shapes))
        raise EvaluationError(f"{target} gives {found} for these operands, but the text declares {declared}")
    return result


def _rounding_at_random(site: Site, entry: Opcode | CustomCall, given: Mapping[str, object]) -> RandomRounding | None:
    """The kernel under a policy that rounds at random; None under others, and where nothing rounds."""
    instruction, numerics = site.instruction, site.numerics
    if numerics.rounding_seed is None:
        return None
    from hloexec.ops.contraction.algorithms import contraction_split
    from hloexec.ops.policies.random_rounding import random_rounding

    assert entry.evaluate is not None
    rounding, name, summation, shape = Rounding.UNKNOWN, instruction.opcode, None, instruction.shape
    split = widest = None
    if numerics.keeps_formats and _is_settled(entry, instruction, numerics):
        return None
    if isinstance(entry, Opcode):
        rounding = entry.rounding
        if entry.summed is not None:
            summation = entry.summed(**site.given(entry.summed.needs))
        if numerics.keeps_formats:
            if rounding is not Rounding.UNKNOWN and not (summation and summation.is_stepwise):
                shape = wide_shape(shape)
                summation = summation and attrs.evolve(summation, narrow_steps=0.0)
            if numerics.has_fast_functions and entry.name in FAST_FUNCTIONS:
                # Errors of a last place, about what is computed; not about the exact value.
                rounding = Rounding.UNKNOWN
            if entry.traits.sums is Sums.PRODUCTS:
                split, given = contraction_split(given, numerics)
        else:
            widest = widest_shape(site.computation, instruction)
    else:
        name = entry.target
    return random_rounding(name, rounding, entry.evaluate, given, shape, site.declared, summation, split, widest)


def _is_settled(entry: Opcode | CustomCall, instruction: Instruction, numerics: NumericsPolicy) -> bool:
    """Whether a policy says of an instruction to the bit what it gives."""
    if not isinstance(entry, Opcode):
        return False
    sums_narrowly = numerics.narrows_sums and entry.rounding is Rounding.SUM
    return (
        entry.traits.converts
        or entry.rounding is Rounding.FORMAT
        or (numerics.has_xla_cpu_functions and entry.name in XLA_CPU_FUNCTIONS)
        or (sums_narrowly and isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_narrow)
    )


def _and_zeros(kernel: Callable[..., Any], shapes: Sequence[ArrayShape], *operands: object, **out: object) -> Any:
    """What a kernel gives, and zeros of these shapes."""
    return (kernel(*operands, **out), *(np.zeros(shape.dimensions, shape.element_type.storage) for shape in shapes))


def _assembled(
    entry: Opcode | CustomCall,
    given: dict[str, object],
    bound: Callable[..., Any],
    orders: Sequence[MemoryOrder | None] | None,
    *,
    overwrites: int | None = None,
    result_types: tuple[ElementType | None, ...] | None = None,
    is_flushed: bool = False,
    random: RandomRounding | None = None,
) -> InstructionKernel:
    # Asked by name, as most programs without contractions never need the class that has it.
    quick: Callable[..., Any] | None = getattr(bound, "quick", None)
    function = Flushing(bound) if is_flushed else quick or bound
    orders = None if orders is None else tuple(orders)
    if result_types is not None:
        function = partial(_as_declared, Conversion.to(result_types).function, function)
    if orders:
        is_pair = isinstance(entry, Opcode) and len(orders) == 2
        arrange = _in_orders if isinstance(entry, Opcode) else _all_in_orders
        if hasattr(function, "of_each"):
            function = _EachInOrders(function, partial(arrange, _as_given, orders))
        else:
            function = _pair_in_orders(function, *orders) if is_pair else partial(arrange, function, orders)
    return InstructionKernel(function, overwrites, entry, given, bound, orders, result_types, is_flushed, random)


@frozen(eq=False)
class _EachInOrders:
    """What `arrange` makes of a kernel that rounds at random, also for several lists of operands at once."""

    kernel: Any
    arrange: Callable[..., Sequence[Any]]

    def __call__(self, *operands: object) -> Any:
        return self.kernel(*self.arrange(*operands))

    def of_each(self, given: Sequence[Sequence[Any]]) -> list[Any] | None:
        found: list[Any] | None = self.kernel.of_each([self.arrange(*operands) for operands in given])
        return found


def _as_given(*operands: Any) -> Sequence[Any]:
    return operands


def _as_declared(convert: Callable[..., Any], kernel: Callable[..., Any], *operands: object) -> Any:
    value = kernel(*operands)
    return convert(*flat(value)) if isinstance(value, tuple) else convert(value)


def _in_orders(
    kernel: Callable[..., Any], orders: Sequence[MemoryOrder | None], *operands: object, **out: object
) -> Any:
    """A kernel whose bits may depend on memory order, applied to operands in the order that the plan assigned.

    Integers that are repeated, as the places beside the values of an argmin, stay as they are: nothing about them
    rounds, and a copy may be the largest array of a run.
    """
    return kernel(
        *[
            operand if _repeats_integers(operand) else _ordered(operand, order)
            for operand, order in zip(operands, orders, strict=True)
        ],
        **out,
    )


def _repeats_integers(value: object) -> bool:
    """Whether a value is an array of integers of which a broadcast has made more."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biu" and 0 in value.strides


def _all_in_orders(
    kernel: Callable[..., Any], orders: Sequence[MemoryOrder | None], *operands: object, **out: object
) -> Any:
    """`_in_orders` for library calls, which may take arrays to be without gaps."""
    return kernel(*map(_ordered, operands, orders), **out)


def _ordered(operand: object, order: MemoryOrder | None) -> object:
    return in_order(operand, order) if isinstance(operand, np.ndarray) else operand


def _pair_in_orders(kernel: Callable[..., Any], first: Any, second: Any) -> Callable[..., Any]:
    """What `_in_orders` makes of a kernel of two arrays."""
    return lambda lhs, rhs, **out: kernel(in_order(lhs, first), in_order(rhs, second), **out)


def _result_types(site: Site) -> tuple[ElementType | None, ...] | None:
    """The float types to convert a result to; None where all that the kernel meets are of one width."""
    types = float_types(site.instruction.shape)
    met = list(site.operands)
    for name in computation_names(site.instruction.attributes):
        plan = site.context.plans[name]
        met += [plan.slot_shapes[slot] for slot in (*plan.parameters, *plan.results)]
    floats = {found for shape in met for found in float_types(shape)} | set(types)
    return types if len(floats - {None}) > 1 else None


def _is_decided(
    numerics: NumericsPolicy, declared: Sequence[object], found: Sequence[object], *, is_elementwise: bool = False
) -> bool:
    """Whether element types, shapes and policy decide how a value is computed; the shapes are those of the operands and
    of the result.

    They do not where extents are dynamic, where an operand is not of the type that it is declared to have, and under
    policies that have formulas of their own.
    """
    if numerics.replaces_formulas:
        return False
    if not is_elementwise and numerics.contraction_operand_mantissa_bits is not None:
        return False
    for shape, given in zip(declared, found, strict=True):
        if (
            not isinstance(shape, ArrayShape)
            or not isinstance(given, ArrayShape)
            or shape.element_type is not given.element_type
            or shape.dynamic_dimensions
            or given.dynamic_dimensions
        ):
            return False
    return True
