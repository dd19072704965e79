"""Recordings that `conformance.record_gpu` made: reading them, and comparing hloexec with what the device computed.

A program's `rule` decides how. "bits": every leaf bit for bit. A decomposition's name: by what it has to reconstruct,
the recorded outputs as well as hloexec's (`conformance.reconstructions`). "rounded": integers bit for bit, and floats
to within what rounding does to each element, as runs of the module on the recorded inputs show (`hloexec.compare`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import hloexec
from conformance.checking import same_bits
from conformance.reconstructions import RECONSTRUCTIONS, UNIQUE, allowed
from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.core.ir import Module
from hloexec.language import literals

Array = np.ndarray[Any, Any]


class RecordingError(ValueError):
    """A folder that is no recording, or lacks a part of it."""


@attrs.frozen
class Recording:
    """One program of a recording."""

    name: str
    folder: Path
    rule: str
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
            Recording(name, folder / name, entry["rule"], entry["policy"])
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


def disagreements(recording: Recording, stage: str = "optimized") -> list[str]:
    """Run a recorded module on hloexec, under its policy: what is wrong, beside what the device computed."""
    module = recording.module(stage)
    inputs = recording.inputs(module)
    result = hloexec.run(module, *inputs, numerics=recording.policy)
    labelled = dict(leaves_of(result, recording.name))
    actual, expected = [*labelled.values()], recording.outputs()
    shapes = [[f"{leaf.dtype}{list(leaf.shape)}" for leaf in side] for side in (actual, expected)]
    if shapes[0] != shapes[1]:
        return [f"hloexec has {', '.join(shapes[0])}; recorded are {', '.join(shapes[1])}"]
    if recording.rule in RECONSTRUCTIONS:
        return _reconstructed(recording.rule, inputs, actual, expected)
    if recording.rule == "bits":
        counts = [int(np.count_nonzero(~same_bits(*pair))) for pair in zip(actual, expected, strict=True)]
        sizes = [leaf.size for leaf in expected]
        return [
            f"leaf {index}: {count} of {size} elements have other bits"
            for index, (count, size) in enumerate(zip(counts, sizes, strict=True))
            if count
        ]
    theirs = dict(zip(labelled, expected, strict=True))
    comparison = hloexec.compare(labelled, theirs, module=module, inputs=inputs, numerics=recording.policy)
    return [f"leaf {leaf}" for leaf in comparison.different]


def _reconstructed(rule: str, inputs: list[Any], actual: list[Array], expected: list[Array]) -> list[str]:
    given = [value.astype(np.float64) for value in inputs]
    bound = allowed(given)
    faults = []
    for side, outputs in (("hloexec's", actual), ("the recorded", expected)):
        residual = max(RECONSTRUCTIONS[rule](given, [leaf.astype(np.float64) for leaf in outputs])) / bound
        if not residual <= 1:
            faults.append(f"{side} {rule} leaves {residual:.3g} times the allowed residual")
    for index in UNIQUE.get(rule, ()):
        ours, its = actual[index].astype(np.float64), expected[index].astype(np.float64)
        distance = float(np.abs(ours - its).max() / (2 * bound * np.linalg.norm(given[0])))
        if not distance <= 1:
            faults.append(f"leaf {index}: it is {distance:.3g} times as far off as is allowed")
    return faults
