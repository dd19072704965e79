"""Trying candidates, and the first of them: fewer instructions of the entry computation.

Trying candidates: which is the first that still shows the failure, several at once, none twice.

The first in the order in which they are offered is taken, whichever is judged first; so the number of jobs changes
nothing but the time.

Fewer instructions: which of those of the entry computation are needed, the others' values being given.

An instruction that goes becomes a parameter with the value that it had, where what stays takes it. What stays and is
taken by nothing is a result. So every subset is a module, and those in which the failure shows are searched by halves.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TypeAlias, TypeVar

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, flat_shapes
from hloexec.core.values import arrays_of
from hloexec.engine.exec.observers import Stages
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import DEFAULTS, Options
from hloexec.engine.plan.schedule import after_dependencies
from hloexec.errors import HloError, ResourceError, warn
from hloexec.language.text import format as format_module
from hloexec.language.verifier import verify
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools import subsets
from hloexec.tools.minifying.case import (
    Case,
    Recorded,
    assembled,
    counted,
    element_total,
    is_glue,
    outputs_of,
    recorded,
)
from hloexec.tools.minifying.checking import Check
from hloexec.tools.minifying.oracles import Oracle

Candidate: TypeAlias = Case | Callable[[], Case | None]
"""A case, or what makes one; None, or an HloError, where there is none."""
_Unit = TypeVar("_Unit")


class OutOfTime(BaseException):
    """Ends the search. No error, so nothing on the way may take it for one."""


class Search:
    """The smallest case so far, and what has been tried."""

    def __init__(self, case: Case, oracle: Oracle, deadline: float | None, stages: Stages) -> None:
        self.best = case
        self.oracle = oracle
        self.tried = 0
        """How many cases were judged."""
        self.accepted = 0
        self._deadline = deadline
        self._stages = stages
        self._end_options: Options | None = None
        self._is_end_required = False
        self._known: set[bytes] = {_key(case)}
        """What has been judged: those that hold became the best."""
        self._steps = [case]
        """The last case that was confirmed, and those that became the best after it."""

    def watch_ends(self, options: Options) -> None:
        """Leave out what does not end here where that matters, if the given module does: a command that runs a module
        would wait for it in vain. Where a command must hang, that always matters, as it would hang for another reason.
        """
        if isinstance(self.oracle, Check) and self.best.inputs is not None and _has_loop(self.best):
            self._end_options = options if _ends(self.best, options) else None
            self._is_end_required = self.oracle.outcome == "hang"

    @contextmanager
    def only_what_ends(self) -> Iterator[None]:
        """While this is open, what does not end here is no candidate."""
        before, self._is_end_required = self._is_end_required, True
        try:
            yield
        finally:
            self._is_end_required = before

    def begin(self, name: str) -> None:
        """Say what is being tried."""
        self._stages.begin(f"{name}, {counted(self.best.module)} instructions left")

    def first(self, candidates: Iterable[Candidate]) -> int | None:
        """The number of the first candidate that shows the failure, which becomes the best case."""
        cases = self._cases(candidates)
        return self._first_of_many(cases, self.oracle) if isinstance(self.oracle, Check) else self._first_in_turn(cases)

    def any(self, candidates: Iterable[Candidate]) -> bool:
        """Whether one of them does."""
        return self.first(candidates) is not None

    def confirm(self, is_kept: Callable[[Case], bool]) -> bool:
        """Whether the best case shows what is asked of few cases only; else the last step becomes the best that does.

        A step after which it does not show is found by bisection, and is not taken again.
        """
        steps = self._steps
        is_confirmed = len(steps) == 1 or is_kept(self.best)
        kept, lost = (len(steps) - 1, len(steps)) if is_confirmed else (0, len(steps) - 1)
        while lost - kept > 1:
            middle = (kept + lost) // 2
            kept, lost = (middle, lost) if is_kept(steps[middle]) else (kept, middle)
        self.best = steps[kept]
        self._steps = [self.best]
        return is_confirmed

    def _cases(self, candidates: Iterable[Candidate]) -> Iterator[tuple[int, Case]]:
        """Those that are to be tried, with their numbers."""
        for number, candidate in enumerate(candidates):
            case = self._made(candidate)
            if case is not None:
                yield number, case

    def _first_in_turn(self, cases: Iterable[tuple[int, Case]]) -> int | None:
        for number, case in cases:
            self.tried += 1
            if self._holds(case):
                return self._accept(case, number)
        return None

    def _first_of_many(self, cases: Iterable[tuple[int, Case]], check: Check) -> int | None:
        """Checks that were begun too early are not counted, so that the counts are those of one after the other."""
        begun: dict[int, Case] = {}

        def begin() -> Iterator[tuple[int, Case]]:
            for number, case in cases:
                begun[number] = case
                yield number, case

        try:
            with closing(check.judged(begin())) as judged:
                for number, shows in judged:
                    self.tried += 1
                    case = begun.pop(number)
                    if shows:
                        return self._accept(case, number)
            return None
        except HloError as error:
            warn(f"the search ends early: {error}")
            raise OutOfTime from error
        finally:
            self._known.difference_update(map(_key, begun.values()))

    def _made(self, candidate: Candidate) -> Case | None:
        """A case that has not been tried yet, and is well-formed."""
        if self._deadline is not None and time.perf_counter() > self._deadline:
            raise OutOfTime
        try:
            case = candidate if isinstance(candidate, Case) else candidate()
            if case is None:
                return None
            key = _key(case)
            if key in self._known:
                return None
            self._known.add(key)
            verify(case.module)
            is_watched = self._is_end_required and self._end_options is not None and _has_loop(case)
            if is_watched and not _ends(case, self._end_options or DEFAULTS):
                return None
        except (HloError, RecursionError):
            return None
        return case

    def _holds(self, case: Case) -> bool:
        try:
            return self.oracle.holds(case)
        except (HloError, MemoryError, RecursionError):
            return False

    def _accept(self, case: Case, number: int) -> int:
        self.best = case
        self._steps.append(case)
        self.accepted += 1
        self._stages.tick()
        return number


def _has_loop(case: Case) -> bool:
    return any(role_of(instruction) is Role.WHILE for computation in case.module for instruction in computation)


def _ends(case: Case, options: Options) -> bool:
    """Whether its loops end within the iterations that they may have."""
    if case.inputs is None:
        return True
    try:
        run_with(case.module, case.inputs, options)
    except ResourceError:
        return False
    except (HloError, MemoryError):
        return True
    return True


def _key(case: Case) -> bytes:
    """What two cases have in common that are the same."""
    digest = hashlib.sha256(format_module(case.module).encode())
    if case.other is not None:
        digest.update(format_module(case.other).encode())
    for row in case.inputs or ():
        for value in row:
            for leaf in arrays_of(value):
                digest.update(leaf.tobytes())
    return digest.digest()


def size_of(case: Case) -> tuple[int, int]:
    """Instructions, and elements of their results."""
    return counted(case.module) + (0 if case.other is None else counted(case.other)), element_total(case)


def reduced(
    search: Search, units: Sequence[_Unit], make: Callable[[Sequence[_Unit]], Case | None], *, least: int = 0
) -> list[_Unit]:
    """A subset of units from which none of some size can be left out: those of which `make` makes the case."""
    return subsets.reduced(units, lambda tried: search.first([partial(make, kept) for kept in tried]), least=least)


_LARGEST_CONSTANT = 1
"""Elements of constants that stay what they are; larger ones become parameters, whose sizes can change."""


def values_of(case: Case, options: Options) -> Recorded | None:
    """What the instructions gave; None where the module cannot be run here."""
    if case.inputs is None:
        return None
    try:
        return recorded(case, options)
    except HloError:
        return None


def fewer_outputs(search: Search) -> None:
    """Leave out results, and what only they need."""
    case = search.best
    names = outputs_of(case.module)
    if len(names) < 2:
        return
    search.begin("outputs")
    shapes = shapes_of(case)

    def with_outputs(kept: Sequence[str]) -> Case | None:
        return assembled(case, case.module.entry.instructions, kept, None, shapes) if kept else None

    reduced(search, names, with_outputs, least=1)


def fewer_instructions(search: Search, options: Options) -> None:
    """Leave out what the failure does not need."""
    case = search.best
    values = values_of(case, options)
    if values is None and search.oracle.needs_values:
        return
    search.begin("instructions")
    units = list(_units(case))
    if values is None:
        case = Case(case.module, None, case.other)

    def with_units(kept: Sequence[tuple[str, ...]]) -> Case | None:
        return subset(case, {name for unit in kept for name in unit}, values)

    # All of them once: constants of many elements become parameters.
    search.any([lambda: with_units(units)])
    reduced(search, units, with_units, least=1)


def shapes_of(case: Case) -> dict[str, Shape]:
    """The shapes of the entry's instructions."""
    return {instruction.name: instruction.shape for instruction in case.module.entry}


