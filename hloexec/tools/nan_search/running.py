"""`find_nan`: run a module until the instruction that produced its first relevant NaN or infinity is known.

Instructions that only forward values (tuples, parameters, calls, loops …) have one source; all others have their
operands as sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Unpack

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, call_of, calls_of, passed_operands
from hloexec.analysis.numerics.leaves import statistics
from hloexec.core.arguments import listed, require_flags, require_integer, require_module, require_number, texts
from hloexec.core.ir import Computation, Instruction, Module, leaf_shapes
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.structs import frozen
from hloexec.core.tree import leaves
from hloexec.core.values import Array, Inputs
from hloexec.engine.exec.observers import Event, Observer, PathMemo, path_entry
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.errors import InputError
from hloexec.language.origins import SourceLine, hlo_line, source_lines, source_text
from hloexec.ops.common import widen
from hloexec.ops.elementwise.selection import CompareAttributes
from hloexec.ops.registry import Role, exchanges, find_opcode, role_of, traits_of
from hloexec.ops.traits import Index
from hloexec.tools.nan_search.findings import Element, Finding, Link, NanInput, NanSearch, Operand
from hloexec.tools.nan_search.symptoms import (
    CHECKS,
    History,
    Leaf,
    Range,
    Symptom,
    bad_numbers,
    losses,
    nan_count,
    nan_of_constants,
    range_of,
)
from hloexec.tools.tracing.recording import KnownArrays

_MOST_STEPS = 400
_MOST_LINKS = 12
_GROWTH = 2.0
"""An instruction is worth a line where it changes the magnitude at least so much."""
_COMPUTING = (Role.KERNEL, Role.CUSTOM_CALL, Role.CONSTANT, Role.MACHINE, Role.PARTITION_ID, Role.REPLICA_ID)
RENAMING = frozenset(Role).difference(_COMPUTING)
"""Of instructions whose values are made of others', without arithmetic."""


@frozen
class Sources:
    """Answers for one module, given what has run."""

    module: Module
    entry: str
    """The computation that runs."""
    history: History

    def computation(self, path: CallPath) -> Computation:
        return self.module.by_name[path.computation(self.entry)]

    def instruction(self, place: RunPlace) -> Instruction:
        return self.computation(place.path).by_name[place.instruction]

    def of(self, place: RunPlace) -> list[RunPlace]:
        """The leaves that a leaf is made of."""
        instruction = self.instruction(place)
        role = role_of(instruction)
        index = place.index
        leaf = place.beside
        if role is Role.PARAMETER:
            return self._of_parameter(place, instruction)
        if role is Role.TUPLE:
            return [leaf(instruction.operands[index[0]], index[1:])] if index else []
        if role is Role.GET_TUPLE_ELEMENT:
            return [leaf(instruction.operands[0], (instruction.attributes.index, *index))]
        if role is Role.PART:
            return [leaf(instruction.operands[0], (*traits_of(instruction).part, *index))]
        if role is Role.FORWARD:
            return [leaf(instruction.operands[0], index)]
        if role is Role.COPY_START:
            return [leaf(instruction.operands[0], ())] if index[:1] in ((0,), (1,)) else []
        if role is Role.ASYNC_START:
            if index[:1] == (0,):
                return [leaf(instruction.operands[index[1]], index[2:])] if len(index) > 1 else []
            return self._roots(place, index[1:]) if index[:1] == (1,) else []
        if role is Role.WHILE:
            body = call_of(instruction, CallKind.BODY)
            root = self.module.by_name[body].root_name
            last = self.history.last_iteration(place.path.to(path_entry(instruction, body, 0)), root)
            if last is None:
                return [leaf(instruction.operands[0], index)]
            return [RunPlace(place.path.to(path_entry(instruction, body, last)), root, index=index)]
        if role in (Role.CALL, Role.CONDITIONAL):
            return self._roots(place, index)
        by_name = self.computation(place.path).by_name
        return [
            leaf(name, leaf_index)
            for name in instruction.operands
            for leaf_index, _ in leaf_shapes(by_name[name].shape)
        ]

    def _roots(self, place: RunPlace, index: Index) -> list[RunPlace]:
        """The roots of the computations that an instruction calls, as far as they have run."""
        instruction = self.instruction(place)
        roots = []
        for call in calls_of(instruction):
            path = place.path.to(path_entry(instruction, call.computation))
            root = RunPlace(path, self.module.by_name[call.computation].root_name, index=index)
            if self.history.has_run(root):
                roots.append(root)
        return roots

    def _of_parameter(self, place: RunPlace, instruction: Instruction) -> list[RunPlace]:
        if not place.path.calls:
            return []
        call, path = place.path.calls[-1], place.path.outer
        number = instruction.attributes.number
        if call.iteration:
            body = call_of(call.instruction, CallKind.BODY)
            root = self.module.by_name[body].root_name
            path = path.to(path_entry(call.instruction, body, call.iteration - 1))
            return [RunPlace(path, root, index=place.index)]
        given = passed_operands(call.instruction, call.computation)
        return [RunPlace(path, given[number], index=place.index)] if number < len(given) else []


