"""Whether a module still shows the failure, judged by runs in this process, and by what `diff` blames.

An oracle says of a case whether it shows what the given module showed, and not something else: the same kind of NaN
from finite inputs, or a difference of the same nature. What cannot be run does not show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import attrs
import numpy as np

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison
from hloexec.analysis.numerics.leaves import labelled_like
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import define, frozen
from hloexec.core.tree import flat, mapped
from hloexec.core.values import Array, Value, join_values, labelled_arrays
from hloexec.core.wording import argument
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError, unwarned
from hloexec.ops.attributes import without_computations
from hloexec.ops.common import is_inexact, wide
from hloexec.ops.registry import Role, role_of
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.diffing import Diff, Finding, diff
from hloexec.tools.minifying.case import Case, part_of
from hloexec.tools.nan_search import find_nan
from hloexec.tools.nan_search.findings import NanSearch

_RUNS = 1_000_000
"""Runs of an instruction that a search for what is to blame takes at most."""


@frozen
class Blame:
    """The kind of fault that `diff` names first. Names and sizes are no part of it, as a smaller pair has others."""

    opcode: str
    opcode_before: str | None
    """That of what gave the right value; None where nothing did."""
    is_written_alike: bool
    """Whether both have the same opcode and the same attributes: what they take, or what they call, is to blame."""
    is_added: bool = False
    """Whether what gave the right value is a parameter that the instruction takes: the other module goes without it."""

    def is_kept_by(self, other: Blame | None) -> bool:
        """Whether another pair shows the same.

        One that finds a counterpart where there was none says more of it. A counterpart in which nothing is wrong may
        have become a parameter.
        """
        if other is None or other.opcode != self.opcode:
            return False
        return self.opcode_before is None or other == self or (other.is_added and not self.is_written_alike)

    def can_be_in(self, case: Case) -> bool:
        """Whether a pair has instructions that may be meant."""
        assert case.other is not None
        return _has(case.module, self.opcode) and (not self.is_written_alike or _has(case.other, self.opcode))

    def __str__(self) -> str:
        if self.opcode_before is None:
            return f"{self.opcode}, which has no counterpart"
        if self.is_added:
            return f"{self.opcode}, which the other module goes without"
        if self.is_written_alike:
            return f"{self.opcode}, by what it is given or calls"
        return f"{self.opcode} in place of {self.opcode_before}"


def found_by_diff(case: Case, options: Options) -> Diff | None:
    """What `hloexec.diff` says of the pair."""
    assert case.other is not None
    kept = attrs.evolve(options, timeout=None, max_iterations=None)
    try:
        with unwarned():
            return diff(case.other, case.module, case.inputs, runs=_RUNS, **kept)
    except HloError:
        return None


def blame_of(result: Diff | None) -> tuple[Blame | None, bool]:
    """The fault that is named first, and whether it is certain."""
    if result is None or not result.findings:
        return None, False
    first: Finding = result.findings[0]
    after = first.after.of(result.after)
    before = None if first.before is None else first.before.of(result.before)
    if before is None:
        return Blame(after.opcode, None, is_written_alike=False), first.is_certain
    is_added = role_of(before) is Role.PARAMETER and _takes(result.after.entry, after, before.attributes.number)
    return Blame(after.opcode, before.opcode, _are_written_alike(after, before), is_added), first.is_certain


def _takes(entry: Computation, instruction: Instruction, number: int) -> bool:
    """Whether an instruction of an entry computation is computed from a parameter."""
    if entry.by_name.get(instruction.name) is not instruction:
        return False
    computed = [other for other in entry if role_of(other) is not Role.PARAMETER]
    return entry.parameters[number].name in part_of(computed, [instruction.name], is_paired=True).needed


def _has(module: Module, opcode: str) -> bool:
    return any(instruction.opcode == opcode for computation in module for instruction in computation)


def _are_written_alike(ours: Instruction, theirs: Instruction) -> bool:
    kind: type = type(ours.attributes)
    if ours.opcode != theirs.opcode or kind is not type(theirs.attributes) or not ours.shape.compatible(theirs.shape):
        return False
    # Each module chooses the names of computations for itself.
    return ours.attributes is None or _said(kind, ours) == _said(kind, theirs)


def _said(kind: type, instruction: Instruction) -> tuple[object, ...]:
    return without_computations(kind)(instruction.attributes)


class Oracle(Protocol):
    """Tells whether a case shows the failure."""

    may_change_values: bool
    """Whether a module that computes something else can show it; else only what no result depends on may go."""
    needs_values: bool
    """Whether it can judge only what runs here."""

    def begin(self, case: Case) -> None:
        """Note what the given module shows; InputError where that is no failure."""

    def holds(self, case: Case) -> bool:
        """Whether a case shows the same."""

    def expected(self, case: Case) -> Value | None:
        """What the result should be, or is where nothing says what it should be; one device's, or all in a tuple."""

    def words(self, case: Case) -> str:
        """The failure that a case shows in words, as a phrase without a subject: `makes NaN`."""

    def notes(self, case: Case) -> tuple[str, ...]:
        """What is not known of whether it is the failure of the given module."""


