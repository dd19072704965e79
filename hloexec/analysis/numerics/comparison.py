"""The result of a comparison: a verdict, and the measurements for each leaf."""

from __future__ import annotations

import enum
import math
from functools import cached_property
from typing import Any

import attrs

from hloexec.analysis.numerics.leaves import ErrorMap
from hloexec.analysis.numerics.measuring import ElementDifference, Measured
from hloexec.analysis.numerics.tolerances import CHECK_ERRORS, Tolerance
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described
from hloexec.core.wording import listing


class Verdict(enum.Enum):
    """The verdict of a comparison, from best to worst."""

    EQUAL = "equal"
    """The same bits, NaNs being one; of unlike types, the same numbers with the same signs."""
    ROUNDING = "rounding only"
    """Different bits, as far apart as rounding explains; or other indices, of values that are."""
    WITHIN = "within tolerance"
    """Different bits, every element within a tolerance that the caller gave."""
    P99 = "99 % within tolerance"
    """Elements beyond a tolerance of which the caller asked that 99 % of the elements keep it."""
    MEDIAN = "median within tolerance"
    """The same, asked of the median of the errors alone."""
    MEAN = "mean within tolerance"
    """The same, asked of the mean of the errors alone."""
    NOT_DECIDED = "not decided"
    """Different, where HLO or the text leaves open what the elements are that do so (`numerics.undecided`)."""
    DIFFERENT = "different"

    @property
    def agrees(self) -> bool:
        return self not in (Verdict.NOT_DECIDED, Verdict.DIFFERENT)


_ORDER = tuple(Verdict)
_BY_STATISTIC = {"p99": Verdict.P99, "median": Verdict.MEDIAN, "mean": Verdict.MEAN}


@frozen
class Undecided:
    """What of a leaf is left open: how many of its elements, some of them, and by what."""

    element_count: int
    first: tuple[tuple[int, ...], ...]
    """The indices of the first of these."""
    instructions: tuple[str, ...]
    """What leaves them open, as COMPUTATION/INSTRUCTION."""
    reason: str
    """Why, and what would tell, in words."""

    def text(self, count: int) -> str:
        """What is left open of a leaf of so many elements."""
        if self.element_count == count:
            return f"no element is decided, since {self.reason}"
        places = listing(map(list, self.first), len(self.first) - (len(self.first) < self.element_count))
        return f"not decided: {self.element_count} of {count} elements ({places}), since {self.reason}"


@frozen(eq=False)
class LeafComparison:
    """A comparison of one leaf of two values."""

    label: str
    """The leaf's place: `0`, `1.0`, `value` where there is but one; or its name."""
    verdict: Verdict
    actual_shape: str
    """As HLO text, e.g. `f32[2,3]`; `nothing` where there is no such leaf."""
    expected_shape: str
    """The same of the expected array."""
    count: int = 0
    """How many elements there are."""
    ulp_type: str = ""
    """The element type whose units in the last place are meant: the narrower of both."""
    measured: Measured | None = None
    """How far the arrays are apart; None where their shapes do not allow it."""
    note: str = ""
    """What else there is to say: why it cannot be compared, or how indices were."""
    severity_beside: float = 0.0
    """Of a leaf with few elements beyond a measured tolerance: the mean severity of the others in their row, the
    largest of these rows'."""
    is_suspect: bool = False
    """Whether a factor that all elements have in common is far enough off for more samples to be taken."""
    undecided: Undecided | None = None
    """Of a leaf that differs where something is left open: what that is."""

    @property
    def tolerance(self) -> Tolerance:
        return Tolerance() if self.measured is None else self.measured.tolerance

    @property
    def error_map(self) -> ErrorMap | None:
        return None if self.measured is None else self.measured.error_map

    @property
    def mismatches(self) -> int:
        return 0 if self.measured is None else self.measured.mismatches

    @property
    def unequal(self) -> int:
        return 0 if self.measured is None else self.measured.unequal

    @property
    def worst(self) -> tuple[ElementDifference, ...]:
        return () if self.measured is None else self.measured.worst

    @property
    def first(self) -> tuple[ElementDifference, ...]:
        return () if self.measured is None else self.measured.first

    @property
    def statistic_text(self) -> str:
        """What a tolerance for a statistic of the errors came to, where not all elements are within it; else empty."""
        measured = self.measured
        if measured is None or not measured.mismatches or self.tolerance.check_error == "max":
            return ""
        beyond = f"beyond it: {measured.mismatches} of {self.count} elements"
        if measured.infinite_mismatches:
            beyond += f", {measured.infinite_mismatches} of them without a finite error (NaN, infinities)"
        statistic = CHECK_ERRORS[self.tolerance.check_error]
        if self.tolerance.check_error == "mean":
            statistic += f", {measured.mean_severity:.3g} times what is tolerated"
        place = "within" if measured.is_within else "outside of"
        return f"{statistic}: {place} the tolerance; {beyond}"

    @property
    def undecided_text(self) -> str:
        """What of it is left open, in a sentence; empty where nothing is."""
        if self.undecided is None:
            return ""
        rest = "" if self.verdict is Verdict.NOT_DECIDED else "; others differ, too"
        return self.undecided.text(self.count) + rest

    @property
    def allowed_at_worst(self) -> float | None:
        """How far off the worst element might be; None where that is not a finite number."""
        if not self.worst or not (self.tolerance.rtol or self.tolerance.atol or self.tolerance.factor):
            return 0.0 if self.worst else None
        worst = self.worst[0]
        is_known = math.isfinite(worst.absolute_error) and math.isfinite(worst.severity) and worst.severity > 0
        return worst.absolute_error / worst.severity if is_known else None

    def __str__(self) -> str:
        """The leaf in a line, the worst element with it."""
        if self.measured is None:
            return f"{self.label}: {self.note} (actual {self.actual_shape}, expected {self.expected_shape})"
        if not self.unequal:
            return f"{self.label}: equal"
        worst = self.worst[0]
        place = f" at [{', '.join(map(str, worst.index))}]" if worst.index else ""
        note = f"; {self.note}" if self.note and not self.mismatches else ""
        which, many = ("beyond tolerance", self.mismatches) if self.mismatches else ("not bit for bit", self.unequal)
        return (
            f"{self.label}: {many} of {self.count} elements {which}, the worst{place}: {worst.actual!r}, "
            f"expected {worst.expected!r}{note}"
        )


