"""What rounding does to a module's results: a few runs whose roundings go up or down by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloexec.dtypes import element_type_of
from hloexec.errors import HloError
from hloexec.ir import Module
from hloexec.numerics.leaves import leaves_of
from hloexec.numerics.spread import SAMPLES, Samples, Spread
from hloexec.ops.policy import RANDOM_ROUNDING, NumericsPolicy, numerics_policy
from hloexec.values import Value

__all__ = ["measured_spreads"]


def measured_spreads(
    module: Module,
    inputs: Sequence[Sequence[Value]],
    numerics: str | NumericsPolicy = "reference",
    samples: int = SAMPLES,
    **options: Any,
) -> dict[str, Spread]:
    """What rounding does to the leaves of a module's result, by label, from so many runs with `options` of
    `run_devices`.

    `inputs` are one list of values for each device, or one for all. The results of several devices are a tuple. Empty
    where runs at random do not show it, or cannot be had: under policies that round operands, and where the module does
    not run.
    """
    from hloexec.exec.running import run_devices

    if numerics_policy(numerics).contraction_operand_mantissa_bits is not None:
        return {}
    found: dict[str, Samples] = {}
    try:
        for number in range(samples):
            results = run_devices(module, inputs, numerics=f"{RANDOM_ROUNDING}:{number}", **options)
            value: Value = results[0] if len(results) == 1 else tuple(results)
            for label, array in leaves_of(value, "sampled"):
                entry = element_type_of(array.dtype)
                if number:
                    if label in found:
                        found[label].add(array)
                elif entry.is_floating or entry.is_complex:
                    found[label] = Samples(array)
    except HloError:
        # It may lack a library call, or memory: what is read off its text does not need to run.
        return {}
    return {label: entry.spread() for label, entry in found.items()}
