"""Which choices of policies the values can tell, and which policies come nearest jointly.

Which choices of a policy the values can tell: for each instruction, whether it has the policy or not.

A policy that explains what is expected says something of every instruction that it is about. Each is therefore turned:
it loses the policy where it has it, and gets it where it has not. If that explains what is expected as well, the values
cannot tell. Several together may also make up for one another, as in a single number that two products went into: which
may is seen from the sums of their effects, and then tried. Of what cannot be told, as little as possible has it.

Choosing the policies of instructions jointly, where different instructions have different ones: a beam search.

A *turn* gives an instruction a policy, or takes it away. Each step tries every turn on top of each choice in the beam,
and keeps what comes nearest. But who rounds behind another that rounds draws its errors anew: if the second one's are
larger, the first turn that is right does not come nearer until the other one is made. Its own effect is in what remains
all the same, once; so the beam also keeps choices by how much of their effect is found there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import attrs
import numpy as np

from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, combined, mixed, numerics_policy, without
from hloexec.tools.explaining.findings import Trial, Untold
from hloexec.tools.explaining.trying import Trials, groups_of, same, shares_of, single_units, spelled

_MOST_CHOICES = 64
"""Choices that are looked at: where there are more instructions, neighbours of one opcode share one."""
_MOST_TOGETHER = 3
"""Choices that may make up for one another; of many, two."""
_FEW = 24
_MOST_TRIED = 6
"""How many of those that may are tried: each takes some ten runs."""
_MOST_ELEMENTS = 1 << 14
"""Elements of effects that are added up."""
_MOST_ROUNDS = 3
_HARDLY_MORE = 1.1
"""So many times as much remains under two policies of which neither is nearer."""


def told(module: Module, trials: Trials, best: Trial) -> tuple[Trial, tuple[Untold, ...]]:
    """The policy for as few instructions as explain it as well as the best one, and what the values cannot tell."""
    choices, search = list(_choices(module, best.policy)), _Search(module, trials, best)
    for _ in range(_MOST_ROUNDS):
        better = search.better(choices)
        if better is None:
            break
        choices, search = list(_choices(module, better.policy)), _Search(module, trials, better)
    untold = search.opened(choices)
    return search.smallest(untold), _untold(untold)


def all_untold(module: Module, policy: NumericsPolicy) -> tuple[Untold, ...]:
    """All that a policy chooses, where there is no time to look at it."""
    return _untold(_choices(module, policy))


def _untold(choices: Iterable[_Choice]) -> tuple[Untold, ...]:
    return tuple(Untold(name, choice.part.name) for choice in choices for name in choice.names)


@frozen
class _Choice:
    """Whether some instructions have a part of a policy."""

    part: NumericsPolicy
    names: tuple[str, ...]
    is_on: bool


def _choices(module: Module, policy: NumericsPolicy) -> Iterator[_Choice]:
    """What a policy chooses for each instruction: modes that hold for a whole run are none."""
    for part in policy.chosen_parts:
        groups = groups_of(module, part)
        count = max(1, _MOST_CHOICES // max(1, len(groups)))
        for piece in (piece for group in groups for piece in group.parts(count)):
            having = tuple(name for name in piece.names if part in policy.of_name(name).plain_parts)
            lacking = tuple(name for name in piece.names if name not in having)
            yield from (_Choice(part, names, names is having) for names in (having, lacking) if names)


class _Search:
    """Turns choices of a policy that explains what is expected."""

    def __init__(self, module: Module, trials: Trials, best: Trial) -> None:
        self._trials = trials
        self._best = best
        self._spelled = spelled(module, best.policy)

    def better(self, choices: Sequence[_Choice]) -> Trial | None:
        """The policy with those choices turned that are better the other way round; None where there are none."""
        if self._best.equal_share == 1.0:
            return None
        wrong = [choice for choice in choices if self._is_excluded_by([choice])]
        policy = self._turned(wrong) if wrong else None
        trial = None if policy is None else self._trials.trial(policy)
        if trial is None or trial.remaining >= self._best.remaining:
            return None
        trial = self._trials.judged(trial)
        return trial if trial.is_explained else None

    def opened(self, choices: Sequence[_Choice]) -> list[_Choice]:
        """The choices that cannot be told."""
        # What nobody had the time to look at is not told, either.
        opened = [choice for choice in choices if not self._trials.may_go_on() or self._is_as_good([choice])]
        rest = [choice for choice in choices if choice not in opened]
        tried = 0
        for several in self._making_up(rest):
            if tried >= _MOST_TRIED or not self._trials.may_go_on():
                break
            if not any(choice in opened for choice in several):
                tried += 1
                opened += several if self._is_as_good(several) else []
        return [choice for choice in choices if choice in opened]

    def smallest(self, choices: Sequence[_Choice]) -> Trial:
        """The policy without as many of the choices as it explains it without, and no worse."""
        having = [choice for choice in choices if choice.is_on]
        left_out: list[_Choice] = []
        if len(having) > 1 and self._is_no_worse(having):
            left_out = having
        else:
            for choice in having:
                if self._trials.may_go_on() and self._is_no_worse([*left_out, choice]):
                    left_out.append(choice)
        policy = self._turned(left_out) if left_out else None
        trial = None if policy is None else self._trials.trial(policy)
        return self._best if trial is None else self._trials.judged(trial)

    def _turned(self, choices: Sequence[_Choice]) -> NumericsPolicy | None:
        """The policy with choices the other way round; None where others contradict them."""
        policy: NumericsPolicy | None = self._spelled
        for choice in choices:
            if policy is not None:
                turn = without if choice.is_on else mixed
                policy = turn(policy, choice.part, choice.names)
        return policy

    def _is_as_good(self, choices: Sequence[_Choice]) -> bool:
        """Whether choices the other way round explain what is expected, and the values do not exclude it."""
        trials, policy = self._trials, self._turned(choices)
        if policy is None or trials.result(policy) is None or policy == REFERENCE:
            return False
        if same(trials.leaves_of(policy), trials.leaves_of(self._best.policy)):
            return True
        return not trials.is_excluded(policy, self._best) and trials.is_explained(policy)

    def _is_no_worse(self, choices: Sequence[_Choice]) -> bool:
        """Whether choices the other way round explain what is expected, and hardly more remains."""
        policy, limit = self._turned(choices), _HARDLY_MORE * self._best.remaining
        return policy is not None and self._trials.remaining(policy) <= limit and self._is_as_good(choices)

    def _is_excluded_by(self, choices: Sequence[_Choice]) -> bool:
        """Whether choices the other way round exclude the policy as it is."""
        policy = self._turned(choices)
        if policy is None or policy == REFERENCE or not self._trials.may_go_on():
            return False
        trial = self._trials.trial(policy)
        return trial is not None and self._trials.is_excluded(self._best.policy, trial)

    def _making_up(self, choices: Sequence[_Choice]) -> Iterator[list[_Choice]]:
        """Choices of which the effects add up to little enough, the fewest first."""
        trials, best = self._trials, self._best.policy
        turned = [self._turned([choice]) for choice in choices]
        turned_choices = [
            (choice, policy)
            for choice, policy in zip(choices, turned, strict=True)
            if policy is not None and trials.result(policy) is not None
        ]
        if len(turned_choices) < 2:
            return
        scale, sample = trials.scale_of(best), trials.samples(best)
        middle = trials.leaves_of(best)
        step = max(1, -(-scale.vector(middle, middle).size // _MOST_ELEMENTS))

        def taken(vector: Array) -> Array:
            return vector[::step]

        pairs = [trials.middles(policy, best) for _, policy in turned_choices]
        effects = np.array([taken(scale.vector(*pair)) for pair in pairs])
        products = effects @ effects.T
        rests = effects @ taken(scale.vector(trials.expected, pairs[0][1]))
        errors = effects @ np.array([taken(scale.vector(leaves, middle)) for leaves in sample]).T
        for count in range(2, 1 + (_MOST_TOGETHER if len(turned_choices) <= _FEW else 2)):
            for chosen in combinations(range(len(turned_choices)), count):
                size = products[np.ix_(chosen, chosen)].sum()
                error = np.sqrt(np.mean(np.square(errors[list(chosen)].sum(0))))
                if trials.is_far(1 - rests[list(chosen)].sum() / max(size, 1e-300), error / max(size, 1e-300)):
                    continue
                yield [turned_choices[number][0] for number in chosen]


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
_MOST_REGRESSED = 1 << 12
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
    nearest = min(_beam(module, trials, policies).children(best), key=trials.remaining, default=best)
    trial = trials.trial(nearest)
    if trial is None or trial.remaining >= trials.remaining(best) or not trials.is_explained(nearest):
        return None
    is_nearer = trials.difference.size >= _MANY and trial.remaining < trials.remaining(best) / _MUCH
    return nearest if is_nearer or trials.is_excluded(best, trial) else None


def _beam(module: Module, trials: Trials, policies: Sequence[NumericsPolicy]) -> _Beam:
    turns = [
        _Turn(unit, policy)
        for policy in policies
        if not policy.is_mode and len(units := single_units(module, policy)) <= _MOST_UNITS
        for unit in units
    ]
    order = {
        f"{computation.name}/{instruction.name}": n
        for computation in module
        for n, instruction in enumerate(computation)
    }
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
        best, seen, judged = beam[0], set(beam), math.inf
        for _ in range(2 if is_short else _MOST_STEPS):
            beam = beam[: max(1, int(_PART_OF_RUNS * trials.runs_left / max(1, len(self._turns))))]
            children: dict[NumericsPolicy, float] = {}
            for parent in beam:
                children |= {child: share for child, share in self.children(parent).items() if child not in seen}
                nearest = min(children, key=trials.remaining, default=best)
                # What remains of the best one may be more than rounding leaves under `reference`.
                is_last = parent is beam[-1]
                limit = judged / 2 if is_last else min(_NEAR, judged / 2)
                if not is_short and trials.remaining(nearest) < min(limit, trials.remaining(best)):
                    best, judged = nearest, trials.remaining(nearest)
                    if trials.is_explained(best):
                        return best
            seen |= set(children)
            if not children or not trials.may_go_on():
                break
            by_size = sorted(children, key=trials.remaining)
            if trials.remaining(by_size[0]) < trials.remaining(best):
                best = by_size[0]
            by_effect = sorted(children, key=lambda child: -children[child])
            pairs = zip(by_size[:_BEAM], by_effect[:_BEAM], strict=True)
            beam = list(dict.fromkeys(child for pair in pairs for child in pair))
        return None if is_short and not self._is_alone(best, seen) else best

    def _is_alone(self, best: NumericsPolicy, policies: Iterable[NumericsPolicy]) -> bool:
        """Whether one comes as near as rounding leaves it, and no other for as few instructions does by far."""
        remaining = self._trials.remaining
        return remaining(best) <= _SMALL and all(
            remaining(other) > _ALONE * max(remaining(best), _SMALL / 2)
            for other in policies
            if other != best and len(other.overrides) <= len(best.overrides)
        )

    def children(self, parent: NumericsPolicy) -> dict[NumericsPolicy, float]:
        """What comes of each turn, and how much of its effect is in what remains; and of all those at once whose
        effects are there."""
        trials, scale = self._trials, self._trials.scale
        theirs = trials.leaves_of(parent)
        rest = scale.vector(trials.expected, theirs)
        step = max(1, -(-rest.size // _MOST_REGRESSED))
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
            having[turn.unit] = _toggled(policy.of_name(turn.unit), turn.part)
        names = sorted((name for name in having if having[name] != default), key=lambda name: self._order.get(name, 0))
        return numerics_policy({"": default, **{name: having[name] for name in names}})


def _toggled(policy: NumericsPolicy, part: NumericsPolicy) -> NumericsPolicy:
    """A policy without a part that it has; or with it, and without those that contradict it."""
    others = [each for each in policy.plain_parts if each != part]
    parts = others if part in policy.plain_parts else [part, *(each for each in others if combined(each, part))]
    toggled = REFERENCE
    for each in sorted(parts, key=lambda each: each.name):
        toggled = combined(toggled, each) or toggled
    return toggled
