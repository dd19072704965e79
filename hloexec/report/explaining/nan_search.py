"""Reports of `hloexec nan`: the verdict, the instruction with its operands and elements, the chain, and the next
command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import Module
from hloexec.core.wording import count_text, listing, number_text, on_devices, plural
from hloexec.report.layout import Command, Parts, listed, next_steps
from hloexec.report.registry import Report
from hloexec.report.tables import extract_command, leaf_label, place_lines, values_table
from hloexec.tools.nan_search.findings import Element, Finding, Link, NanSearch
from hloexec.tools.watching.recording import Ranked

_VERBS = {
    "overflow": "overflows",
    "pole": "makes infinities of finite numbers",
    "invalid": "makes NaN of finite numbers",
    "nan": "makes NaN of infinities",
    "literal": "takes NaN of a constant",
    "saturation": "saturates",
    "underflow": "underflows to zero",
    "cancellation": "loses all significant digits",
}
_MIXED = {
    "overflow": "overflows and makes NaN of finite numbers",
    "pole": "makes infinities and NaN of finite numbers",
}
"""The same where some of the elements are NaN, and others infinite."""


def nan_view(search: NanSearch, module: str, devices: int, top: int, command: Command) -> RenderableType:
    """Everything `hloexec nan` says."""
    finding = search.finding
    if finding is None:
        return _nothing(search, module, devices, command)
    where = _where(finding, devices)
    verb = (_MIXED if 0 < finding.bad_nan < finding.bad else _VERBS).get(finding.kind, _VERBS[finding.kind])
    verdict = Text.assemble((f"%{finding.instruction}", "bold red"), f" {verb}{where}")
    if finding.kind != "literal":
        verdict.append(f": {finding.reason}")
    verdict.append(f", {count_text(finding.bad)} of {plural(finding.count, 'element')}")
    parts: Parts = [verdict]
    if search.nan_inputs:
        parts.append(Text(f"the inputs hold NaN: {_input_places(search, devices)}", style="yellow"))
        parts += [Text(_compared(search), style="yellow")] if search.compared else []
    parts += ["", *place_lines(finding)]
    rows = [("result", finding.value)]
    for operand in dict.fromkeys(finding.operands):
        rows += [(leaf_label(operand.name, leaf.index), leaf) for leaf in operand.leaves]
    parts.append(values_table("its result and operands", rows))
    if finding.elements and top:
        parts.append(_elements(finding, finding.elements[:top]))
    if finding.chain:
        parts.append(_chain(finding.chain))
    if search.later:
        parts += ["", Text(f"{plural(len(search.later), 'other')} took part", style="dim")]
        parts += [f"  {later.name}: {later.reason}" for later in search.later[:top]]
    if search.discarded:
        parts += ["", _discarded(search)]
    parts.append(next_steps(extract_command(command, finding.name, finding.instruction, finding.devices[0])))
    return Group(*parts)


def _where(finding: Finding, devices: int) -> str:
    text = f" in iteration {finding.iteration}" if finding.iteration is not None else ""
    return text + on_devices(finding.devices) if devices > 1 else text


def _nothing(search: NanSearch, module: str, devices: int, command: Command) -> RenderableType:
    looked = f"{count_text(search.events)} values checked"
    if search.nan_from_inputs:
        if search.nan_input_elements:
            cause, places = "the inputs hold NaN", _input_places(search, devices)
        elif search.nan_constants:
            cause, places = "constants hold NaN", listing((f"%{name}" for name in search.nan_constants), 4)
        else:
            verdict = Text.assemble(("NaN reach the result", "bold red"), ", and nothing was found that has made them")
            return Group(verdict, looked)
        verdict = Text.assemble((cause, "bold red"), f" that reach the result: {places}")
        return Group(verdict, f"no instruction of {module} made any ({looked})")
    parts: Parts = [Text.assemble(("nothing found", "bold green"), f": no instruction of {module} went bad, {looked}")]
    if search.made_integers:
        parts.append(f"integers were made of NaN, which gives 0: {listing(search.made_integers, 4)}")
    if search.compared:
        parts.append(_compared(search))
    if search.discarded:
        parts.append(_discarded(search))
        parts.append(next_steps(command("nan", "--first")))
    if search.nan_inputs:
        parts.append(f"the inputs hold NaN: {_input_places(search, devices)}")
    return Group(*parts)


def _compared(search: NanSearch) -> str:
    names = listing(search.compared, 4)
    return f"NaN were compared, and are neither equal to anything nor smaller nor larger: {names}"


def _discarded(search: NanSearch) -> Text:
    many, first = plural(len(search.discarded), "instruction"), search.discarded[0]
    return Text(f"{many} produced NaN or infinities that did not reach the result; first: {first.name}, {first.reason}")


def _input_places(search: NanSearch, devices: int) -> str:
    """Where the inputs have NaN, such as `%x[3,1], 1 of 8 elements`."""
    places = []
    for element in search.nan_input_elements[:8]:
        place = f"{leaf_label(element.parameter, element.leaf)}[{','.join(map(str, element.index))}]"
        where = f" on device {element.devices[0]}" if len(element.devices) < devices else ""
        places.append(f"{place}{where}, {count_text(element.bad)} of {plural(element.count, 'element')}")
    return "; ".join(places) + ("; …" if len(search.nan_input_elements) > 8 else "")


def _elements(finding: Finding, elements: Sequence[Element]) -> RenderableType:
    names = [f"%{operand.name}" for operand in finding.operands] if elements[0].operands is not None else []
    rows = [
        (f"[{','.join(map(str, each.index))}]", *map(_value_text, (each.value, *(each.operands or ()))))
        for each in elements
    ]
    shown = f"the first {len(elements)}" if len(elements) < finding.bad else "all"
    return listed("elements", f"{shown} of {count_text(finding.bad)}", rows, "at", "result", *names)


def _value_text(value: float | int | complex | bool) -> str:
    if isinstance(value, float):
        return str(value) if not math.isfinite(value) else f"{value:.9g}"
    return str(value)


def _chain(chain: Sequence[Link]) -> RenderableType:
    rows = [(link.name, number_text(link.minimum), number_text(link.maximum), link.source or "") for link in chain]
    return listed("what led to it", "earliest first", rows, "instruction", "min", "max", "source")


def _ranking(search: NanSearch, _: Module) -> Iterator[Ranked]:
    if search.finding is not None:
        yield Ranked((search.finding.computation, search.finding.instruction), search.finding.reason, is_bad=True)
    for finding in search.later:
        yield Ranked((finding.computation, finding.instruction), f"took part: {finding.reason}")
    for finding in search.discarded:
        yield Ranked((finding.computation, finding.instruction), f"did not reach the result: {finding.reason}")


def _view(search: NanSearch, top: int, command: Command) -> RenderableType:
    devices = 1 + max(search.finding.devices, default=0) if search.finding is not None else 1
    return nan_view(search, "the module", devices, top, command)


REPORTS = {NanSearch: Report(_view, ranking=_ranking, watch="hloexec.tools.watching.recording.watch_values")}
