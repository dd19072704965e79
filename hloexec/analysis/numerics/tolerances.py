"""How far apart two values may lie, and the rounding error that a module makes on the way to its results.

The accumulated rounding error from a module's inputs to each of its results, derived from the module.

Each instruction rounds its result, and contributes errors of some relative size:

- u, the unit roundoff of its result's element type; functions (which each side implements in its own way) contribute in
  addition four times that of the type they are computed in: f32, or the result's if that is wider.
- A sum of n terms in a type of unit roundoff v: n errors of size v. Every term passes through fewer than n additions,
  whatever their order (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
- A prefix sum may be a tree: its narrow results are rounded at each of log₂ n levels.
- Under `tf32` and `bf16`, each of a product's two f32 operands: half a unit of the bits that are kept if it is rounded,
  a whole one if the hardware truncates it.
- Products of eight-bit floats: v is 2⁻¹³, because tensor cores may accumulate with 14 bits.

A `Chain` has the errors along the path to a value on which they are largest. The product of 1 + δᵢ over m errors δᵢ is
off by at most Σ|δᵢ| and, if they are independent, by λ √(Σ δᵢ²) except with a probability of 2 exp(−λ²/2) (Higham and
Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019). Sums and products of random numbers preserve
relative errors; a chain does not show amplification beyond that, by steep functions.

How far apart two values may lie: tolerances that are given, measured, or derived from roundings.

Where runs that round at random say what rounding does to each element (`numerics.sampling.spread`), a tolerance
is a number of those scales, and the last rounding of each side. Without them an element is held to its own size: with
δᵢ the errors of both sides on their way to it (`numerics.tolerances`), it may be off by

    ρ (|expected| + m) + f,    ρ = min(Σ|δᵢ|, λ √(Σ δᵢ² / 3)),  λ = 5

An error of at most δ that may be anything within that has the variance δ²/3, and independent ones add up in their
variances: λ is the number of standard deviations, which a normal sum exceeds once in 1.7 million elements. Next, m is
the smallest normal number of the narrower type, below which roundings are absolute; f is that of the type it computes
in, which XLA:CPU and GPUs may flush to zero. Infinity counts as the largest number. What cancels on the way, or is
magnified by steep functions, may be off by more than its own size says: only a run on the inputs shows that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.arguments import require_choice, require_number
from hloexec.core.dtypes import ElementType, element_type_of, smallest_normal, unit_roundoff
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, flat_shapes, leaf_shapes
from hloexec.core.process import remembered
from hloexec.core.structs import frozen
from hloexec.core.wording import argument
from hloexec.errors import InputError
from hloexec.ops.attributes import computation_names
from hloexec.ops.costs import contraction_of
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.ops.registry import Role, find_opcode, role_of, traits_of
from hloexec.ops.traits import Index, Rounding, Sums

LAMBDA = 5.0
"""Of the probabilistic bound: one element in 130 000 exceeds it, by the bound's own, pessimistic account."""
_F32 = 2.0**-24
_F8_SUMS = 2.0**-13
_UNKNOWN_TRIPS = 32
_LIBRARY_ROUNDINGS = 8
"""Of a library call that is no plain product: attention rounds its scores, its weights, their sums and its result."""


@frozen
class Chain:
    """The errors on a path, one after the other."""

    roundings: float = 0.0
    """How many results are rounded on it."""
    terms: float = 0.0
    """How many terms are added up on it."""
    longest_sum: float = 0.0
    linear: float = 0.0
    """Σ|δᵢ| over all of them."""
    rounding_squares: float = 0.0
    """Σ δᵢ² over the roundings of results."""
    sum_squares: float = 0.0
    """Σ δᵢ² over the additions inside of sums."""
    last: float = 0.0
    """The largest unit roundoff of the last roundings: of the result's own, and of those that products, conversions and
    moves of data alone lie behind, which keep the size of an error relative to the number."""

    @property
    def weight(self) -> float:
        """Which of two chains is the worse; additions weigh by λ², as a sum's error is random."""
        return self.rounding_squares + LAMBDA**2 * self.sum_squares

    def is_as_fine_as(self, unit: float) -> bool:
        """Whether its errors are no larger than those of functions computed and rounded in a type of this unit
        roundoff, and of sums in it."""
        function = rounding(unit, 4 * unit)
        count = self.roundings + self.terms
        return self.rounding_squares + self.sum_squares <= count * function.rounding_squares

    def then(self, other: Chain, times: float = 1.0) -> Chain:
        """This chain, and then another so many times."""
        return Chain(
            self.roundings + times * other.roundings,
            self.terms + times * other.terms,
            max(self.longest_sum, other.longest_sum if times else 0.0),
            self.linear + times * other.linear,
            self.rounding_squares + times * other.rounding_squares,
            self.sum_squares + times * other.sum_squares,
        )