def _run(case: Case, options: Options) -> list[Value]:
    with unwarned():
        return run_with(case.module, case.inputs, options)


@define(eq=False)
class Nan:
    """From finite inputs to NaN, or to infinities where there were no NaN, by an instruction of the same kind."""

    options: Options
    may_change_values: bool = True
    needs_values: bool = True
    search: NanSearch | None = None
    """What was found in the given module, or the last that has shown the failure."""
    _kind: tuple[str, str] = ("", "")
    _choices: int = 0
    """The parameters of integers and preds that the given module has."""

    def begin(self, case: Case) -> None:
        """Find the instruction that makes it."""
        if not _are_finite(case):
            raise InputError(
                f"the inputs hold NaN or infinities already, but {argument('nan')} is about those that a module makes"
            )
        self.search = self._search(case)
        finding = self.search.finding
        if finding is None:
            raise InputError(f"{case.module.name} makes no NaN or infinity that reaches a result: nothing to minify")
        self._kind = finding.opcode, finding.kind
        self._choices = _integers(case)

    def holds(self, case: Case) -> bool:
        # What takes NaN of a constant is not the failure, but why: a choice must not become an input.
        if self._kind[1] == "literal" and _integers(case) > self._choices:
            return False
        search = self._search(case) if _are_finite(case) else None
        if search is None or search.finding is None or (search.finding.opcode, search.finding.kind) != self._kind:
            return False
        self.search = search
        return True

    def expected(self, case: Case) -> Value | None:
        return join_values(_run(case, self.options))

    def words(self, case: Case) -> str:
        finding = None if self.search is None else self.search.finding
        return "makes NaN or infinities" if finding is None else f"{finding.opcode}: {finding.reason}"

    def notes(self, case: Case) -> tuple[str, ...]:
        return ()

    def _search(self, case: Case) -> NanSearch:
        with unwarned():
            return find_nan(case.module, case.inputs, elements=0, **self.options)


def _are_finite(case: Case) -> bool:
    leaves: Iterator[Any] = (leaf for row in case.inputs or () for value in row for leaf in flat(value))
    return all(bool(np.isfinite(wide(leaf)).all()) for leaf in leaves if is_inexact(leaf))


def _integers(case: Case) -> int:
    """How many arrays of the inputs of a device are not of floats."""
    rows = (case.inputs or [[]])[:1]
    return sum(not is_inexact(leaf) for row in rows for value in row for leaf in flat(value))


