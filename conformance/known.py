"""Where hloexec differs from XLA:CPU on purpose, each with the sentence that settles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from conformance import bounds
from conformance.cell import Array, Correct, Example
from conformance.judging import Judgement
from hloexec.dtypes import ELEMENT_TYPES, element_type_of

__all__ = ["KNOWN", "Known", "known_difference"]

Where = Callable[[Example, Judgement, Sequence[Array], Sequence[Array] | None], bool]
"""Whether a difference is this one: every wrong element, and the whole message, is explained by it."""


@attrs.frozen
class Known:
    """A class of differences."""

    name: str
    reason: str
    """What XLA:CPU does, what hloexec does, and the sentence of the specification that settles it."""
    where: Where


KNOWN: list[Known] = []


def known_difference(
    example: Example, judgement: Judgement, ours: Sequence[Array], xla: Sequence[Array] | None
) -> str | None:
    """The name of the known difference that a difference is, or None."""
    for known in KNOWN:
        if known.where(example, judgement, ours, xla):
            return known.name
    return None


def _xla_inaccurate(example: Example, judgement: Judgement, ours: Sequence[Array], xla: Sequence[Array] | None) -> bool:
    return judgement.is_right and isinstance(example.check, Correct) and any(m.any() for m in judgement.xla_wrong)


def _flushed(example: Example, judgement: Judgement, ours: Sequence[Array], xla: Sequence[Array] | None) -> bool:
    """Every wrong element is denormal here and zero there."""
    if judgement.message or xla is None or not judgement.wrong:
        return False
    for mask, mine, its in zip(judgement.wrong, ours, xla, strict=True):
        entry = element_type_of(mine.dtype)
        if not entry.is_floating:
            if mask.any():
                return False
            continue
        tiny = bounds.smallest_normal(element_type_of(entry.compute))
        values = np.abs(mine.astype(np.float64)[mask])
        if not ((values < tiny) & (its.astype(np.float64)[mask] == 0)).all():
            return False
    return True


KNOWN += [
    Known(
        "denormal numbers",
        "XLA:CPU flushes denormal results to zero, hloexec keeps them. IEEE 754, 3.3: every format includes its "
        "subnormal numbers; HLO's types are IEEE's.",
        _flushed,
    ),
    Known(
        "accuracy of functions",
        "XLA:CPU's result is farther from the exact value than the bound, hloexec's is within it. The formula decides "
        "(StableHLO, e.g. 'exponential: performs element-wise exponential operation').",
        _xla_inaccurate,
    ),
]
