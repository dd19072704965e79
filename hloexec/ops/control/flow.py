"""Control flow, tuples and the other opcodes that a plan treats by role rather than by kernel.

`parameter` and `constant` have their number and literal in place of operands, so those attributes have no grammar: the
parser and the printer know them by role.

Instructions that edited modules get: parameters, constants, tuples, their elements and conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.ir import (
    ConvolutionDimensionNumbers,
    Instruction,
    Literal,
    Shape,
    Sharding,
    TupleShape,
    Window,
    parts_of,
)
from hloexec.core.structs import frozen
from hloexec.errors import ShapeError
from hloexec.ops.attributes import Grammar, OperandAlias, attribute, operand_precision
from hloexec.ops.common import require
from hloexec.ops.intervals import MOST_COLUMNS, UNKNOWN, Bounds, Columns, Use
from hloexec.ops.registry import ANY, Programs, Role, opcode
from hloexec.ops.signatures import (
    TOKEN_SHAPE,
    is_scalar_of,
    require_parameters,
    require_same_shape,
    require_token,
    same_shape,
)


@frozen
class ParameterAttributes:
    number: int


@frozen
class ConstantAttributes:
    literal: Literal


@frozen
class GetTupleElementAttributes:
    index: int = attribute()


@frozen
class CallAttributes:
    """`is_composite` marks a call that represents an operation of a framework; it changes no value."""

    to_apply: str = attribute(Grammar.COMPUTATION)
    is_composite: bool = attribute(default=False)


@frozen
class WhileAttributes:
    condition: str = attribute(Grammar.COMPUTATION)
    body: str = attribute(Grammar.COMPUTATION)


@frozen
class ConditionalAttributes:
    """Two computations where the first operand is a predicate, a list of branches where it is an index."""

    true_computation: str | None = attribute(Grammar.COMPUTATION, default=None)
    false_computation: str | None = attribute(Grammar.COMPUTATION, default=None)
    branch_computations: tuple[str, ...] | None = attribute(Grammar.COMPUTATION_LIST, default=None)

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches in the order of the branch operands; a predicate selects the first when it is true."""
        named = (self.true_computation, self.false_computation)
        return tuple(name for name in named if name is not None) + (self.branch_computations or ())


@frozen
class FusionAttributes:
    kind: str = attribute(Grammar.ENUM, choices=("kLoop", "kInput", "kOutput", "kCustom"), is_open=True)
    output_to_operand_aliasing: tuple[OperandAlias, ...] = attribute(Grammar.ALIASING, default=())
    calls: str = attribute(Grammar.COMPUTATION)


@frozen
class DomainAttributes:
    """Entry and exit sharding of a domain; no value depends on them."""

    domain: tuple[Sharding, Sharding] = attribute(Grammar.DOMAIN)


@frozen
class CustomCallAttributes:
    """What a call of a library routine says besides its `backend_config`; the target decides what it means."""

    window: Window = attribute(default=Window())
    dim_labels: ConvolutionDimensionNumbers | None = attribute(Grammar.CONVOLUTION_DIMENSIONS, default=None)
    feature_group_count: int = attribute(default=1)
    batch_group_count: int = attribute(default=1)
    operand_precision: tuple[str, ...] = operand_precision()
    padding_type: str = attribute(
        Grammar.ENUM,
        default="PADDING_INVALID",
        choices=("PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"),
        is_open=True,
    )
    custom_call_target: str = attribute(Grammar.STRING)
    operand_layout_constraints: tuple[Shape, ...] | None = attribute(Grammar.SHAPE_LIST, default=None)
    custom_call_has_side_effect: bool = attribute(default=False)
    literal: Literal | None = attribute(Grammar.LITERAL, default=None)
    output_to_operand_aliasing: tuple[OperandAlias, ...] = attribute(Grammar.ALIASING, default=())
    schedule: str = attribute(
        Grammar.ENUM,
        default="SCHEDULE_NONE",
        choices=("SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"),
        any_case=True,
        is_open=True,
    )
    api_version: str = attribute(
        Grammar.ENUM,
        default="API_VERSION_ORIGINAL",
        choices=(
            "API_VERSION_ORIGINAL",
            "API_VERSION_STATUS_RETURNING",
            "API_VERSION_STATUS_RETURNING_UNIFIED",
            "API_VERSION_TYPED_FFI",
        ),
        any_case=True,
        is_open=True,
    )
    to_apply: str | None = attribute(Grammar.COMPUTATION, default=None)
    called_computations: tuple[str, ...] = attribute(Grammar.COMPUTATION_LIST, default=())


