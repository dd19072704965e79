"""Runs that round at random with several seeds, side by side: each is a device of its own.

What does not depend on the seed is computed once. Of small arrays, kernels that round take those of all seeds at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hloexec.core.tree import flat
from hloexec.engine.devices.topology import Topology
from hloexec.engine.devices.varying import Varying, of_position
from hloexec.engine.exec.code.compiling import Code
from hloexec.engine.exec.machine import Machine
from hloexec.engine.exec.tasks import Loop, Task
from hloexec.engine.plan.kernels import NO_SLOT, Conversion, Forward, InstructionKernel
from hloexec.engine.plan.steps import Plan, Step
from hloexec.ops.attributes import computation_names
from hloexec.ops.policies import chance


class SeedMachine(Machine):
    """Runs a plan with each of some seeds."""

    _is_watched = True

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(Topology(len(seeds)))
        self._seeds = seeds
        self._known: dict[Step, bool] = {}
        """Whether steps may round."""

    def _may_run_loops_per_class(self) -> bool:
        return False

    def _due_code(self, plan: Plan, arguments: Sequence[object]) -> Code | None:
        return None

    def _due_iterations(self, loop: Loop) -> int:
        return 0

    def _begin(self, task: Task, step: Step) -> bool:
        """Run a kernel that may round, for each seed, and store its results in their slots."""
        if step.function is None:
            return False
        if step not in self._known:
            self._known[step] = _may_round(step)
        if not self._known[step]:
            return False
        operands, places = step.fetch(task.frames[-1].slots), range(len(task.devices))
        rows = [[of_position(operand, place) for operand in operands] for place in places]
        results = _of_seeds(step.function, rows, tuple(self._seeds[device] for device in task.devices))
        columns = [results] if step.result != NO_SLOT else zip(*map(flat, results), strict=True)
        for slot, values in zip(step.results, columns, strict=True):
            task.frames[-1].slots[slot] = Varying(tuple(places), list(values)) if len(places) > 1 else values[0]
        self._drop(task, step)
        return True


def _may_round(step: Step) -> bool:
    """Whether what a kernel gives may depend on the seed."""
    kernel = step.kernel
    if isinstance(kernel, (Conversion, Forward)):
        return False
    is_plain = isinstance(kernel, InstructionKernel) and kernel.opcode is not None and kernel.random is None
    return not is_plain or bool(list(computation_names(step.instruction.attributes)))


def _of_seeds(function: Callable[..., Any], rows: Sequence[Sequence[Any]], seeds: tuple[int, ...]) -> list[Any]:
    """What a kernel gives for each list of operands with its seed: together where it can, else for odd seeds and even
    ones, as most that cannot differ in these, or one by one."""
    if len(seeds) == 1:
        with chance.seeded(seeds[0]):
            return [function(*rows[0])]
    of_each = getattr(function, "of_each", None)
    if of_each is not None:
        with chance.seeded(seeds):
            found: list[Any] | None = of_each(rows)
        if found is not None:
            return found
    parts = [[place for place, seed in enumerate(seeds) if seed % 2 == rest] for rest in (0, 1)]
    if not all(parts) or of_each is None:
        parts = [[place] for place in range(len(seeds))]
    results: dict[int, Any] = {}
    for part in parts:
        some = _of_seeds(function, [rows[place] for place in part], tuple(seeds[place] for place in part))
        results.update(zip(part, some, strict=True))
    return [results[place] for place in range(len(seeds))]
