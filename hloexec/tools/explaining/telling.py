"""Which choices of a policy the values can tell: for each instruction, whether it has the policy or not.

A policy that explains what is expected says something of every instruction that it is about. Each is therefore turned:
it loses the policy where it has it, and gets it where it has not. If that explains what is expected as well, the values
cannot tell. Several together may also make up for one another, as in a single number that two products went into: which
may is seen from the sums of their effects, and then tried. Of what cannot be told, as little as possible has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np

from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, mixed, without
from hloexec.tools.explaining.findings import Trial, Untold
from hloexec.tools.explaining.trying import Trials
from hloexec.tools.explaining.units import groups_of, spelled
from hloexec.tools.explaining.values import same

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
    found = search.opened(choices)
    return search.smallest(found), _untold(found)


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
            having = tuple(name for name in piece.names if part in policy.of(*name.split("/", 1)).plain_parts)
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
        found = [choice for choice in choices if not self._trials.may_go_on() or self._is_as_good([choice])]
        rest = [choice for choice in choices if choice not in found]
        tried = 0
        for several in self._making_up(rest):
            if tried >= _MOST_TRIED or not self._trials.may_go_on():
                break
            if not any(choice in found for choice in several):
                tried += 1
                found += several if self._is_as_good(several) else []
        return [choice for choice in choices if choice in found]

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
        known = [
            (choice, policy)
            for choice, policy in zip(choices, turned, strict=True)
            if policy is not None and trials.result(policy) is not None
        ]
        if len(known) < 2:
            return
        scale, sample = trials.scale_of(best), trials.samples(best)
        middle = trials.leaves_of(best)
        step = max(1, -(-scale.vector(middle, middle).size // _MOST_ELEMENTS))

        def taken(vector: Array) -> Array:
            return vector[::step]

        pairs = [trials.middles(policy, best) for _, policy in known]
        effects = np.array([taken(scale.vector(*pair)) for pair in pairs])
        products = effects @ effects.T
        rests = effects @ taken(scale.vector(trials.expected, pairs[0][1]))
        errors = effects @ np.array([taken(scale.vector(each, middle)) for each in sample]).T
        for count in range(2, 1 + (_MOST_TOGETHER if len(known) <= _FEW else 2)):
            for chosen in combinations(range(len(known)), count):
                size = products[np.ix_(chosen, chosen)].sum()
                error = np.sqrt(np.mean(np.square(errors[list(chosen)].sum(0))))
                if trials.is_far(1 - rests[list(chosen)].sum() / max(size, 1e-300), error / max(size, 1e-300)):
                    continue
                yield [known[number][0] for number in chosen]
