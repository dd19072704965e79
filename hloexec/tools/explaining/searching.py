"""The search for a policy: for the whole module, then for parts of it, then several at once.

Choosing the instructions that have a policy: from what is expected, and from the effects of the policy on parts.

Effects of roundings are small, and add up. What is expected, less the base, is therefore a sum of the effects of the
policy on groups of instructions, each times 0 or 1: a regression on these effects finds which. It begins with large
groups; those that are neither in nor out are parted. That holds as long as few instructions have the policy: who rounds
behind another that rounds draws its errors anew. So if that does not explain it, instructions are decided in the order
in which they run, a few at a time, each on top of those that are decided. Then each is tried the other way round.

The search: each policy for the whole module, then for parts of it, then several at once. Only a run under the policy
that comes out decides whether it explains what is expected.

Which instructions may have another policy besides the best one: those of which rounding hides what it changes.

What explains the values says little of an instruction on which a policy has a small effect. So each instruction gets
each policy on top of the best one, a run each. If that explains the values as well, and they do not exclude it, they
cannot tell. Where it changes no bit, there is nothing to tell.

Whether what is expected is within reach: a look at it before the long search for policies of instructions.

Policies of some instructions move an element about as far as the policies of the whole module do, or less: effects add
up or cancel one another. As they may cancel, this does not hold for each element, but for most of many. So where most
elements that are off are several times further off than all policies together move them, no choice of instructions
explains them, and none has to be tried. Nor does any explain a NaN or an infinity where all of these policies give a
number, or the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, combined, mixed
from hloexec.tools.explaining.findings import Explained, Trial, Untold
from hloexec.tools.explaining.telling import all_untold, further, joint, told
from hloexec.tools.explaining.trying import (
    Group,
    OutOfTimeError,
    Scale,
    Trials,
    groups_of,
    same,
    shares_of,
    single_units,
    size_of,
    spelled,
)

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
    grouped, fit = _by_groups(module, trials, scale, base, policy)
    if fit > _MOST_MISFIT or (grouped is not None and trials.is_explained(grouped)):
        return grouped
    units = single_units(module, policy, base)
    if not 1 < len(units) <= _MOST_UNITS:
        return grouped
    starts = [grouped, _in_order(trials, scale, base, policy, units)]
    is_short = trials.difference.size < _ELEMENTS * len(units)
    if is_short:
        # Too few numbers for a regression: any of them are a beginning as good; of many, each by itself and all.
        sizes = range(1, len(units) + 1) if len(units) <= _FEW_UNITS else (1, len(units))
        starts += [mixed(base, policy, names) for size in sizes for names in combinations(units, size)]
    tried = dict.fromkeys(
        start_policy for start_policy in starts if start_policy is not None and trials.result(start_policy) is not None
    )
    best = None
    for start in sorted(tried, key=trials.remaining)[: _MOST_STARTS if is_short else 1]:
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
    having = {name for name, override in best.overrides if override != before.get(name)}
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


_MOST_CHOICES = 64
"""Choices that are looked at: where there are more, neighbours of one opcode share one."""


def hidden(module: Module, trials: Trials, best: Trial, policies: Sequence[NumericsPolicy]) -> tuple[Untold, ...]:
    """The instructions that may have one of the policies besides those that the best one gives them."""
    if best.equal_share == 1.0:
        return ()
    chosen, start = best.policy.chosen_parts, spelled(module, best.policy)
    parts = [policy for policy in policies if not policy.is_mode and policy not in chosen]
    untold = []
    for part, names in _choices(module, parts, start):
        policy = mixed(start, part, names)
        if policy is None or not trials.may_go_on():
            continue
        result = trials.result(policy)
        if result is None or same(result, trials.leaves_of(best.policy)):
            continue
        if trials.is_near(policy, best) and not trials.is_excluded(policy, best):
            untold += [Untold(name, part.name) for name in names]
    return tuple(untold)


def _choices(
    module: Module, parts: Sequence[NumericsPolicy], base: NumericsPolicy
) -> Iterator[tuple[NumericsPolicy, tuple[str, ...]]]:
    """Each policy with each of the instructions that it is about and that have none that contradicts it."""
    groups = [(part, group) for part in parts for group in groups_of(module, part, base)]
    count = max(1, _MOST_CHOICES // max(1, len(groups)))
    for part, group in groups:
        for piece in group.parts(count):
            yield part, piece.names


_TIMES = 4.0
"""Half of the elements that are off are so much further off than policies move them. Of two normal numbers of one size,
the ratio is so large once in six times; of sixteen elements, half are so by chance once in a thousand times."""
_FEW = 16
_OFF = 8.0
"""An element is off if it is by so many times what rounding does to it."""


def is_out_of_reach(trials: Trials, nearest: NumericsPolicy, policies: Sequence[NumericsPolicy]) -> bool:
    """Whether what is expected is too far from the nearest policy of the whole module; `policies` are all of these."""
    results = [result for policy in policies if (result := trials.result(policy)) is not None]
    if any(
        _is_number_elsewhere(array, [result[label] for result in results]) for label, array in trials.expected.items()
    ):
        return True
    scale, theirs = trials.scale_of(nearest), trials.leaves_of(nearest)
    distances = np.abs(scale.vector(trials.expected, theirs))
    is_off = distances > _OFF
    if np.count_nonzero(is_off) < _FEW:
        return False
    reach = np.ones(distances.size)
    for ours in results:
        reach += np.abs(scale.vector(ours, theirs))
    return bool(np.median(distances[is_off] / reach[is_off]) > _TIMES)


def _is_number_elsewhere(expected: Array, results: Sequence[Array]) -> bool:
    """Whether some element is a number where none of the results has one, or the other way round."""
    if not element_type_of(expected.dtype).is_inexact:
        return False
    differs = [np.isfinite(wide(expected)) != np.isfinite(wide(result)) for result in results]
    return bool(np.logical_and.reduce(differs).any())


_HINT = 2.5
"""An effect is worth a closer look if it is so many times the error that a regression has."""
_USUAL = 2.0
"""What rounding leaves is seldom more than so many times what random rounding does."""
_MOST_JUDGED = 3
"""How many of the nearest policies are looked at more closely, until one explains it."""
_MOST_LAYERS = 3
"""Policies that are laid on top of one another."""
_BETTER = 0.9
"""What remains has to shrink to this for another policy to be worth its mention."""


@frozen(eq=False)
class Found:
    """What a search came to."""

    verdict: Explained
    best: Trial
    alike: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    undecided: tuple[NumericsPolicy, ...] = ()
    untold: tuple[Untold, ...] = ()


def search(module: Module, trials: Trials, policies: Sequence[NumericsPolicy]) -> Found:
    """The policy that explains what is expected, if any of these does, or several of them for parts of the module: as
    far as the search comes before time is over. OutOfTimeError where that is too soon for any answer."""
    latest = None
    try:
        for stage in _stages(module, trials, policies):
            latest = stage
    except OutOfTimeError:
        trials.is_over = True
    if latest is None:
        raise OutOfTimeError
    return latest


def _stages(module: Module, trials: Trials, policies: Sequence[NumericsPolicy]) -> Iterator[Found]:
    """What the search has come to: each answer is better than the one before."""
    reference = trials.trial(REFERENCE)
    assert reference is not None
    if reference.equal_share == 1.0:
        yield Found(Explained.EQUAL, reference, (), (reference,))
        return
    reference = trials.judged(reference)
    explained = [reference] if reference.is_explained else []
    yield _so_far(module, reference, explained, [reference])
    whole = [trial for policy in policies if trials.may_go_on() and (trial := trials.trial(policy)) is not None]
    tried = [reference, *(trial for trial in whole if trial.policy != REFERENCE)]
    effective = [trial for trial in tried[1:] if trial.has_effect]
    effective.sort(key=lambda trial: trial.remaining)
    judged: list[Trial] = []
    for trial in effective[:_MOST_JUDGED]:
        if trial.remaining < 2 * reference.remaining and not (judged and judged[-1].is_explained):
            judged.append(trials.judged(trial))
    explained += [trial for trial in judged if trial.is_explained]
    yield _so_far(module, reference, explained, tried)
    wholes = [trial.policy for trial in tried]
    is_hopeless = not explained and is_out_of_reach(trials, min(wholes, key=trials.remaining), wholes)
    if not is_hopeless and not (explained and _is_settled(trials, explained, effective)):
        # What a policy does to two instructions may cancel where elements are right or wrong.
        parts = [trial.policy for trial in tried[1:] if trial.has_effect or not trials.scale.units]
        for trial in _in_parts(module, trials, parts):
            tried.append(trial)
            if trial.is_explained:
                explained.append(trial)
                yield _so_far(module, reference, explained, tried)
                break
    trials_by_policy = {trial.policy: trial for trial in (*judged, *explained)}
    tried = sorted((trials_by_policy.get(trial.policy, trial) for trial in tried), key=lambda trial: trial.remaining)
    if not explained:
        nearest = trials.judged(tried[0])
        # By size or by number, none is nearest that is further than the reference.
        is_further = (nearest.mismatches or 0) > (reference.mismatches or 0)
        yield Found(Explained.NONE, reference if is_further else nearest, (), _distinct(module, tried))
        return
    best, alike = _told_apart(trials, explained, effective)
    if best.policy != REFERENCE:
        yield _found_policy(module, trials, best, alike, tried, effective)
        return
    undecided = _undecided(module, trials, best, alike, effective)
    untold = hidden(module, trials, best, [trial.policy for trial in effective])
    yield Found(Explained.ROUNDING, best, _distinct(module, alike), _distinct(module, tried), undecided, untold)


def _so_far(module: Module, reference: Trial, explained: Sequence[Trial], tried: Sequence[Trial]) -> Found:
    """An answer in which nothing is told that nobody has looked at."""
    best, *alike = sorted(explained, key=_complexity) or [reference]
    verdict = Explained.ROUNDING if best is reference else Explained.POLICY
    ordered = sorted(tried, key=lambda trial: trial.remaining)
    untold = all_untold(module, best.policy) if explained else ()
    return Found(verdict if explained else Explained.NONE, best, tuple(alike), _distinct(module, ordered), (), untold)


def _distinct(module: Module, trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The first of those that say the same of each instruction."""
    first_trials: dict[object, Trial] = {}
    for trial in trials:
        whole = spelled(module, trial.policy)
        default = attrs.evolve(whole, name="", overrides=())
        having = frozenset(
            (name, override) for name, override in whole.overrides if attrs.evolve(override, name="") != default
        )
        first_trials.setdefault((default, having), trial)
    return tuple(first_trials.values())