@opcode("parameter", operands=0, attributes=ParameterAttributes, role=Role.PARAMETER)
class Parameter:
    """The computation's argument of the given number (XLA: Parameter)."""

    @staticmethod
    def infer(*, attributes: ParameterAttributes, shape: Shape) -> Shape:
        require(attributes.number >= 0, f"a parameter's number must not be negative, but is {attributes.number}")
        return shape


@opcode("constant", operands=0, attributes=ConstantAttributes, role=Role.CONSTANT)
class Constant:
    """The value of a literal (XLA: Constant)."""

    @staticmethod
    def bounds(use: Use) -> Bounds:
        array = use.attributes.literal.value
        if not isinstance(array, np.ndarray) or not array.size or array.dtype.kind == "c":
            return UNKNOWN
        if array.dtype.isbuiltin != 1 or array.dtype == np.float16:
            array = array.astype(np.float32)
        low, high = array.min().item() + 0, array.max().item() + 0
        is_told_apart = array.dtype.kind in "iu" and array.size <= MOST_COLUMNS and low < high
        columns = Columns(1, tuple((n, n) for n in array.reshape(-1).tolist())) if is_told_apart else None
        return Bounds(low, high, columns=columns)

    @staticmethod
    def infer(*, attributes: ConstantAttributes) -> Shape:
        return attributes.literal.shape


@opcode("tuple", operands=(0, ANY), role=Role.TUPLE)
class Tuple:
    """The operands as one tuple (XLA: Tuple)."""

    @staticmethod
    def infer(*operands: Shape) -> Shape:
        return TupleShape(operands)


@opcode("get-tuple-element", operands=1, attributes=GetTupleElementAttributes, role=Role.GET_TUPLE_ELEMENT)
class GetTupleElement:
    """The element of a tuple at `index` (XLA: GetTupleElement)."""

    @staticmethod
    def infer(operand: Shape, *, attributes: GetTupleElementAttributes) -> Shape:
        if not isinstance(operand, TupleShape):
            raise ShapeError(f"the operand of get-tuple-element must be a tuple, but has shape {operand}")
        count = len(operand.elements)
        require(
            0 <= attributes.index < count,
            f"index {attributes.index} of get-tuple-element is out of range for a tuple of {count} elements",
        )
        return operand.elements[attributes.index]


@opcode("call", operands=(0, ANY), attributes=CallAttributes, role=Role.CALL)
class Call:
    """to_apply(operands...)   (XLA: Call)"""

    @staticmethod
    def infer(*operands: Shape, computations: Programs) -> Shape:
        require_parameters(computations[0], operands, "to_apply of call")
        return computations[0].result


@opcode("fusion", operands=(0, ANY), attributes=FusionAttributes, role=Role.CALL, fuses=True)
class Fusion:
    """calls(operands...): instructions that a backend compiles as one kernel; `kind` changes no value."""

    states_shape = True

    @staticmethod
    def infer(*operands: Shape, computations: Programs) -> Shape:
        require_parameters(computations[0], operands, "the computation of fusion")
        return computations[0].result


@opcode("while", operands=1, attributes=WhileAttributes, role=Role.WHILE)
class While:
    """state = operand; while condition(state): state = body(state)   (XLA: While)"""

    @staticmethod
    def infer(operand: Shape, *, computations: Programs) -> Shape:
        condition, body = computations
        require_parameters(condition, (operand,), "condition of while")
        require_parameters(body, (operand,), "body of while")
        require(
            is_scalar_of(condition.result, Kind.PRED), f"condition of while must return pred[], not {condition.result}"
        )
        require_same_shape(body.result, operand, "the result of body of while")
        return operand


@opcode("conditional", operands=(2, ANY), attributes=ConditionalAttributes, role=Role.CONDITIONAL)
class Conditional:
    """branches[i](branch_operands[i]); i = 0 for true, 1 for false, or the index, an index out of range taking the last
    branch (XLA: Conditional).
    """

    @staticmethod
    def well_formed(selector: Shape, *operands: Shape, attributes: ConditionalAttributes) -> None:
        _require_selector(selector, attributes)
        _require_operands(operands, attributes.branches)

    @staticmethod
    def infer(selector: Shape, *operands: Shape, attributes: ConditionalAttributes, computations: Programs) -> Shape:
        _require_selector(selector, attributes)
        _require_operands(operands, attributes.branches)
        for number, (branch, operand) in enumerate(zip(computations, operands, strict=True)):
            require_parameters(branch, (operand,), f"branch {number} of conditional")
            require_same_shape(branch.result, computations[0].result, f"the result of branch {number} of conditional")
        return computations[0].result


