"""Rules of elementwise operations, applied to each column of their operands by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from hloexec.ops.intervals import ANYTHING, Bounds, Columns, Demand, Demanded, Use


def layout_of(use: Use, demand: Demand = ANYTHING) -> Columns | None:
    """The columns that a demand on an elementwise result tells apart, or else the bounds of an operand."""
    known = (demand.columns, *(bounds.columns for bounds in use.bounds))
    return next((columns for columns in known if columns is not None), None)


def by_column(use: Use, demand: Demand = ANYTHING) -> Iterator[Use]:
    """The use as each column of the operands has it."""
    layout = layout_of(use, demand)
    for number in range(0 if layout is None else layout.count):
        yield attrs.evolve(use, bounds=tuple(_column(bounds, layout, number) for bounds in use.bounds))


def _column(bounds: Bounds, layout: Columns | None, number: int) -> Bounds:
    own = bounds.columns
    if own is None or layout is None or (own.stride, own.count) != (layout.stride, layout.count):
        return attrs.evolve(bounds, columns=None)
    low, high = own.ends[number]
    return Bounds(low, high, bounds.is_parameter)


def on_columns(use: Use, demand: Demand, rule: Callable[[Use, Demand], Demanded]) -> Demanded:
    """What a rule asks of the operands of an elementwise operation, of each column by itself."""
    layout = layout_of(use, demand)
    if layout is None:
        yield from rule(use, demand)
        return
    ends = demand.ends_in(layout)
    found: list[dict[int, Demand]] = []
    for part, (low, high) in zip(by_column(use, demand), ends, strict=True):
        asked: dict[int, Demand] = {}
        for number, wanted in rule(part, attrs.evolve(demand, low=low, high=high, columns=None)):
            asked[number] = asked[number].merge(wanted) if number in asked else wanted
        found.append(asked)
    for number in sorted({number for asked in found for number in asked}):
        all_asked = [asked.get(number, ANYTHING) for asked in found]
        first = next(asked[number] for asked in found if number in asked)
        choices = (
            None if any(each.choices is None for each in all_asked) else max(each.choices or 0 for each in all_asked)
        )
        pairs = tuple((each.low, each.high) for each in all_asked)
        yield number, attrs.evolve(first, choices=choices).with_columns(Columns(layout.stride, pairs))
