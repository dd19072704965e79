"""Choosing the policies of instructions jointly, where different instructions have different ones: a beam search.

A *turn* gives an instruction a policy, or takes it away. Each step tries every turn on top of each choice in the beam,
and keeps what comes nearest. But who rounds behind another that rounds draws its errors anew: if the second one's are
larger, the first turn that is right does not come nearer until the other one is made. Its own effect is in what remains
all the same, once; so the beam also keeps choices by how much of their effect is found there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, combined, numerics_policy
from hloexec.tools.explaining.trying import Trials
from hloexec.tools.explaining.units import single_units, spelled
from hloexec.tools.explaining.values import shares_of

_BEAM = 6
"""Choices that are kept by what remains of them, and as many by their effects."""
_MOST_STEPS = 12
_MOST_UNITS = 64
"""A policy that is about more instructions than this is left out."""
_PART_OF_RUNS = 0.3
"""Of the runs that are left, so many may be for a step."""
_ELEMENTS = 4
"""Of fewer numbers than this, one choice or another comes near by chance."""
_ALONE = 20.0
"""There, none as simple may come so many times as near: so seldom is it chance."""
_MOST_ELEMENTS = 1 << 12
"""Elements that a regression looks at."""
_SMALL = 1.0
"""A turn that changes no element by so much, in units of what rounding does, is none."""
_MANY, _MUCH = 8, 4.0
"""So many numbers do not come so many times as near by chance."""
_NEAR = 2.0
"""What may remain where it is rounding."""


def joint(
    module: Module, trials: Trials, starts: Sequence[NumericsPolicy], policies: Sequence[NumericsPolicy]
) -> NumericsPolicy | None:
    """The policies of instructions that come nearest, from one of several starts; `policies` as they promise most. None
    where that may be chance."""
    return _beam(module, trials, policies).best_from([spelled(module, start) for start in starts])


def further(
    module: Module, trials: Trials, best: NumericsPolicy, policies: Sequence[NumericsPolicy]
) -> NumericsPolicy | None:
    """A policy that explains what is expected, with one turn that comes nearer by more than rounding explains; None
    where none does."""
    if trials.difference.size < _ELEMENTS or not policies:
        return None
    best = spelled(module, best)
    found = min(_beam(module, trials, policies).children(best), key=trials.remaining, default=best)
    trial = trials.trial(found)
    if trial is None or trial.remaining >= trials.remaining(best) or not trials.is_explained(found):
        return None
    is_nearer = trials.difference.size >= _MANY and trial.remaining < trials.remaining(best) / _MUCH
    return found if is_nearer or trials.is_excluded(best, trial) else None


def _beam(module: Module, trials: Trials, policies: Sequence[NumericsPolicy]) -> _Beam:
    turns = [
        _Turn(unit, policy)
        for policy in policies
        if not policy.is_mode and len(units := single_units(module, policy)) <= _MOST_UNITS
        for unit in units
    ]
    order = {f"{computation.name}/{each.name}": n for computation in module for n, each in enumerate(computation)}
    return _Beam(trials, turns, order)


@frozen
class _Turn:
    """An instruction gets a policy, or loses it."""

    unit: str
    part: NumericsPolicy


@define(eq=False)
class _Beam:
    _trials: Trials
    _turns: list[_Turn]
    _order: Mapping[str, int]

    def best_from(self, starts: Sequence[NumericsPolicy]) -> NumericsPolicy | None:
        """What comes nearest within so many steps; the search ends where it explains what is expected."""
        trials = self._trials
        self._turns = self._turns[: max(1, int(_PART_OF_RUNS * trials.runs_left))]
        is_short = trials.difference.size < _ELEMENTS
        beam = sorted(dict.fromkeys(starts), key=trials.remaining)
        best, known, judged = beam[0], set(beam), math.inf
        for _ in range(2 if is_short else _MOST_STEPS):
            beam = beam[: max(1, int(_PART_OF_RUNS * trials.runs_left / max(1, len(self._turns))))]
            found: dict[NumericsPolicy, float] = {}
            for parent in beam:
                found |= {child: share for child, share in self.children(parent).items() if child not in known}
                nearest = min(found, key=trials.remaining, default=best)
                # What remains of the best one may be more than rounding leaves under `reference`.
                is_last = parent is beam[-1]
                limit = judged / 2 if is_last else min(_NEAR, judged / 2)
                if not is_short and trials.remaining(nearest) < min(limit, trials.remaining(best)):
                    best, judged = nearest, trials.remaining(nearest)
                    if trials.is_explained(best):
                        return best
            known |= set(found)
            if not found or not trials.may_go_on():
                break
            by_size = sorted(found, key=trials.remaining)
            if trials.remaining(by_size[0]) < trials.remaining(best):
                best = by_size[0]
            by_effect = sorted(found, key=lambda child: -found[child])
            pairs = zip(by_size[:_BEAM], by_effect[:_BEAM], strict=True)
            beam = list(dict.fromkeys(child for pair in pairs for child in pair))
        return None if is_short and not self._is_alone(best, known) else best

    def _is_alone(self, best: NumericsPolicy, known: Iterable[NumericsPolicy]) -> bool:
        """Whether one comes as near as rounding leaves it, and no other for as few instructions does by far."""
        remaining = self._trials.remaining
        return remaining(best) <= _SMALL and all(
            remaining(other) > _ALONE * max(remaining(best), _SMALL / 2)
            for other in known
            if other != best and len(other.overrides) <= len(best.overrides)
        )

    def children(self, parent: NumericsPolicy) -> dict[NumericsPolicy, float]:
        """What comes of each turn, and how much of its effect is in what remains; and of all those at once whose
        effects are there."""
        trials, scale = self._trials, self._trials.scale
        theirs = trials.leaves_of(parent)
        rest = scale.vector(trials.expected, theirs)
        step = max(1, -(-rest.size // _MOST_ELEMENTS))
        rest = rest[::step]
        weights = 1 / (np.square(rest) + max(1.0, float(np.median(np.abs(rest)))) ** 2)
        found: dict[NumericsPolicy, float] = {}
        turns, effects = list[_Turn](), list[Array]()
        for turn in self._turns:
            child = self._turned(parent, [turn])
            ours = trials.result(child) if trials.may_go_on() else None
            if ours is None:
                continue
            effect = scale.vector(ours, theirs)[::step]
            if np.abs(effect).max() < _SMALL:
                continue
            turns.append(turn)
            effects.append(effect)
            # How much nearer it comes if effects add up.
            found[child] = float((weights * effect) @ (2 * rest - effect))
        shares, _ = shares_of(rest, effects)
        best: dict[str, tuple[float, _Turn]] = {}
        for turn, share in zip(turns, shares, strict=True):
            if share > max(0.5, best.get(turn.unit, (0.0,))[0]):
                best[turn.unit] = share, turn
        if len(best) > 1:
            several = self._turned(parent, [turn for _, turn in best.values()])
            if trials.result(several) is not None:
                found[several] = math.inf
        return found

    def _turned(self, policy: NumericsPolicy, turns: Iterable[_Turn]) -> NumericsPolicy:
        """A policy with turns; instructions in the order in which they run, so that it is written in one way."""
        default = attrs.evolve(policy, overrides=(), name=policy.name.partition(",")[0])
        having = dict(policy.overrides)
        for turn in turns:
            having[turn.unit] = _toggled(policy.of(*turn.unit.split("/", 1)), turn.part)
        names = sorted((name for name in having if having[name] != default), key=lambda name: self._order.get(name, 0))
        return numerics_policy({"": default, **{name: having[name] for name in names}})


def _toggled(policy: NumericsPolicy, part: NumericsPolicy) -> NumericsPolicy:
    """A policy without a part that it has; or with it, and without those that contradict it."""
    others = [each for each in policy.plain_parts if each != part]
    parts = others if part in policy.plain_parts else [part, *(each for each in others if combined(each, part))]
    found = REFERENCE
    for each in sorted(parts, key=lambda each: each.name):
        found = combined(found, each) or found
    return found
