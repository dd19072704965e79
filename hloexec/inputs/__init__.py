"""Random inputs that respect how each parameter is used, the same on every machine.

`hloexec.inputs.bounds` and `hloexec.inputs.tracing` find out what the module asks of its parameters,
`hloexec.inputs.distributions` makes arrays that comply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import attrs

from hloexec.arguments import named_computation, require_flags, require_module, require_seed, wrong
from hloexec.errors import InputError, ResourceError
from hloexec.inputs.bounds import frame_of, opaque_bounds
from hloexec.inputs.distributions import DISTRIBUTIONS, random_array
from hloexec.inputs.ranges import Range, ranges_of
from hloexec.inputs.tracing import parameter_demands
from hloexec.ir import ArrayShape, BufferShape, Computation, Module, Shape, TupleShape
from hloexec.ops.intervals import Demand
from hloexec.system_memory import in_units, memory_limit_bytes
from hloexec.values import TOKEN, Array, Token, Value, rebuilt
from hloexec.verifier import explained
from hloexec.verifier import verify as verify_module

__all__ = ["DISTRIBUTIONS", "random_inputs"]


def random_inputs(
    module: Module,
    seed: int = 0,
    distribution: str = "normal",
    computation: str | None = None,
    *,
    ranges: Mapping[int | str, tuple[float, float]] | None = None,
    verify: bool = True,
) -> list[Value]:
    """One value per parameter of the entry computation, or of the one named.

    The same seed gives the same values on every machine, and each parameter its own, whatever the others are. `normal`
    and `uniform` (-1 to 1) keep to what the module needs: indices in bounds, few iterations of loops, positive numbers
    under roots and logarithms and as divisors, matrices of a size that keeps products of standard deviation 1; other
    signed integers are 0 to 99, unsigned and 8-bit ones anything. The others serve special purposes: `zeros`, `ones`,
    `iota` (0, 1, 2, … as far as the type counts), `special` (half of the floats are NaN, infinities, denormals or
    extremes; integers lie at the ends of their range) and `large`; integers keep in bounds there too, floats do not.

    `ranges` gives single parameters, by number or name, the least and the largest number that they hold; they are drawn
    uniformly, whatever the module asks of them.

    Raises VerificationError where the module is not well-formed (unless told not to `verify`), InputError for a
    computation, distribution or seed that does not exist, a range without numbers or an opaque parameter, and
    ResourceError where the values would not fit into memory.
    """
    require_module(module)
    require_flags(verify=verify)
    require_seed(seed)
    if not isinstance(distribution, str):
        raise wrong("distribution", f"one of {', '.join(DISTRIBUTIONS)}", distribution)
    if verify:
        verify_module(module)
    if distribution not in DISTRIBUTIONS:
        raise InputError(f"there is no distribution {distribution!r}; there are {', '.join(DISTRIBUTIONS)}")
    chosen = module.entry if computation is None else named_computation(module, computation)
    _require_memory(chosen)
    given = {} if ranges is None else ranges_of(chosen, ranges)
    with nullcontext() if verify else explained(module):
        return _random_values(module, chosen, seed, distribution, given)


def _random_values(
    module: Module, chosen: Computation, seed: int, distribution: str, ranges: Mapping[int, Range]
) -> list[Value]:
    arguments = [
        tuple(attrs.evolve(bounds, is_parameter=True) for bounds in opaque_bounds(shape))
        for shape in chosen.parameter_shapes
    ]
    frame = frame_of(module, chosen, arguments)
    demands: dict[int, Sequence[Demand | Range]] = dict(enumerate(parameter_demands(module, frame)))
    demands |= {number: [given] * len(demands[number]) for number, given in ranges.items()}
    try:
        return [
            _random_value(parameter.shape, demands[number], distribution, (seed, number << 32), parameter.name)
            for number, parameter in enumerate(chosen.parameters)
        ]
    except MemoryError as error:
        raise ResourceError(f"the values of {chosen.name}'s parameters do not fit into memory") from error


def _require_memory(computation: Computation) -> None:
    needed = sum(shape.byte_size for shape in computation.parameter_shapes)
    allowed = memory_limit_bytes(None)
    if allowed is not None and needed > allowed:
        largest = max(computation.parameters, key=lambda parameter: parameter.shape.byte_size)
        raise ResourceError(
            f"the parameters of {computation.name} take {in_units(needed)}, more than {in_units(allowed)}, 80 % of "
            f"what this machine has free; the largest is {largest.name}, {in_units(largest.shape.byte_size)}"
        )


def _random_value(
    shape: Shape, demands: Sequence[Demand | Range], distribution: str, key: tuple[int, int], name: str
) -> Value:
    """A value of a shape whose leaf i meets `demands[i]` and has the stream `key + i`."""
    remaining = iter(enumerate(demands))

    def next_leaf(leaf: ArrayShape | BufferShape) -> Array | Token:
        number, demand = next(remaining)
        array = leaf.element if isinstance(leaf, BufferShape) else leaf
        return _random_leaf(array, demand, distribution, (key[0], key[1] + number), name)

    value: Value = rebuilt(shape, lambda part: part.elements if isinstance(part, TupleShape) else None, next_leaf)
    return value


def _random_leaf(
    shape: ArrayShape, demand: Demand | Range, distribution: str, key: tuple[int, int], name: str
) -> Array | Token:
    if shape.is_token:
        return TOKEN
    if not shape.is_array:
        raise InputError(f"parameter {name} is {shape}, of which no value can be made")
    if any(size < 0 for size in shape.dimensions):
        raise InputError(f"parameter {name} is {shape}, whose size is not known; give its value")
    if shape.is_too_large:
        raise InputError(f"parameter {name} is {shape}, which is larger than an array can be")
    if isinstance(demand, Range):
        return demand.random_array(shape.element_type, shape.dimensions, key)
    return random_array(shape.element_type, shape.dimensions, demand, distribution, key)
