"""Random inputs that respect how each parameter is used, the same on every machine.

`inputs.bounds` and `inputs.tracing` find out what the module asks of its parameters,
`inputs.distributions` makes arrays that comply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count

import attrs

from hloexec.core.arguments import named_computation, require_flags, require_module, require_seed, wrong
from hloexec.core.ir import ArrayShape, BufferShape, Computation, Module, Shape, map_shape
from hloexec.core.process import memory_limit_bytes
from hloexec.core.values import TOKEN, Array, Token, Value
from hloexec.core.wording import byte_text
from hloexec.engine.inputs.bounds import Range, frame_of, opaque_bounds, ranges_of
from hloexec.engine.inputs.distributions import DISTRIBUTIONS, random_array
from hloexec.engine.inputs.tracing import parameter_demands
from hloexec.errors import InputError, ResourceError
from hloexec.language.verifier import explained
from hloexec.language.verifier import verify as verify_module
from hloexec.ops.intervals import Demand

__all__ = [
    "DISTRIBUTIONS",
    "demands_on",
    "input_generator",
    "random_inputs",
    "require_memory",
    "require_values",
    "value_of",
]


def random_inputs(
    module: Module,
    seed: int = 0,
    distribution: str = "normal",
    computation: str | None = None,
    *,
    ranges: Mapping[int | str, tuple[float, float]] | None = None,
    verify: bool = True,
) -> list[Value]:
    """Generate one value per parameter of the entry computation, or of the given one.

    The same seed gives the same values on every machine, and the values of a parameter do not depend on the other
    parameters. `normal` and `uniform` (-1 to 1) respect what the module needs: indices in bounds, each component of an
    index vector in those of its dimension, sizes that are known at run time and fit each other, loops with few
    iterations, positive numbers under roots and logarithms and as divisors, also where these are computed from counts
    (n > 0 for 1 - b^n), and matrices scaled so that products keep a standard deviation of 1; other signed integers are
    0 to 99, unsigned and 8-bit ones are arbitrary. Integers that keep or drop elements, as masks do, are 0 and 1. The
    others are for special purposes: `zeros`, `ones`, `iota` (0, 1, 2, … as far as the type can count, or within the
    bounds of an index), `special` (half of the floats are NaN, infinities, denormals or extremes; integers are at the
    ends of that range), `large` (the upper end of the range) and `edges` (few unlike numbers, each repeated: both ends
    of each type, what lies next to them and to zero, both zeros and denormals, and the bounds that the module sets).
    With these, too, integers stay in bounds, but floats may not. With `edges`, floats stay in bounds and are finite,
    and integers go beyond where the operation is defined: indices are clamped, windows of a gather or scatter moved or
    left out, integers divided by zero, and shifted by more than their width.

    `ranges` maps parameters, by number or name, to the smallest and largest number to generate; values are uniformly
    distributed in this range, regardless of what the module needs.

    Raises VerificationError if the module is not well-formed (unless `verify` is False), InputError for an unknown
    computation, distribution or seed, an invalid range or an opaque parameter, and ResourceError if the values would
    not fit into memory.
    """
    return input_generator(module, distribution, computation, ranges=ranges, verify=verify)(seed)


def input_generator(
    module: Module,
    distribution: str = "normal",
    computation: str | None = None,
    *,
    ranges: Mapping[int | str, tuple[float, float]] | None = None,
    verify: bool = True,
) -> Callable[[int], list[Value]]:
    """What makes of a seed the values that `random_inputs` makes of it; the module is looked at once."""
    require_module(module)
    require_flags(verify=verify)
    if not isinstance(distribution, str):
        raise wrong("distribution", f"one of {', '.join(DISTRIBUTIONS)}", distribution)
    if verify:
        verify_module(module)
    if distribution not in DISTRIBUTIONS:
        raise InputError(f"unknown distribution {distribution!r}; the distributions are {', '.join(DISTRIBUTIONS)}")
    chosen = module.entry if computation is None else named_computation(module, computation)
    require_memory(chosen)
    bounds = {} if ranges is None else ranges_of(chosen, ranges)
    with nullcontext() if verify else explained(module):
        demands = demands_on(module, chosen)

    def values(seed: int) -> list[Value]:
        require_seed(seed)
        with nullcontext() if verify else explained(module):
            return _random_values(chosen, demands, seed, distribution, bounds)

    return values


def _random_values(
    chosen: Computation,
    demands: Sequence[Sequence[Demand]],
    seed: int,
    distribution: str,
    ranges: Mapping[int, Range],
) -> list[Value]:
    def leaf(parameter: int, number: int, shape: ArrayShape) -> Array | Token:
        key, name = (seed, (parameter << 32) + number), chosen.parameters[parameter].name
        return _random_leaf(shape, ranges.get(parameter, demands[parameter][number]), distribution, key, name)

    try:
        return [value_of(shape, partial(leaf, number)) for number, shape in enumerate(chosen.parameter_shapes)]
    except MemoryError as error:
        raise ResourceError(f"the values of {chosen.name}'s parameters do not fit into memory") from error


def demands_on(module: Module, computation: Computation) -> tuple[Sequence[Demand], ...]:
    """What the module asks of each parameter's leaves."""
    arguments = [
        tuple(attrs.evolve(bounds, is_parameter=True) for bounds in opaque_bounds(shape))
        for shape in computation.parameter_shapes
    ]
    return parameter_demands(module, frame_of(module, computation, arguments))


def require_memory(computation: Computation) -> None:
    """ResourceError where values of the parameters would not fit into memory."""
    needed = sum(shape.byte_size for shape in computation.parameter_shapes)
    allowed = memory_limit_bytes(None)
    if allowed is not None and needed > allowed:
        largest = max(computation.parameters, key=lambda parameter: parameter.shape.byte_size)
        raise ResourceError(
            f"the parameters of {computation.name} take {byte_text(needed)}, more than {byte_text(allowed)}, 80 % of "
            f"what this machine has free; the largest is {largest.name}, {byte_text(largest.shape.byte_size)}"
        )


def value_of(shape: Shape, leaf: Callable[[int, ArrayShape], Array | Token]) -> Value:
    """A value of a shape, with the leaves that `leaf` gives for their numbers and shapes, depth first."""
    numbers = count()

    def next_leaf(part: ArrayShape | BufferShape) -> Array | Token:
        return leaf(next(numbers), part.array_shape)

    return map_shape(shape, next_leaf)


def _random_leaf(
    shape: ArrayShape, demand: Demand | Range, distribution: str, key: tuple[int, int], name: str
) -> Array | Token:
    if shape.is_token:
        return TOKEN
    require_values(shape, name)
    if any(size < 0 for size in shape.dimensions):
        raise InputError(f"parameter {name} is {shape}, whose size is not known; give its value")
    if isinstance(demand, Range):
        return demand.random_array(shape.element_type, shape.dimensions, key)
    return random_array(shape.element_type, shape.dimensions, demand, distribution, key)


def require_values(shape: ArrayShape, name: str) -> None:
    """InputError unless arrays of a parameter's shape can be made."""
    if not shape.is_array:
        raise InputError(f"parameter {name} is {shape}, of which no value can be made")
    if shape.is_too_large:
        raise InputError(f"parameter {name} is {shape}, which is larger than an array can be")
