"""Whether what is expected is within reach: a look at it before the long search for policies of instructions.

Policies of some instructions move an element about as far as the policies of the whole module do, or less: effects add
up or cancel one another. As they may cancel, this does not hold for each element, but for most of many. So where most
elements that are off are several times further off than all policies together move them, no choice of instructions
explains them, and none has to be tried. Nor does any explain a NaN or an infinity where all of these policies give a
number, or the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.explaining.trying import Trials

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