def _found_policy(
    module: Module,
    trials: Trials,
    best: Trial,
    alike: Sequence[Trial],
    tried: Sequence[Trial],
    effective: Sequence[Trial],
) -> Found:
    """What a search comes to where a policy explains what is expected: that policy with those of further instructions,
    and without what it does not need."""
    policies = [trial.policy for trial in effective]
    refined = _refined(module, trials, best, policies)
    least, untold = told(module, trials, refined)
    others = {trial.policy: trial for trial in _distinct(module, (least, best, refined, *alike))[1:]}
    if least.policy != best.policy:
        others = {policy: other for policy, other in others.items() if not trials.is_excluded(policy, least)}
        tried = sorted((least, *tried), key=lambda trial: trial.remaining)
    alike = tuple(others.values())
    if trials.is_explained(REFERENCE):
        share, error, _ = trials.weighed(least.policy, REFERENCE)
        least = attrs.evolve(least, effect=share, effect_error=error)
    undecided = _undecided(module, trials, least, alike, effective)
    untold = (*untold, *hidden(module, trials, least, policies))
    return Found(Explained.POLICY, least, alike, _distinct(module, tried), undecided, untold)


def _refined(module: Module, trials: Trials, best: Trial, policies: Sequence[NumericsPolicy]) -> Trial:
    """The policy that explains it with those of other instructions whose effects are found in what remains besides."""
    while best.equal_share < 1.0 and trials.may_go_on():
        policy = further(module, trials, best.policy, _by_promise(module, trials, best.policy, policies, _HINT))
        trial = None if policy is None else trials.trial(policy)
        if trial is None:
            break
        best = trials.judged(trial)
    return best


