"""Whether one can see a policy in a result: its effect, in units of what rounding in another order does."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

import hloexec
from evaluation.explaining.operations.cases import Made, ways
from evaluation.explaining.operations.lowered import by_xla
from hloexec.core.values import Array


def visibility(name: str, kind: str, made: Made) -> float | None:
    """The smallest effect of a case's policy beside a simpler one, in units of rounding. None where there is no policy,
    or none that is simpler."""
    if made.policy is None or made.policy == "reference":
        return None
    way, *simpler = ways(kind)
    # As XLA:CPU computes functions, they are not open to another rounding: only what it simplifies is.
    again = by_xla(name, way, is_exact=kind == "exact", is_otherwise=kind != "xla-cpu")
    if kind in ("xla-cpu", "ftz"):
        # All that XLA:CPU gives has its functions and flushed denormals: only hloexec gives what the text says.
        result = hloexec.run(made.module, *made.inputs)
        others = [list(result) if isinstance(result, tuple) else [result]]
    else:
        others = [by_xla(name, each, is_otherwise=True) for each in simpler]
    return min(beyond_rounding(made.expected, again, each) for each in others)


def beyond_rounding(expected: Sequence[Array], again: Sequence[Array], other: Sequence[Array]) -> float:
    """What an effect is beside rounding, in the leaf that shows it most.

    `again` is what is expected but for rounding, `other` that without the effect. The squares of effect and rounding add
    up in the mean square of what `expected` and `other` differ by.
    """
    pairs = zip(_mean_squares(expected, again), _mean_squares(expected, other), strict=True)
    return max(_root_of_ratio(max(both - rounding, 0.0), rounding) for rounding, both in pairs)


def _mean_squares(ours: Sequence[Array], theirs: Sequence[Array]) -> list[float]:
    """Of what the leaves differ by."""
    return [
        float(np.mean(np.square(x.astype(np.float64) - y.astype(np.float64))))
        for x, y in zip(ours, theirs, strict=True)
    ]


def _root_of_ratio(effect: float, rounding: float) -> float:
    return float(np.sqrt(effect / rounding)) if rounding else inf if effect else 0.0