@define(eq=False)
class Difference:
    """What comparisons have in common: results that are further from others than rounding explains.

    A difference of numbers stays one of numbers. One of places with NaN or infinities may come from one of numbers.
    """

    options: Options
    may_change_values: bool = True
    needs_values: bool = True
    comparison: Comparison | None = None
    """Of the given module, or the last that has shown the failure."""
    _is_of_numbers: bool = True

    def begin(self, case: Case) -> None:
        """Compare the given module."""
        self.comparison = self._compared(case)
        if self.comparison is None or self.comparison.agrees:
            verdict = "equal" if self.comparison is None else self.comparison.verdict.value
            raise InputError(f"the results of {case.module.name} are as they should be ({verdict}): nothing to minify")
        self._is_of_numbers = has_numbers(self.comparison)

    def holds(self, case: Case) -> bool:
        found = self._compared(case)
        if not self._is_shown_by(found):
            return False
        self.comparison = found
        return True

    def _is_shown_by(self, comparison: Comparison | None) -> bool:
        return comparison is not None and not comparison.agrees and (has_numbers(comparison) or not self._is_of_numbers)

    def expected(self, case: Case) -> Value | None:
        return self._reference(case)

    def words(self, case: Case) -> str:
        return "differs" if self.comparison is None else f"differs: {self.comparison}"

    def notes(self, case: Case) -> tuple[str, ...]:
        return ()

    def _reference(self, case: Case) -> Value:
        """What the results should be."""
        raise NotImplementedError

    def _judge(self, case: Case) -> dict[str, Any]:
        """What a comparison measures rounding on."""
        numerics = self.options.numerics
        return {"module": case.module, "inputs": case.inputs, "numerics": numerics, "same_choices": True}

    def _compared(self, case: Case) -> Comparison | None:
        """The comparison; None where the bits are the same."""
        expected, actual = self._reference(case), join_values(_run(case, self.options))
        ours, theirs = flat(actual), flat(expected)
        if len(ours) != len(theirs) or any(map(_have_other_shapes, ours, theirs)):
            return None
        if all(map(_same_bits, ours, theirs)):
            return None
        with unwarned():
            found: Comparison = compare(actual, expected, **self._judge(case))
            return found


def _have_other_shapes(ours: object, theirs: object) -> bool:
    if not isinstance(ours, np.ndarray) or not isinstance(theirs, np.ndarray):
        return type(ours) is not type(theirs)
    return bool(ours.shape != theirs.shape)


def _same_bits(ours: Any, theirs: Any) -> bool:
    if not isinstance(ours, np.ndarray):
        return True
    return bool(ours.dtype == theirs.dtype) and ours.tobytes() == bytes(theirs.tobytes())


def has_numbers(comparison: Comparison) -> bool:
    """Whether some difference is between two numbers."""
    return any(
        leaf.measured is None or leaf.mismatches > leaf.measured.infinite_mismatches for leaf in comparison.different
    )


@define(eq=False)
class DiffersFrom(Difference):
    """From the results of another module on the same inputs, by what `hloexec.diff` blames for it.

    `diff` takes longer than both runs, so `holds` only sees that what is to blame may be there; `keeps` asks `diff`.
    Where it is not certain of the given module, any difference shows the failure, and a note says so.
    """

    blame: Blame | None = None
    """What `diff` is certain of in the given module, and is kept."""
    _named: Blame | None = None
    """What `diff` names in the given module, certain of it or not."""
    _first: Blame | None = None
    """What it was certain of first."""
    _kept: tuple[Case, Diff | None] | None = None
    """The last case that keeps it, and what `diff` says of it."""

    def establish(self, case: Case) -> None:
        """Keep to blame what `diff` is certain of in this case."""
        if self._kept is None or self._kept[0] is not case:
            self._kept = case, found_by_diff(case, self.options)
        named, is_certain = blame_of(self._kept[1])
        if is_certain or self.blame is None:
            self._named, self.blame = named, named if is_certain else None
            self._first = self._first or self.blame

    def holds(self, case: Case) -> bool:
        return (self.blame is None or self.blame.can_be_in(case)) and super().holds(case)

    def keeps(self, case: Case, *, computes_the_same: bool = False) -> bool:
        """Whether `diff` blames what it blames in the given module.

        Of a case that computes the same as the last that did, it must only not be certain of something else.
        """
        if self._kept is not None and self._kept[0] is case:
            return True
        diff_result = found_by_diff(case, self.options)
        blame, is_certain = blame_of(diff_result)
        is_same = self.blame is None or self.blame.is_kept_by(blame)
        if not is_same and (is_certain or not computes_the_same):
            return False
        if self.blame is not None and is_certain:
            # It may have a counterpart by now.
            self.blame = blame
        self._kept = case, diff_result
        return True

    def diff_of_last(self) -> Diff | None:
        """What `diff` says of the last case that keeps what is to blame."""
        return None if self._kept is None else self._kept[1]

    def words(self, case: Case) -> str:
        to_blame = f"; to blame is {self.blame}" if self.blame is not None and not self.notes(case) else ""
        return super().words(case) + to_blame

    def notes(self, case: Case) -> tuple[str, ...]:
        doubt = "this may be another difference"
        if self.blame is None:
            hint = "" if self._named is None else f"; diff names {self._named}, and is not certain of it"
            return (f"what is to blame in the given module is not established{hint}: {doubt}",)
        if self._kept is None or self._kept[0] is not case:
            return (f"diff blames {self.blame} in the given module, and was not asked here: {doubt}",)
        if self._first is not None and not self._first.is_kept_by(self.blame):
            return (f"diff blames {self._first} in the given module, and {self.blame} in what it extracts of that",)
        if not blame_of(self._kept[1])[1]:
            return (f"diff names {self.blame} here, as in the given module, but is not certain of it here",)
        return ()

    def _reference(self, case: Case) -> Value:
        assert case.other is not None
        return join_values(_run(attrs.evolve(case, module=case.other), self.options))

    def _judge(self, case: Case) -> dict[str, Any]:
        return {**super()._judge(case), "module": case.other}


