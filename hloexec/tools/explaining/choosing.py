"""Choosing the instructions that have a policy: from what is expected, and from the effects of the policy on parts.

Effects of roundings are small, and add up. What is expected, less the base, is therefore a sum of the effects of the
policy on groups of instructions, each times 0 or 1: a regression on these effects finds which. It begins with large
groups; those that are neither in nor out are parted. That holds as long as few instructions have the policy: who rounds
behind another that rounds draws its errors anew. So if that does not explain it, instructions are decided in the order
in which they run, a few at a time, each on top of those that are decided. Then each is tried the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hloexec.core.ir import Module
from hloexec.core.values import Array
from hloexec.ops.policies.policy import NumericsPolicy, mixed
from hloexec.tools.explaining.trying import Trials
from hloexec.tools.explaining.units import Group, groups_of, single_units
from hloexec.tools.explaining.values import Scale, shares_of, size_of

_MOST_GROUPS = 40
"""Effects that are measured at once; each takes a run."""
_ERRORS = 4.0
"""An effect is told from none, or from all of it, if it is so many times its error away."""
_WHOLLY = 0.15
"""Groups whose share is so far from 1 are parted, if there is any of it."""
_WINDOW = 8
"""Instructions that are looked at together in the order in which they run; half of them are decided at most."""
_DOUBT = 0.25
"""An instruction whose share is further than this from 0 and from 1 waits until those before it are decided."""
_MOST_MISFIT = 0.9
"""If effects leave more than this of what remains, in whatever shares, the policy is not looked at further."""
_MOST_UNITS = 64
"""Of more instructions than this, none is decided by itself."""
_ELEMENTS = 4
"""A result of fewer elements than this for each instruction does not tell them apart by a regression."""
_FEW_UNITS = 5
_MOST_STARTS = 3


def chosen(module: Module, trials: Trials, base: NumericsPolicy, policy: NumericsPolicy) -> NumericsPolicy | None:
    """The policy for those instructions only whose effects are in what remains of another; None where none are."""
    scale = trials.scale_of(policy)
    found, fit = _by_groups(module, trials, scale, base, policy)
    if fit > _MOST_MISFIT or (found is not None and trials.is_explained(found)):
        return found
    units = single_units(module, policy, base)
    if not 1 < len(units) <= _MOST_UNITS:
        return found
    starts = [found, _in_order(trials, scale, base, policy, units)]
    is_short = trials.difference.size < _ELEMENTS * len(units)
    if is_short:
        # Too few numbers for a regression: any of them are a beginning as good; of many, each by itself and all.
        sizes = range(1, len(units) + 1) if len(units) <= _FEW_UNITS else (1, len(units))
        starts += [mixed(base, policy, names) for size in sizes for names in combinations(units, size)]
    known = dict.fromkeys(each for each in starts if each is not None and trials.result(each) is not None)
    best = None
    for start in sorted(known, key=trials.remaining)[: _MOST_STARTS if is_short else 1]:
        turned = _turned(trials, base, policy, units, start)
        best = turned if best is None or trials.remaining(turned) < trials.remaining(best) else best
        if trials.is_explained(best):
            break
    return best


def _by_groups(
    module: Module, trials: Trials, scale: Scale, base: NumericsPolicy, policy: NumericsPolicy
) -> tuple[NumericsPolicy | None, float]:
    """The policy for the groups whose effects are found, and how much of what remains the effects leave."""
    rest = scale.vector(trials.expected, trials.leaves_of(base))
    groups = groups_of(module, policy, base)
    count = _MOST_GROUPS // max(1, len(groups))
    groups = [part for group in groups for part in group.parts(count)]
    settled: list[Group] = []
    fit = 1.0
    while groups and trials.may_go_on():
        groups = groups[:_MOST_GROUPS]
        effects = [_effect_of(trials, scale, base, policy, group.names) for group in (*groups, *settled)]
        shares, errors = shares_of(rest, effects)
        fit = min(fit, _fit(rest, effects, shares))
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
    return _pruned(trials, base, policy, settled) if settled else None, fit


def _pruned(
    trials: Trials, base: NumericsPolicy, policy: NumericsPolicy, groups: Sequence[Group]
) -> NumericsPolicy | None:
    """The policy for the groups without those that do not bring it nearer."""
    kept = list(groups)
    best = mixed(base, policy, [name for group in kept for name in group.names])
    if best is None:
        return None
    for group in list(kept):
        if len(kept) == 1 or not trials.may_go_on():
            break
        rest = [other for other in kept if other is not group]
        without = mixed(base, policy, [name for other in rest for name in other.names])
        if without is not None and trials.remaining(without) <= trials.remaining(best):
            kept, best = rest, without
    return best


def _in_order(
    trials: Trials, scale: Scale, base: NumericsPolicy, policy: NumericsPolicy, units: Sequence[str]
) -> NumericsPolicy:
    left, decided = list(units), base
    while left and trials.may_go_on():
        window, others = left[:_WINDOW], left[_WINDOW:]
        rest = scale.vector(trials.expected, trials.leaves_of(decided))
        parts = [*([name] for name in window), *([others] if others else [])]
        shares, _ = shares_of(rest, [_effect_of(trials, scale, decided, policy, part) for part in parts])
        count = 1
        while count < min(len(window), _WINDOW // 2) and not _DOUBT < abs(shares[count]) < 1 - _DOUBT:
            count += 1
        taken = [name for name, share in zip(window[:count], shares, strict=False) if share > 0.5]
        decided = (mixed(decided, policy, taken) if taken else decided) or decided
        left = left[count:]
    return decided


def _turned(
    trials: Trials, base: NumericsPolicy, policy: NumericsPolicy, units: Sequence[str], best: NumericsPolicy
) -> NumericsPolicy:
    """The policy for the instructions that have it, with some more or fewer of them if that comes nearer."""
    before = dict(base.overrides)
    having = {name for name, found in best.overrides if found != before.get(name)}
    is_better = True
    while is_better and trials.may_go_on() and not trials.is_explained(best):
        is_better = False
        for name in units:
            if not trials.may_go_on():
                break
            other = having ^ {name}
            turned = mixed(base, policy, [unit for unit in units if unit in other]) if other else base
            if turned is not None and trials.remaining(turned) < trials.remaining(best):
                best, having, is_better = turned, other, True
    return best


def _effect_of(
    trials: Trials, scale: Scale, base: NumericsPolicy, policy: NumericsPolicy, names: Sequence[str]
) -> Array | None:
    both = mixed(base, policy, names)
    ours = None if both is None else trials.result(both)
    return None if ours is None else scale.vector(ours, trials.leaves_of(base))


def _fit(rest: Array, effects: Sequence[Array | None], shares: Sequence[float]) -> float:
    """What is left of a vector once effects in these shares are taken off, as a share of it."""
    left = rest.copy()
    for effect, share in zip(effects, shares, strict=True):
        if effect is not None and share:
            left -= share * effect
    return size_of(left) / max(size_of(rest), 1e-300)
