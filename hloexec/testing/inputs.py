"""Values of a module's parameters that suit their use."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import strategies as st

from hloexec.core.arguments import named_computation, require_flags, require_module
from hloexec.core.dtypes import ElementType, Kind, largest_number, least_number, part_type, smallest_normal
from hloexec.core.ir import UNBOUNDED, ArrayShape, Computation, Module
from hloexec.core.values import TOKEN, Array, Ints, Token, Value
from hloexec.engine.inputs import demands_on, require_memory, require_values, value_of
from hloexec.engine.inputs.distributions import column_demand, float_range, integer_range, random_array
from hloexec.language.verifier import verify
from hloexec.ops.intervals import ANYTHING, Demand
from hloexec.testing.arrays import Elements, array_of

_LARGEST_UNBOUNDED = 5


def inputs(module: Module, computation: str | None = None, *, specials: bool = True) -> st.SearchStrategy[list[Value]]:
    """One value per parameter of the entry computation, or of the one named, that suits its use.

    As of `hloexec.random_inputs`, indices lie in bounds, loops end soon, numbers under roots and logarithms are
    positive, and other floats are of a size that keeps products near 1. Where nothing bounds a parameter, NaN,
    infinities, denormals, -0.0 and the extremes of its type are among its elements, unless told otherwise by
    `specials=False`. Dynamic dimensions have any size up to their bound, the same wherever the bound is the same.

    Raises VerificationError where the module is not well-formed, and InputError for a computation that does not exist
    or a parameter of which no value can be made, ResourceError where the values would not fit into memory.
    """
    require_module(module)
    require_flags(specials=specials)
    verify(module)
    chosen = module.entry if computation is None else named_computation(module, computation)
    for parameter in chosen.parameters:
        value_of(parameter.shape, partial(_required, parameter.name))
    require_memory(chosen)
    return _inputs(module, chosen, specials)


def _required(name: str, _: int, shape: ArrayShape) -> Token:
    if not shape.is_token:
        require_values(shape, name)
    return TOKEN


@st.composite
def _inputs(draw: st.DrawFn, module: Module, chosen: Computation, specials: bool) -> list[Value]:
    demands = demands_on(module, chosen)
    sizes: dict[int, int] = {}

    def size(bound: int) -> int:
        if bound not in sizes:
            sizes[bound] = draw(st.integers(0, _LARGEST_UNBOUNDED if bound == UNBOUNDED else bound))
        return sizes[bound]

    def leaf(parameter: int, number: int, shape: ArrayShape) -> Array | Token:
        if shape.is_token:
            return TOKEN
        flags = shape.dynamic_dimensions or (False,) * shape.rank
        dimensions = tuple(size(d) if flag else d for d, flag in zip(shape.dimensions, flags, strict=True))
        demand = column_demand(demands[parameter][number])
        if demand.columns is not None and dimensions == shape.dimensions and demand.columns.fits(dimensions):
            return _in_columns(draw, shape, demand, specials)
        elements = _elements(shape.element_type, demand, int(np.prod(dimensions, dtype=object)), specials)
        return draw(array_of(dimensions, shape.element_type, elements))

    return [value_of(shape, partial(leaf, number)) for number, shape in enumerate(chosen.parameter_shapes)]


def _in_columns(draw: st.DrawFn, shape: ArrayShape, demand: Demand, specials: bool) -> Array:
    """An array whose columns are bounded each by itself."""
    assert demand.columns is not None
    stride, count = demand.columns.stride, demand.columns.count
    array = np.empty(shape.dimensions, shape.element_type.storage)
    parts = array.reshape(-1, count, stride)
    for number in range(count):
        sizes = (parts.shape[0], stride)
        elements = _elements(shape.element_type, demand.column(number), parts.shape[0] * stride, specials)
        parts[:, number] = draw(array_of(sizes, shape.element_type, elements))
    return array


def _elements(element_type: ElementType, demand: Demand, count: int, specials: bool) -> Elements:
    """The elements of an array of so many that meets a demand."""

    def bulk(dimensions: Ints, seed: int) -> Array:
        return random_array(element_type, dimensions, demand.with_columns(None), "normal", (seed, 0))

    is_free = specials and (demand.low, demand.high) == (ANYTHING.low, ANYTHING.high)
    if element_type.kind is Kind.PRED:
        return Elements(st.booleans(), bulk)
    if element_type.is_integral:
        numbers = st.integers(*integer_range(element_type, demand))
        if is_free:
            numbers |= st.sampled_from(element_type.integer_range)
        return Elements(numbers, bulk)
    kind = part_type(element_type)
    low, high = float_range(demand, count)
    least, most = least_number(kind), largest_number(kind)
    parts = st.floats(min(max(low, least), most), max(min(high, most), least))
    if is_free:
        parts |= st.sampled_from(_specials(kind))
    return Elements(st.builds(complex, parts, parts) if element_type.is_complex else parts, bulk)


def _specials(kind: ElementType) -> list[float]:
    """What a floating type has of the extremes of IEEE 754."""
    largest, normal = largest_number(kind), smallest_normal(kind)
    specials = [largest, normal, normal * 2.0**-kind.mantissa_bits]
    specials += [-number for number in specials if -number >= least_number(kind)]
    if kind.has_negative_zero:
        specials.append(-0.0)
    if kind.has_inf:
        specials += [np.inf, -np.inf]
    return [*specials, np.nan] if kind.has_nan else specials
