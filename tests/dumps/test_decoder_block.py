"""A decoder block of a served language model, optimized for GPU, at its full size (650 MB of bf16 parameters).

The truth is XLA:CPU on the equivalent module (fusions as calls, library gemms as dots).
"""

import math
import resource

import numpy as np
import pytest

import hloexec
from conformance import xla
from hloexec.core.ir import ArrayShape, Computation, Module
from hloexec.ops.attributes import computation_names
from tests.text.seeds import seed_path

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not xla.available(), reason="needs jaxlib")]


def roundings_of(module: Module) -> int:
    """The largest number of bf16 results on a path from an input to an output, called computations included."""
    depths: dict[str, int] = {}

    def depth_of(computation: Computation) -> int:
        depth: dict[str, int] = {}
        for instruction in computation:
            before = max((depth[name] for name in instruction.operands), default=0)
            inside = sum(depths[name] for name in computation_names(instruction.attributes))
            shape = instruction.shape
            rounds = isinstance(shape, ArrayShape) and shape.element_type.name == "bf16" and not inside
            depth[instruction.name] = before + inside + rounds
        return max(depth.values())

    for computation in module.computations:
        depths[computation.name] = depth_of(computation)
    return depths[module.entry_name]


@pytest.fixture(scope="module")
def module() -> Module:
    path = seed_path("002_2b3b731b0feb0bfe.txt")
    if path is None:
        pytest.skip("the dump 002 is not here")
    return hloexec.load(path)


def test_decoder_block_matches_xla_at_full_size(module: Module) -> None:
    """Both sides round to bf16 at the same places, but sum in different orders, so a value near the middle between two
    bf16 numbers may go either way: one step of 2^-8 relative at most, at each of the n roundings on the way to an output.
    Norms and products with random weights keep the relative error of a whole tensor as it is, so its root mean square
    is at most n · 2^-8 times the tensor's; single elements of N normal ones stray by sqrt(2 ln N) times that.
    """
    assert module.source is not None
    inputs = hloexec.random_inputs(module, seed=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outputs = hloexec.run(module, *inputs)
    beyond_inputs = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert beyond_inputs < 2e9
    expected = xla.run_hlo(xla.equivalent_module(module.source), *inputs)
    steps = roundings_of(module)
    for actual, wanted in zip(outputs, expected, strict=True):
        wide, truth = actual.astype(np.float32), wanted.astype(np.float32)
        assert np.isfinite(wide).all()
        scale = float(np.sqrt(np.mean(np.square(truth, dtype=np.float64))))
        difference = np.abs(wide - truth)
        bound = steps * 2.0**-8 * scale
        assert float(np.sqrt(np.mean(np.square(difference, dtype=np.float64)))) <= bound
        assert float(difference.max()) <= bound * math.sqrt(2 * math.log(truth.size))
