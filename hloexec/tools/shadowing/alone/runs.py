"""Runs in f64 in which one instruction, or a group of them, rounds; and what that does to the outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Inputs, Value, leaves
from hloexec.engine.exec.plans import plan_of
from hloexec.engine.exec.running import repeated_run
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.ops.common import is_inexact
from hloexec.ops.policies.policy import REFERENCE
from hloexec.ops.relations import Place as Static
from hloexec.tools.shadowing.alone.switches import Mode, switches_of
from hloexec.tools.shadowing.alone.widened import suffix_of, widened_module
from hloexec.tools.shadowing.kinds import summed_squares
from hloexec.tools.shadowing.outputs import LeafError
from hloexec.tools.shadowing.store import wide

Energies = tuple[float, ...]
"""For each output, the sum of the squares of the differences from the run in f64."""

_RIGHT = 0.5
"""An element whose relative error is smaller has a digit that is right."""
_KEPT = 1 << 20
"""Numbers that are kept of the operands and results of one sum or difference."""


@frozen
class Reading:
    """What a run shows in which only the operands of a sum or difference are rounded."""

    energies: Energies
    amplified: float
    """How many times as large relative errors are in its result, in the run of it in which that is most."""
    inherited: float
    """The relative error of its result, as a whole, in the run of it in which that is largest."""


@frozen(eq=False)
class _Taken:
    """A sum or difference of two operands, in one run of it."""

    operands: tuple[Array, ...]
    result: Array


class _Record:
    """The first runs of an instruction."""

    def __init__(self) -> None:
        self.runs: list[_Taken] = []
        self._left = _KEPT

    def take(self, operands: Sequence[Array], result: Array) -> None:
        self._left -= sum(operand.size for operand in operands) + result.size
        if self._left > 0:
            # Memory may be used again.
            self.runs.append(_Taken(tuple(map(np.array, operands)), np.array(result)))


class WideRuns:
    """The run of a module in f64, and others in which something rounds."""

    def __init__(
        self,
        module: Module,
        inputs: Inputs | None,
        outputs: Sequence[LeafError],
        rounding: Collection[Static],
        reading: Collection[Static],
        options: Options,
    ) -> None:
        """Runs in f64. Instructions of `rounding` may round; `reading` are sums and differences whose operands may."""
        name = options.computation
        entry = module.entry if name is None else module.by_name[name.removeprefix("%")]
        if inputs is None:
            inputs = [random_inputs(module, options.seed, computation=entry.name)]
        self._inputs, self._outputs = inputs, outputs
        wide = widened_module(module, entry)
        # As it is written, since passes would take the steps apart; the original has been verified.
        given = attrs.evolve(
            options, computation=None, numerics=REFERENCE, statistics=None, planner=False, verify=False
        )
        plan = plan_of(wide, given)
        self._switches = switches_of(plan, module, suffix_of(module), {*rounding, *reading})
        self._results_of = repeated_run(wide, given, plan)
        self.count = 0
        records = {static: self._recorded(static) for static in reading if static in self._switches}
        self.exact = self._run()
        self._exact_runs = {static: record.runs for static, record in records.items()}

    def can_round(self, static: Static) -> bool:
        """Whether an instruction has a step of its own."""
        return static in self._switches

    def scale(self, number: int) -> float:
        """The sum of the squares of an output's finite numbers in f64."""
        return summed_squares(self.exact[number])[1]

    def energies_of(self, results: Sequence[Value]) -> Energies:
        """By how much the outputs in other results of the module differ from those in f64."""
        return self._energies(self._leaves(results))

    def rounding(self, group: Collection[Static]) -> Energies:
        """Where only a group of instructions rounds, and only its results."""
        return self._energies(self._run(group, Mode.RESULT))

    def reading(self, static: Static) -> Reading:
        """Where only the operands of a sum or difference are rounded."""
        record = self._recorded(static)
        energies = self._energies(self._run([static], Mode.OPERANDS))
        amplified = inherited = 0.0
        for ours, exact in zip(record.runs, self._exact_runs[static], strict=False):
            if ours.result.shape != exact.result.shape:
                break
            amplified = max(amplified, _amplification(ours, exact))
            scale = summed_squares(exact.result)[1]
            if scale > 0:
                inherited = max(inherited, (summed_squares(ours.result - exact.result)[1] / scale) ** 0.5)
        return Reading(energies, amplified, inherited)

    def _recorded(self, static: Static) -> _Record:
        record = _Record()
        for switch in self._switches[static]:
            switch.take = record.take
        return record

    def _run(self, group: Collection[Static] = (), mode: Mode = Mode.NOTHING) -> list[Array]:
        self.count += 1
        for static in group:
            for switch in self._switches[static]:
                switch.mode = mode
        try:
            return self._leaves(self._results_of(self._inputs))
        finally:
            for switches in self._switches.values():
                for switch in switches:
                    switch.mode, switch.take = Mode.NOTHING, None

    def _energies(self, found: Sequence[Array]) -> Energies:
        with np.errstate(all="ignore"):
            return tuple(summed_squares(wide(ours) - theirs)[1] for ours, theirs in zip(found, self.exact, strict=True))

    def _leaves(self, results: Sequence[Value]) -> list[Array]:
        """The leaves of a result that the outputs are, each on the first of its devices."""
        by_device = {device: dict(leaves(results[device])) for device in {each.devices[0] for each in self._outputs}}
        return [_floats(by_device[each.devices[0]][each.index]) for each in self._outputs]


def _amplification(ours: _Taken, exact: _Taken) -> float:
    """How many times as large errors, relative to the larger operand, are relative to the result: the root of the mean
    square. Elements of which nothing is right count only if there are no others: what comes out as zero is such."""
    with np.errstate(all="ignore"):
        sizes = np.maximum(*map(np.abs, exact.operands))
        errors = [np.abs(mine - theirs) for mine, theirs in zip(ours.operands, exact.operands, strict=True)]
        before = np.minimum(np.maximum(*errors) / sizes, 1.0)
        after = np.minimum(np.abs(ours.result - exact.result) / np.abs(exact.result), 1.0)
    is_known = np.isfinite(before) & np.isfinite(after)
    is_right = is_known & (after < _RIGHT)
    where = is_right if before[is_right].any() else is_known
    total = summed_squares(before[where])[1]
    return float((summed_squares(after[where])[1] / total) ** 0.5) if total > 0 else 0.0


def _floats(leaf: Any) -> Array:
    return leaf if is_inexact(leaf) else np.zeros(1)
