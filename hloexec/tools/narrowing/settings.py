"""The arguments of `narrow`, checked: numbers and words, and the tolerances of outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hloexec.core.arguments import listed, require_choice, require_integer, require_module, require_number, texts, wrong
from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import Module
from hloexec.core.wording import argument, listing
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.errors import InputError
from hloexec.tools.narrowing.candidates import KINDS, Candidate
from hloexec.tools.narrowing.carrying import Carried, output_labels

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
    known = {each.name: each for each in floats if each.bits < 64 and each.mantissa_bits}
    for name in names:
        require_choice(f"each of {argument('types')}", name, known)
    if not names:
        raise InputError(f"types must name at least one of {', '.join(known)}")
    return sorted((known[name] for name in dict.fromkeys(names)), key=lambda each: -each.bits)


def require_candidates(module: Module, candidates: Sequence[Candidate], types: Sequence[ElementType]) -> None:
    if any(candidate.can_be(each) for candidate in candidates for each in types):
        return
    wide = " or ".join(sorted({each.element_type.name for each in candidates})) or "floats"
    raise InputError(
        f"module {module.name} has no instruction that could be narrowed to {', '.join(each.name for each in types)}: "
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
