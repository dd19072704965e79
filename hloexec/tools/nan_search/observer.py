"""The observer of a NaN search: it checks every value as it is computed, and follows nonfinite ones to see whether they
reach the result."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, call_of
from hloexec.analysis.numerics.statistics import statistics
from hloexec.core.ir import Instruction, Module
from hloexec.core.values import Array, leaves
from hloexec.engine.exec.observers import Event
from hloexec.language.origins import SourceLine, hlo_line, source_lines
from hloexec.ops.common import widen
from hloexec.ops.elementwise.selection import CompareAttributes
from hloexec.ops.registry import Role, exchanges, find_opcode, role_of, traits_of
from hloexec.tools.nan_search.dataflow import RENAMING, Sources, chain_to
from hloexec.tools.nan_search.findings import Element, Finding, NanInput, NanSearch, Operand
from hloexec.tools.nan_search.history import History, Leaf, ResultLeaf, path_of
from hloexec.tools.nan_search.magnitudes import Range, range_of
from hloexec.tools.nan_search.symptoms import Symptom, bad_numbers, losses, nan_count, nan_of_constants
from hloexec.tools.tracing.recording import KnownArrays

_NO_CAUSES: frozenset[int] = frozenset()


class Found(BaseException):
    """Ends a run: the search is over. No error, so nothing on the way may take it for one."""


class NanObserver:
    """Watches a run; `search` says what came of it."""

    def __init__(
        self, module: Module, entry: str | None, first: bool, also: Sequence[str], share: float, elements: int
    ) -> None:
        self._module = module
        self._entry = module.entry_name if entry is None else entry.removeprefix("%")
        self._first = first
        self._also = also
        self._share = share
        self._elements = elements
        self._range = KnownArrays(range_of)
        self._history = History()
        self._sources = Sources(module, self._entry, self._history)
        self._findings: list[Finding] = []
        self._nan_inputs: list[NanInput] = []
        self._carried: dict[tuple[str, str], int] = {}
        """Findings of NaN of constants that a loop has carried on, by computation and instruction."""
        self._made_integers: dict[tuple[str, str], str] = {}
        """Names of events, by computation and instruction."""
        self._compared: dict[tuple[str, str], str] = {}
        self._nan_constants: dict[str, None] = {}
        self._culprits: tuple[int, ...] = ()
        self._result_has_nan = False
        self._events = 0

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        self._events += 1
        arrays = {index: leaf for index, leaf in leaves(event.value) if isinstance(leaf, np.ndarray)}
        ranges = {index: self._range(leaf) for index, leaf in arrays.items()}
        place = ResultLeaf(path_of(event.path), event.instruction.name)
        is_bad = any(found is not None and not found.is_finite for found in ranges.values())
        causes: dict[tuple[int, ...], frozenset[int]] = {}
        constant: set[tuple[int, ...]] = set()
        if is_bad:
            constant = {index for index in ranges if self._is_constant(event, attrs.evolve(place, index=index))}
            number = self._birth(event, place, ranges)
            causes = {
                index: self._causes(event, place, index, found) | ({number} if number is not None else _NO_CAUSES)
                for index, found in ranges.items()
                if found is not None and not found.is_finite
            }
        lost = self._nan_lost_in(event.instruction)
        if lost is not None and not any(ranges.values()) and self._takes_nan(event):
            lost.setdefault((event.computation.name, event.instruction.name), event.name)
        if self._also and (symptom := losses(event, self._also, self._share)) is not None:
            self._culprits = (self._new_finding(event, place, symptom),)
            raise Found
        remembered = {
            index: Leaf(found, causes.get(index, _NO_CAUSES), index in constant) for index, found in ranges.items()
        }
        self._history.add(place.path, place.instruction, event.devices, remembered)
        if is_bad and self._is_kept(event):
            if not event.path:
                self._result_has_nan |= any(found is not None and found.has_nan for found in ranges.values())
            self._blame(_ordered(causes, ranges), is_result=not event.path)

    def _blame(self, culprits: tuple[int, ...], *, is_result: bool) -> None:
        """End the run with the findings that a kept value comes from; without any, nothing in the run is to blame.

        NaN of constants that a loop carries on may be marks of what a later iteration fills in.
        """
        if culprits and (is_result or any(self._findings[number].kind != "literal" for number in culprits)):
            self._culprits = culprits
            raise Found
        for number in culprits:
            finding = self._findings[number]
            self._carried.setdefault((finding.computation, finding.instruction), number)

    def search(self) -> NanSearch:
        """What the run has shown."""
        culprits = set(self._culprits)
        blamed = [self._findings[number] for number in self._culprits]
        discarded = {
            (finding.computation, finding.instruction): finding
            for number, finding in reversed(list(enumerate(self._findings)))
            if number not in culprits
        }
        return NanSearch(
            finding=blamed[0] if blamed else None,
            later=tuple(blamed[1:]),
            discarded=tuple(reversed(discarded.values())),
            nan_inputs=tuple(dict.fromkeys(found.parameter for found in self._nan_inputs)),
            nan_input_elements=tuple(self._nan_inputs),
            nan_from_inputs=self._result_has_nan and not blamed,
            made_integers=tuple(self._made_integers.values()),
            compared=tuple(self._compared.values()),
            nan_constants=tuple(self._nan_constants),
            events=self._events,
        )

    def _is_kept(self, event: Event) -> bool:
        """Whether the value is the result of the run, or carried to the next iteration of a loop."""
        if event.instruction.name != event.computation.root_name:
            return False
        if not event.path:
            return event.computation.name == self._entry
        caller = event.path[-1].instruction
        return role_of(caller) is Role.WHILE and event.path[-1].computation == call_of(caller, CallKind.BODY)

    def _birth(self, event: Event, place: ResultLeaf, ranges: dict[tuple[int, ...], Range | None]) -> int | None:
        """The number of a new finding, if this instruction produced nonfinite numbers."""
        role = role_of(event.instruction)
        if role is Role.CONSTANT or (role is Role.PARAMETER and not place.path):
            if role is Role.PARAMETER:
                self._note_input(event, ranges)
            elif any(found is not None and found.has_nan for found in ranges.values()):
                self._nan_constants.setdefault(event.instruction.name)
            return None
        if event.operands:
            symptom = bad_numbers(event, self._range)
            if symptom is None and any(found is not None and found.has_nan for found in ranges.values()):
                symptom = nan_of_constants(event, self._constant_operands(event, place))
        elif role is Role.MACHINE and not exchanges(event.instruction):
            return None
        else:
            symptom = self._out_of_finite_sources(event, place, ranges)
        if symptom is None:
            return None
        key = (event.computation.name, event.instruction.name)
        if symptom.kind == "literal" and key in self._carried:
            return self._carried[key]
        number = self._new_finding(event, place, symptom)
        if self._first:
            self._culprits = (number,)
            raise Found
        return number

    def _note_input(self, event: Event, ranges: dict[tuple[int, ...], Range | None]) -> None:
        """Remember where an input has NaN."""
        for leaf, array in leaves(event.value):
            found = ranges.get(leaf)
            if found is not None and found.has_nan and isinstance(array, np.ndarray):
                bad = np.isnan(widen(array))
                index = tuple(map(int, np.unravel_index(int(bad.argmax()), bad.shape)))
                count = int(np.count_nonzero(bad))
                self._nan_inputs.append(NanInput(event.instruction.name, leaf, event.devices, index, count, array.size))

    def _nan_lost_in(self, instruction: Instruction) -> dict[tuple[str, str], str] | None:
        """Where to note an instruction whose result says nothing of NaN in its operands; None for others.

        A value that is compared with itself, by = or ≠, is tested for NaN, and that says something.
        """
        if traits_of(instruction).converts:
            return self._made_integers
        attributes = instruction.attributes
        if not isinstance(attributes, CompareAttributes) or attributes.type == "TOTALORDER":
            return None
        is_test = attributes.direction in ("EQ", "NE") and len({*instruction.operands}) == 1
        return None if is_test else self._compared

    def _takes_nan(self, event: Event) -> bool:
        """Whether an operand has NaN."""
        arrays = (operand for operand in event.operands if isinstance(operand, np.ndarray))
        return any(found is not None and found.has_nan for found in map(self._range, arrays))

    def _is_constant(self, event: Event, place: ResultLeaf) -> bool:
        """Whether constants alone have made a leaf."""
        role = role_of(event.instruction)
        if role in (Role.CONSTANT, Role.MACHINE):
            return role is Role.CONSTANT
        known = [self._history.leaf(source, event.devices[0]) for source in self._sources.of(place)]
        return bool(known) and all(leaf is not None and leaf.is_constant for leaf in known)

    def _constant_operands(self, event: Event, place: ResultLeaf) -> list[bool]:
        """Which operands constants alone have made, as far as they have NaN or infinities."""
        known = [
            self._history.leaf(ResultLeaf(place.path, name), event.devices[0]) for name in event.instruction.operands
        ]
        return [leaf is not None and leaf.is_constant for leaf in known]

    def _out_of_finite_sources(
        self, event: Event, place: ResultLeaf, ranges: dict[tuple[int, ...], Range | None]
    ) -> Symptom | None:
        """Nonfinite numbers of an instruction whose operands are not available (collectives), or that only forwards
        values.

        The latter happens where a caller's floats are of another width than the computation's.
        """
        for index, leaf in leaves(event.value):
            found = ranges.get(index)
            if found is None or found.is_finite or not isinstance(leaf, np.ndarray):
                continue
            sources = self._sources.of(attrs.evolve(place, index=index))
            known = [entry for source in sources for entry in self._history.leaves_of_all(source)]
            ranges_before = [entry.range for entry in known if entry.range is not None]
            if not ranges_before or not all(before.is_finite for before in ranges_before):
                continue
            is_renaming = role_of(event.instruction) in RENAMING
            reason = "overflow where a narrower float is expected" if is_renaming else "overflow across devices"
            return Symptom("overflow", reason, index, ~np.isfinite(widen(leaf)))
        return None

    def _causes(self, event: Event, place: ResultLeaf, index: tuple[int, ...], found: Range | None) -> frozenset[int]:
        """The findings that the nonfinite elements of an array come from."""
        instruction = event.instruction
        is_exchanged = exchanges(instruction)
        if role_of(instruction) is Role.MACHINE and not is_exchanged:
            # What another device has sent: any of them may be it.
            return frozenset(range(len(self._findings)))
        causes: set[int] = set()
        for number, source in enumerate(self._sources.of(attrs.evolve(place, index=index))):
            own = self._history.leaf(source, event.devices[0])
            for known in self._history.leaves_of_all(source) if is_exchanged else [own]:
                if known is None or not known.causes or known.range is None:
                    continue
                # NaN spread as NaN; an infinity comes from an infinity.
                if found is not None and not found.has_nan and not known.range.has_infinity:
                    continue
                if instruction.opcode == "select" and not _is_chosen(event, number):
                    continue
                causes |= known.causes
        return frozenset(causes)

    def _new_finding(self, event: Event, place: ResultLeaf, symptom: Symptom) -> int:
        instruction = event.instruction
        value = dict(leaves(event.value))[symptom.index]
        assert isinstance(value, np.ndarray)
        names = instruction.operands
        operands = tuple(
            Operand(name, tuple(statistics(operand))) for name, operand in zip(names, event.operands, strict=False)
        )
        finding = Finding(
            kind=symptom.kind,
            reason=symptom.reason,
            name=event.name,
            instruction=instruction.name,
            computation=event.computation.name,
            opcode=instruction.opcode,
            iteration=event.iteration,
            devices=event.devices,
            hlo=hlo_line(instruction),
            op_name=instruction.op_name,
            source=self._source(event),
            bad=symptom.count,
            bad_nan=nan_count(value, symptom),
            count=symptom.bad.size,
            value=statistics(value)[0],
            operands=operands or tuple(Operand(name, ()) for name in names),
            elements=_elements(event, value, symptom, self._elements),
            chain=()
            if symptom.kind == "literal"
            else chain_to(attrs.evolve(place, index=symptom.index), symptom, event.devices[0], self._sources),
        )
        self._findings.append(finding)
        return len(self._findings) - 1

    def _source(self, event: Event) -> tuple[SourceLine, ...]:
        """Its source lines, or those of the innermost call around it that has some."""
        callers = (entry.instruction for entry in reversed(event.path))
        found = (source_lines(self._module, instruction) for instruction in (event.instruction, *callers))
        return next(filter(None, found), ())


def _ordered(
    causes: dict[tuple[int, ...], frozenset[int]], ranges: dict[tuple[int, ...], Range | None]
) -> tuple[int, ...]:
    """The findings that leaves come from: one of the leaf with NaN that has the fewest comes first, as a loss knows of
    nothing that its gradients alone come from."""
    nan = {index for index, found in ranges.items() if found is not None and found.has_nan}
    sources = ((index not in nan, len(own), min(own)) for index, own in causes.items() if own)
    *_, first = min(sources, default=(0,))
    return tuple(sorted(set().union(*causes.values()), key=lambda number: (number != first, number)))


def _is_chosen(event: Event, number: int) -> bool:
    """Whether a nonfinite element of a select's result is taken from this operand (1 or 2)."""
    if number == 0 or len(event.operands) != 3 or not isinstance(event.operands[number], np.ndarray):
        return number != 0
    choice, value = event.operands[0], event.value
    assert isinstance(choice, np.ndarray) and isinstance(value, np.ndarray)
    taken = choice if number == 1 else ~choice
    return bool((np.broadcast_to(taken, value.shape) & ~np.isfinite(widen(value))).any())


def _elements(event: Event, value: Array, symptom: Symptom, most: int) -> tuple[Element, ...]:
    """The first affected elements, with those of the operands at the same positions."""
    entry = find_opcode(event.instruction.opcode)
    arrays = [operand for operand in event.operands if isinstance(operand, np.ndarray)]
    is_elementwise = (
        entry is not None
        and entry.is_elementwise
        and 0 < len(arrays) == len(event.operands)
        and all(array.shape in ((), value.shape) for array in arrays)
    )
    found = []
    for index in map(tuple, np.argwhere(symptom.bad)[:most].tolist()):
        operands = (_number(array[index] if array.ndim else array[()]) for array in arrays)
        found.append(Element(index, _number(value[index]), tuple(operands) if is_elementwise else None))
    return tuple(found)


def _number(element: object) -> float | int | complex | bool:
    """A NumPy scalar as Python's."""
    number: float | int | complex | bool = widen(np.asarray(element)).item()
    return number
