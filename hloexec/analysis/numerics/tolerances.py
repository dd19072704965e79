"""How far apart two values may lie: tolerances that are given, measured, or derived from roundings.

Where runs that round at random say what rounding does to each element (`numerics.sampling.spread`), a tolerance
is a number of those scales, and the last rounding of each side. Without them an element is held to its own size: with
δᵢ the errors of both sides on their way to it (`numerics.error_budget`), it may be off by

    ρ (|expected| + m) + f,    ρ = min(Σ|δᵢ|, λ √(Σ δᵢ² / 3)),  λ = 5

An error of at most δ that may be anything within that has the variance δ²/3, and independent ones add up in their
variances: λ is the number of standard deviations, which a normal sum exceeds once in 1.7 million elements. Next, m is
the smallest normal number of the narrower type, below which roundings are absolute; f is that of the type it computes
in, which XLA:CPU and GPUs may flush to zero. Infinity counts as the largest number. What cancels on the way, or is
magnified by steep functions, may be off by more than its own size says: only a run on the inputs shows that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hloexec.analysis.numerics.error_budget import LAMBDA, Chain, rounding, summing
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.core.arguments import require_choice, require_number
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.precision import smallest_normal, unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.wording import argument
from hloexec.errors import InputError

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
    given = {name: number for name, number in (("atol", atol), ("rtol", rtol), ("ulp", ulp)) if number is not None}
    for name, number in given.items():
        require_number(name, number)
    if not given:
        if check_error != "max":
            raise InputError(
                f"{argument('check_error', check_error)} needs a tolerance to hold the errors to: atol, rtol or ulp"
            )
        return None
    text = ", ".join(f"{name} {number:g}" for name, number in given.items())
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
