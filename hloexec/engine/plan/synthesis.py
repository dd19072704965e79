"""Synthesized values for what a dump does not contain: elided constants, and results of unknown library calls."""

from __future__ import annotations

import zlib

import numpy as np

from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape
from hloexec.core.values import TOKEN, Array, Token
from hloexec.engine.plan.kernels import Leaf
from hloexec.errors import ResourceError


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


def _random_values(generator: np.random.Generator, shape: ArrayShape) -> Array:
    element_type = shape.element_type
    sizes = shape.dimensions
    if element_type.kind is Kind.PRED or element_type.is_integral:
        return generator.integers(0, 2, sizes, np.int8).astype(element_type.compute).astype(element_type.storage)
    if element_type.is_complex:
        parts = generator.standard_normal((2, *sizes), np.float32)
        return np.asarray(parts[0] + 1j * parts[1]).astype(element_type.storage)
    return np.asarray(generator.standard_normal(sizes, np.float32)).astype(element_type.storage)
