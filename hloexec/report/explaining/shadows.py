"""Reports of `hloexec shadow`: the culprit, the digits of the outputs, the losses, decisions, and the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import ArrayShape, Module
from hloexec.core.values import WHOLE, part_label
from hloexec.core.wording import count_text, listing, number_runs, number_text, plural
from hloexec.report.layout import Command, Parts, listed, next_steps
from hloexec.report.registry import Figures, Linker, Report
from hloexec.report.tables import extract_command, place_lines
from hloexec.tools.shadowing import Decision, Loss, SampledDigits, ShadowRun
from hloexec.tools.shadowing.places import KINDS
from hloexec.tools.shadowing.running import CONFIDENCE
from hloexec.tools.watching.recording import Ranked

_MOST_BARS = 12


def shadow_view(shadow_run: ShadowRun, module: str, devices: int, top: int, command: Command) -> RenderableType:
    """Everything `hloexec shadow` says."""
    parts: Parts = [*_verdict(shadow_run, module, devices), _outputs(shadow_run, devices, top)]
    if shadow_run.losses:
        parts.append(_losses(shadow_run, top))
    if shadow_run.decisions:
        parts.append(_decisions(shadow_run.decisions, top))
    if shadow_run.untold:
        parts.append("")
        names = listing((f"%{entry.instruction}" for entry in shadow_run.untold), 8)
        many = plural(len(shadow_run.untold), "instruction")
        parts.append(f"{many} with results that cannot be told in f64, and count as exact: {names}")
    if shadow_run.culprit is not None and shadow_run.is_more_than_rounding:
        first = shadow_run.culprit
        parts.append(next_steps(extract_command(command, first.name, first.instruction, first.devices[0])))
    return Group(*parts)


def _verdict(shadow_run: ShadowRun, module: str, devices: int) -> Parts:
    first = shadow_run.culprit
    if first is None:
        text = "no rounding error" if shadow_run.outputs else "nothing to look at"
        rest = f" in the outputs of {module}, {count_text(shadow_run.events)} values looked at"
        return [Text.assemble((text, "bold green"), rest)]
    if not shadow_run.is_more_than_rounding:
        largest = max(output.relative_error / output.unit for output in shadow_run.outputs if output.unit)
        errors = f"{number_text(largest, 2)} units of roundoff at most"
        text = f" in the outputs of {module}: as a whole, their errors are {errors}"
        return [Text.assemble(("nothing but rounding", "bold green"), text)]
    of_what = "the error of the outputs"
    share = first.share
    if first.lost_share:
        of_what, share = "what is infinite or NaN in the outputs, and should not be", first.lost_share
    where = "" if first.iteration is None else f"; the error is largest in iteration {first.iteration}"
    if devices > 1:
        where += f", on device {first.devices[0]}"
    about = "about " if shadow_run.estimates_reason and not first.lost_share else ""
    verdict = Text.assemble(
        (f"%{first.instruction}", "bold red"),
        f": {first.kind}, {about}{share:.0%} of {of_what}; {KINDS[first.kind]}{where}",
    )
    return [verdict, Text(""), *place_lines(first)]


def _outputs(shadow_run: ShadowRun, devices: int, top: int) -> RenderableType:
    sampled = {(entry.index, entry.devices): entry for entry in shadow_run.digits}
    headers = ["output", "shape", "error", "digits", "worst", "at", "is", "should be"]
    if shadow_run.samples:
        headers.append(f"{shadow_run.samples} runs, {CONFIDENCE:.0%}")
    rows: dict[tuple[tuple[int, ...], tuple[str, ...]], list[int]] = {}
    for output in shadow_run.outputs:
        cells = [
            str(ArrayShape(output.element_type, output.dimensions)),
            number_text(output.relative_error, 2),
            _digits_text(output.digits),
            _digits_text(output.worst_digits),
            ("" if output.worst_index is None else f"[{','.join(map(str, output.worst_index))}]"),
            number_text(output.worst_value, 6) if output.worst_value is not None else "",
            number_text(output.worst_exact, 6) if output.worst_exact is not None else "",
        ]
        if shadow_run.samples:
            cells.append(_interval_text(sampled.get((output.index, output.devices))))
        rows.setdefault((output.index, tuple(cells)), []).extend(output.devices)
    lost = sum(output.lost for output in shadow_run.outputs)
    remark = "decimal digits of the median and of the worst element"
    if lost:
        remark += f"; {plural(lost, 'element')} infinite or NaN that should not be"
    labelled = [(_label(index, sorted(holders), devices), *texts) for (index, texts), holders in rows.items()]
    return listed("outputs", remark, labelled, *headers, top=top)


def _losses(shadow_run: ShadowRun, top: int) -> RenderableType:
    def cells(loss: Loss) -> list[str]:
        share = loss.lost_share or loss.share
        about = "~" if shadow_run.share_runs and not shadow_run.estimates_reason and not loss.is_measured else ""
        errors = [number_text(loss.inherited, 2), number_text(loss.added, 2)]
        if shadow_run.share_runs:
            errors.append("" if loss.alone is None else number_text(loss.alone, 2))
        return [f"{about}{share:.1%}", loss.kind, loss.name, count_text(loss.runs), *errors, *_first(loss.source)]

    headers = ["share", "kind", "instruction", "runs", "inherits", "adds", *["alone"] * bool(shadow_run.share_runs)]
    remark = f"errors relative to the result, in the worst run; {_basis(shadow_run)}"
    return listed(
        "where the error of the outputs comes from",
        remark,
        list(map(cells, shadow_run.losses)),
        *headers,
        "source",
        top=top,
    )


def _basis(shadow_run: ShadowRun) -> str:
    """How the shares were found, as a clause."""
    if shadow_run.estimates_reason:
        return f"shares are estimates: {shadow_run.estimates_reason}"
    text = (
        f"shares are measured in {plural(shadow_run.share_runs, 'run')}; alone: of the outputs, where it alone rounds"
    )
    if shadow_run.estimated_count:
        text += f"; ~: estimates, as {plural(shadow_run.estimated_count, 'instruction')} did not run alone"
    return text


def _decisions(decisions: Sequence[Decision], top: int) -> RenderableType:
    rows = [
        (f"%{entry.instruction}", count_text(entry.count), count_text(entry.total), *_first(entry.source))
        for entry in decisions
    ]
    title = "where exact numbers would have decided otherwise"
    remark = "the shadows follow the run's own branches and indices"
    return listed(title, remark, rows, "instruction", "otherwise", "of", "source", top=top)


def _first(source: Sequence[object]) -> tuple[str]:
    """The cell of the innermost line of source."""
    return (str(source[0]) if source else "",)


def _label(index: Sequence[int], holders: Sequence[int], devices: int) -> str:
    text = part_label(WHOLE, index)
    if devices > len(holders):
        text += f" on {number_runs(holders)}"
    return text


def _digits_text(digits: float | None) -> str:
    return "" if digits is None else f"{digits:.1f}"


def _interval_text(sampled: SampledDigits | None) -> str:
    return "" if sampled is None else f"{sampled.digits:.1f} ({sampled.low:.1f}–{sampled.high:.1f})"


def _ranking(shadow_run: ShadowRun, _: Module) -> Iterator[Ranked]:
    for number, loss in enumerate(shadow_run.losses):
        of_what = "of what is infinite or NaN and should not be" if loss.lost_share else "of the error of the outputs"
        why = f"{loss.kind}, {loss.lost_share or loss.share:.1%} {of_what}"
        yield Ranked((loss.computation, loss.instruction), why, is_bad=not number and shadow_run.is_more_than_rounding)
    for decision in shadow_run.decisions:
        many = f"{count_text(decision.count)} of {count_text(decision.total)} elements"
        yield Ranked((decision.computation, decision.instruction), f"exact numbers would have decided {many} otherwise")


def _figures(shadow_run: ShadowRun, link: Linker) -> Figures:
    from hloexec.report.html.plots import bars

    rows, links = [], []
    for loss in shadow_run.losses[:_MOST_BARS]:
        share = loss.lost_share or loss.share
        rows.append((loss.instruction, 100 * share, f"{share:.1%}  {loss.kind}"))
        links.append(link(f"{loss.computation}/{loss.instruction}"))
    yield bars("Where the error of the outputs comes from", rows, "share in %", links, is_percent=True)


def _view(shadow_run: ShadowRun, top: int, command: Command) -> RenderableType:
    devices = 1 + max((device for output in shadow_run.outputs for device in output.devices), default=0)
    return shadow_view(shadow_run, "the module", devices, top, command)


REPORTS = {ShadowRun: Report(_view, _figures, _ranking, watch="hloexec.tools.shadowing.observer.watch")}
