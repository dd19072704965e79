"""Synthesized values for what a dump does not contain: elided constants, and results of unknown library calls."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from hloexec.core.arrays import as_array, is_foreign
from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module
from hloexec.core.ir.editing import map_instructions
from hloexec.core.ir.literal import map_literal
from hloexec.core.values import TOKEN, Array, Token
from hloexec.core.wording import argument
from hloexec.engine.plan.kernels import Leaf
from hloexec.errors import InputError, ResourceError, UnsupportedError
from hloexec.ops.common import array_shape, lies_in_order, row_major
from hloexec.ops.registry import Role, role_of


def zeros(shape: Leaf) -> Array | Token:
    """A read-only array of zeros that takes no memory (stride 0 everywhere), or a token."""
    array_shape = shape.array_shape
    if not array_shape.is_array:
        return TOKEN
    return np.broadcast_to(np.zeros((), array_shape.element_type.storage), array_shape.dimensions)


def synthesized(how: str, shape: Leaf, name: str) -> Array | Token:
    """Zeros, or random values: floats from the standard normal distribution, integers 0 or 1, predicates either way.

    Random values depend on `name` and the shape alone, so two modules that share an instruction's name share its
    values. Raises ResourceError where NumPy has no arrays of the shape.
    """
    array_shape = shape.array_shape
    if array_shape.is_array and array_shape.is_too_large:
        raise ResourceError(f"%{name} is {shape}, which is larger than an array can be")
    if how == "zeros" or not array_shape.is_array:
        return zeros(shape)
    generator = np.random.default_rng(zlib.crc32(f"{name} {array_shape}".encode()))
    values = _random_values(generator, array_shape)
    values.flags.writeable = False
    return values


def elided_value(choice: str | Mapping[str, Any], shape: Leaf, name: str) -> Array | Token:
    """The value of a leaf of a constant that the text elides, as the option `elided` says it."""
    if choice == "error":
        raise UnsupportedError(
            f"the value of constant %{name} is elided in the text; choose {argument('elided', 'zeros')} or random, or "
            f"supply it by name"
        )
    if isinstance(choice, str):
        return synthesized(choice, shape, name)
    if name not in choice:
        raise InputError(f"no value was given for %{name}, a constant that is elided in the text")
    return _supplied(choice[name], shape, name)


def fill_constants(module: Module, choice: str | Mapping[str, Any]) -> Module:
    """The module with these values in the constants that the text elides."""

    def fill(_: Computation, instruction: Instruction) -> Instruction:
        if role_of(instruction) is not Role.CONSTANT or not instruction.attributes.literal.is_elided:
            return instruction

        def leaf(literal: Literal) -> Literal:
            if literal.held is not None:
                return literal
            value = elided_value(choice, array_shape(literal.shape, "it"), instruction.name)
            return attrs.evolve(literal, value=row_major(value)) if isinstance(value, np.ndarray) else literal

        literal = map_literal(instruction.attributes.literal, leaf)
        return attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, literal=literal))

    return map_instructions(module, fill)


def _supplied(argument: object, shape: Leaf, name: str) -> Array:
    value = as_array(argument) if is_foreign(argument) else argument
    array_shape = shape.array_shape
    storage = array_shape.element_type.storage
    if isinstance(value, np.ndarray) and value.dtype.type is np.void and storage.isbuiltin != 1:
        # What NumPy makes of types that it does not know.
        value = value.view(storage) if value.dtype.itemsize == storage.itemsize else value
    if (
        not isinstance(value, np.ndarray)
        or value.dtype != array_shape.element_type.storage
        or value.shape != array_shape.dimensions
    ):
        argument = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"the value for the elided constant %{name} must be an array {shape}, but is {argument}")
    view = value.view() if lies_in_order(value) else row_major(value)
    view.flags.writeable = False
    return view


def _random_values(generator: np.random.Generator, shape: ArrayShape) -> Array:
    element_type = shape.element_type
    sizes = shape.dimensions
    if element_type.kind is Kind.PRED or element_type.is_integral:
        return generator.integers(0, 2, sizes, np.int8).astype(element_type.compute).astype(element_type.storage)
    if element_type.is_complex:
        parts = generator.standard_normal((2, *sizes), np.float32)
        return np.asarray(parts[0] + 1j * parts[1]).astype(element_type.storage)
    return np.asarray(generator.standard_normal(sizes, np.float32)).astype(element_type.storage)
