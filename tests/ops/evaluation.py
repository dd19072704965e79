"""Evaluates small modules instruction by instruction, with the registry's kernels and nothing else.

What kernels are tested with before and beside the planner: no fusion, no reuse of buffers, no devices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, BufferShape, Computation, Instruction, Module, Shape, TupleShape
from hloexec.core.values import TOKEN, Token
from hloexec.errors import HloError
from hloexec.language.text import parse
from hloexec.ops.attributes import computation_names
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import OPCODES, ProgramShape, Role
from tests.text.building import ADD, op


class _Callee:
    def __init__(self, evaluator: _Evaluator, computation: Computation) -> None:
        self._evaluator = evaluator
        self.computation = computation

    def __call__(self, *arguments: Any) -> Any:
        ranks = [len(shape.dimensions) for shape in self.computation.parameter_shapes if isinstance(shape, ArrayShape)]
        leading = [np.shape(value)[: np.ndim(value) - rank] for value, rank in zip(arguments, ranks, strict=True)]
        return self._evaluator.run(self.computation, arguments, np.broadcast_shapes(*leading))


class _Evaluator:
    def __init__(self, module: Module, numerics: NumericsPolicy) -> None:
        self.module = module
        self.numerics = numerics

    def run(self, computation: Computation, arguments: tuple[Any, ...], leading: tuple[int, ...] = ()) -> Any:
        values: dict[str, Any] = {}
        for instruction in computation:
            operands = [values[name] for name in instruction.operands]
            values[instruction.name] = self._value(computation, instruction, operands, arguments, leading)
        return values[computation.root_name]

    def _value(
        self, computation: Computation, instruction: Instruction, operands: list[Any], arguments: Any, leading: Any
    ) -> Any:
        entry, attributes = OPCODES[instruction.opcode], instruction.attributes
        called = [self.module.by_name[name] for name in computation_names(attributes)]
        shape = _leading_shape(instruction.shape, leading)
        match entry.role:
            case Role.PARAMETER:
                return arguments[attributes.number]
            case Role.CONSTANT:
                value = _literal_value(attributes.literal)
                return np.broadcast_to(value, shape.dimensions) if isinstance(shape, ArrayShape) else value
            case Role.TUPLE:
                return tuple(operands)
            case Role.GET_TUPLE_ELEMENT:
                return operands[0][attributes.index]
            case Role.FORWARD:
                return operands[0]
            case Role.TOKEN:
                return TOKEN
            case Role.CALL:
                return self.run(called[0], tuple(operands), leading)
            case Role.KERNEL:
                available = {
                    "attributes": attributes,
                    "shape": shape,
                    "operand_shapes": tuple(
                        _leading_shape(operand.shape, leading) for operand in computation.operands_of(instruction)
                    ),
                    "computations": tuple(_Callee(self, c) for c in called),
                    "numerics": self.numerics,
                }
                assert entry.evaluate is not None, entry.name
                result = entry.evaluate(*operands, **{name: available[name] for name in entry.evaluate.needs})
                _check(result, shape, instruction)
                return result
        raise NotImplementedError(f"{instruction.opcode} has role {entry.role}")


def evaluate(text: str, *inputs: Any, numerics: NumericsPolicy = REFERENCE) -> Any:
    """The result of the entry computation; shape rules are checked first."""
    module = parse(text)
    infer_all(module)
    with np.errstate(all="ignore"):
        return _Evaluator(module, numerics).run(module.entry, inputs)


def infer_all(module: Module) -> None:
    """Apply every instruction's shape rule, and assert that it gives the declared shape."""
    for computation in module:
        for instruction in computation:
            entry = OPCODES[instruction.opcode]
            if entry.infer is None:
                continue
            called = [module.by_name[name] for name in computation_names(instruction.attributes)]
            operand_shapes = tuple(operand.shape for operand in computation.operands_of(instruction))
            inferred = entry.infer(
                *operand_shapes,
                attributes=instruction.attributes,
                shape=instruction.shape,
                operand_shapes=operand_shapes,
                computations=tuple(ProgramShape(c.parameter_shapes, c.result_shape) for c in called),
            )
            assert inferred.compatible(instruction.shape), f"{instruction.name}: {inferred}, not {instruction.shape}"


def assert_refused(call: str, message: str, computations: str = ADD, **operands: str) -> None:
    """The shape rule of an instruction says what is wrong with these operands."""
    with pytest.raises(HloError, match=message):
        hloexec.verify(hloexec.parse(op(call, computations, **operands)))


def _leading_shape(shape: Shape, leading: tuple[int, ...]) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_leading_shape(element, leading) for element in shape.elements))
    if not leading or isinstance(shape, BufferShape):
        return shape
    return ArrayShape(shape.element_type, (*leading, *shape.dimensions))


def _literal_value(literal: Any) -> Any:
    return tuple(map(_literal_value, literal.value)) if isinstance(literal.value, tuple) else literal.value


def _check(value: Any, shape: Shape, instruction: Instruction) -> None:
    """A kernel returns exactly what the instruction declares."""
    if isinstance(shape, TupleShape):
        assert isinstance(value, tuple) and len(value) == len(shape.elements), instruction.name
        for element, element_shape in zip(value, shape.elements, strict=True):
            _check(element, element_shape, instruction)
    elif isinstance(value, Token):
        assert isinstance(shape, ArrayShape) and shape.is_token
    else:
        assert isinstance(value, np.ndarray), (instruction.name, type(value))
        assert isinstance(shape, ArrayShape)
        assert element_type_of(value.dtype) is shape.element_type, (instruction.name, value.dtype)
        if not shape.is_dynamic:
            assert value.shape == shape.dimensions, (instruction.name, value.shape, shape)
