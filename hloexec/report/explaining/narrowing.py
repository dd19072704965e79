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


def narrowing_view(narrowing: Narrowing, output: str | None, top: int) -> RenderableType:
    """What was narrowed, then tables of at most `top` rows each, 0 for all."""
    parts: Parts = [_headline(narrowing, output), _outputs(narrowing), _work(narrowing)]
    narrowed = [each for each in narrowing.instructions if each.narrow_type is not None]
    if narrowed:
        parts.append(_narrowed(narrowed, top))
    kept = sorted(
        (each for each in narrowing.instructions if each.standing in _KEPT),
        key=lambda each: (_KEPT.index(each.standing), -each.flops),
    )
    if kept:
        parts.append(_kept(kept, top))
    small = sum(each.standing is Standing.SMALL for each in narrowing.instructions)
    if small:
        parts.append(f"\n{plural(small, 'other')} left as they are: too little work for their types to matter")
    return Group(*parts)


def _headline(narrowing: Narrowing, output: str | None) -> Text:
    types = " and ".join(
        sorted({verdict.narrow_type for verdict in narrowing.instructions if verdict.narrow_type is not None})
    )
    outcome = f"{types}  for {_percent(narrowing.narrowed_share)} of the FLOPs" if types else "nothing may be narrowed"
    where = "" if output is None else f", written to {output}"
    count = plural(narrowing.input_count, "input")
    checked = (
        f"checked on {count_text(narrowing.held_back_count)} others" if narrowing.held_back_count else "none held back"
    )
    searched = f"{plural(narrowing.trials, 'module')} tried on {count}, {checked}, in {seconds_text(narrowing.seconds)}"
    steps = "" if narrowing.steps == 1 else f"\nsteps   {narrowing.steps}, {_carried(narrowing)}"
    back = f"\n        {plural(narrowing.rejections, 'time')} the check failed, and the search went back" * bool(
        narrowing.rejections
    )
    style = "bold green" if types else "bold"
    return Text.assemble(
        (narrowing.module.name, "bold"), "  ", (outcome, style), f"{where}\n\nsearch  {searched}{back}{steps}"
    )


def _carried(narrowing: Narrowing) -> str:
    carried = narrowing.carried
    assert carried is not None
    pairs = carried.pairs
    if len(pairs) == 1:
        return f"output {pairs[0][0]} becomes parameter {pairs[0][1]} ({carried.reason})"
    (first, into), (last, end) = pairs[0], pairs[-1]
    return f"outputs {first}–{last} become parameters {into}–{end} ({carried.reason})"


def _outputs(narrowing: Narrowing) -> RenderableType:
    def cells(each: OutputDeviation) -> tuple[str, ...]:
        held_back = "–" if each.held_back is None else f"{each.held_back.error:.2g}"
        worst = max(filter(None, (each.worst, each.held_back)), key=lambda one: one.error)
        errors = (f"{each.tolerance:g}", f"{each.worst.error:.2g}", held_back)
        return each.output, *errors, _place(worst, narrowing.steps)

    rows, figures = list(map(cells, narrowing.outputs)), ("tolerance", "in the search", "held back")
    return listed("outputs", "the largest error of an element", rows, "output", figures=figures, remarks=("worst at",))


def _place(worst: Deviation, steps: int) -> str:
    """Where the largest error is."""
    if not worst.error:
        return ""
    index = f"[{','.join(map(str, worst.index))}], " if worst.index else ""
    step = f"step {worst.step}, " if steps > 1 else ""
    return f"{index}{step}inputs {worst.inputs}: {worst.original:.6g} became {worst.changed:.6g}"


def _work(narrowing: Narrowing) -> RenderableType:
    table = plain_table("", "narrowed to", figures=("all", "narrowed", "share"))
    rows = (
        ("FLOPs", narrowing.flops, narrowing.flops_by_type, flop_text),
        ("of contractions", narrowing.contraction_flops, narrowing.contraction_flops_by_type, flop_text),
        ("bytes", narrowing.byte_count, narrowing.bytes_by_type, byte_text),
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
    for verdict in narrowed:
        key = (verdict.opcode, verdict.element_type, verdict.narrow_type or "")
        counts[key] += 1
        flops[key] += verdict.flops
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