def chain_to(place: RunPlace, symptom: Symptom, device: int, sources: Sources) -> tuple[Link, ...]:
    """What led to a bad number at a place, the earliest instruction first.

    From operand to operand, that with the largest magnitude is followed (the one nearest to zero for poles and
    underflows), through calls, fusions, branches and the iterations of loops as far as they are remembered.
    Instructions that do not change the magnitude much are passed over.
    """
    towards_zero = symptom.kind in ("pole", "underflow")
    walked: list[tuple[RunPlace, Range]] = []
    seen: set[RunPlace] = {place}
    current = place
    for _ in range(_MOST_STEPS):
        candidates = []
        for number, source in enumerate(sources.of(current)):
            leaf = sources.history.leaf(source, device)
            if leaf is not None and leaf.range is not None and source not in seen:
                size, least = leaf.range.magnitude, leaf.range.least
                extremity = (-least, -size) if towards_zero else (size, 0.0)
                candidates.append((extremity, -number, source, leaf.range))
        if not candidates:
            break
        _, _, current, leaf_range = max(candidates, key=lambda entry: entry[:2])
        seen.add(current)
        walked.append((current, leaf_range))
    return tuple(_link(entry, leaf_range, sources) for entry, leaf_range in reversed(_worth_showing(walked, sources)))


def _worth_showing(walked: list[tuple[RunPlace, Range]], sources: Sources) -> list[tuple[RunPlace, Range]]:
    """The walk, without what only hands a value on: its ends, and where magnitudes change most."""
    own = [entry for entry in walked if role_of(sources.instruction(entry[0])) not in RENAMING]
    if walked and (not own or own[-1][0] != walked[-1][0]):
        own.append(walked[-1])
    changes = []
    for number in range(1, len(own) - 1):
        after, before = own[number][1].magnitude, own[number + 1][1].magnitude
        ratio = max(after, before) / min(after, before) if min(after, before) > 0 else float("inf")
        if after == before:
            ratio = 1.0
        if not ratio < _GROWTH:
            changes.append((ratio, number))
    kept = {number for _, number in sorted(changes, reverse=True)[: _MOST_LINKS - 2]} | {0, len(own) - 1}
    return [entry for number, entry in enumerate(own) if number in kept]


def _link(place: RunPlace, bounds: Range, sources: Sources) -> Link:
    instruction = sources.instruction(place)
    source = source_text(sources.module, instruction)
    name = "/".join([*(call.caller for call in place.path.calls), place.instruction])
    return Link(name, hlo_line(instruction), source, bounds.low, bounds.high)


_NO_CAUSES: frozenset[int] = frozenset()


class Found(BaseException):
    """Ends a run: the search is over. No error, so nothing on the way may take it for one."""


def _have_nan(ranges: Iterable[Range | None]) -> bool:
    return any(found is not None and found.has_nan for found in ranges)


