"""The search: each policy for the whole module, then for parts of it, then several at once.

Effects of roundings are small, and add up. What is expected, less the reference, is therefore a sum of the effects of
the policy on groups of instructions, each times 0 or 1: a regression on these effects finds which. It begins with one
group for each opcode; groups that are neither in nor out are parted, until single instructions are left. The policy that
comes out is run, and only that run decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from hloexec.explaining.findings import Explained, Trial
from hloexec.explaining.trying import Trials
from hloexec.explaining.units import Group, groups_of
from hloexec.ir import Module
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, combined, mixed
from hloexec.values import Array

__all__ = ["Found", "search"]

_MOST_GROUPS = 40
"""Effects that are measured at once; each takes a run."""
_ERRORS = 4.0
"""An effect is told from none, or from all of it, if it is so many times its error away."""
_WHOLLY = 0.15
"""Groups whose share is so far from 1 are parted, if there is any of it."""
_MANY = 10
"""So many elements have the same bits by chance once in a thousand times at most."""
_MOST_LAYERS = 3
"""Policies that are laid on top of one another."""
_BETTER = 0.9
"""What remains has to shrink to this for another policy to be worth its mention."""


@attrs.frozen(eq=False)
class Found:
    """What a search came to."""

    verdict: Explained
    best: Trial
    alike: tuple[Trial, ...]
    trials: tuple[Trial, ...]


def search(module: Module, trials: Trials, policies: Sequence[NumericsPolicy]) -> Found:
    """The policy that explains what is expected, if any of these does, or several of them for parts of the module."""
    reference = trials.trial(REFERENCE)
    assert reference is not None
    if reference.equal_share == 1.0:
        return Found(Explained.EQUAL, reference, (), (reference,))
    reference = trials.judged(reference)
    whole = [trial for policy in policies if trials.has_time() and (trial := trials.trial(policy)) is not None]
    tried = [reference, *(trial for trial in whole if trial.policy != REFERENCE)]
    effective = [trial for trial in tried[1:] if trial.has_effect]
    effective.sort(key=lambda trial: trial.remaining)
    judged = [trials.judged(trial) for trial in effective[:3] if trial.remaining < 2 * reference.remaining]
    explained = [trial for trial in (reference, *judged) if trial.is_explained]
    if not explained or not _is_settled(trials, explained, effective):
        for trial in _in_parts(module, trials, effective):
            tried.append(trial)
            if trial.is_explained:
                explained.append(trial)
                break
    known = {trial.policy: trial for trial in (*judged, *explained)}
    tried = sorted((known.get(trial.policy, trial) for trial in tried), key=lambda trial: trial.remaining)
    if not explained:
        nearest = tried[0]
        nearest = nearest if nearest.is_explained is not None else trials.judged(nearest)
        return Found(Explained.NONE, nearest, (), tuple(tried))
    best, alike = _told_apart(trials, explained, effective)
    verdict = Explained.ROUNDING if best.policy == REFERENCE else Explained.POLICY
    return Found(verdict, best, alike, tuple(tried))


def _is_settled(trials: Trials, explained: Sequence[Trial], effective: Sequence[Trial]) -> bool:
    """Whether no effect of another policy is left in what remains of the best one."""
    best = min(explained, key=lambda trial: trial.remaining)
    if best.policy != REFERENCE:
        return True
    for trial in effective:
        share, error, _ = trials.weighed(trial.policy, REFERENCE)
        if abs(share) > _ERRORS * error and share > 0.02:
            return False
    return True


def _told_apart(
    trials: Trials, explained: Sequence[Trial], effective: Sequence[Trial]
) -> tuple[Trial, tuple[Trial, ...]]:
    """Of the policies that explain it the simplest that the values do not exclude, and the others of these."""
    nearest = min(explained, key=lambda trial: trial.remaining)
    others = [trial for trial in (*explained, *effective) if trial.policy != nearest.policy]
    alike = []
    for trial in {trial.policy: trial for trial in reversed(others)}.values():
        share, error, size = trials.weighed(nearest.policy, trial.policy)
        nearest_effect = (share, error) if trial.policy == REFERENCE else None
        if nearest_effect:
            nearest = attrs.evolve(nearest, effect=share, effect_error=error)
        is_excluded = size > 0 and share > _ERRORS * error and share > 0.5
        is_excluded |= nearest.equal_share == 1.0 and trials.unequal(trial.policy) >= _MANY
        if not is_excluded:
            trial = trial if trial.is_explained is not None else trials.judged(trial)
            if trial.is_explained:
                alike.append(trial)
    candidates = sorted([nearest, *alike], key=_complexity)
    return candidates[0], tuple(candidates[1:])


def _complexity(trial: Trial) -> tuple[bool, int, int, float]:
    policy = trial.policy
    return policy != REFERENCE, len(policy.overrides), policy.name.count("+"), trial.remaining


def _in_parts(module: Module, trials: Trials, effective: Sequence[Trial]) -> Iterator[Trial]:
    """Policies for parts of the module, and several at once: each time the one that comes nearest is built upon."""
    bases = [REFERENCE]
    nearest = min((trial.remaining for trial in effective), default=np.inf)
    before = trials.remaining(REFERENCE)
    if effective and nearest < _BETTER * before:
        bases = [min(effective, key=lambda trial: trial.remaining).policy, REFERENCE]
    for base in bases:
        for _ in range(_MOST_LAYERS):
            found = _layer(module, trials, base, [trial.policy for trial in effective])
            if found is None:
                break
            trial = trials.judged(found)
            yield trial
            base = trial.policy


def _layer(
    module: Module, trials: Trials, base: NumericsPolicy, policies: Sequence[NumericsPolicy]
) -> Trial | None:
    """The best of policies, in whole or for some instructions, on top of what is there; None where none improves it."""
    best, remaining = None, trials.remaining(base)
    before = remaining
    for policy in _by_promise(trials, base, policies):
        if not trials.has_time():
            break
        chosen = _chosen(module, trials, base, policy)
        if chosen is None or chosen == base:
            continue
        left = trials.remaining(chosen)
        if left < remaining:
            best, remaining = chosen, left
            trial = trials.trial(chosen)
            if trial is not None and trials.judged(trial).is_explained:
                break
    return trials.trial(best) if best is not None and remaining < _BETTER * before else None


def _by_promise(
    trials: Trials, base: NumericsPolicy, policies: Sequence[NumericsPolicy]
) -> list[NumericsPolicy]:
    """The policies whose effects are found in what remains, the largest part first."""
    rest = trials.scale.vector(trials.expected, trials.result(base) or {})
    found = []
    for policy in policies:
        both = combined(base, policy)
        if both is None or both == base or trials.result(both) is None:
            continue
        effect = trials.effect(both, base)
        size = float(np.dot(effect, effect))
        if size:
            found.append((float(np.dot(rest, effect)) ** 2 / size, policy))
    return [policy for _, policy in sorted(found, key=lambda pair: -pair[0])]


def _chosen(module: Module, trials: Trials, base: NumericsPolicy, policy: NumericsPolicy) -> NumericsPolicy | None:
    """The policy for those instructions only whose effects are in what remains of another."""
    rest = trials.scale.vector(trials.expected, trials.result(base) or {})
    groups = groups_of(module, policy)
    count = _MOST_GROUPS // max(1, len(groups))
    groups = [part for group in groups for part in group.parts(count)]
    settled: list[Group] = []
    while groups and trials.has_time():
        groups = groups[:_MOST_GROUPS]
        effects = [_effect_of(trials, base, policy, group) for group in (*groups, *settled)]
        shares, errors = _shares(rest, effects)
        partly = [
            group
            for group, share, error in zip(groups, shares, errors, strict=False)
            if len(group.names) > 1 and abs(share) > _ERRORS * error and abs(share - 1) > _WHOLLY
        ]
        settled += [group for group, share in zip(groups, shares, strict=False) if group not in partly and share > 0.5]
        if not partly:
            break
        count = max(2, _MOST_GROUPS // len(partly))
        groups = [part for group in partly for part in group.parts(count)]
    names = [name for group in settled for name in group.names]
    return _pruned(trials, base, policy, settled) if names else None


def _pruned(
    trials: Trials, base: NumericsPolicy, policy: NumericsPolicy, groups: Sequence[Group]
) -> NumericsPolicy | None:
    """The policy for the groups without those that do not bring it nearer."""
    kept = list(groups)
    best = mixed(base, policy, [name for group in kept for name in group.names])
    if best is None:
        return None
    for group in list(kept):
        if len(kept) == 1 or not trials.has_time():
            break
        rest = [other for other in kept if other is not group]
        without = mixed(base, policy, [name for other in rest for name in other.names])
        if without is not None and trials.remaining(without) <= trials.remaining(best):
            kept, best = rest, without
    return best


def _effect_of(trials: Trials, base: NumericsPolicy, policy: NumericsPolicy, group: Group) -> Array | None:
    both = mixed(base, policy, group.names)
    return None if both is None or trials.result(both) is None else trials.effect(both, base)


def _shares(rest: Array, effects: Sequence[Array | None]) -> tuple[list[float], list[float]]:
    """How much of each effect is in what remains, by a regression, and the errors of that if those of elements were
    independent; an effect that is smaller than rounding does not count."""
    known = [number for number, effect in enumerate(effects) if effect is not None and effect.any()]
    found, errors = [0.0] * len(effects), [np.inf] * len(effects)
    if not known:
        return found, errors
    matrix = np.array([effects[number] for number in known])
    squares = matrix @ matrix.T
    # As if each share were 0 or so beforehand, and every element had an error of one unit.
    squares += np.eye(len(known))
    inverse = np.linalg.inv(squares)
    solution, variances = inverse @ (matrix @ rest), np.diag(inverse)
    for number, share, variance in zip(known, solution.tolist(), variances.tolist(), strict=True):
        found[number], errors[number] = share, math.sqrt(max(variance, 0.0))
    return found, errors
