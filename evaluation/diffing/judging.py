"""Whether what `diff` says of a pair is right."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

import attrs

import hloexec
from evaluation.diffing.dataflow import DataFlow
from evaluation.pairs.drawing import Drawn
from hloexec.language.origins import hlo_line

_LARGEST_REGION = 5
_LARGEST_TUPLE = 5
"""A tuple that a value is put into says where the value goes only if it is no larger."""
_WIDTH = 200


@attrs.frozen
class Judgement:
    """What was said, and how near it is."""

    verdict: str
    first: str
    """How near the first finding is: `exact`, `library call`, `neighbour`, `region`, or empty where it is wrong."""
    rank: int | None
    """The number of the first finding that is right, from one."""
    named: tuple[str, ...]
    """What the first findings name."""
    planted: tuple[str, ...]
    is_certain: bool = False
    """Whether the first finding is said to be to blame."""

    @property
    def is_right(self) -> bool:
        return bool(self.first)


def judge(drawn: Drawn, found: hloexec.Diff) -> Judgement:
    """Judge the findings of a pair with a fault, or the verdict of a pair without."""
    if not drawn.planted:
        is_right = found.verdict != "differ"
        names = tuple(_described(drawn, finding.after) for finding in found.findings[:3])
        return Judgement(found.verdict, "clean" if is_right else "", None, names, ())
    flow = DataFlow(drawn.after.module)
    near = flow.neighbours(drawn.planted, drawn.elements)
    levels = [_level(drawn, flow, near, finding) for finding in found.findings]
    rank = next((number for number, level in enumerate(levels, 1) if level), None)
    return Judgement(
        found.verdict,
        levels[0] if levels and found.verdict == "differ" else "",
        rank,
        tuple(_described(drawn, finding.after) for finding in found.findings[:3]),
        tuple(_line(drawn, name) for name in sorted(drawn.planted)),
        bool(found.findings) and found.findings[0].is_certain,
    )


def _line(drawn: Drawn, name: str) -> str:
    """An instruction as text, without its metadata, shortened."""
    (instruction,) = (c.by_name[name] for c in drawn.after.module if name in c.by_name)
    return shorten(hlo_line(instruction), _WIDTH)


def _described(drawn: Drawn, run: Any) -> str:
    return f"{run.path} [{_line(drawn, run.instruction)}]"


def _level(drawn: Drawn, flow: DataFlow, near: set[str], finding: Any) -> str:
    name = finding.after.instruction
    if name in drawn.planted:
        return "exact"
    if flow.is_library_call(name) and flow.inside(name) & drawn.planted:
        return "library call"
    if _is_near(flow, near, name):
        return "neighbour"
    region = {run.instruction for run in getattr(finding, "region", ())}
    return "region" if len(region) <= _LARGEST_REGION and region & drawn.planted else ""


def _is_near(flow: DataFlow, near: set[str], name: str) -> bool:
    opcode = flow.opcode(name)
    if opcode in ("get-tuple-element", "parameter"):
        return name in near or bool(flow.sources(name) & near)
    if opcode == "tuple":
        sources = flow.sources(name)
        return len(sources) <= _LARGEST_TUPLE and bool(sources & near)
    return name in near
