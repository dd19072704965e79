"""Which instructions may have another policy besides the best one: those of which rounding hides what it changes.

What explains the values says little of an instruction on which a policy has a small effect. So each instruction gets
each policy on top of the best one, a run each. If that explains the values as well, and they do not exclude it, they
cannot tell. Where it changes no bit, there is nothing to tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloexec.core.ir import Module
from hloexec.ops.policies.policy import NumericsPolicy, mixed
from hloexec.tools.explaining.findings import Trial, Untold
from hloexec.tools.explaining.trying import Trials
from hloexec.tools.explaining.units import groups_of, spelled
from hloexec.tools.explaining.values import same

_MOST_CHOICES = 64
"""Choices that are looked at: where there are more, neighbours of one opcode share one."""


def hidden(module: Module, trials: Trials, best: Trial, policies: Sequence[NumericsPolicy]) -> tuple[Untold, ...]:
    """The instructions that may have one of the policies besides those that the best one gives them."""
    if best.equal_share == 1.0:
        return ()
    chosen, start = best.policy.chosen_parts, spelled(module, best.policy)
    parts = [policy for policy in policies if not policy.is_mode and policy not in chosen]
    found = []
    for part, names in _choices(module, parts, start):
        policy = mixed(start, part, names)
        if policy is None or not trials.may_go_on():
            continue
        result = trials.result(policy)
        if result is None or same(result, trials.leaves_of(best.policy)):
            continue
        if trials.is_near(policy, best) and not trials.is_excluded(policy, best):
            found += [Untold(name, part.name) for name in names]
    return tuple(found)


def _choices(
    module: Module, parts: Sequence[NumericsPolicy], base: NumericsPolicy
) -> Iterator[tuple[NumericsPolicy, tuple[str, ...]]]:
    """Each policy with each of the instructions that it is about and that have none that contradicts it."""
    groups = [(part, group) for part in parts for group in groups_of(module, part, base)]
    count = max(1, _MOST_CHOICES // max(1, len(groups)))
    for part, group in groups:
        for piece in group.parts(count):
            yield part, piece.names