def rounding(*sizes: float) -> Chain:
    """A result that is rounded, with errors of these sizes."""
    return Chain(1.0, 0.0, 0.0, sum(sizes), sum(size * size for size in sizes), 0.0)


def summing(terms: float, unit: float) -> Chain:
    """A sum of that many terms in a type of this unit roundoff, before its result is rounded."""
    return Chain(0.0, terms, terms, terms * unit, 0.0, terms * unit * unit)


def leaf_chains(module: Module, policy: str | NumericsPolicy = "reference") -> dict[Index, Chain]:
    """The worst chain to each leaf of a module's result, by the leaf's index path.

    Raises UnsupportedError where there is no such policy.
    """
    known, bits = _known_leaf_chains(module), numerics_policy(policy).coarsest_operand_bits
    if bits not in known:
        known[bits] = _leaf_chains(module, policy)
    return known[bits]


@remembered
def _known_leaf_chains(module: Module) -> dict[int | None, dict[tuple[int, ...], Chain]]:
    """By how many bits operands are rounded to."""
    return {}


def _leaf_chains(module: Module, policy: str | NumericsPolicy) -> dict[tuple[int, ...], Chain]:
    found = chains_of(module, policy)[module.entry_name]
    entry = module.entry
    leaves: dict[Index, Chain] = {}
    for index, _ in leaf_shapes(entry.root.shape):
        instruction, rest = entry.root, index
        while rest and role_of(instruction) is Role.TUPLE:
            instruction, rest = entry.by_name[instruction.operands[rest[0]]], rest[1:]
        leaves[index] = found[instruction.name]
    return leaves


def chains_of(module: Module, policy: str | NumericsPolicy, names: Sequence[str] = ()) -> dict[str, dict[str, Chain]]:
    """The worst chain to each instruction, from the parameters of its computation, by computation and name; only in the
    computations of some names, and what they call, where these are given."""
    bits = numerics_policy(policy).coarsest_operand_bits
    chains: dict[str, dict[str, Chain]] = {}
    callees: dict[str, list[str]] = {}
    pending = list(names or module.by_name)
    for name in pending:
        if name not in callees:
            instructions = module.by_name[name].instructions
            callees[name] = [
                called for instruction in instructions for called in computation_names(instruction.attributes)
            ]
            pending += callees[name]
    for name in _needed_first(callees):
        chains[name] = _along_paths(module, module.by_name[name], chains, bits)
    return chains


def _along_paths(
    module: Module, computation: Computation, known: dict[str, dict[str, Chain]], bits: int | None
) -> dict[str, Chain]:
    chains: dict[str, Chain] = {}
    for current in _needed_first({instruction.name: instruction.operands for instruction in computation}):
        instruction = computation.by_name[current]
        operands = computation.operands_of(instruction)
        chain = worst(chains[operand.name] for operand in operands)
        if role_of(instruction) is Role.WHILE:
            trips = loop_trips(module, computation, instruction)
            times = float(_UNKNOWN_TRIPS if trips is None else trips)
        else:
            times = 1.0
        called = list(computation_names(instruction.attributes))
        for name in called:
            chain = chain.then(worst(known[name].values()), times)
        own = own_chain(instruction, [operand.shape for operand in operands], bits)
        last = _last(instruction, own, [chains[operand.name] for operand in operands])
        if role_of(instruction) is Role.CALL and isinstance(instruction.shape, ArrayShape):
            # The one result of the computation is the instruction's.
            last = max([last, *(known[name][module.by_name[name].root_name].last for name in called)])
        chains[instruction.name] = attrs.evolve(chain.then(own), last=last)
    return chains


def _last(instruction: Instruction, own: Chain, operands: Sequence[Chain]) -> float:
    """`Chain.last` of an instruction, as far as it lies in the instruction's computation."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role not in (Role.KERNEL, Role.FORWARD) or not isinstance(instruction.shape, ArrayShape):
        return 0.0
    unit = (_widest_unit(instruction.shape) or 0.0) if own.roundings else 0.0
    if entry.rounding is Rounding.NONE or entry.traits.keeps_relative_errors:
        return max([unit, *(chain.last for chain in operands)])
    return unit


def _needed_first(needs: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The keys in their order, but each after those that it needs, which the text may have behind it."""
    done: set[str] = set()
    for name in needs:
        stack = [name]
        while stack:
            missing = [other for other in needs[stack[-1]] if other not in done]
            if missing:
                stack += missing
                continue
            current = stack.pop()
            if current not in done:
                done.add(current)
                yield current


