"""Judging units: what a counterpart makes of one, compared with what it gives here, and the policy that explains it."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison, OutputDifference, Verdict
from hloexec.core.ir import Module
from hloexec.core.ir.editing import take_name
from hloexec.core.structs import frozen
from hloexec.core.values import Value, arrays_of, join_values
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, unwarned
from hloexec.language import literals
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.counterparts.answers import Answer, Counterpart, Outcome
from hloexec.tools.explaining import explain
from hloexec.tools.extraction import Extraction
from hloexec.tools.isolating.findings import IsolatedUnit
from hloexec.tools.isolating.units import Unit, named_module
from hloexec.tools.triaging.blaming import policy_found
from hloexec.tools.triaging.findings import PolicyFound

_TIGHT = 2.0**-14
"""A tolerance that follows from a unit's roundings alone is enough where it is no more than this part of an element:
else what rounding does to each is measured."""
_MOST_RUNS = 100
"""Of a unit, to find the policy that explains it."""
_OUTCOMES = {
    Verdict.EQUAL: "equal",
    Verdict.ROUNDING: "rounding only",
    Verdict.NOT_DECIDED: "not decided",
    Verdict.DIFFERENT: "different",
}


@frozen(eq=False)
class Execution:
    """One run of a unit in the whole module."""

    unit: Unit
    name: str
    """The path of the run."""
    iteration: int | None
    devices: tuple[int, ...]
    """Those that hold these values."""
    operands: list[Value]
    value: Value


class Judge:
    """Runs units on a counterpart, those that are equal but for names and have equal operands once."""

    def __init__(
        self,
        module: Module,
        units: Collection[Unit],
        counterpart: Counterpart,
        options: Options,
        output: str | os.PathLike[str] | None,
    ) -> None:
        self._module = module
        self._counterpart = counterpart
        self._options = options
        self._output = None if output is None else Path(output)
        self._folders: set[str] = set()
        self._often = {text for text, count in Counter(unit.text for unit in units).items() if count > 1}
        self._known: dict[tuple[str, str], IsolatedUnit] = {}
        self._policies: list[tuple[NumericsPolicy, PolicyFound]] = []
        """Those that have explained units."""
        self.run_count = 0

    def judge(self, execution: Execution) -> IsolatedUnit:
        """What comes of a unit."""
        unit = execution.unit
        blank = self._blank(execution)
        if unit.module is None:
            return attrs.evolve(blank, outcome="not isolated", reason=unit.reason)
        key = (unit.text, _digest(execution.operands)) if unit.text in self._often else None
        if key is not None and key in self._known:
            known = self._known[key]
            told = ("outcome", "reason", "outputs", "explained", "folder")
            return attrs.evolve(blank, same_as=known.name, **{name: getattr(known, name) for name in told})
        with unwarned():
            result = self._judged(blank, execution, unit.module)
        if key is not None:
            self._known[key] = result
        return result

    def _blank(self, execution: Execution) -> IsolatedUnit:
        unit, instruction = execution.unit, execution.unit.instruction
        return IsolatedUnit(
            name=execution.name,
            computation=unit.computation.name,
            instruction=unit.target,
            opcode=instruction.opcode,
            shape=str(instruction.shape),
            hlo=hlo_line(instruction),
            outcome="refused",
            source=tuple(map(str, source_lines(self._module, instruction))),
            devices=execution.devices,
            iteration=execution.iteration,
            text=unit.text,
        )

    def _judged(self, blank: IsolatedUnit, execution: Execution, module: Module) -> IsolatedUnit:
        rows = [execution.operands]
        try:
            self.run_count += 1
            answer = self._counterpart.run(module, rows, **self._options)
            if answer.error is not None:
                result = attrs.evolve(blank, outcome=answer.outcome.value, reason=answer.reason)
                is_kept = answer.outcome is not Outcome.REFUSED
            else:
                comparison = self._compared(module, rows, answer, execution.value)
                result = self._with_cause(blank, module, rows, answer, comparison)
                is_kept = not comparison.agrees
        except HloError as error:
            return attrs.evolve(blank, reason=str(error))
        if is_kept and self._output is not None:
            return attrs.evolve(result, folder=os.fspath(self._kept(self._output, execution, answer)))
        return result

    def _compared(self, module: Module, rows: list[list[Value]], answer: Answer, value: Value) -> Comparison:
        theirs: Any = answer.result
        options: dict[str, Any] = {"module": module, "numerics": self._options.numerics, **answer.comparing}
        by_roundings = compare(theirs, value, **options)
        if by_roundings.agrees and all(leaf.tolerance.rtol <= _TIGHT for leaf in by_roundings.leaves):
            return by_roundings
        return compare(theirs, value, inputs=rows, **options)

    def _with_cause(
        self, blank: IsolatedUnit, module: Module, rows: list[list[Value]], answer: Answer, comparison: Comparison
    ) -> IsolatedUnit:
        result = attrs.evolve(
            blank,
            outcome=_OUTCOMES[comparison.verdict],
            reason=comparison.not_decided[0].undecided_text if comparison.verdict is Verdict.NOT_DECIDED else "",
            outputs=tuple(map(OutputDifference.of, comparison.different)),
        )
        if comparison.verdict is not Verdict.DIFFERENT:
            return result
        policy = self._explained(module, rows, answer.result)
        return result if policy is None else attrs.evolve(result, outcome="explained", explained=policy)

    def _explained(self, module: Module, rows: list[list[Value]], theirs: Any) -> PolicyFound | None:
        """The policy under which a unit gives what the counterpart does; it has to hold for each element."""
        for policy, told in self._policies:
            if self._agrees_under(policy, module, rows, theirs):
                return told
        with suppress(HloError):
            options = attrs.evolve(self._options, numerics="reference", timeout=None)
            explanation = explain(module, rows, theirs, runs=_MOST_RUNS, **options)
            told_now = policy_found(explanation, is_whole=True)
            policy = explanation.best.policy
            if told_now is not None and self._agrees_under(policy, module, rows, theirs):
                if not policy.overrides:
                    self._policies.append((policy, told_now))
                return told_now
        return None

    def _agrees_under(self, policy: NumericsPolicy, module: Module, rows: list[list[Value]], theirs: Any) -> bool:
        values = run_with(module, rows, attrs.evolve(self._options, numerics=policy, timeout=None))
        return compare(theirs, join_values(values), module=module, inputs=rows, numerics=policy).agrees

    def _kept(self, output: Path, execution: Execution, answer: Answer) -> Path:
        """The folder of a unit, with its names, and what it gives on either side."""
        unit = execution.unit
        folder = output / take_name(unit.target, self._folders)
        module = named_module(self._module, unit.slice)
        path, iteration = execution.name, execution.iteration
        Extraction(module, [execution.operands], [execution.value], path, iteration, {}).save(folder)
        theirs: Any = answer.result
        if theirs is not None:
            literals.save(folder / "actual.npz", theirs)
        words = ["hloexec", "run", "module.hlo", "--inputs", "inputs.npz", "--against", self._counterpart.name]
        if self._options.numerics.name != "reference":
            words += ["--numerics", self._options.numerics.name]
        (folder / "command.txt").write_text(shlex.join(words) + "\n", encoding="utf-8")
        return folder


def _digest(operands: Sequence[Value]) -> str:
    """The same for equal operands."""
    digest = hashlib.blake2b()
    for array in arrays_of(tuple(operands)):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