class NanObserver:
    """Watches a run; `search` says what came of it."""

    def __init__(
        self,
        module: Module,
        entry: str | None,
        first: bool,
        also: Sequence[str],
        share: float,
        elements: int,
        to_result: bool = False,
    ) -> None:
        self._module = module
        self._entry = module.entry_name if entry is None else entry.removeprefix("%")
        self._first = first
        self._to_result = to_result
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
        self._paths = PathMemo()

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        self._events += 1
        arrays = {index: leaf for index, leaf in leaves(event.value) if isinstance(leaf, np.ndarray)}
        ranges = {index: self._range(leaf) for index, leaf in arrays.items()}
        place = RunPlace(self._paths.of(event), event.instruction.name)
        is_bad = any(leaf_range is not None and not leaf_range.is_finite for leaf_range in ranges.values())
        causes: dict[Index, frozenset[int]] = {}
        constant: set[tuple[int, ...]] = set()
        if is_bad:
            constant = {index for index in ranges if self._is_constant(event, attrs.evolve(place, index=index))}
            number = self._birth(event, place, ranges)
            causes = {
                index: self._causes(event, place, index, leaf_range) | ({number} if number is not None else _NO_CAUSES)
                for index, leaf_range in ranges.items()
                if leaf_range is not None and not leaf_range.is_finite
            }
        lost = self._nan_lost_in(event.instruction)
        if lost is not None and not any(ranges.values()) and self._takes_nan(event):
            lost.setdefault((event.computation.name, event.instruction.name), event.name)
        if self._also and (symptom := losses(event, self._also, self._share)) is not None:
            self._culprits = (self._new_finding(event, place, symptom),)
            raise Found
        remembered = {
            index: Leaf(leaf_range, causes.get(index, _NO_CAUSES), index in constant)
            for index, leaf_range in ranges.items()
        }
        self._history.add(place, event.devices, remembered)
        if is_bad and self._is_kept(event):
            if not place.path.calls:
                self._result_has_nan |= _have_nan(ranges.values())
            self._blame(_ordered(causes, ranges), is_result=not place.path.calls)

    def _blame(self, culprits: tuple[int, ...], *, is_result: bool) -> None:
        """End the run with the findings that a kept value comes from; without any, nothing in the run is to blame.

        NaN of constants that a loop carries on may be marks of what a later iteration fills in.
        """
        is_over = is_result or (
            not self._to_result and any(self._findings[number].kind != "literal" for number in culprits)
        )
        if culprits and is_over:
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
            nan_inputs=tuple(dict.fromkeys(nan_input.parameter for nan_input in self._nan_inputs)),
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

    def _birth(self, event: Event, place: RunPlace, ranges: dict[Index, Range | None]) -> int | None:
        """The number of a new finding, if this instruction produced nonfinite numbers."""
        role = role_of(event.instruction)
        if role is Role.CONSTANT or (role is Role.PARAMETER and not place.path.calls):
            if role is Role.PARAMETER:
                self._note_input(event, ranges)
            elif _have_nan(ranges.values()):
                self._nan_constants.setdefault(event.instruction.name)
            return None
        if event.operands:
            symptom = bad_numbers(event, self._range)
            if symptom is None and _have_nan(ranges.values()):
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

    def _note_input(self, event: Event, ranges: dict[Index, Range | None]) -> None:
        """Remember where an input has NaN."""
        for leaf, array in leaves(event.value):
            leaf_range = ranges.get(leaf)
            if leaf_range is not None and leaf_range.has_nan and isinstance(array, np.ndarray):
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
        return _have_nan(map(self._range, arrays))

    def _is_constant(self, event: Event, place: RunPlace) -> bool:
        """Whether constants alone have made a leaf."""
        role = role_of(event.instruction)
        if role in (Role.CONSTANT, Role.MACHINE):
            return role is Role.CONSTANT
        source_leaves = [self._history.leaf(source, event.devices[0]) for source in self._sources.of(place)]
        return bool(source_leaves) and all(leaf is not None and leaf.is_constant for leaf in source_leaves)

    def _constant_operands(self, event: Event, place: RunPlace) -> list[bool]:
        """Which operands constants alone have made, as far as they have NaN or infinities."""
        known = [self._history.leaf(place.beside(name), event.devices[0]) for name in event.instruction.operands]
        return [leaf is not None and leaf.is_constant for leaf in known]

    def _out_of_finite_sources(
        self, event: Event, place: RunPlace, ranges: dict[Index, Range | None]
    ) -> Symptom | None:
        """Nonfinite numbers of an instruction whose operands are not available (collectives), or that only forwards
        values.

        The latter happens where a caller's floats are of another width than the computation's.
        """
        for index, leaf in leaves(event.value):
            leaf_range = ranges.get(index)
            if leaf_range is None or leaf_range.is_finite or not isinstance(leaf, np.ndarray):
                continue
            sources = self._sources.of(attrs.evolve(place, index=index))
            source_leaves = [entry for source in sources for entry in self._history.leaves_of_all(source)]
            ranges_before = [entry.range for entry in source_leaves if entry.range is not None]
            if not ranges_before or not all(before.is_finite for before in ranges_before):
                continue
            is_renaming = role_of(event.instruction) in RENAMING
            reason = "overflow where a narrower float is expected" if is_renaming else "overflow across devices"
            return Symptom("overflow", reason, index, ~np.isfinite(widen(leaf)))
        return None

    def _causes(self, event: Event, place: RunPlace, index: Index, bounds: Range | None) -> frozenset[int]:
        """The findings that the nonfinite elements of an array come from."""
        instruction = event.instruction
        is_exchanged = exchanges(instruction)
        if role_of(instruction) is Role.MACHINE and not is_exchanged:
            # What another device has sent: any of them may be it.
            return frozenset(range(len(self._findings)))
        causes: set[int] = set()
        for number, source in enumerate(self._sources.of(attrs.evolve(place, index=index))):
            own = self._history.leaf(source, event.devices[0])
            for source_leaf in self._history.leaves_of_all(source) if is_exchanged else [own]:
                if source_leaf is None or not source_leaf.causes or source_leaf.range is None:
                    continue
                # NaN spread as NaN; an infinity comes from an infinity.
                if bounds is not None and not bounds.has_nan and not source_leaf.range.has_infinity:
                    continue
                if instruction.opcode == "select" and not _is_chosen(event, number):
                    continue
                causes |= source_leaf.causes
        return frozenset(causes)

    def _new_finding(self, event: Event, place: RunPlace, symptom: Symptom) -> int:
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
        candidates = (source_lines(self._module, instruction) for instruction in (event.instruction, *callers))
        return next(filter(None, candidates), ())


