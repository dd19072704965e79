"""Judging units: what a counterpart makes of one, compared with what it gives here, and the policy that explains it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import OutputDifference, Verdict
from hloexec.analysis.numerics.measuring import agreement, same_bits
from hloexec.analysis.numerics.tolerances import Tolerance
from hloexec.core.ir import Module
from hloexec.core.ir.editing import take_name
from hloexec.core.structs import define
from hloexec.core.values import Array, Inputs, arrays_of
from hloexec.engine.devices.topology import ONE_DEVICE
from hloexec.engine.exec.running import run, run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, unwarned
from hloexec.language import literals
from hloexec.ops.common import wide
from hloexec.tools.counterparts.answers import Answer, Counterpart, Outcome
from hloexec.tools.counterparts.elsewhere import Elsewhere
from hloexec.tools.diffing.bounds import Bounds, InstructionChains, PathBounds
from hloexec.tools.diffing.matching import agrees, is_mostly_less, says_much
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.running import GraphRecorder
from hloexec.tools.explaining import explain
from hloexec.tools.extraction import Extraction
from hloexec.tools.isolating.elements import elements_of
from hloexec.tools.isolating.findings import IsolatedUnit
from hloexec.tools.isolating.units import Unit
from hloexec.tools.triaging.blaming import policy_found
from hloexec.tools.triaging.findings import PolicyFound

_TIGHT = 2.0**-14
"""A tolerance that follows from a unit's roundings alone is enough where it is no more than this part of an element:
else what rounding does to each is measured."""
_SURE = 0.99
"""What is within so much of a tolerance in its own type is within it."""
_SAMPLE = 512
"""So many elements of a value tell for all of them how large their bounds are."""
_MARGIN = 16
"""So many times smaller than elements bounds have to be by which a few elements are judged."""
_MOST_RUNS = 100
"""Of a unit, to find the policy that explains it."""


@define(eq=False)
class Judge:
    """Runs units on a counterpart, those that are equal but for names and have equal operands once."""

    counterpart: Counterpart
    options: Options
    output: Path | None
    """The folder of what differs."""
    _known: dict[tuple[Any, ...], IsolatedUnit | None] = attrs.field(factory=dict)
    """What came of units, by their text and digests of their operands; None where that is still awaited."""
    _tolerances: dict[str, list[Tolerance]] = attrs.field(factory=dict)
    """What follows for the arrays that units give from their roundings alone, by the units' text."""
    _folders: set[str] = attrs.field(factory=set)

    def begin(
        self, unit: Unit, run: Extraction, digests: tuple[bytes, ...], blank: IsolatedUnit
    ) -> Callable[[], IsolatedUnit]:
        """Have a unit run, of which the place is known; what is given judges it, in the order in which units ran."""
        if unit.reason:
            return lambda: attrs.evolve(blank, outcome="not isolated", reason=unit.reason)
        key = unit.text, *digests
        if key in self._known:
            return lambda: self._judged_before(key, blank)
        self._known[key] = None
        other = self.counterpart
        # Others run in this process, where nothing is gained by asking early.
        ask: Any = other.begin if isinstance(other, Elsewhere) else partial(partial, other.run)
        answer = ask(unit.module, run.inputs, **self.options)
        return lambda: self._judge(key, unit.module, run, answer, blank)

    def _judged_before(self, key: tuple[Any, ...], blank: IsolatedUnit) -> IsolatedUnit:
        earlier = self._known[key]
        assert earlier is not None
        told = {name: getattr(earlier, name) for name in ("outcome", "reason", "outputs", "explained", "folder")}
        return attrs.evolve(blank, same_as=earlier.name, **told)

    def _judge(
        self, key: tuple[Any, ...], module: Module, run: Extraction, wait: Callable[[], Answer], blank: IsolatedUnit
    ) -> IsolatedUnit:
        with unwarned():
            try:
                unit = self._judged(key[0], module, run, wait(), blank)
            except HloError as error:
                unit = attrs.evolve(blank, reason=str(error))
        self._known[key] = unit
        return unit

    def _judged(self, text: str, module: Module, run: Extraction, answer: Answer, blank: IsolatedUnit) -> IsolatedUnit:
        if answer.error is not None:
            result = attrs.evolve(blank, outcome=answer.outcome.value, reason=answer.reason)
            return result if answer.outcome is Outcome.REFUSED else self._kept(result, run, None)
        theirs: Any = answer.result
        sides = arrays_of((theirs,)), arrays_of((run.expected[0],))
        kinds = [[(array.dtype, array.shape) for array in side] for side in sides]
        pairs, is_alike = list(zip(*sides, strict=False)), kinds[0] == kinds[1]
        if is_alike and all(same_bits(*pair).all() for pair in pairs):
            return attrs.evolve(blank, outcome="equal")
        options: dict[str, Any] = {"module": module, "numerics": self.options.numerics, **answer.comparing}
        if text not in self._tolerances:
            comparison = compare(theirs, run.expected[0], **options)
            self._tolerances[text] = [leaf.tolerance for leaf in comparison.leaves]
            if comparison.verdict is Verdict.EQUAL:
                return attrs.evolve(blank, outcome="equal")
        tolerances = self._tolerances[text]
        if is_alike and all(tolerance.rtol <= _TIGHT for tolerance in tolerances):
            triples = zip(pairs, tolerances, strict=True)
            left = [_left_over(other, own, tolerance) for (other, own), tolerance in triples]
            if not any(map(len, left)) or self._are_within_bounds(module, run, pairs, left):
                return attrs.evolve(blank, outcome="rounding only")
        shapes = [[shape for _, shape in side] for side in kinds]
        if shapes[0] == shapes[1] and self._is_within_bounds(module, run, theirs):
            return attrs.evolve(blank, outcome="rounding only")
        comparison = compare(theirs, run.expected[0], inputs=run.inputs, **options)
        if comparison.agrees:
            return attrs.evolve(blank, outcome="rounding only")
        if comparison.verdict is Verdict.NOT_DECIDED:
            reason = comparison.not_decided[0].undecided_text
            return self._kept(attrs.evolve(blank, outcome="not decided", reason=reason), run, theirs)
        policy = self._explained(module, run, theirs)
        outputs = tuple(map(OutputDifference.of, comparison.different))
        outcome = "different" if policy is None else "explained"
        return self._kept(attrs.evolve(blank, outcome=outcome, outputs=outputs, explained=policy), run, theirs)

    def _is_within_bounds(self, module: Module, unit_run: Extraction, theirs: Any) -> bool:
        """Whether all elements are as near as their operands say that rounding leaves them: either side off by the
        bounds of `diff` at most."""
        with suppress(HloError):
            bounded = zip(arrays_of((theirs,)), self.bounded(module, unit_run.inputs), strict=True)
            return all(agrees(array, ours, allowed) and says_much(allowed, ours) for array, (ours, allowed) in bounded)
        return False

    def _are_within_bounds(
        self, module: Module, unit_run: Extraction, pairs: Sequence[tuple[Array, Array]], left: Sequence[Array]
    ) -> bool:
        """The same of elements at flat places of each array, where they are few and no others have to be computed for
        them. Whether bounds say much, they and a sample of all elements tell, by a margin."""
        numerics, sizes = self.options.numerics, [own.size for _, own in pairs]
        if sum(map(len, left)) > sum(sizes) // 4 or numerics.may_keep_excess or numerics.rounding_seed is not None:
            return False
        draw = np.random.default_rng(0).integers
        places = [
            np.append(rows, draw(0, max(size, 1), min(size, _SAMPLE))) for rows, size in zip(left, sizes, strict=True)
        ]
        with suppress(HloError):
            part, inputs = elements_of(module, unit_run.inputs[0], places)
            bounded = zip(pairs, places, map(len, left), self.bounded(part, [inputs], verify=False), strict=True)
            return all(
                agrees(other.reshape(-1)[rows][:count], ours[:count], allowed[:count])
                and all(
                    is_mostly_less(_MARGIN * allowed[one], np.abs(wide(ours[one]))) for one in np.s_[:count, count:]
                )
                for (other, _), rows, count, (ours, allowed) in bounded
            )
        return False

    def bounded(self, module: Module, inputs: Inputs, **changes: Any) -> list[tuple[Array, Array]]:
        """What a module gives, with how far two sides may be apart in each element."""
        # What runs once is sooner done than planned.
        recorder, once = GraphRecorder(module), attrs.evolve(self.options, timeout=None, planner=False, **changes)
        graph = recorder.finish(run_with(module, inputs, once, [recorder]))
        evaluator, chains = Evaluator(module, ONE_DEVICE, once), InstructionChains(module, once.numerics)
        bounds = PathBounds(graph, Bounds(graph, evaluator, chains))
        return [(node.value, 2 * bounds.of(node, ())) for node in graph.outputs[0]]

    def _explained(self, module: Module, unit_run: Extraction, theirs: Any) -> PolicyFound | None:
        """The policy under which a unit gives what the counterpart does; it has to hold for each element."""
        options = attrs.evolve(self.options, numerics="reference", timeout=None)
        with suppress(HloError):
            explanation = explain(module, unit_run.inputs, theirs, runs=_MOST_RUNS, **options)
            policy = explanation.best.policy
            ours = run(module, *unit_run.inputs[0], **attrs.evolve(options, numerics=policy))
            if compare(theirs, ours, module=module, inputs=unit_run.inputs, numerics=policy).agrees:
                return policy_found(explanation, is_whole=True)
        return None

    def _kept(self, unit: IsolatedUnit, run: Extraction, theirs: Any) -> IsolatedUnit:
        """The unit, with its names and what it gives on either side in a folder, if there is one for what differs."""
        if self.output is None:
            return unit
        folder = self.output / take_name(unit.instruction, self._folders)
        run.save(folder)
        if theirs is not None:
            literals.save(folder / "actual.npz", theirs)
        words = ["hloexec", "run", "module.hlo", "--inputs", "inputs.npz", "--against", self.counterpart.name]
        words += ["--numerics", self.options.numerics.name] if self.options.numerics.name != "reference" else []
        (folder / "command.txt").write_text(shlex.join(words) + "\n", encoding="utf-8")
        return attrs.evolve(unit, folder=os.fspath(folder))


def _left_over(actual: Array, expected: Array, tolerance: Tolerance) -> Array:
    """The flat places of elements that a tolerance does not allow."""
    x, y = actual.reshape(-1), expected.reshape(-1)
    places = np.arange(x.size)
    if x.dtype.kind == "f" and x.dtype.itemsize >= 4:
        with np.errstate(all="ignore"):
            places = np.flatnonzero(~(np.abs(x - y) < _SURE * tolerance.rtol * np.abs(y)))
    return places[~agreement(x[places], y[places], tolerance, None)]
