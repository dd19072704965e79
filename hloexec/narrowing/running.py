"""`narrow`: which instructions may compute in a narrower type, with every output within a tolerance."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import attrs

from hloexec.arguments import (
    listed,
    require_choice,
    require_flags,
    require_integer,
    require_module,
    require_number,
    texts,
    wrong,
)
from hloexec.dtypes import ELEMENT_TYPES, ElementType
from hloexec.errors import InputError
from hloexec.exec.observers import Observer, Stages, attach
from hloexec.exec.options import RunOptions, require_run_options
from hloexec.inputs import random_inputs
from hloexec.ir import ArrayShape, Instruction, Module
from hloexec.narrowing.accounts import verdicts, work_by_type
from hloexec.narrowing.candidates import KINDS, Candidate, candidates_of
from hloexec.narrowing.carrying import Carried, carried_by, output_labels
from hloexec.narrowing.findings import Deviation, Narrowing, OutputDeviation, Standing
from hloexec.narrowing.measuring import Measurer, Ranges, Reference
from hloexec.narrowing.rewriting import Rewritten, rewritten
from hloexec.narrowing.search import FAILURES, Search
from hloexec.ops.registry import Role, role_of
from hloexec.ops.relations import Place
from hloexec.values import Inputs
from hloexec.verifier import verify

__all__ = ["narrow"]

_REFUSED_OPTIONS = ("computation", "infeed", "outfeed", "host_transfers", "statistics")
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
    held_back: int = 20,
    margin: float = 0.25,
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
    median magnitude in its array (`hloexec.narrowing.errors`); integers must stay the same. `output_tolerances` has
    others by the outputs' labels (`value`, `0`, `1.2`, as `hloexec.compare` has them), and `only_outputs` are the
    only ones that are held to any. No number within the range of the original's type may leave that of the narrow type.

    With `steps`, the module is a training step that runs so many times: `carry` maps labels of outputs to the
    parameters that they become (by default as input_output_alias says, or what has equal shapes in order), and what is
    compared at each step are the outputs that are not carried, such as the loss.

    `inputs` is a list of inputs, each as for `run_devices`, or a function from a seed to inputs; by default random
    inputs. The search runs on `seeds` of them (of a list, on the first two thirds), and accepts what stays within
    `margin` times the tolerances on all of these. In the end, the module that was found runs on `held_back` inputs that
    the search has not seen (of a list, the last third), and has to stay within the root of `margin` times the
    tolerances there; else the search takes back what was accepted last. If it does so on n of them, it leaves its
    tolerances on fewer than 3 of n such inputs, with 95 % confidence. `max_trials` is the number of modules that are
    tried before that.

    With `portable`, contractions of the module take narrow operands converted back to f32, with the same values:
    XLA:CPU does not multiply most narrow types.

    Of `observers`, those with a method `on_stage` are told how far the search is. The result is the same for the same
    arguments. Raises InputError for invalid arguments, and what `run_devices`
    raises for the original.
    """
    began = time.perf_counter()
    require_flags(portable=portable)
    settings = _Settings(module, tolerance, types, kinds, steps, (seeds, held_back), margin, max_trials, options)
    verify(module)
    candidates = candidates_of(module, settings.kinds)
    _require_candidates(module, candidates, settings.types)
    carried = carried_by(module, module.entry, carry) if steps > 1 else _nothing_carried(carry)
    tolerances = _tolerances(module, tolerance, output_tolerances, only_outputs, carried)
    measurer = Measurer(module, steps, carried, tolerances, {**options, "seed": settings.seed})
    attach(observers)
    stages = Stages(listed("observers", observers, "observers"))
    supply = _Supply(module, inputs, settings)
    references, ranges = [], []
    stages.begin("running the original", supply.count)
    for number, given in enumerate(supply.first()):
        ranges.append(Ranges({candidate.place for candidate in candidates}))
        references.append(measurer.reference(number, given, [ranges[-1]]))
        stages.tick()
    limits = _limits(module, ranges, options)
    search = Search(
        module,
        candidates,
        measurer,
        references,
        ranges,
        margin=margin,
        max_trials=max_trials,
        limits=limits,
        stages=stages,
    )
    for narrow_type in settings.types:
        search.narrow_to(narrow_type)
    checked = _Verification(search, measurer, supply, ranges, limits, stages).run()
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
        input_count=len(search.references),
        held_back_count=checked.held_back_count,
        rejections=checked.rejections,
        trials=search.trials,
        seconds=time.perf_counter() - began,
    )