def _ordered(causes: dict[Index, frozenset[int]], ranges: dict[Index, Range | None]) -> tuple[int, ...]:
    """The findings that leaves come from: one of the leaf with NaN that has the fewest comes first, as a loss knows of
    nothing that its gradients alone come from."""
    nan = {index for index, leaf_range in ranges.items() if leaf_range is not None and leaf_range.has_nan}
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
    elements = []
    for index in map(tuple, np.argwhere(symptom.bad)[:most].tolist()):
        operands = (_number(array[index] if array.ndim else array[()]) for array in arrays)
        elements.append(Element(index, _number(value[index]), tuple(operands) if is_elementwise else None))
    return tuple(elements)


def _number(element: object) -> float | int | complex | bool:
    """A NumPy scalar as Python's."""
    number: float | int | complex | bool = widen(np.asarray(element)).item()
    return number


def find_nan(
    module: Module,
    inputs: Inputs | None,
    *,
    first: bool = False,
    to_result: bool = False,
    also: Sequence[str] = (),
    share: float = 0.0,
    elements: int = 10,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> NanSearch:
    """Run a module, and find the first instruction that turns finite numbers into NaN or infinities.

    An instruction is to blame for an element if that element is NaN or infinite and no operand's element at its
    position is, or if it turns infinities into NaN (`nan_search.symptoms` has the definitions). Programs also
    produce such numbers and discard them, mostly in branches of a select. The run therefore continues until one has
    reached the result or the next iteration of a loop, and the first of the instructions that it comes from is the
    finding. Of several results, the one with NaN that the fewest instructions made decides, which is a loss rather than
    its gradients. With `first`, the run stops at the very first one, whether or not it is used; with `to_result`, only
    where one has reached the result, as what a loop carries on may still be overwritten.

    `also` names further symptoms that stop the run: `overflow` (converts that saturate), `underflow` (results that are
    zero and should not be) and `cancellation` (sums without a significant digit), if at least a fraction `share` (0 to
    1) of an instruction's elements is affected. `elements` is the number of elements that the finding lists.

    `inputs`, `observers` and `options` are those of `run_devices` (`hloexec.Inputs`, `hloexec.RunOptions`). In addition
    to the memory of the run, the search needs a few numbers per instruction. Raises InputError for invalid options, and
    whatever `run_devices` raises.
    """
    require_module(module)
    require_flags(first=first, to_result=to_result)
    require_number("share", share, 1)
    require_integer("elements", elements, 0)
    resolved = resolve_options("find_nan", options)
    also = texts("also", also)
    for name in also:
        if name not in CHECKS:
            raise InputError(f"also must name some of {', '.join(CHECKS)}, but has {name!r}")
    watchers = listed("observers", observers, "observers")
    observer = NanObserver(module, resolved.computation, first, also, share, elements, to_result)
    with suppress(Found):
        run_with(module, inputs, resolved, [observer, *watchers])
    return observer.search()
