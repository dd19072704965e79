"""What a counterpart's result is: right, by the bounds of its elements against hloexec's own, or not."""

from __future__ import annotations

from typing import Any

import attrs

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison, Verdict
from hloexec.core.arguments import named_computation, require_module
from hloexec.core.ir import Module
from hloexec.core.ir.editing import change_entry
from hloexec.core.structs import frozen
from hloexec.core.values import Inputs, join_values, labelled_arrays
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.engine.inputs import random_inputs
from hloexec.errors import unwarned
from hloexec.tools.counterparts.answers import Answer, Counterpart
from hloexec.tools.counterparts.elsewhere import USUAL, Compilation, Elsewhere


@frozen(eq=False)
class Judged:
    """What came of a run on a counterpart."""

    answer: Answer
    comparison: Comparison | None
    """Its result with hloexec's; None where there is none."""

    @property
    def is_right(self) -> bool | None:
        """Whether the result agrees; None where that is not decided, or there is none."""
        verdict = None if self.comparison is None else self.comparison.verdict
        return None if verdict in (None, Verdict.NOT_DECIDED) else verdict is not Verdict.DIFFERENT

    @property
    def outcome(self) -> str:
        """The verdict, or why there is no result."""
        return self.answer.outcome.value if self.comparison is None else self.comparison.verdict.value

    @property
    def text(self) -> str:
        """The same in a sentence."""
        return self.answer.reason if self.comparison is None else str(self.comparison)


class Judge:
    """A module with inputs, and what hloexec gives for them."""

    def __init__(self, module: Module, inputs: Inputs | None, name: str, options: RunOptions) -> None:
        require_module(module)
        self.options = resolve_options(name, options)
        if (entry := self.options.computation) is not None:
            module = change_entry(module, named_computation(module, entry.removeprefix("%")).name)
            self.options = attrs.evolve(self.options, computation=None)
        topology = topology_of(module, self.options.replicas, self.options.partitions)
        counts: Any = {"replica_count": topology.replicas, "num_partitions": topology.partitions}
        self.module = attrs.evolve(module, **counts)
        drawn = [random_inputs(module, self.options.seed)]
        self.inputs = drawn if inputs is None else inputs_by_device(module.entry, inputs)
        self._result = join_values(run_with(self.module, self.inputs, self.options))
        self._known: dict[tuple[bytes, ...], Comparison] = {}

    def judge(self, counterpart: Counterpart, compilation: Compilation = USUAL, seconds: float | None = None) -> Judged:
        """Run the module on a counterpart, compiled in this way if that compiles, in so many seconds."""
        if isinstance(counterpart, Elsewhere):
            options = attrs.evolve(self.options, timeout=seconds) if self.options.timeout is None else self.options
            answer = counterpart.begin(self.module, self.inputs, compilation, **options)()
        else:
            answer = counterpart.run(self.module, self.inputs, **self.options)
        if answer.error is not None:
            return Judged(answer, None)
        result: Any = answer.result
        bits = tuple(leaf.tobytes() for _, leaf in sorted(labelled_arrays(result).items()))
        if bits not in self._known:
            self._known[bits] = self._compared(answer, self._result)
        return Judged(answer, self._known[bits])

    def are_alike(self, one: Judged, other: Judged) -> bool:
        """Whether two counterparts give the same: right results, wrong ones that agree with each other, or none."""
        if one.comparison is None or other.comparison is None or True in (one.is_right, other.is_right):
            return one.outcome == other.outcome or one.is_right is other.is_right is True
        return self._compared(other.answer, one.answer.result).agrees

    def _compared(self, answer: Answer, expected: Any) -> Comparison:
        options = {"numerics": self.options.numerics, "elided": self.options.elided, **answer.comparing}
        with unwarned():
            assert answer.result is not None
            return compare(answer.result, expected, module=self.module, inputs=self.inputs, **options)