class _Settings:
    """The arguments that are plain numbers and words, checked."""

    def __init__(
        self,
        module: Module,
        tolerance: float,
        types: Sequence[str],
        kinds: Sequence[str],
        steps: int,
        counts: tuple[int, int],
        margin: float,
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
        require_number("margin", margin, 1)
        if not margin:
            raise InputError("margin must be above 0: the share of the tolerance that the search may use")
        require_run_options("narrow", options)
        for name in _REFUSED_OPTIONS:
            if options.get(name) is not None:
                raise InputError(f"narrow runs the whole module many times, and takes no {name}")
        self.types = _narrow_types(texts("types", types))
        self.kinds = texts("kinds", kinds)
        for kind in self.kinds:
            require_choice("each of kinds", kind, KINDS)
        if not self.kinds:
            raise InputError(f"kinds must name some of {', '.join(KINDS)}")
        self.seed = int(options.get("seed", 0))


def _require_tolerance(name: str, value: object) -> None:
    require_number(name, value)
    if value == 0 or value == math.inf:
        raise InputError(f"{name} must be a finite number above 0, but is {value}")


def _narrow_types(names: Sequence[str]) -> list[ElementType]:
    """The types to try, the widest first."""
    floats = [each for each in ELEMENT_TYPES.values() if each.is_floating and each.has_nan and each.has_negative_zero]
    known = {each.name: each for each in floats if each.bits < 64 and each.mantissa_bits}
    for name in names:
        require_choice("each of types", name, known)
    if not names:
        raise InputError(f"types must name at least one of {', '.join(known)}")
    return sorted((known[name] for name in dict.fromkeys(names)), key=lambda each: -each.bits)


def _require_candidates(module: Module, candidates: Sequence[Candidate], types: Sequence[ElementType]) -> None:
    if any(candidate.can_be(each) for candidate in candidates for each in types):
        return
    wide = " or ".join(sorted({each.element_type.name for each in candidates})) or "floats"
    raise InputError(
        f"module {module.name} has no instruction that could be narrowed to {', '.join(each.name for each in types)}: "
        f"it computes in {wide}"
        if candidates
        else f"module {module.name} has no contraction or elementwise instruction on floats that could be narrowed"
    )


def _nothing_carried(carry: object) -> Carried | None:
    if carry is not None:
        raise InputError("carry says what one step hands on to the next; give steps, too")
    return None


def _tolerances(
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
                some = ", ".join(labels[:20]) + (", …" if len(labels) > 20 else "")
                raise InputError(f"{name} names {label!r}, but the outputs of {module.name} are {some}")
    if chosen is not None and not chosen:
        raise InputError("only_outputs must name at least one output")
    for label, value in own.items():
        _require_tolerance(f"the tolerance of output {label}", value)
    if chosen is None:
        handed = {output for output, _ in carried.pairs} if carried is not None else set()
        chosen = [label for label in labels if label not in handed] or labels
    by_label = {str(label): float(value) for label, value in own.items()}
    unused = by_label.keys() - set(chosen)
    if unused:
        raise InputError(
            f"output_tolerances has one for {sorted(unused)[0]}, which is not compared: only_outputs names others, or it "
            "is carried to the next step"
        )
    return {label: by_label.get(label, float(tolerance)) for label in labels if label in chosen}


class _Supply:
    """Inputs for the search, and others that it does not see."""

    def __init__(self, module: Module, inputs: object, settings: _Settings) -> None:
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
        given = len(self._given)
        self.held_back_count = settings.held_back if self.is_endless else min(settings.held_back, (given + 1) // 3)
        self.count = settings.seeds if self.is_endless else given - self.held_back_count
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


def _limits(module: Module, ranges: Sequence[Ranges], options: RunOptions) -> dict[str, int]:
    """A limit of the iterations of loops, where rounding may keep one from ending."""
    conditions = [
        module.by_name[instruction.attributes.condition]
        for computation in module
        for instruction in computation
        if role_of(instruction) is Role.WHILE
    ]
    if not any(_is_float(each) for condition in conditions for each in condition):
        return {}
    most = _SLACK * max(each.longest_loop for each in ranges)
    given = options.get("max_iterations")
    return {"max_iterations": most if given is None else min(most, given)}


def _is_float(instruction: Instruction) -> bool:
    return isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_floating


@attrs.define(eq=False)
class _Verification:
    """The module that was found, run as a whole on all inputs and on others, until nothing is wrong with it."""

    search: Search
    measurer: Measurer
    supply: _Supply
    ranges: list[Ranges]
    """Of the original on each of the inputs, by their numbers."""
    limits: Mapping[str, Any]
    stages: Stages
    found: Rewritten = attrs.field(init=False)
    worst: dict[str, Deviation] = attrs.field(factory=dict)
    held_back: dict[str, Deviation] = attrs.field(factory=dict)
    held_back_count: int = 0
    rejections: int = 0

    def run(self) -> _Verification:
        others = self.supply.others()
        fresh: list[Reference] = []
        while True:
            self.stages.begin("checking the narrowed module", None)
            self.found = rewritten(self.measurer.module, self.search.accepted)
            self.worst, self.held_back = {}, {}
            if not all(self._holds(each, self.worst, 1.0) for each in (*self.search.references, *self.search.joined)):
                self.search.go_back()
                continue
            while len(fresh) < self.supply.held_back_count and (given := next(others, None)) is not None:
                number = len(self.ranges)
                self.ranges.append(Ranges())
                watchers = [self.ranges[number]] if self._may_overflow else []
                fresh.append(self.measurer.reference(number, given, watchers))
            failed = next(
                (each for each in fresh if not self._holds(each, self.held_back, self.search.check_share)), None
            )
            if failed is None:
                self.held_back_count = len(fresh)
                return self
            self.rejections += 1
            fresh.remove(failed)
            if self.supply.is_endless:
                fresh = []
            self.search.go_back(failed)

    def _holds(self, reference: Reference, worst: dict[str, Deviation], share: float) -> bool:
        """Whether all outputs are within a share of their tolerances, and nothing is out of range; else what is, is
        taken back."""
        watcher = Ranges()
        watchers = [watcher] if self.ranges[reference.number].found else []
        try:
            found = self.measurer.deviations(self.found.module, reference, observers=watchers, **self.limits)
        except FAILURES:
            return False
        for label, deviation in found.items():
            if label not in worst or deviation.severity > worst[label].severity:
                worst[label] = deviation
        lost = self._out_of_range(watcher, self.ranges[reference.number])
        if lost:
            self.search.refuse(lost, Standing.RANGE, "goes beyond the type's range once others are narrowed")
        return not lost and all(deviation.severity <= share for deviation in found.values())

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
                users = [each for each in self.search.accepted if self._uses(each, origin)]
                return users or list(self.search.accepted)
        return []

    def _uses(self, place: Place, origin: Place) -> bool:
        """Whether a narrowed instruction is, or takes, the value of another of its computation."""
        computation = self.measurer.module.by_name[place[0]]
        return origin[0] == place[0] and (origin[1] == place[1] or origin[1] in computation.by_name[place[1]].operands)
