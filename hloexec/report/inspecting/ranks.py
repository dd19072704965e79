"""Reports of `hloexec memory --ranks`: what each rank holds, and what ranks send."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.analysis.ranks import CollectiveUsage, DistributedUsage, RankUsage
from hloexec.core.ir import Module
from hloexec.core.places import spell_name
from hloexec.core.wording import byte_text, count_text, listing, number_runs, plural
from hloexec.report.layout import listed
from hloexec.report.registry import Figures, Linker, Report
from hloexec.report.units import seconds_text
from hloexec.tools.watching.recording import Ranked

_NAMED = 8
_BARS = 20


def ranks_view(usage: DistributedUsage, top: int) -> RenderableType:
    """A line of totals, then a table of ranks and one of collectives, of at most `top` rows each; 0 for all."""
    return Group(_summary(usage), _ranks(usage, top), *_collectives(usage, top), *map(_note, _notes(usage)))


def _note(text: str) -> Text:
    return Text(text, style="dim")


def _summary(usage: DistributedUsage) -> Text:
    largest, on = usage.largest, f"{plural(usage.device_count, 'device')} on {plural(len(usage.ranks), 'rank')}"
    held, equal = byte_text(largest.bytes), byte_text(largest.equal_bytes)
    most = f"rank {largest.rank} holds most, {held} ({equal} if inputs are equal)"
    return Text.assemble((usage.module_name, "bold"), f"  {on}; {most}")


def _ranks(usage: DistributedUsage, top: int) -> RenderableType:
    def row(rank: RankUsage) -> list[str]:
        devices = number_runs(range(rank.first_device, rank.first_device + rank.device_count))
        sizes = (rank.input_bytes, rank.peak_bytes, rank.bytes, rank.equal_bytes, rank.result_bytes)
        sent = (rank.sent_bytes, rank.received_bytes)
        return [str(rank.rank), devices, *map(byte_text, (*sizes, *sent)), count_text(rank.messages)]

    figures = ("inputs", "beyond them", "in all", "inputs equal", "results", "sends", "receives", "messages")
    rows = list(map(row, usage.ranks))
    return listed("ranks", "each device with inputs of its own", rows, "rank", "devices", figures=figures, top=top)


def _collectives(usage: DistributedUsage, top: int) -> Iterator[RenderableType]:
    if not usage.collectives:
        return
    remark = f"{byte_text(usage.total_bytes)} in all"
    if usage.network is not None and usage.seconds is not None:
        remark += f", at least {seconds_text(usage.seconds)} over {usage.network.text}"

    def row(collective: CollectiveUsage) -> list[str]:
        sizes = (collective.sent_bytes, collective.received_bytes)
        times = [] if collective.seconds is None else [seconds_text(collective.seconds)]
        runs = f"{count_text(collective.runs)}{'' if collective.is_counted else '?'}"
        return [
            collective.instruction,
            collective.opcode,
            runs,
            *map(byte_text, sizes),
            count_text(collective.messages),
            *times,
        ]

    figures = ("runs", "a rank sends", "receives", "messages", *(("least time",) if usage.network is not None else ()))
    rows = list(map(row, usage.collectives))
    yield listed("messages between ranks", remark, rows, "instruction", "opcode", figures=figures, top=top)


def _notes(usage: DistributedUsage) -> Iterator[str]:
    """What the figures are bounds of, and what they do not count."""
    yield (
        "\nBytes are estimates from above, as devices that agree by chance count as different. Constants, which every "
        "rank has, and buffers of messages come on top."
    )
    if usage.collectives and usage.network is not None:
        yield "The time is a lower bound for these bytes: ranks wait for nothing, and share no link."
    uncertain = sum(not collective.is_counted for collective in usage.collectives)
    if uncertain:
        stand = "stands" if uncertain == 1 else "stand"
        yield (
            f"{plural(uncertain, 'instruction')}, marked ?, {stand} in loops that do not say how often they run, which "
            "count as one iteration, or in branches of conditionals, which count as taken."
        )
    if usage.unknown:
        names = listing((f"%{name}" for name in usage.unknown), _NAMED)
        yield f"Not counted, as only a run tells what is sent: {names}"


def ranking(usage: DistributedUsage, _: Module) -> Iterator[Ranked]:
    for collective in usage.collectives:
        key = collective.computation, collective.instruction
        yield Ranked(key, f"a rank sends {byte_text(collective.sent_bytes)}")


def figures(usage: DistributedUsage, link: Linker) -> Figures:
    from hloexec.report.html.plots import bars

    held = [(f"rank {rank.rank}", float(rank.bytes), byte_text(rank.bytes)) for rank in usage.ranks]
    yield bars("What ranks hold at most", held[:_BARS], "bytes")
    sent = [
        (collective.instruction, float(collective.sent_bytes), byte_text(collective.sent_bytes))
        for collective in usage.collectives[:_BARS]
    ]
    links = [link(spell_name(entry.computation, entry.instruction)) for entry in usage.collectives[:_BARS]]
    yield bars("What a rank sends at most", sent, "bytes", links)


REPORT = Report(lambda usage, top, _: ranks_view(usage, top), figures, ranking)
