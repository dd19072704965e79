"""Explaining the values of instructions one by one, where those of the other side are known.

Each is computed from the operands that it had on the other side, so that only its own numerics show: by what rounding
leaves of it, as results of modules are. Where the other side does not say what an operand was, that is computed, too,
from what it says. In loops and on several devices, an instruction is explained in several of its runs at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.attributes import computation_names
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Role, role_of
from hloexec.tools.explaining.findings import Explained, InstructionExplanation
from hloexec.tools.explaining.other_side import Frame
from hloexec.tools.explaining.searching import search
from hloexec.tools.explaining.trying import OutOfTimeError, Trials, timeout_until
from hloexec.tools.extraction.slicing import needs_devices, slice_module, slice_of

_MOST_RUNS = 150
"""Of the search for one instruction."""
_MOST_FRAMES = 12
"""Runs of an instruction that are looked at, evenly spread."""


def explained_instructions(
    module: Module,
    frames: Sequence[Frame],
    policies: Sequence[NumericsPolicy],
    trials: Trials,
    options: Options,
) -> tuple[int, list[InstructionExplanation]]:
    """How many instructions were looked at, and those that rounding alone does not explain, in data-flow order."""
    by_computation: dict[str, list[Frame]] = {}
    for frame in frames:
        by_computation.setdefault(frame.computation, []).append(frame)
    count, found = 0, []
    for computation in module:
        for instruction in computation:
            having = [each for each in by_computation.get(computation.name, ()) if instruction.name in each.values]
            if not having or role_of(instruction) is Role.PARAMETER or not trials.has_time():
                continue
            explanation = _explained(
                module, computation, instruction, having, by_computation, policies, trials.end, options
            )
            if explanation is not None:
                count += 1
                if explanation.verdict in (Explained.POLICY, Explained.NONE):
                    found.append(explanation)
    trials.is_over = trials.is_over or not trials.has_time()
    return count, found


@frozen(eq=False)
class _Part:
    """The instruction, and what it takes to compute it, as a module."""

    module: Module
    boundary: tuple[str, ...]
    runs: Sequence[Sequence[Frame]]
    """Of each, the frames of one device, or of all if they exchange something."""
    options: Options

    def __call__(self, policy: NumericsPolicy, end: float) -> list[Value]:
        found: list[Value] = []
        for devices in self.runs:
            rows = [[frame.values[name]() for name in self.boundary] for frame in devices]
            given = attrs.evolve(self.options, numerics=policy, timeout=timeout_until(end))
            found += run_with(self.module, rows, given)[: len(devices)]
        return found


def _part_of(
    module: Module,
    computation: Computation,
    target: str,
    frames: Sequence[Frame],
    known: Collection[str],
    options: Options,
) -> _Part | None:
    """The part that computes an instruction; None where that is none, where the values that it is made of are not
    known, or where it runs computations whose instructions are explained by themselves."""
    common = set(frames[0].values).intersection(*(frame.values for frame in frames[1:]))
    cuts = [each.name for each in computation if each.name in common and each.name != target]
    try:
        part = slice_of(computation, target, cuts=cuts)
    except InputError:
        return None
    runs_known = any(
        name in known and role_of(computation.by_name[inside]) is not Role.KERNEL
        for inside in part.inside
        for name in computation_names(computation.by_name[inside].attributes)
    )
    if runs_known or not common.issuperset(part.boundary):
        return None
    runs: list[list[Frame]] = [[frame] for frame in frames]
    if needs_devices(part, module):
        by_run: dict[str, list[Frame]] = {}
        for frame in frames:
            by_run.setdefault(frame.run, []).append(frame)
        whole = {frame.device for frame in frames}
        runs = [sorted(each, key=lambda frame: frame.device) for each in by_run.values() if len(each) == len(whole)]
    else:
        options = attrs.evolve(options, replicas=None, partitions=None)
    step = -(-len(runs) // _MOST_FRAMES)
    return _Part(slice_module(module, part), part.boundary, runs[:: max(1, step)], options)


def _explained(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    frames: Sequence[Frame],
    known: Collection[str],
    policies: Sequence[NumericsPolicy],
    end: float,
    options: Options,
) -> InstructionExplanation | None:
    """What explains the values of an instruction; None where it cannot be computed by itself."""
    part = _part_of(module, computation, instruction.name, frames, known, options)
    if part is None:
        return None
    trials = Trials(part, {}, _MOST_RUNS, end)
    given = [frame.values[instruction.name]() for devices in part.runs for frame in devices]
    try:
        trials.expected = dict(zip(trials.reference, given, strict=True))
        found = search(part.module, trials, policies)
    except (HloError, OutOfTimeError, ValueError):
        # A part may lack what it needs of the host, or of devices whose values are not known.
        return None
    return InstructionExplanation(
        name=instruction.name,
        opcode=instruction.opcode,
        hlo=hlo_line(instruction),
        verdict=found.verdict,
        best=found.best,
        alike=found.alike,
        source=tuple(map(str, source_lines(module, instruction))),
        runs=len(given),
        is_complete=not trials.is_over,
    )