def _undecided(
    module: Module, trials: Trials, best: Trial, alike: Sequence[Trial], effective: Sequence[Trial]
) -> tuple[NumericsPolicy, ...]:
    """Policies that may hold besides the best one, as rounding hides what they would change."""
    undecided = []
    for trial in effective:
        both = _besides(module, best.policy, trial.policy)
        policies_alike = {best.policy, *(other.policy for other in alike)}
        if both is None or both in policies_alike or trial.policy in policies_alike or not trials.may_go_on():
            continue
        if best.equal_share == 1.0 or trials.result(both) is None:
            continue
        share, error, size = trials.weighed(both, best.policy)
        if size and not trials.is_far(1 - share, error):
            undecided.append(trial.policy)
    return tuple(undecided)


def _besides(module: Module, best: NumericsPolicy, other: NumericsPolicy) -> NumericsPolicy | None:
    """Both policies at once, the other one for those instructions where they do not contradict; where both are about
    functions, the other one's functions. None where they contradict everywhere."""
    if best.has_xla_cpu_functions and other.has_fast_functions:
        best = best.changed(name=f"{best.name} but for its functions", has_xla_cpu_functions=False)
    both = combined(best, other)
    names = single_units(module, other, best) if both is None else []
    return mixed(best, other, names) if names else both


def _is_settled(trials: Trials, explained: Sequence[Trial], effective: Sequence[Trial]) -> bool:
    """Whether no effect of another policy is left in what remains of the best one."""
    best = min(explained, key=lambda trial: trial.remaining)
    if best.policy != REFERENCE:
        return True
    if (best.spread_ratio or 0.0) > _USUAL:
        return False
    for trial in effective:
        share, error, _ = trials.weighed(trial.policy, REFERENCE)
        if abs(share) > _ERRORS * error and share > 0.02:
            return False
    return True