def _units(case: Case) -> Iterator[tuple[str, ...]]:
    """What stays or goes together: an instruction, or those that begin and end something asynchronous."""
    entry = case.module.entry
    chains: dict[str, list[str]] = {}
    for instruction in after_dependencies(entry, list(entry.instructions)):
        if is_glue(instruction):
            continue
        begun = next((name for name in instruction.operands if name in chains), None)
        if begun is not None and traits_of(entry.by_name[begun]).opens:
            chains[instruction.name] = chains[begun]
            chains[begun].append(instruction.name)
        else:
            chains[instruction.name] = [instruction.name]
    seen: set[int] = set()
    for chain in chains.values():
        if id(chain) not in seen:
            seen.add(id(chain))
            yield tuple(chain)


def subset(case: Case, kept: Collection[str], values: Recorded | None) -> Case | None:
    """The case with these instructions of the entry computation; None where they give nothing."""
    entry = case.module.entry
    by_name = entry.by_name
    stays: dict[str, Instruction] = {}
    pending = list(kept)
    while pending:
        instruction = by_name[pending.pop()]
        if instruction.name in stays:
            continue
        stays[instruction.name] = instruction
        pending += [name for name in instruction.operands if _stays(by_name, name, kept, values)]
    used = {
        name for member in stays.values() for name in member.operands if not _is_lost_element(by_name, member, kept)
    }
    final = set(outputs_of(case.module))
    results = [
        member.name
        for member in entry
        if member.name in kept and (member.name not in used or member.name in final) and _has_arrays(member.shape)
    ]
    if not results:
        return None
    ordered = [member for member in entry if member.name in stays]
    return assembled(case, ordered, results, values, shapes_of(case))


