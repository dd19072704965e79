"""Reports of `hloexec precision`: what is narrowed, what may not be and why, and how far the outputs are off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.wording import byte_text, count_text, plural
from hloexec.report.layout import Parts, Titled, listed, plain_table
from hloexec.report.units import flop_text, seconds_text
from hloexec.tools.narrowing import Deviation, InstructionVerdict, Narrowing, OutputDeviation, Standing

_KEPT = (Standing.ALONE, Standing.RANGE, Standing.TOGETHER, Standing.UNTRIED)
"""What is listed, in this order; what does too little work is counted."""


def narrowing_view(found: Narrowing, output: str | None, top: int) -> RenderableType:
    """What was narrowed, then tables of at most `top` rows each, 0 for all."""
    parts: Parts = [_headline(found, output), _outputs(found), _work(found)]
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
        parts.append(f"\n{plural(small, 'other')} left as they are: too little work for their types to matter")
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
    def cells(each: OutputDeviation) -> tuple[str, ...]:
        held_back = "–" if each.held_back is None else f"{each.held_back.error:.2g}"
        worst = max(filter(None, (each.worst, each.held_back)), key=lambda one: one.error)
        errors = (f"{each.tolerance:g}", f"{each.worst.error:.2g}", held_back)
        return each.output, *errors, _place(worst, found.steps)

    rows, figures = list(map(cells, found.outputs)), ("tolerance", "in the search", "held back")
    return listed("outputs", "the largest error of an element", rows, "output", figures=figures, remarks=("worst at",))


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
                name if first else "",
                narrow,
                text(total) if first else "",
                text(count),
                _percent(count / total if total else 0.0),
            )
    return Titled("work", "of a run on the first inputs", table)


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
    cells = [(key[0], f"{key[1]} → {key[2]}", count_text(counts[key]), flop_text(flops[key])) for key in rows]
    remark, figures = plural(len(narrowed), "instruction"), ("instructions", "FLOPs")
    return listed("narrowed", remark, cells, "opcode", "types", figures=figures, top=top)


def _kept(kept: Sequence[InstructionVerdict], top: int) -> RenderableType:
    rows = [
        (
            f"%{each.instruction}",
            each.standing.value,
            each.reason,
            each.source or each.op_name or "",
            flop_text(each.flops),
        )
        for each in kept
    ]
    folded = ("instruction", "may not", "because", "source")
    count = plural(len(kept), "instruction")
    return listed("may not be narrowed", count, rows, *folded, figures=("FLOPs",), top=top)
