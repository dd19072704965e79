"""A large JAX program, shrunken, computes what the same program computes at the small size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.values import flat
from tests.shrinking.programs import PROGRAMS, Program
from tests.shrinking.smallest import assert_valid

pytest.importorskip("jax")


def shrunken(program: Program, large: Any, small: Any) -> Any:
    """The large module with the sizes of the small one's inputs."""
    pairs = [
        pair
        for ours, theirs in zip(large.entry.parameter_shapes, small.entry.parameter_shapes, strict=True)
        for pair in zip(ours.dimensions, theirs.dimensions, strict=True)
    ]
    same = [size for name, size in program.large.items() if program.small[name] == size]
    keep = {ours for ours, theirs in pairs if ours == theirs} | set(same)
    return hloexec.shrink(large, dims={ours: theirs for ours, theirs in pairs if ours != theirs}, keep=keep)


def in_f64(module: Any) -> Any:
    """The module with f64 for f32, so that differences of rounding are far smaller than any other.

    One that sorts, which rounds nothing, stays as it is: sorts look at the bits of numbers.
    """
    text = hloexec.format(module)
    if " sort(" in text:
        return module
    return hloexec.parse(text.replace("f32[", "f64[").replace("c64[", "c128["))


@pytest.mark.sampled(9)
@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_shrunken_program_computes_what_the_small_one_does(name: str, optimized: bool) -> None:
    program = PROGRAMS[name]
    large, small = (program.lowered(sizes, optimized=optimized) for sizes in (program.large, program.small))
    found = shrunken(program, large, small).module
    assert_valid(found)
    assert [shape.dimensions for shape in found.entry.parameter_shapes] == [
        shape.dimensions for shape in small.entry.parameter_shapes
    ]
    ours, theirs = (in_f64(module) for module in (found, small))
    inputs = hloexec.random_inputs(theirs, seed=1)
    actual, expected = (hloexec.run(module, *inputs) for module in (ours, theirs))
    if optimized:
        # XLA:CPU optimizes the two sizes differently; each element may be off by what rounding does to it.
        compared = hloexec.compare(actual, expected, module=theirs, inputs=inputs)
        assert compared.agrees, str(compared)
        return
    for leaf, other in zip(flat(actual), flat(expected), strict=True):
        np.testing.assert_array_equal(leaf, other)
