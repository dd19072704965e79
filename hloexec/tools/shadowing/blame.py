"""Where the error of each value comes from: shares of it, handed from instruction to instruction.

What an instruction adds is its own; what it inherits comes from its operands, in proportion to what each operand's
error, by itself, changes in the result; a sum whose operands cancel takes over what it inherits. The shares of squared
errors are those of whole arrays. So an error that no output depends on, or that the next instruction makes small, is
in no output's shares. Elements that vanish are followed beside that: their errors are small, and yet their logarithms
and reciprocals are infinite.

These shares are estimates, as errors need not be independent; `shadowing.alone` measures them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from hloexec.core.dtypes import ElementType
from hloexec.core.precision import unit_roundoff
from hloexec.tools.shadowing.kinds import Losses
from hloexec.tools.shadowing.store import Blame, Shadow

_LEAST = 1e-5
"""Smaller shares are forgotten."""
_MOST = 24
"""The number of shares that are kept."""


def blamed(place: int, found: Losses, shadows: Sequence[Shadow | None], entry: ElementType) -> Blame:
    """The blame of what an instruction gives, from that of its operands."""
    cancelled = min(found.kinds.get("cancellation", 0.0), found.inherited)
    own = found.added + cancelled
    total = found.added + found.inherited
    shares: dict[int, float] = {}
    lost: dict[int, float] = {}
    if total > 0:
        add_shares(shares, {place: 1.0}, own / total)
        rest = (found.inherited - cancelled) / total
        for shadow, weight, lost_weight in zip(shadows, found.weights, found.lost_weights, strict=False):
            if shadow is not None:
                add_shares(shares, shadow.blame.shares, rest * weight)
                add_shares(shares, shadow.blame.lost, rest * lost_weight)
    if found.born:
        lost[place] = float(found.born)
    if found.passed:
        culprits = [shadow for shadow in shadows if shadow is not None and shadow.lost]
        for shadow in culprits:
            add_shares(lost, shadow.blame.lost, found.passed / len(culprits))
        zeros = {} if culprits else _vanished(shadows, found.pole_weights or ())
        add_shares(lost, zeros, found.passed / (sum(zeros.values()) or 1.0))
        if not culprits and not zeros:
            # Other finite errors made it so: the logarithm of what has become negative.
            for shadow, weight in zip(shadows, _even(shadows, found.weights), strict=True):
                if shadow is not None:
                    add_shares(lost, shadow.blame.shares, found.passed * weight)
    vanished = {place: float(found.vanished)} if found.vanished else {}
    if found.vanished_weights is not None:
        add_shares(vanished, _vanished(shadows, found.vanished_weights), 1.0)
    units = [shadow.blame.unit for shadow in shadows if shadow is not None]
    if found.added > 0 or found.born:
        units.append(unit_roundoff(entry))
    return Blame(kept(shares), kept(lost), largest(vanished), max(units, default=0.0))


def merged(shadows: Sequence[Shadow | None], weights: Sequence[float] | None = None) -> Blame:
    """The blame of an array that consists of elements of others; the weights are those of their energies."""
    known = [shadow for shadow in shadows if shadow is not None]
    if len(known) == 1:
        return known[0].blame
    if weights is None:
        weights = [0.0 if shadow is None else shadow.energy for shadow in shadows]
    shares: dict[int, float] = {}
    lost: dict[int, float] = {}
    for shadow, weight in zip(shadows, weights, strict=True):
        if shadow is not None:
            add_shares(shares, shadow.blame.shares, weight)
            add_shares(lost, shadow.blame.lost, float(shadow.lost))
    vanished: dict[int, float] = {}
    for shadow in known:
        add_shares(vanished, shadow.blame.vanished, 1.0)
    units = [shadow.blame.unit for shadow in known]
    return Blame(kept(shares), kept(lost), largest(vanished), max(units, default=0.0))


def with_vanished(blame: Blame, found: Blame) -> Blame:
    """A blame, and who has made zeros of further elements, as these say."""
    vanished = dict(blame.vanished)
    add_shares(vanished, found.vanished, 1.0)
    return attrs.evolve(blame, vanished=largest(vanished))


def _vanished(shadows: Sequence[Shadow | None], weights: Sequence[int]) -> dict[int, float]:
    """Who has made zeros of elements of operands, which count by their weights; of whole arrays all count alike."""
    found: dict[int, float] = {}
    for number, shadow in enumerate(shadows):
        if shadow is not None and shadow.blame.vanished:
            total = sum(shadow.blame.vanished.values())
            add_shares(found, shadow.blame.vanished, (weights[number] if weights else 1.0) / total)
    return found


def _even(shadows: Sequence[Shadow | None], weights: Sequence[float]) -> list[float]:
    if sum(weights) > 0:
        return list(weights)
    count = sum(shadow is not None for shadow in shadows)
    return [0.0 if shadow is None else 1.0 / count for shadow in shadows]


def add_shares(target: dict[int, float], shares: Mapping[int, float], factor: float) -> None:
    """Add shares, as many times, to others."""
    if factor > 0:
        for place, share in shares.items():
            target[place] = target.get(place, 0.0) + factor * share


def kept(shares: dict[int, float]) -> dict[int, float]:
    """The largest, so that they add up to 1."""
    total = sum(shares.values())
    if not total > 0:
        return {}
    large = {place: share for place, share in largest(shares).items() if share > _LEAST * total}
    total = sum(large.values())
    return {place: share / total for place, share in large.items()}


def largest(shares: dict[int, float]) -> dict[int, float]:
    """Those that are kept, where there are many."""
    if len(shares) <= _MOST:
        return shares
    return dict(sorted(shares.items(), key=lambda entry: -entry[1])[:_MOST])