def _stays(by_name: Mapping[str, Instruction], name: str, kept: Collection[str], values: Recorded | None) -> bool:
    """Whether an operand is computed in the module: it is to stay, or it is a constant, or it packs what is there."""
    instruction = by_name[name]
    role = role_of(instruction)
    if role is Role.GET_TUPLE_ELEMENT:
        return not _is_lost_element(by_name, instruction, kept)
    if role is Role.CONSTANT:
        is_known = values is not None and name in values
        return not is_known or _is_small(instruction)
    return name in kept or role in (Role.TUPLE, Role.TOKEN)


def _is_lost_element(by_name: Mapping[str, Instruction], instruction: Instruction, kept: Collection[str]) -> bool:
    """Whether it is an element of a tuple that is not computed any more; a parameter's is left as it is."""
    if role_of(instruction) is not Role.GET_TUPLE_ELEMENT:
        return False
    source = by_name[instruction.operands[0]]
    while role_of(source) is Role.GET_TUPLE_ELEMENT:
        source = by_name[source.operands[0]]
    return not is_glue(source) and source.name not in kept


def _is_small(instruction: Instruction) -> bool:
    shape = instruction.shape
    return isinstance(shape, ArrayShape) and shape.element_count <= _LARGEST_CONSTANT


def _has_arrays(shape: Shape) -> bool:
    """Whether there is something to see in a result."""
    if isinstance(shape, TupleShape):
        return all(leaf.is_array for leaf in flat_shapes(shape))
    return shape.is_array
