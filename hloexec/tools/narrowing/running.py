"""`narrow`: which instructions may compute in a narrower type, with every output within a tolerance.

What the errors on a few inputs say of those on others: one-sided tolerance limits.

Logarithms of the worst errors of training steps are nearly normal over inputs (of 300 inputs each, the kurtosis was 3.0
for a convolutional network and 3.5 for a transformer). The limit that all but a share of a normal distribution stays
below follows from the mean and the standard deviation of a sample, with a factor that makes up for both being
estimates.

Where the inputs of a search come from: a list, or a function of seeds.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, calls_in
from hloexec.core.arguments import (
    listed,
    require_choice,
    require_flags,
    require_integer,
    require_module,
    require_number,
    texts,
    wrong,
)
from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape, Instruction, Module
from hloexec.core.structs import define
from hloexec.core.values import Array, Inputs
from hloexec.core.wording import argument, listing
from hloexec.engine.exec.observers import Observer, Stages, attach
from hloexec.engine.exec.running import RunOptions, resolve_options
from hloexec.engine.inputs import random_inputs
from hloexec.errors import InputError, warn
from hloexec.language.origins import hlo_line, source_text
from hloexec.language.verifier import verify
from hloexec.ops.common import is_inexact, widen
from hloexec.ops.costs import flops_of
from hloexec.ops.relations import Place
from hloexec.tools.narrowing.findings import (
    Carried,
    Deviation,
    InstructionVerdict,
    Narrowing,
    OutputDeviation,
    Standing,
    carried_by,
    output_labels,
)
from hloexec.tools.narrowing.rewriting import CONTRACTION, KINDS, Candidate, Rewritten, candidates_of, rewritten
from hloexec.tools.narrowing.search import FAILURES, Measurer, Ranges, Reference, Search, worst_of

_REFUSED_OPTIONS = "computation infeed outfeed host_transfers statistics".split()


class Settings:
    """The arguments that are plain numbers and words, checked."""

    def __init__(
        self,
        module: Module,
        tolerance: float,
        types: Sequence[str],
        kinds: Sequence[str],
        steps: int,
        counts: tuple[int, int],
        margin: float | None,
        max_trials: int,
        options: RunOptions,
    ) -> None:
        require_module(module)
        _require_tolerance("tolerance", tolerance)
        require_integer("steps", steps, 1)
        self.seeds, self.held_back = counts
        require_integer("seeds", self.seeds, 1)
        require_integer("held_back", self.held_back, 0)
        require_integer("max_trials", max_trials, 1)
        if margin is not None:
            require_number("margin", margin, 1)
        if margin == 0:
            raise InputError(
                f"{argument('margin')} must be above 0: the share of the tolerance that the search may use"
            )
        self.options = resolve_options("narrow", options)
        for name in _REFUSED_OPTIONS:
            if self.options[name] is not None:
                raise InputError(f"narrow runs the whole module many times, and takes no {name}")
        self.types = _narrow_types(texts("types", types))
        self.kinds = texts("kinds", kinds)
        for kind in self.kinds:
            require_choice("each of kinds", kind, KINDS)
        if not self.kinds:
            raise InputError(f"kinds must name some of {', '.join(KINDS)}")
        self.seed = self.options.seed


def _require_tolerance(name: str, value: object) -> None:
    require_number(name, value)
    if value == 0 or value == math.inf:
        raise InputError(f"{argument(name)} must be a finite number above 0, but is {value}")


def _narrow_types(names: Sequence[str]) -> list[ElementType]:
    """The types to try, the widest first."""
    floats = [each for each in ELEMENT_TYPES.values() if each.is_floating and each.has_nan and each.has_negative_zero]
    types = {each.name: each for each in floats if each.bits < 64 and each.mantissa_bits}
    for name in names:
        require_choice(f"each of {argument('types')}", name, types)
    if not names:
        raise InputError(f"types must name at least one of {', '.join(types)}")
    return sorted((types[name] for name in dict.fromkeys(names)), key=lambda each: -each.bits)


def require_candidates(module: Module, candidates: Sequence[Candidate], types: Sequence[ElementType]) -> None:
    if any(candidate.can_be(element_type) for candidate in candidates for element_type in types):
        return
    wide = " or ".join(sorted({element_type.element_type.name for element_type in candidates})) or "floats"
    raise InputError(
        f"module {module.name} has no instruction that could be narrowed to "
        f"{', '.join(element_type.name for element_type in types)}: "
        f"it computes in {wide}"
        if candidates
        else f"module {module.name} has no contraction or elementwise instruction on floats that could be narrowed"
    )


def nothing_carried(carry: object) -> Carried | None:
    if carry is not None:
        raise InputError(f"{argument('carry')} says what one step hands on to the next; give {argument('steps')}, too")
    return None


def tolerances_of(
    module: Module,
    tolerance: float,
    given: Mapping[Any, float] | None,
    only: Sequence[Any] | None,
    carried: Carried | None,
) -> dict[str, float]:
    """The tolerances of the outputs that are compared, by label."""
    labels = [label for label, _ in output_labels(module.entry)]
    if not labels:
        raise InputError(f"module {module.name} has no output that could be held to a tolerance")
    own = {} if given is None else dict(given) if isinstance(given, Mapping) else None
    if own is None:
        raise wrong("output_tolerances", "a mapping from outputs to tolerances", given)
    chosen = None if only is None else [str(label) for label in listed("only_outputs", only, "outputs")]
    for name, named in (("output_tolerances", map(str, own)), ("only_outputs", chosen or ())):
        for label in named:
            if label not in labels:
                outputs = listing(labels, 20)
                raise InputError(f"{argument(name)} names {label!r}, but the outputs of {module.name} are {outputs}")
    if chosen is not None and not chosen:
        raise InputError(f"{argument('only_outputs')} must name at least one output")
    for label, value in own.items():
        _require_tolerance(f"the tolerance of output {label}", value)
    if chosen is None:
        handed = {output for output, _ in carried.pairs} if carried is not None else set()
        chosen = [label for label in labels if label not in handed] or labels
    by_label = {str(label): float(value) for label, value in own.items()}
    unused = by_label.keys() - set(chosen)
    if unused:
        raise InputError(
            f"{argument('output_tolerances')} has one for {sorted(unused)[0]}, which is not compared: "
            f"{argument('only_outputs')} names others, or it is carried to the next step"
        )
    return {label: by_label.get(label, float(tolerance)) for label in labels if label in chosen}


LEAST_SAMPLE = 20
"""Of how many errors a limit is made: the factor grows fast for fewer."""
_COVERAGE = 0.999
_CONFIDENCE = 0.95
_LEAST = 1e-3
"""Severities below are taken for it: of an error of zero there is no logarithm."""


def upper_limit(severities: Sequence[float]) -> float:
    """The severity that 999 of 1000 inputs stay below, with 95 % confidence, from those of a sample.

    exp(mean + k · standard deviation) of the logarithms; k is the one-sided tolerance factor in the approximation of
    Natrella (NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.6.3), within 1 % for 20 and more.
    """
    logarithms = [math.log(max(severity, _LEAST)) for severity in severities]
    return math.exp(fmean(logarithms) + _factor(len(logarithms)) * stdev(logarithms))


def _factor(count: int) -> float:
    covered, sure = NormalDist().inv_cdf(_COVERAGE), NormalDist().inv_cdf(_CONFIDENCE)
    a = 1 - sure**2 / (2 * (count - 1))
    b = covered**2 - sure**2 / count
    return (covered + math.sqrt(covered**2 - a * b)) / a


class Supply:
    """Inputs for the search, and others that it does not see."""

    def __init__(self, module: Module, inputs: object, settings: Settings) -> None:
        self._seed = settings.seed
        self._make: Callable[[int], Inputs] | None = None
        self._given: list[Inputs] = []
        if inputs is None:
            self._make = lambda seed: random_inputs(module, seed)
        elif callable(inputs) and not isinstance(inputs, type):
            self._make = inputs
        else:
            self._given = listed("inputs", inputs, "inputs, one per run")
            if not self._given:
                raise InputError("inputs must have at least one list of values, or be None for random ones")
        self.is_endless = self._make is not None
        given_count = len(self._given)
        self.held_back_count = (
            settings.held_back if self.is_endless else min(settings.held_back, (given_count + 1) // 3)
        )
        self.count = settings.seeds if self.is_endless else given_count - self.held_back_count
        """How many the search runs on."""

    def first(self) -> Iterator[Inputs]:
        """Those of the search."""
        for number in range(self.count):
            yield self._make(self._seed + number) if self._make is not None else self._given[number]

    def others(self) -> Iterator[Inputs]:
        """Those behind them: without end, where they are made."""
        number = self.count
        while self._make is not None or number < len(self._given):
            yield self._make(self._seed + number) if self._make is not None else self._given[number]
            number += 1


@define(eq=False)
class Verification:
    """The module that was found, run as a whole on all inputs and on others, until nothing is wrong with it."""

    search: Search
    measurer: Measurer
    supply: Supply
    ranges: list[Ranges]
    """Of the original on each of the inputs, by their numbers."""
    limits: Mapping[str, Any]
    stages: Stages
    found: Rewritten = attrs.field(init=False)
    worst: dict[str, Deviation] = attrs.field(factory=dict)
    held_back: dict[str, Deviation] = attrs.field(factory=dict)
    held_back_count: int = 0
    rejections: int = 0

    def run(self) -> Verification:
        others = self.supply.others()
        fresh: list[Reference] = []
        while True:
            self.stages.begin("checking the narrowed module", None)
            self.found = rewritten(self.measurer.module, self.search.accepted)
            self.worst, self.held_back = {}, {}
            count = len(self.search.accepted)
            if not all(
                self._holds(reference, self.worst, 1.0) for reference in (*self.search.references, *self.search.joined)
            ):
                self._go_back(count)
                continue
            while len(fresh) < self.supply.held_back_count and (inputs := next(others, None)) is not None:
                number = len(self.ranges)
                self.ranges.append(Ranges())
                watchers = [self.ranges[number]] if self._may_overflow else []
                fresh.append(self.measurer.reference(number, inputs, watchers))
            failed = self._failed(fresh)
            if failed is None:
                self.held_back_count = len(fresh)
                return self
            self.rejections += 1
            fresh.remove(failed)
            if self.supply.is_endless:
                fresh = []
            self._go_back(count, failed)

    def _failed(self, fresh: list[Reference]) -> Reference | None:
        """Inputs on which the module is not good enough; or the worst ones, where what it does on all of them says that
        it is too bad on one of a thousand others."""
        severities: list[float] = []
        for reference in fresh:
            own: dict[str, Deviation] = {}
            holds = self._holds(reference, own, self.search.check_share)
            _join(self.held_back, own)
            if not holds:
                return reference
            severities.append(worst_of(own).severity)
        if len(fresh) < LEAST_SAMPLE or upper_limit(severities) <= 1:
            return None
        return fresh[severities.index(max(severities))]

    def _go_back(self, count: int, joined: Reference | None = None) -> None:
        """Narrow less than before: fewer instructions than `count`."""
        self.search.go_back(joined)
        if len(self.search.accepted) == count > 0:
            last = next(reversed(self.search.accepted))
            self.search.refuse([last], Standing.TOGETHER, "the check of the whole module failed with it")

    def _holds(self, reference: Reference, worst: dict[str, Deviation], share: float) -> bool:
        """Whether all outputs are within a share of their tolerances, and nothing is out of range; else what is, is
        taken back."""
        watcher = Ranges()
        watchers = [watcher] if self.ranges[reference.number].found else []
        try:
            deviations = self.measurer.deviations(self.found.module, reference, observers=watchers, **self.limits)
        except FAILURES:
            return False
        _join(worst, deviations)
        lost = self._out_of_range(watcher, self.ranges[reference.number])
        if lost:
            self.search.refuse(lost, Standing.RANGE, "goes beyond the type's range once others are narrowed")
        return not lost and all(deviation.severity <= share for deviation in deviations.values())

    @property
    def _may_overflow(self) -> bool:
        """Whether a narrow type has less range than those that it stands for, so that each run has to be watched."""
        wide = {candidate.place: candidate.element_type for candidate in self.search.candidates}
        return any(narrow.exponent_bits < wide[place].exponent_bits for place, narrow in self.search.accepted.items())

    def _out_of_range(self, watcher: Ranges, original: Ranges) -> list[Place]:
        """What is to blame for the first elements that are not finite, but were in the original."""
        for place, seen in watcher.found.items():
            origin = self.found.origins.get(place)
            before = None if origin is None else original.found.get(origin)
            if origin is not None and before is not None and seen.not_finite > before.not_finite:
                users = [candidate for candidate in self.search.accepted if self._uses(candidate, origin)]
                return users or list(self.search.accepted)
        return []

    def _uses(self, place: Place, origin: Place) -> bool:
        """Whether a narrowed instruction is, or takes, the value of another of its computation."""
        computation = self.measurer.module.by_name[place[0]]
        return origin[0] == place[0] and (origin[1] == place[1] or origin[1] in computation.by_name[place[1]].operands)


def _join(worst: dict[str, Deviation], deviations: Mapping[str, Deviation]) -> None:
    """Take over what is worse."""
    for label, deviation in deviations.items():
        if label not in worst or deviation.severity > worst[label].severity:
            worst[label] = deviation


def verdicts(
    module: Module, candidates: Sequence[Candidate], search: Search, ranges: Ranges, types: Sequence[ElementType]
) -> Iterator[InstructionVerdict]:
    """What was found out about each instruction that could be narrowed to one of the types."""
    for candidate in candidates:
        possible = [element_type for element_type in types if candidate.can_be(element_type)]
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
    places = {candidate.place for candidate in candidates}
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
            if place not in places and place in ranges.found:
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
    measured = ranges.found.get(place)
    return 0 if measured is None else round(measured.runs)


_MARGIN = 0.25
_SLACK = 4
"""How many times the iterations of the original's longest loop a loop of a narrowed module may take, where numbers that
are rounded decide when it ends."""


def narrow(
    module: Module,
    inputs: Sequence[Inputs] | Callable[[int], Inputs] | None = None,
    *,
    tolerance: float,
    output_tolerances: Mapping[Any, float] | None = None,
    only_outputs: Sequence[Any] | None = None,
    types: Sequence[str] = ("bf16",),
    kinds: Sequence[str] = KINDS,
    steps: int = 1,
    carry: Mapping[Any, Any] | None = None,
    seeds: int = 5,
    held_back: int = 60,
    margin: float | None = None,
    max_trials: int = 200,
    portable: bool = False,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Narrowing:
    """Find instructions that may compute in a narrower type, with every output within a tolerance.

    An elementwise instruction takes and gives the narrow type; a contraction takes it, and adds up in f32. `types` are
    the types to try, such as bf16, f16, f8e4m3fn, f8e5m2 or (for f64) f32: the widest first, then narrower ones for
    what that allows. `kinds` restricts the search to `contraction` or `elementwise`.

    `tolerance` bounds the error of every element of every output, relative to the element or, for a small one, to the
    median magnitude in its array (`narrowing.search`); integers must stay the same. `output_tolerances` has
    others by the outputs' labels (`value`, `0`, `1.2`, as `hloexec.compare` has them), and `only_outputs` are the
    only ones that are held to any. No number within the range of the original's type may leave that of the narrow type.

    With `steps`, the module is a training step that runs so many times: `carry` maps labels of outputs to the
    parameters that they become (by default as input_output_alias says, or what has equal shapes in order), and what is
    compared at each step are the outputs that are not carried, such as the loss.

    `inputs` is a list of inputs, each as for `run_devices`, or a function from a seed to inputs; by default random
    inputs. The search runs on `seeds` of them (of a list, on the first two thirds), and accepts what stays within
    `margin` times the tolerances on all of these: a quarter by default, and all where none is held back. In the end,
    the module that was found runs on `held_back` inputs that the search has not seen (of a list, the last third), and
    has to stay within the root of `margin` times the tolerances there; of 20 and more, what they say of others
    (`narrowing.running`) must be that 999 of 1000 are within the tolerances, with 95 % confidence, if the
    logarithms of their errors are normal. Else the search takes back what was accepted last. Whatever the distribution,
    a module that stays within them on n inputs leaves them on fewer than 3 of n, with 95 % confidence. `max_trials` is
    the number of modules that are tried before that.

    With `portable`, contractions of the module take narrow operands converted back to f32, with the same values:
    XLA:CPU does not multiply most narrow types.

    Of `observers`, those with a method `on_stage` are told how far the search is. The result is the same for the same
    arguments. Raises InputError for invalid arguments, and what `run_devices` raises for the original.
    """
    began = time.perf_counter()
    require_flags(portable=portable)
    settings = Settings(module, tolerance, types, kinds, steps, (seeds, held_back), margin, max_trials, options)
    verify(module)
    candidates = candidates_of(module, settings.kinds)
    require_candidates(module, candidates, settings.types)
    carried = carried_by(module, module.entry, carry) if steps > 1 else nothing_carried(carry)
    tolerances = tolerances_of(module, tolerance, output_tolerances, only_outputs, carried)
    measurer = Measurer(module, steps, carried, tolerances, settings.options)
    attach(observers)
    stages = Stages(listed("observers", observers, "observers"))
    supply = Supply(module, inputs, settings)
    if margin is None:
        margin = _MARGIN if supply.held_back_count else 1.0
    references, ranges = _originals(measurer, supply, candidates, stages)
    limits = _limits(module, ranges, settings.options.max_iterations)
    shares = margin, max_trials
    search = Search(module, candidates, measurer, references, ranges, shares, limits, stages)
    for narrow_type in settings.types:
        search.narrow_to(narrow_type)
    checked = Verification(search, measurer, supply, ranges, limits, stages).run()
    search.measure_alone(settings.types[0])
    return Narrowing(
        module=rewritten(module, search.accepted, is_portable=portable).module,
        instructions=tuple(verdicts(module, candidates, search, ranges[0], settings.types)),
        outputs=tuple(
            OutputDeviation(label, tolerances[label], checked.worst[label], checked.held_back.get(label))
            for label in tolerances
        ),
        carried=carried,
        steps=steps,
        **work_by_type(module, candidates, search, ranges[0]),
        margin=margin,
        input_count=len(search.references) + len(search.joined),
        held_back_count=checked.held_back_count,
        rejections=checked.rejections,
        trials=search.trials,
        seconds=time.perf_counter() - began,
    )


def _originals(
    measurer: Measurer, supply: Supply, candidates: Sequence[Candidate], stages: Stages
) -> tuple[list[Reference], list[Ranges]]:
    """What the original gives for the inputs of the search, and the magnitudes of its values."""
    references: list[Reference] = []
    ranges: list[Ranges] = []
    stages.begin("running the original", supply.count)
    for number, inputs in enumerate(supply.first()):
        ranges.append(Ranges({candidate.place for candidate in candidates}))
        references.append(measurer.reference(number, inputs, [ranges[-1]]))
        stages.tick()
    for label in measurer.tolerances:
        _warn_of_lost(label, [outputs[label].array for one in references for row in one.expected for outputs in row])
    return references, ranges


def _warn_of_lost(label: str, arrays: Sequence[Array]) -> None:
    """Warn of elements of an output that are no numbers: what makes them so may change, and nothing tells."""
    values = [widen(array) for array in arrays if is_inexact(array)]
    count = sum(value.size for value in values)
    lost = count - sum(int(np.count_nonzero(np.isfinite(value))) for value in values)
    if lost:
        many = "all elements" if lost == count else f"{lost} of {count} elements"
        warn(f"of output {label}, {many} are NaN or infinite on the inputs of the search, and only have to stay so")


def _limits(module: Module, ranges: Sequence[Ranges], given: int | None) -> dict[str, int]:
    """A limit of the iterations of loops, where rounding may keep one from ending."""
    conditions = [condition for *_, condition in calls_in(module, CallKind.CONDITION)]
    if not any(_is_float(entry) for condition in conditions for entry in condition):
        return {}
    most = _SLACK * max(entry.longest_loop for entry in ranges)
    return {"max_iterations": most if given is None else min(most, given)}


def _is_float(instruction: Instruction) -> bool:
    return isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_floating
