"""`spread.npz`: the rounding error of each element of a golden's result, measured when it was recorded.

For each leaf of floats, in order, it has the scales of its elements, and the numbers of samples, degrees of freedom and
allowed scales from `numerics.sampling.spread`. Without this file, the tolerance of a golden is derived from its
module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.core.ir import ArrayShape, Module
from hloexec.core.values import Array
from hloexec.errors import InputError
from hloexec.language import literals
from hloexec.tools.results import result_shapes

SPREAD = "spread.npz"
RECORDED_SAMPLES = 16
"""Runs that recording takes, so that a check takes one."""


def shapes_by_label(module: Module, devices: int) -> dict[str, ArrayShape]:
    """The leaves of a module's result; of several devices those of each, behind its number."""
    own = result_shapes(module)
    if devices == 1:
        return own
    return {f"{device}.{label}".removesuffix(".value"): own[label] for device in range(devices) for label in own}


def write_spreads(folder: Path, spreads: Mapping[str, Spread]) -> None:
    """Write the file, where there is anything to write."""
    if spreads:
        entries = [
            (_narrow(spread.scales), np.array([spread.samples, spread.degrees, spread.factor]))
            for spread in spreads.values()
        ]
        literals.save(folder / SPREAD, tuple(entries))


def _narrow(scales: Array) -> Array:
    """Scales as f32, rounded up."""
    with np.errstate(over="ignore"):
        narrow = scales.astype(np.float32)
    return np.where(narrow < scales, np.nextafter(narrow, np.float32(np.inf)), narrow)


def read_spreads(folder: Path, module: Module, devices: int) -> dict[str, Spread]:
    """The spreads by label, of all devices; empty where the file is not there.

    InputError where it is damaged, or of another module.
    """
    if not (folder / SPREAD).is_file():
        return {}
    entries = literals.load(folder / SPREAD)
    leaves = shapes_by_label(module, devices)
    shapes = {label: shape for label, shape in leaves.items() if shape.element_type.is_inexact}
    if not isinstance(entries, tuple) or len(entries) != len(shapes):
        raise InputError(f"{folder.name}: {SPREAD} is damaged: it is not of {len(shapes)} leaves; record it again")
    found = {}
    for (label, shape), entry in zip(shapes.items(), entries, strict=True):
        match entry:
            case (np.ndarray() as scales, np.ndarray() as facts) if facts.shape == (3,) and (facts > 0).all():
                fits = scales.shape == shape.dimensions or shape.is_dynamic
                if scales.dtype == np.float32 and fits and (scales >= 0).all():
                    found[label] = Spread(scales, int(facts[0]), float(facts[1]), float(facts[2]))
        if label not in found:
            raise InputError(f"{folder.name}: {SPREAD} is damaged: leaf {label}; record it again")
    return found
