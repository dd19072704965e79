"""What a search says of each instruction, and which share of a module's work it has narrowed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Module
from hloexec.language.origins import hlo_line, source_text
from hloexec.ops.costs import flops_of
from hloexec.ops.relations import Place
from hloexec.tools.narrowing.candidates import CONTRACTION, Candidate
from hloexec.tools.narrowing.findings import Deviation, InstructionVerdict, Standing
from hloexec.tools.narrowing.measuring import Ranges
from hloexec.tools.narrowing.search import Search


def verdicts(
    module: Module, candidates: Sequence[Candidate], search: Search, ranges: Ranges, types: Sequence[ElementType]
) -> Iterator[InstructionVerdict]:
    """What was found out about each instruction that could be narrowed to one of the types."""
    for candidate in candidates:
        possible = [each for each in types if candidate.can_be(each)]
        if not possible:
            continue
        instruction = candidate.instruction
        narrow = search.accepted.get(candidate.place)
        alone = search.alone.get((candidate.place, narrow or possible[0]))
        standing, reason = _standing(candidate.place, narrow, alone, search, ranges)
        runs = _runs(candidate.place, ranges)
        yield InstructionVerdict(
            computation=candidate.computation.name,
            instruction=instruction.name,
            opcode=instruction.opcode,
            kind=candidate.kind,
            element_type=candidate.element_type.name,
            narrow_type=None if narrow is None else narrow.name,
            standing=standing,
            reason=reason,
            alone=alone if isinstance(alone, Deviation) else None,
            runs=runs,
            flops=runs * candidate.flops,
            hlo=hlo_line(instruction),
            op_name=instruction.op_name,
            source=source_text(module, instruction),
        )


def _standing(
    place: Place, narrow: ElementType | None, alone: object, search: Search, ranges: Ranges
) -> tuple[Standing, str]:
    if narrow is not None:
        return Standing.NARROWED, f"computes in {narrow.name}"
    if isinstance(alone, Deviation) and alone.severity > 1:
        return Standing.ALONE, f"alone, it changes {_change(alone)}" + ", relative" * math.isfinite(alone.error)
    if alone is not None and not isinstance(alone, Deviation):
        message, *_ = str(alone).splitlines()
        return Standing.ALONE, f"alone, it makes the run fail: {message}"
    if place not in ranges.found:
        return Standing.UNTRIED, "the run did not reach it"
    standing, reason = search.refused.get(place, (Standing.UNTRIED, "no trials were left for it"))
    if isinstance(alone, Deviation) and standing is Standing.TOGETHER:
        reason += f"; alone, it changes {_change(alone)}"
    return standing, reason


def _change(alone: Deviation) -> str:
    """The output that changes, and by how much; of an element that has to stay what it is, what becomes of it."""
    if math.isfinite(alone.error):
        return f"output {alone.output} by {alone.error:.2g}"
    if alone.original == alone.changed:
        return f"the extents of output {alone.output}"
    place = f" at [{','.join(map(str, alone.index))}]" if alone.index else ""
    change = (
        f"output {alone.output} from {alone.original:.6g} to {alone.changed:.6g}{place}, which has to stay as it is"
    )
    is_chosen = isinstance(alone.original, int)
    return change + "; a comparison, argmax or conversion to integers behind it decides otherwise" * is_chosen


def work_by_type(module: Module, candidates: Sequence[Candidate], search: Search, ranges: Ranges) -> dict[str, Any]:
    """The FLOPs and bytes of one run, and of these what is narrowed: fields of `Narrowing`."""
    flops, contraction_flops, moved = Counter[str](), Counter[str](), Counter[str]()
    known = {candidate.place for candidate in candidates}
    for candidate in candidates:
        runs = _runs(candidate.place, ranges)
        narrow = search.accepted.get(candidate.place)
        name = "" if narrow is None else narrow.name
        flops[name] += runs * candidate.flops
        contraction_flops[name] += runs * candidate.flops * (candidate.kind == CONTRACTION)
        moved[name] += runs * candidate.narrowed_bytes
        moved[""] += runs * candidate.other_bytes
    for computation in module:
        for instruction in computation:
            place = (computation.name, instruction.name)
            if place not in known and place in ranges.found:
                flops[""] += _runs(place, ranges) * flops_of(computation, instruction)
    return {
        "flops": flops.total(),
        "flops_by_type": _narrowed(flops),
        "contraction_flops": contraction_flops.total(),
        "contraction_flops_by_type": _narrowed(contraction_flops),
        "byte_count": moved.total(),
        "bytes_by_type": _narrowed(moved),
    }


def _narrowed(counter: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in counter.items() if name and count}


def _runs(place: Place, ranges: Ranges) -> int:
    """How often an instruction ran, on all devices."""
    found = ranges.found.get(place)
    return 0 if found is None else round(found.runs)
