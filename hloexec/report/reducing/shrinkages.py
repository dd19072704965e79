"""Reports of `hloexec shrink`, as tables and as records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.wording import byte_text, count_text, plural, truncated
from hloexec.report.layout import Parts, listed
from hloexec.report.units import flop_text
from hloexec.tools.shrinking import ConstantChange, FittedOperand, KeptSize, Shrinkage, SizeChange

_LONGEST = 60


def shrinkage_view(shrinkage: Shrinkage, output: str | None, top: int) -> RenderableType:
    """What became of the module, then tables of at most `top` rows each, 0 for all."""
    parts: Parts = [_headline(shrinkage, output)]
    parts.append(_changes(shrinkage.changes, top))
    if shrinkage.kept:
        parts.append(_kept(shrinkage.kept, top))
    if shrinkage.constants:
        parts.append(_constants(shrinkage.constants, top))
    if shrinkage.fitted:
        parts.append(_fitted(shrinkage.fitted, top))
    return Group(*parts)


def _headline(shrinkage: Shrinkage, output: str | None) -> RenderableType:
    where = "" if output is None else f", written to {output}"
    changed = f"{plural(len(shrinkage.changes), 'size')} changed, for {shrinkage.devices_text}{where}"
    inputs = f"inputs  {byte_text(shrinkage.argument_bytes)}, before {byte_text(shrinkage.argument_bytes_before)}"
    run = "" if shrinkage.peak_bytes is None else f"\na run   about {byte_text(shrinkage.peak_bytes)} beyond its inputs"
    flops = f"{flop_text(shrinkage.flops)}, before {flop_text(shrinkage.flops_before)}"
    limit = "" if shrinkage.is_proven else "\nsizes   the search for better ones was ended at its limit"
    text = f"  {changed}\n\n{inputs}{run}\nwork    {flops} in contractions{limit}"
    return Text.assemble((shrinkage.module.name, "bold"), text)


def _changes(changes: Sequence[SizeChange], top: int) -> RenderableType:
    if not changes:
        return Text("\nevery size stays; --max-bytes and --dim ask for smaller ones", style="dim")
    rows = [
        (
            ", ".join(change.parameters),
            ", ".join(change.roles),
            *map(count_text, (change.before, change.after, change.arrays)),
        )
        for change in changes
    ]
    remark, figures = plural(len(changes), "dimension"), ("size", "becomes", "arrays")
    return listed("sizes", remark, rows, "inputs", "operations", figures=figures, top=top)


def _kept(kept: Sequence[KeptSize], top: int) -> RenderableType:
    rows = [
        (
            each.reason,
            f"%{each.instruction} in {truncated(each.computation, _LONGEST)}" if each.instruction else "",
            count_text(each.size),
            count_text(each.arrays),
        )
        for each in kept
    ]
    return listed("sizes that stay", "", rows, "because", "at", figures=("size", "arrays"), top=top)


def _constants(constants: Sequence[ConstantChange], top: int) -> RenderableType:
    rows = [
        (
            _remark(change),
            f"%{change.instruction}",
            f"{change.before:g}",
            f"{change.after:g}",
            count_text(change.size),
            count_text(count),
        )
        for change, count in _counted(constants)
    ]
    title, figures = "constants that encode a size", ("number", "becomes", "along size", "times")
    return listed(title, "", rows, "", "for example", figures=figures, top=top)


def _fitted(operands: Sequence[FittedOperand], top: int) -> RenderableType:
    counts = Counter((each.operation, each.operand, each.requirement, each.is_constant) for each in operands)
    firsts = {(each.operation, each.operand, each.requirement, each.is_constant): each for each in reversed(operands)}
    rows = [
        (
            "smaller constants" if each.is_constant else "cut off in each run",
            each.requirement,
            f"operand {each.operand} of {truncated(each.operation, _LONGEST)}",
            f"%{each.instruction}",
            count_text(counts[key]),
        )
        for key, each in sorted(firsts.items())
    ]
    title = "integers that are made to fit the sizes"
    return listed(title, "", rows, "", "what they are", "of", "for example", figures=("times",), top=top)


def _remark(change: ConstantChange) -> str:
    if change.is_certain:
        return "follows the size"
    return "left as it is" if change.before == change.after else "guessed"


def _counted(constants: Sequence[ConstantChange]) -> list[tuple[ConstantChange, int]]:
    """Equal changes together, those that are not certain first."""
    keys = [(change.is_certain, change.size, change.before, change.after) for change in constants]
    counts, firsts = Counter(keys), dict(zip(reversed(keys), reversed(constants), strict=True))
    return [(firsts[key], counts[key]) for key in sorted(counts)]
