"""Recordings that `conformance.record_gpu` made: reading them, and comparing hloexec with what the device computed.

A program's `rule` decides how. "bits": every leaf bit for bit. A decomposition's name: by what it has to reconstruct,
the recorded outputs as well as hloexec's (`conformance.reconstructions`). "rounded": integers bit for bit; of each
floating-point leaf r, with B the optimized module's error budget (`conformance.error_budget`) times the program's
condition, the difference d of the two sides keeps to

    rms(d) ≤ B rms(r)        |dᵢ| ≤ B (2 |rᵢ| + √(2 ln N) rms(r))

A rounding by u at most has a root mean square of u / √3, and those of two sides one of √(2/3) u < u. A single element
may be rounded up on one side and down on the other, and strays with the sums that it comes from: √(2 ln N) is how far
out the largest of N normal numbers lies. NaNs and infinities stand in the same places.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import hloexec
from conformance.bounds import smallest_normal
from conformance.error_budget import error_budget
from conformance.judging import same_bits
from conformance.reconstructions import RECONSTRUCTIONS, UNIQUE, allowed
from hloexec import literals
from hloexec.dtypes import element_type_of
from hloexec.ir import Module
from hloexec.numerics.statistics import leaves

__all__ = ["Agreement", "Recording", "RecordingError", "agreement", "load_recordings"]

Array = np.ndarray[Any, Any]


class RecordingError(ValueError):
    """A folder that is no recording, or lacks a part of it."""


@attrs.frozen
class Recording:
    """One program of a recording."""

    name: str
    folder: Path
    rule: str
    condition: float
    policy: str

    def module(self, stage: str = "optimized") -> Module:
        """The module `before` optimization, or `optimized`."""
        return hloexec.load(self.folder / f"{stage}.hlo.gz")

    def inputs(self, module: Module) -> list[Any]:
        """The values of the entry computation's parameters."""
        parameters = module.entry.parameters
        found = literals.load_inputs(self.folder / "inputs.npz", parameters)
        return [found[number] for number in range(len(parameters))]

    def outputs(self) -> list[Array]:
        """The leaves of what the device computed."""
        stored = literals.load_arrays(self.folder / "outputs.npz")
        return [stored[str(number)] for number in range(len(stored))]


@attrs.frozen
class Agreement:
    """What came of a comparison: what is wrong, and the largest error in units of what is allowed."""

    faults: tuple[str, ...]
    worst: float


def load_recordings(folder: Path) -> list[Recording]:
    """The programs of a recording; none where the folder is not there. Raises RecordingError for a damaged one."""
    index_path = folder / "recording.json"
    if not index_path.exists():
        return []
    try:
        index = json.loads(index_path.read_text(encoding="utf-8"))
        if index["format"] != 1:
            raise RecordingError(f"{index_path} is of format {index['format']}; this version reads format 1")
        found = [
            Recording(name, folder / name, entry["rule"], float(entry["condition"]), entry["policy"])
            for name, entry in sorted(index["programs"].items())
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RecordingError):
            raise
        raise RecordingError(f"{index_path} is no index of a recording: {error}") from error
    for recording in found:
        if recording.rule not in ("rounded", "bits", *RECONSTRUCTIONS):
            raise RecordingError(f"{index_path}: {recording.name} has the unknown rule {recording.rule!r}")
        for part in ("before.hlo.gz", "optimized.hlo.gz", "inputs.npz", "outputs.npz"):
            if not (recording.folder / part).is_file():
                raise RecordingError(f"{recording.folder} lacks {part}")
    return found


def agreement(recording: Recording, stage: str = "optimized") -> Agreement:
    """Run a recorded module on hloexec, under its policy, and compare with what the device computed."""
    module = recording.module(stage)
    inputs = recording.inputs(module)
    result = hloexec.run(module, *inputs, numerics=recording.policy)
    actual = [leaf for _, leaf in leaves(result) if isinstance(leaf, np.ndarray)]
    expected = recording.outputs()
    shapes = [[f"{leaf.dtype}{list(leaf.shape)}" for leaf in side] for side in (actual, expected)]
    if shapes[0] != shapes[1]:
        return Agreement((f"hloexec has {', '.join(shapes[0])}; recorded are {', '.join(shapes[1])}",), math.inf)
    if recording.rule in RECONSTRUCTIONS:
        return _reconstructed(recording.rule, inputs, actual, expected)
    if recording.rule == "bits":
        return _merged([_same(index, *pair) for index, pair in enumerate(zip(actual, expected, strict=True))])
    budget = [recording.condition * error for error in error_budget(module, recording.policy)]
    return _merged(
        [
            _within(index, mine, its, error)
            for index, (mine, its, error) in enumerate(zip(actual, expected, budget, strict=True))
        ]
    )


def _merged(found: list[Agreement]) -> Agreement:
    return Agreement(tuple(fault for each in found for fault in each.faults), max(each.worst for each in found))


def _same(index: int, mine: Array, its: Array) -> Agreement:
    differ = int(np.count_nonzero(~same_bits(mine, its)))
    if not differ:
        return Agreement((), 0.0)
    return Agreement((f"leaf {index}: {differ} of {its.size} elements have other bits",), math.inf)


def _within(index: int, mine: Array, its: Array, error: float) -> Agreement:
    entry = element_type_of(its.dtype)
    if not entry.is_floating and not entry.is_complex:
        return _same(index, mine, its)
    wide_type = np.complex128 if entry.is_complex else np.float64
    ours, theirs = mine.astype(wide_type), its.astype(wide_type)
    usual = np.isfinite(theirs)
    if not np.array_equal(ours[~usual], theirs[~usual], equal_nan=True) or not np.isfinite(ours[usual]).all():
        return Agreement((f"leaf {index}: NaNs or infinities stand in other places",), math.inf)
    if not usual.any():
        return Agreement((), 0.0)
    difference, size = np.abs(ours[usual] - theirs[usual]), np.abs(theirs[usual])
    # A number below the smallest normal one may be flushed to zero.
    tiny = smallest_normal(entry)
    norm = float(np.sqrt(np.mean(size**2)))
    far = math.sqrt(2 * math.log(max(2, size.size)))
    whole = float(np.sqrt(np.mean(difference**2))) / (error * norm + tiny)
    single = float(np.max(difference / (error * (2 * size + far * norm) + tiny)))
    worst = max(whole, single)
    if worst <= 1:
        return Agreement((), worst)
    what = "root mean square" if whole > 1 else "largest"
    return Agreement((f"leaf {index}: its {what} difference is {worst:.3g} times what is allowed",), worst)


def _reconstructed(rule: str, inputs: list[Any], actual: list[Array], expected: list[Array]) -> Agreement:
    given = [value.astype(np.float64) for value in inputs]
    bound = allowed(given)
    faults, worst = [], 0.0
    for side, outputs in (("hloexec's", actual), ("the recorded", expected)):
        residual = max(RECONSTRUCTIONS[rule](given, [leaf.astype(np.float64) for leaf in outputs])) / bound
        worst = max(worst, residual)
        if not residual <= 1:
            faults.append(f"{side} {rule} leaves {residual:.3g} times the allowed residual")
    for index in UNIQUE.get(rule, ()):
        mine, its = actual[index].astype(np.float64), expected[index].astype(np.float64)
        distance = float(np.abs(mine - its).max() / (2 * bound * np.linalg.norm(given[0])))
        worst = max(worst, distance)
        if not distance <= 1:
            faults.append(f"leaf {index}: it is {distance:.3g} times as far off as is allowed")
    return Agreement(tuple(faults), worst)