@define(eq=False)
class Against(Difference):
    """From what a counterpart gives that runs modules.

    A difference that is there when denormals are flushed stays one, as XLA:CPU flushes them.
    """

    counterpart: Counterpart | None = None
    _is_beyond_flushing: bool = False
    _last: tuple[Case, Value] | None = None
    """The last case that was run elsewhere, and its results there."""

    def begin(self, case: Case) -> None:
        super().begin(case)
        comparison = self._compared_flushed(case)
        if comparison is not None and not comparison.agrees:
            self._is_beyond_flushing, self._is_of_numbers = True, has_numbers(comparison)

    def holds(self, case: Case) -> bool:
        is_shown = not self._is_beyond_flushing or self._is_shown_by(self._compared_flushed(case))
        return is_shown and super().holds(case)

    def notes(self, case: Case) -> tuple[str, ...]:
        return ("nothing names what is to blame in the given module: this may be another difference",)

    def _compared_flushed(self, case: Case) -> Comparison | None:
        self._reference(case)
        flushed = attrs.evolve(self.options, numerics=self.options.numerics.changed(flushes_denormals=True))
        return attrs.evolve(self, options=flushed)._compared(case)

    def _reference(self, case: Case) -> Value:
        if self._last is None or self._last[0] is not case:
            assert self.counterpart is not None and case.inputs is not None
            with unwarned():
                answer = self.counterpart.run(case.module, case.inputs, **self.options)
            self._last = case, answer.value()
        return self._last[1]


@define(eq=False)
class Expected(Difference):
    """From results that were recorded elsewhere.

    They are there for the given module only, so a smaller one must go on to compute the same.
    """

    may_change_values: bool = False
    leaves: Mapping[str, Array] = attrs.field(factory=dict)
    """By their labels."""
    _wanted: dict[str, Value] = attrs.field(factory=dict)
    """By the names of the outputs."""

    def begin(self, case: Case) -> None:
        if case.devices > 1:
            raise InputError("expected has the results of one device, but the module runs on several")
        actual = _run(case, self.options)[0]
        found = labelled_arrays(actual)
        theirs = labelled_like(self.leaves, found)
        if theirs.keys() != found.keys():
            raise InputError(
                f"what is expected has the leaves {', '.join(theirs)}, but the result has {', '.join(found)}"
            )
        if other := [label for label in found if found[label].shape != theirs[label].shape]:
            ours, others = found[other[0]].shape, theirs[other[0]].shape
            raise InputError(
                f"leaf {other[0]} of what is expected has dimensions {list(others)}, but the result has {list(ours)}"
            )
        arrays = (theirs[label] for label in found)
        whole: Value = mapped(actual, lambda leaf: next(arrays) if isinstance(leaf, np.ndarray) else leaf)
        names = output_names(case.module)
        is_tuple = role_of(case.module.entry.root) is Role.TUPLE
        parts = whole if is_tuple and isinstance(whole, tuple) else (whole,)
        self._wanted = dict(zip(names, parts, strict=True))
        super().begin(case)

    def _reference(self, case: Case) -> Value:
        values = tuple(self._wanted[name] for name in output_names(case.module) if name in self._wanted)
        if len(values) < len(output_names(case.module)):
            raise HloError("nothing is known of one of the outputs")
        return values if role_of(case.module.entry.root) is Role.TUPLE else values[0]


def output_names(module: Module) -> tuple[str, ...]:
    """The instructions that are the results, each as often as it is one."""
    root = module.entry.root
    return root.operands if role_of(root) is Role.TUPLE else (root.name,)