def own_chain(instruction: Instruction, operands: Sequence[Shape], bits: int | None) -> Chain:
    """What an instruction adds by itself, without the computations that it calls.

    `operands` are their shapes, `bits` the mantissa bits to which the numerics policy rounds operands of products.
    """
    result = _widest_unit(instruction.shape)
    entry = find_opcode(instruction.opcode)
    kind = Rounding.UNKNOWN if entry is None else entry.rounding
    # A library call may be a product. What a called computation adds is counted there.
    sums = Sums.PRODUCTS if role_of(instruction) is Role.CUSTOM_CALL else traits_of(instruction).sums
    if result is None or (kind is Rounding.NONE and sums is None):
        return Chain()
    compute = min(_F32, result)
    if kind is Rounding.FUNCTION:
        return rounding(result, 4 * compute)
    if sums is None:
        return rounding(result)
    inputs = [leaf for leaf in flat_shapes(*operands) if isinstance(leaf, ArrayShape)]
    if sums is Sums.PRODUCTS:
        return _product(instruction, operands, inputs, result, bits)
    terms = _terms(instruction, sums, inputs)
    levels = max(1.0, math.log2(terms)) if sums is Sums.PREFIXES else 1.0
    return summing(terms, result if sums is Sums.SCATTERED else compute).then(rounding(result), levels)


def worst(chains: Iterable[Chain]) -> Chain:
    """The worst of several chains; none at all where there are none."""
    return max(chains, key=lambda chain: chain.weight, default=Chain())


def _terms(instruction: Instruction, sums: Sums, inputs: Sequence[ArrayShape]) -> float:
    """How many terms an element of a sum has; four times the average where places are random."""
    first = next(leaf for leaf in flat_shapes(instruction.shape) if isinstance(leaf, ArrayShape))
    if sums is Sums.SCATTERED:
        return 4 * max(1.0, inputs[-1].element_count / max(1, first.element_count))
    if sums is Sums.FOLDED:
        most = max((leaf.element_count for leaf in inputs), default=1)
        return max(1.0, most / max(1, first.element_count))
    return float(max((max(leaf.dimensions, default=1) for leaf in inputs), default=1))


def _product(
    instruction: Instruction, operands: Sequence[Shape], inputs: Sequence[ArrayShape], result: float, bits: int | None
) -> Chain:
    floats = [leaf.element_type for leaf in inputs if leaf.element_type.is_inexact]
    contraction = contraction_of(instruction, operands)
    length = contraction.contracted_size if contraction else max((_inner(leaf) for leaf in inputs), default=1)
    unit = _F8_SUMS if floats and min(entry.bits for entry in floats[:2]) == 8 else _F32
    roundings = 1 if contraction else _LIBRARY_ROUNDINGS
    chain = summing(float(length), unit).then(rounding(result), roundings)
    if bits is not None and any(entry.name in ("f32", "c64") for entry in floats):
        cut = 2.0 ** -(bits + 1) + 2.0**-bits
        chain = chain.then(rounding(cut, cut))
    return chain


def _inner(leaf: ArrayShape) -> int:
    """The most elements over which a library call can be summing, for one element of its result."""
    sizes = sorted(leaf.dimensions)
    return math.prod(sizes[1:]) if len(sizes) > 1 else math.prod(sizes)


def _widest_unit(shape: Shape) -> float | None:
    """The coarsest unit roundoff among the leaves that have fractions."""
    types = [leaf.element_type for leaf in flat_shapes(shape) if isinstance(leaf, ArrayShape)]
    return max((unit_roundoff(entry) for entry in types if entry.is_inexact), default=None)


CHECK_ERRORS: Mapping[str, str] = {
    "max": "every error",
    "p99": "99 % of the errors",
    "median": "the median of the errors",
    "mean": "the mean of the errors",
}
"""The statistics of errors that can be held to a tolerance, with what each is called."""
_CONTRACTION_LENGTH = 1024
"""What is taken for the longest contraction where neither a module nor a length says it."""


