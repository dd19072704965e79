"""The chain of instructions that led to a bad number: back through operands to where magnitudes grew, or vanished."""

from __future__ import annotations

from hloexec.nan_search.dataflow import RENAMING, Sources
from hloexec.nan_search.findings import Link
from hloexec.nan_search.history import History, ResultLeaf
from hloexec.nan_search.magnitudes import Range
from hloexec.nan_search.symptoms import Symptom
from hloexec.ops.registry import role_of
from hloexec.origins import hlo_line, source_text

__all__ = ["chain_to"]

_MOST_STEPS = 400
_MOST_LINKS = 12
_GROWTH = 2.0
"""An instruction is worth a line where it changes the magnitude at least so much."""


def chain_to(place: ResultLeaf, symptom: Symptom, device: int, sources: Sources, history: History) -> tuple[Link, ...]:
    """What led to a bad number at a place, the earliest instruction first.

    From operand to operand, that with the largest magnitude is followed (the one nearest to zero for poles and
    underflows), through calls, fusions, branches and the iterations of loops as far as they are remembered.
    Instructions that do not change the magnitude much are passed over.
    """
    towards_zero = symptom.kind in ("pole", "underflow")
    walked: list[tuple[ResultLeaf, Range]] = []
    seen: set[ResultLeaf] = {place}
    current = place
    for _ in range(_MOST_STEPS):
        candidates = []
        for number, source in enumerate(sources.of(current)):
            leaf = history.leaf(source, device)
            if leaf is not None and leaf.range is not None and source not in seen:
                candidates.append((_extremity(leaf.range, towards_zero), -number, source, leaf.range))
        if not candidates:
            break
        _, _, current, found = max(candidates, key=lambda entry: entry[:2])
        seen.add(current)
        walked.append((current, found))
    return tuple(_link(entry, found, sources) for entry, found in reversed(_worth_showing(walked, sources)))


def _extremity(found: Range, towards_zero: bool) -> tuple[float, float]:
    if not towards_zero:
        return found.magnitude, 0.0
    return -found.least, -found.magnitude


def _worth_showing(walked: list[tuple[ResultLeaf, Range]], sources: Sources) -> list[tuple[ResultLeaf, Range]]:
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


def _link(place: ResultLeaf, found: Range, sources: Sources) -> Link:
    instruction = sources.instruction(place)
    source = source_text(sources.module, instruction)
    return Link(place.name, hlo_line(instruction), source, found.low, found.high)
