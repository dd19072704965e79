"""Whether what is expected is within reach: a look at it before the long search for policies of instructions.

Policies of some instructions move an element about as far as the policies of the whole module do, or less: effects add
up or cancel one another. Cancelled effects are why this does not hold element by element, but for most of many. So
where nearly all elements that are off are many times further off than all policies together move them, no choice of
instructions explains them, and none has to be tried.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.explaining.trying import Trials
from hloexec.ops.policies.policy import NumericsPolicy

__all__ = ["is_out_of_reach"]

_TIMES = 16.0
"""So many times further off than policies move it an element is seldom: of normal numbers, one ratio in 25 is so
large."""
_SHARE = 0.9
_FEW = 8
"""Of fewer elements that are off, so large a share is so by chance."""
_OFF = 8.0
"""An element is off if it is by so many times what rounding does to it."""


def is_out_of_reach(trials: Trials, nearest: NumericsPolicy, policies: Sequence[NumericsPolicy]) -> bool:
    """Whether what is expected is too far from the nearest policy of the whole module; `policies` are all of these."""
    scale, theirs = trials.scale_of(nearest), trials.leaves_of(nearest)
    distances = np.abs(scale.vector(trials.expected, theirs))
    is_off = distances > _OFF
    if np.count_nonzero(is_off) < _FEW:
        return False
    reach = np.ones(distances.size)
    for policy in policies:
        ours = trials.result(policy)
        if ours is not None:
            reach += np.abs(scale.vector(ours, theirs))
    return bool(np.mean(distances[is_off] > _TIMES * reach[is_off]) >= _SHARE)