@opcode("custom-call", operands=(0, ANY), attributes=CustomCallAttributes, role=Role.CUSTOM_CALL)
class CustomCall:
    """The library routine `custom_call_target` on the operands (XLA: CustomCall)."""

    @staticmethod
    def well_formed(*operands: Shape, attributes: CustomCallAttributes) -> None:
        _require_constraints(operands, attributes, lambda constraint, operand: constraint.compatible(operand))

    @staticmethod
    def infer(*operands: Shape, attributes: CustomCallAttributes, shape: Shape) -> Shape:
        _require_constraints(operands, attributes, same_shape)
        return shape


def _require_constraints(
    operands: Sequence[Shape], attributes: CustomCallAttributes, fits: Callable[[Shape, Shape], bool]
) -> None:
    """The layout constraints of a custom-call, where there are some, are one for each operand, and of its shape."""
    constraints = attributes.operand_layout_constraints
    if constraints is None:
        return
    require(
        len(constraints) == len(operands),
        f"custom-call has {len(operands)} operands, but {len(constraints)} operand layout constraints",
    )
    for number, (operand, constraint) in enumerate(zip(operands, constraints, strict=True)):
        require(
            fits(constraint, operand),
            f"the layout constraint of operand {number} of custom-call has shape {constraint}, expected {operand}",
        )


_forwarding = partial(opcode, role=Role.FORWARD, moves=(0,), keeps_order=True, aliases=(((), ()),))


@_forwarding("domain", operands=1, attributes=DomainAttributes)
class Domain:
    """The operand; the boundary between two regions of sharding."""

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return operand


@_forwarding("opt-barrier", operands=1)
class OptimizationBarrier:
    """The operand; no optimization moves across it (XLA: OptimizationBarrier)."""

    states_shape = True
    infer = Domain.infer


@_forwarding("add-dependency", operands=2)
class AddDependency:
    """The first operand, which must not be computed before the second, a token."""

    @staticmethod
    def infer(operand: Shape, token: Shape) -> Shape:
        require_token(token, "the second operand of add-dependency")
        return operand


@opcode("after-all", operands=(0, ANY), role=Role.TOKEN)
class AfterAll:
    """A token that orders what follows after all operands, tokens or other values (XLA: AfterAll)."""

    @staticmethod
    def infer(*operands: Shape) -> Shape:
        return TOKEN_SHAPE


def _require_selector(selector: Shape, attributes: ConditionalAttributes) -> None:
    """A predicate selects between two computations, an index from a list of branches."""
    if attributes.branch_computations is None:
        require(is_scalar_of(selector, Kind.PRED), f"the predicate of conditional must be pred[], but is {selector}")
        named = (attributes.true_computation, attributes.false_computation)
        require(None not in named, "conditional with a predicate needs a true and a false computation")
    else:
        require(
            is_scalar_of(selector, Kind.SIGNED) and selector.byte_size == 4,
            f"the branch index of conditional must be s32[], but is {selector}",
        )


def _require_operands(operands: Sequence[Shape], branches: Sequence[str]) -> None:
    """Each branch has an operand."""
    require(
        0 < len(branches) == len(operands),
        f"conditional has {len(branches)} branches, but {len(operands)} branch operands",
    )


def make_parameter(name: str, shape: Shape, number: int = 0, **further: Any) -> Instruction:
    return Instruction(
        name=name, shape=shape, opcode="parameter", attributes=ParameterAttributes(number=number), **further
    )


def make_constant(name: str, literal: Literal) -> Instruction:
    return Instruction(name=name, shape=literal.shape, opcode="constant", attributes=ConstantAttributes(literal))


def make_tuple(name: str, shape: Shape, operands: Sequence[str]) -> Instruction:
    return Instruction(name=name, shape=shape, opcode="tuple", operands=tuple(operands))


def make_element(name: str, shape: Shape, source: str, index: int) -> Instruction:
    """An element of a tuple of this shape."""
    return Instruction(
        name=name,
        shape=parts_of(shape)[index],
        opcode="get-tuple-element",
        operands=(source,),
        attributes=GetTupleElementAttributes(index=index),
    )


def make_conversion(name: str, shape: Shape, operand: str, **further: Any) -> Instruction:
    return Instruction(name=name, shape=shape, opcode="convert", operands=(operand,), **further)