def _told_apart(
    trials: Trials, explained: Sequence[Trial], effective: Sequence[Trial]
) -> tuple[Trial, tuple[Trial, ...]]:
    """Of the policies that explain it the simplest that the values do not exclude, and the others of these."""
    # To be more exact than others is no way to compute.
    candidates = [trial for trial in explained if not trial.policy.is_exact or trial.equal_share == 1.0] or explained
    nearest = min(candidates, key=lambda trial: trial.remaining)
    others = [trial for trial in (*explained, *effective) if trial.policy != nearest.policy]
    alike = []
    for trial in {trial.policy: trial for trial in reversed(others)}.values():
        if not trials.is_excluded(trial.policy, nearest):
            trial = trials.judged(trial)
            if trial.is_explained:
                alike.append(trial)
    candidates = sorted([nearest, *alike], key=_complexity)
    return candidates[0], tuple(candidates[1:])


def _complexity(trial: Trial) -> tuple[bool, int, int, float]:
    policy = trial.policy
    return policy != REFERENCE, len(policy.overrides), policy.name.count("+"), trial.remaining


def _in_parts(module: Module, trials: Trials, policies: Sequence[NumericsPolicy]) -> Iterator[Trial]:
    """Policies for parts of the module, and several at once: each time the one that comes nearest is built upon."""
    bases = [REFERENCE]
    # To be more exact than others is nothing to build upon.
    nearest = min((policy for policy in policies if not policy.is_exact), key=trials.remaining, default=REFERENCE)
    if trials.remaining(nearest) < _BETTER * trials.remaining(REFERENCE):
        bases.append(nearest)
    tops = list(bases)
    for number, base in enumerate(bases):
        layer = _layer(module, trials, base, policies)
        if layer is not None:
            yield trials.judged(layer)
            tops[number] = layer.policy
    ordered = _by_promise(module, trials, REFERENCE, policies)
    both = joint(module, trials, list(dict.fromkeys([*bases, *tops])), ordered)
    if both is not None and (trial := trials.trial(both)) is not None:
        yield trials.judged(trial)
        tops.append(both)
    for base in tops:
        for _ in range(_MOST_LAYERS - 1):
            layer = _layer(module, trials, base, policies)
            if layer is None:
                break
            trial = trials.judged(layer)
            yield trial
            base = trial.policy


def _layer(module: Module, trials: Trials, base: NumericsPolicy, policies: Sequence[NumericsPolicy]) -> Trial | None:
    """The best of policies, in whole or for some instructions, on top of what is there; None where none improves it."""
    best, remaining = None, trials.remaining(base)
    before = remaining
    for policy in _by_promise(module, trials, base, policies):
        if not trials.may_go_on():
            break
        # Where elements are right or wrong, a mode of single instructions is as good as another fault of theirs.
        is_whole = policy.is_mode and not trials.scale.units
        candidate = combined(base, policy) if is_whole else chosen(module, trials, base, policy)
        if candidate is None or candidate == base:
            continue
        left = trials.remaining(candidate)
        if left < remaining:
            best, remaining = candidate, left
            if trials.is_explained(candidate):
                break
    return trials.trial(best) if best is not None and remaining < _BETTER * before else None


def _by_promise(
    module: Module, trials: Trials, base: NumericsPolicy, policies: Sequence[NumericsPolicy], errors: float = 0.0
) -> list[NumericsPolicy]:
    """The policies whose effects are found in what remains, the largest part first; with `errors`, those only of which
    so many times the error is found that a regression has."""
    theirs = trials.leaves_of(base)
    promising = []
    for policy in policies:
        units = single_units(module, policy, base)
        both = mixed(base, policy, units) if base.overrides else combined(base, policy)
        ours = None if both is None or both == base else trials.result(both)
        if ours is None:
            continue
        scale = trials.scale_of(policy) if not errors else trials.scale
        rest, effect = scale.vector(trials.expected, theirs), scale.vector(ours, theirs)
        size = float(np.dot(effect, effect))
        if not size:
            promising += [(0.0, policy)] if units and not trials.scale.units and not errors else []
            continue
        part = float(np.dot(rest, effect)) / math.sqrt(size)
        others = max(0.0, float(np.dot(rest, rest)) - part**2) / rest.size
        if abs(part) > errors * math.sqrt(others):
            promising.append((part**2, policy))
    return [policy for _, policy in sorted(promising, key=lambda pair: -pair[0])]