@frozen
class Tolerance:
    """An element agrees if |actual − expected| ≤ atol + rtol·|expected| + factor·(its spread), or if it is at most
    `ulp` ULPs off; types without floats must be equal."""

    rtol: float = 0.0
    """The error that is tolerated, relative to the expected value."""
    atol: float = 0.0
    """The absolute error that is tolerated."""
    ulp: float | None = None
    """The error that is tolerated, in units in the last place."""
    is_given: bool = False
    """Whether someone has chosen it; a derived one covers what rounding explains."""
    derivation: str = ""
    """Its derivation, in a sentence."""
    factor: float = 0.0
    """Measured tolerances only: how many times an element's own spread it may be off besides."""
    samples: int = 0
    """Measured tolerances only: how many runs that round at random the spreads are of."""
    check_error: str = "max"
    """Which statistic of the errors is held to it, one of CHECK_ERRORS."""


def given_tolerance(
    atol: float | None, rtol: float | None, ulp: float | None, check_error: str = "max"
) -> Tolerance | None:
    """The tolerance that a caller gives, None where nothing is; InputError where it is negative or NaN.

    Another `check_error` than `max`, one of CHECK_ERRORS, needs a tolerance.
    """
    require_choice("check_error", check_error, CHECK_ERRORS)
    limits = {name: number for name, number in (("atol", atol), ("rtol", rtol), ("ulp", ulp)) if number is not None}
    for name, number in limits.items():
        require_number(name, number)
    if not limits:
        if check_error != "max":
            raise InputError(
                f"{argument('check_error', check_error)} needs a tolerance to hold the errors to: atol, rtol or ulp"
            )
        return None
    text = ", ".join(f"{name} {number:g}" for name, number in limits.items())
    alone = "" if check_error == "max" else f", for {CHECK_ERRORS[check_error]} alone"
    derivation = f"given: {text}{alone}"
    return Tolerance(rtol or 0.0, atol or 0.0, ulp, is_given=True, derivation=derivation, check_error=check_error)


def derived_tolerance(
    narrow: ElementType, wide: ElementType, chain: Chain | None, contraction_length: int | None = None
) -> Tolerance:
    """What rounding explains on a leaf whose sides are of these types (`narrow` the narrower).

    `chain` is the module's; without one, a single contraction of `contraction_length` terms is assumed, rounded once.
    """
    if chain is None:
        length = _CONTRACTION_LENGTH if contraction_length is None else contraction_length
        said = "no module was given" if contraction_length is None else "as said"
        computed = element_type_of(narrow.accumulate)
        chain = summing(float(length), unit_roundoff(computed)).then(rounding(unit_roundoff(narrow)))
        where = f"{said}: one contraction of {length} terms in {computed}, rounded to {narrow}"
    else:
        where = _chain_text(chain)
    both = chain.then(chain)
    if narrow is not wide:
        both = both.then(rounding(unit_roundoff(narrow)))
        where += f"; {wide} compared with {narrow}"
    relative = min(both.linear, LAMBDA * math.sqrt((both.rounding_squares + both.sum_squares) / 3))
    flushed = smallest_normal(element_type_of(narrow.compute))
    absolute = relative * smallest_normal(narrow) + flushed if relative else 0.0
    return Tolerance(relative, absolute, derivation=where)


def measured_tolerance(narrow: ElementType, wide: ElementType, spread: Spread, chain: Chain | None = None) -> Tolerance:
    """What rounding explains on a leaf whose elements' spread was measured: that, and the last rounding of each side.

    The `chain` that leads to it tells of a last rounding to a narrower type than the leaf's. Numbers below the smallest
    normal one may be flushed to zero by either.
    """
    roundings = 2 if narrow is wide else 3
    relative = roundings * max(unit_roundoff(narrow), chain.last if chain else 0.0)
    absolute = relative * smallest_normal(narrow) + smallest_normal(element_type_of(narrow.compute))
    where = (
        f"{spread.factor:.1f} times what rounding does to each element by itself, as {spread.samples} runs show that "
        f"round at random, and the last rounding{'s' if narrow is wide else f's, {wide} compared with {narrow}'}"
    )
    return Tolerance(relative, absolute, derivation=where, factor=spread.factor, samples=spread.samples)


def _chain_text(chain: Chain) -> str:
    if not chain.linear:
        return "nothing in the module rounds on the way to it"
    roundings = f"{chain.roundings:.0f} rounding{'s one after the other' if chain.roundings > 1 else ''} on either side"
    if not chain.terms:
        return roundings
    if chain.terms == chain.longest_sum:
        return f"{roundings}, a sum of {chain.terms:.0f} terms"
    return f"{roundings}, sums of {chain.longest_sum:.0f} terms at most and {chain.terms:.0f} in all"
