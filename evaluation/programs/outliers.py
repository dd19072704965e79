"""Inputs that are far from all others in single elements, rows or columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.programs import PROGRAMS
from evaluation.programs.lowering import lowered
from hloexec.core.values import Value

VARIANTS = ("as given", "outliers", "other outliers", "NaN")
"""What the inputs of a program may be."""
_SCALES = (1e30, 1e15, 1e8, 1e4, 1e2)
_LEAST_SIZE = 6


@attrs.frozen(eq=False)
class Reference:
    """Inputs, and what the module before gives for them."""

    inputs_per_device: Sequence[Sequence[Value]]
    results: Sequence[Value]
    is_finite: bool


@cache
def reference(name: str, variant: str) -> Reference:
    """The inputs of a program in one of the variants, and its results."""
    if variant == "as given":
        return _run(name, lowered(name).leaves)
    if variant == "NaN":
        return _run(name, _altered(name, variant, float("nan")))
    start = Random(f"{name} {variant}").randrange(len(_SCALES) - 1)
    for scale in _SCALES[start:]:
        found = _run(name, _altered(name, variant, scale))
        if found.is_finite:
            break
    return found


def _run(name: str, leaves: Sequence[Value]) -> Reference:
    inputs = lowered(name).shards(leaves)
    results = hloexec.run_devices(lowered(name).before, inputs)
    return Reference(inputs, results, all(np.isfinite(each).all() for each in _floats(results)))


def _floats(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _floats(part)
    elif value.dtype.kind not in "biu":
        yield value.astype(np.complex128)


def _altered(name: str, variant: str, scale: float) -> list[Value]:
    """The arguments with some element, row or column of one or two leaves set or scaled."""
    random = Random(f"{name} {variant}")
    leaves = [np.array(leaf) for leaf in lowered(name).leaves]
    keeps = PROGRAMS[name].keeps
    fitting = [
        number
        for number, leaf in enumerate(leaves)
        if number not in keeps and leaf.dtype.kind not in "biu" and leaf.size >= _LEAST_SIZE
    ]
    for number in random.sample(fitting, min(len(fitting), random.choice((1, 2)))):
        leaf = leaves[number]
        place: list[Any] = [random.randrange(size) for size in leaf.shape]
        if leaf.ndim > 1 and scale == scale and random.random() < 0.5:
            place[random.randrange(leaf.ndim)] = slice(None)
        old = leaf[tuple(place)].astype(np.float64)
        leaf[tuple(place)] = (np.sign(old) * scale * (0.5 + np.abs(old))).astype(leaf.dtype)
    return leaves