def _number(value: Any) -> float | None:
    """JSON has no infinities; they are texts there."""
    return None if value is None else float(value)


@frozen
class OutputDifference:
    """How far an array of the result is from what it should be."""

    label: str
    """The leaf's place."""
    actual_shape: str
    """As HLO text, e.g. `f32[2,3]`; `nothing` where there is no such leaf."""
    expected_shape: str
    """The same of the expected array."""
    verdict: str
    element_count: int
    mismatch_count: int = 0
    """Elements that are further off than rounding explains."""
    max_absolute_error: float | None = attrs.field(default=None, converter=_number)
    """The largest absolute error of finite elements."""
    max_relative_error: float | None = attrs.field(default=None, converter=_number)
    """The largest error, relative to the expected value."""
    max_ulps: float | None = attrs.field(default=None, converter=_number)
    """The largest distance in units in the last place."""
    nan_count: int = 0
    """Elements that are NaN on one side only."""
    infinity_count: int = 0
    """Elements that are infinite on one side only."""

    @classmethod
    def of(cls, leaf: LeafComparison) -> OutputDifference:
        """What the comparison of a leaf says."""
        difference = cls(leaf.label, leaf.actual_shape, leaf.expected_shape, leaf.verdict.value, leaf.count)
        measured = leaf.measured
        if measured is None:
            return difference
        return attrs.evolve(
            difference,
            mismatch_count=measured.mismatches,
            max_absolute_error=measured.max_absolute_error,
            max_relative_error=measured.max_relative_error,
            max_ulps=measured.ulp_percentiles.get(100),
            nan_count=sum(measured.nans[1:]),
            infinity_count=sum(measured.infinities[1:]),
        )


@frozen(slots=False, eq=False)
class Comparison(Described):
    """A comparison of two values, with one entry per leaf of either."""

    leaves: tuple[LeafComparison, ...]
    """The arrays of either side, one by one."""

    def __bool__(self) -> bool:
        """`agrees`, so that an assertion fails where results do not agree."""
        return self.agrees

    @cached_property
    @told
    def verdict(self) -> Verdict:
        """The worst of the leaves' verdicts."""
        return max((leaf.verdict for leaf in self.leaves), key=_ORDER.index, default=Verdict.EQUAL)

    @property
    @told
    def agrees(self) -> bool:
        """Whether no leaf is different."""
        return self.verdict.agrees

    @property
    def different(self) -> tuple[LeafComparison, ...]:
        """The leaves that are different."""
        return tuple(leaf for leaf in self.leaves if leaf.verdict is Verdict.DIFFERENT)

    @property
    def not_decided(self) -> tuple[LeafComparison, ...]:
        """The leaves that are different only where something leaves open what they are."""
        return tuple(leaf for leaf in self.leaves if leaf.verdict is Verdict.NOT_DECIDED)

    @property
    def furthest(self) -> LeafComparison | None:
        """The leaf that is furthest off: of those of the worst verdict, one where a side alone is finite, else the one
        of the largest relative error; None where all are equal."""
        return max((leaf for leaf in self.leaves if leaf.verdict is not Verdict.EQUAL), key=_distance, default=None)

    @property
    def nan_text(self) -> str:
        """How many elements are NaN on both sides, so agree whatever numbers should be there; empty where none is."""
        nans = sum(leaf.measured.nans[0] for leaf in self.leaves if leaf.measured is not None)
        total = sum(leaf.count for leaf in self.leaves)
        return f"{nans} of {total} elements NaN on both sides" if nans else ""

    def __str__(self) -> str:
        """The verdict in a line."""
        bad, count = self.different or self.not_decided, len(self.leaves)
        if not bad:
            off = sum(leaf.unequal > 0 for leaf in self.leaves)
            where = f"{off} of {count} leaves not bit for bit" if off and count > 1 else ""
            remarks = ", ".join(filter(None, (where, self.nan_text)))
            return f"{self.verdict.value}: {remarks}" if remarks else self.verdict.value
        where = f"{len(bad)} of {count} leaves; " if count > 1 else ""
        described_leaf = bad[0] if self.different else f"{bad[0].label}: {bad[0].undecided_text}"
        return f"{self.verdict.value}: {where}{described_leaf}"


def _distance(leaf: LeafComparison) -> tuple[float, ...]:
    """How far off a leaf is, for the order of leaves that are not equal."""
    measured, rank = leaf.measured, _ORDER.index(leaf.verdict)
    if measured is None:
        return rank, math.inf
    largest = measured.max_absolute_error or 0.0
    relative = measured.max_relative_error
    # Where all that is expected is zero, nothing is relative to it.
    return rank, measured.one_sided, (math.inf if largest else 0.0) if relative is None else relative, largest


def verdict_of(measured: Measured) -> Verdict:
    """What counts come to."""
    if not measured.unequal:
        return Verdict.EQUAL
    if not measured.mismatches:
        return Verdict.WITHIN if measured.tolerance.is_given else Verdict.ROUNDING
    return _BY_STATISTIC[measured.tolerance.check_error] if measured.is_within else Verdict.DIFFERENT
