"""Reports of `hloexec precision`: what is narrowed, what may not be and why, and how far the outputs are off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.wording import byte_text, count_text, plural
from hloexec.report.layout import plain_table, titled, with_rest
from hloexec.report.units import flop_text, seconds_text
from hloexec.tools.narrowing import Deviation, InstructionVerdict, Narrowing, Standing

_KEPT = (Standing.ALONE, Standing.RANGE, Standing.TOGETHER, Standing.UNTRIED)
"""What is listed, in this order; what does too little work is counted."""


def narrowing_view(found: Narrowing, output: str | None, top: int) -> RenderableType:
    """What was narrowed, then tables of at most `top` rows each, 0 for all."""
    parts: list[RenderableType] = [_headline(found, output), _outputs(found), _work(found)]
    narrowed = [each for each in found.instructions if each.narrow_type is not None]
    if narrowed:
        parts.append(_narrowed(narrowed, top))
    kept = sorted(
        (each for each in found.instructions if each.standing in _KEPT),
        key=lambda each: (_KEPT.index(each.standing), -each.flops),
    )
    if kept:
        parts.append(_kept(kept, top))
    small = sum(each.standing is Standing.SMALL for each in found.instructions)
    if small:
        parts.append(Text(f"\n{plural(small, 'other')} left as they are: too little work for their types to matter"))
    return Group(*parts)


def _headline(found: Narrowing, output: str | None) -> Text:
    types = " and ".join(sorted({each.narrow_type for each in found.instructions if each.narrow_type is not None}))
    what = f"{types}  for {_percent(found.narrowed_share)} of the FLOPs" if types else "nothing may be narrowed"
    where = "" if output is None else f", written to {output}"
    count = plural(found.input_count, "input")
    checked = f"checked on {count_text(found.held_back_count)} others" if found.held_back_count else "none held back"
    searched = f"{plural(found.trials, 'module')} tried on {count}, {checked}, in {seconds_text(found.seconds)}"
    steps = "" if found.steps == 1 else f"\nsteps   {found.steps}, {_carried(found)}"
    back = f"\n        {plural(found.rejections, 'time')} the check failed, and the search went back" * bool(
        found.rejections
    )
    style = "bold green" if types else "bold"
    return Text.assemble(
        (found.module.name, "bold"), "  ", (what, style), f"{where}\n\nsearch  {searched}{back}{steps}"
    )


def _carried(found: Narrowing) -> str:
    carried = found.carried
    assert carried is not None
    pairs = carried.pairs
    if len(pairs) == 1:
        return f"output {pairs[0][0]} becomes parameter {pairs[0][1]} ({carried.reason})"
    (first, into), (last, end) = pairs[0], pairs[-1]
    return f"outputs {first}–{last} become parameters {into}–{end} ({carried.reason})"


def _outputs(found: Narrowing) -> RenderableType:
    table = plain_table("output", figures=("tolerance", "in the search", "held back"), remarks=("worst at",))
    for each in found.outputs:
        table.add_row(
            each.output,
            f"{each.tolerance:g}",
            f"{each.worst.error:.2g}",
            "–" if each.held_back is None else f"{each.held_back.error:.2g}",
            _place(max(filter(None, (each.worst, each.held_back)), key=lambda one: one.error), found.steps),
        )
    return titled("outputs", "the largest error of an element", table)


def _place(worst: Deviation, steps: int) -> str:
    """Where the largest error is."""
    if not worst.error:
        return ""
    index = f"[{','.join(map(str, worst.index))}], " if worst.index else ""
    step = f"step {worst.step}, " if steps > 1 else ""
    return f"{index}{step}inputs {worst.inputs}: {worst.original:.6g} became {worst.changed:.6g}"


def _work(found: Narrowing) -> RenderableType:
    table = plain_table("", "narrowed to", figures=("all", "narrowed", "share"))
    rows = (
        ("FLOPs", found.flops, found.flops_by_type, flop_text),
        ("of contractions", found.contraction_flops, found.contraction_flops_by_type, flop_text),
        ("bytes", found.byte_count, found.bytes_by_type, byte_text),
    )
    for name, total, by_type, text in rows:
        for number, (narrow, count) in enumerate(sorted(by_type.items()) or [("–", 0)]):
            first = number == 0
            table.add_row(
                name if first else "", narrow, text(total) if first else "", text(count), _percent(_share(count, total))
            )
    return titled("work", "of a run on the first inputs", table)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _narrowed(narrowed: Sequence[InstructionVerdict], top: int) -> RenderableType:
    counts: Counter[tuple[str, str, str]] = Counter()
    flops: Counter[tuple[str, str, str]] = Counter()
    for each in narrowed:
        key = (each.opcode, each.element_type, each.narrow_type or "")
        counts[key] += 1
        flops[key] += each.flops
    rows = sorted(counts, key=lambda key: (-flops[key], key))
    table = plain_table("opcode", "types", figures=("instructions", "FLOPs"))
    for key in rows[: top or None]:
        table.add_row(key[0], f"{key[1]} → {key[2]}", count_text(counts[key]), flop_text(flops[key]))
    return titled("narrowed", plural(len(narrowed), "instruction"), with_rest(table, len(rows), top))


def _kept(kept: Sequence[InstructionVerdict], top: int) -> RenderableType:
    table = plain_table("instruction", "may not", "because", "source", figures=("FLOPs",))
    for each in kept[: top or None]:
        where = each.source or each.op_name or ""
        table.add_row(
            Text(f"%{each.instruction}"), each.standing.value, Text(each.reason), Text(where), flop_text(each.flops)
        )
    return titled("may not be narrowed", plural(len(kept), "instruction"), with_rest(table, len(kept), top))
