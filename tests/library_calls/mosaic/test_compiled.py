"""A program with a kernel as XLA has compiled it for four TPUs (v5e) by libtpu, without one: all of it runs from the text.

`python -m evaluation.kernels.compiled` makes it and two further ones, which hold kernels that JAX ships.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hloexec

MODULE = Path(__file__).with_name("compiled") / "gathering.hlo"


def test_a_layer_over_four_devices_that_a_ring_gathers_is_what_it_is_in_exact_arithmetic() -> None:
    """Each device has 16 rows of x and 128 columns of w. An element is tanh of a sum of 128 products in f32: it is off
    by γ₁₂₉ of the sum of their sizes, as tanh is no steeper than 1, and by a few units of roundoff of itself."""
    pytest.importorskip("jaxlib")
    source = np.random.default_rng(2)
    x = source.standard_normal((64, 128)).astype(np.float32)
    w = (source.standard_normal((128, 512)) * 0.1).astype(np.float32)
    module = hloexec.load(MODULE)
    shards = [[x[16 * device : 16 * device + 16], w[:, 128 * device : 128 * device + 128]] for device in range(4)]
    results = hloexec.run_devices(module, shards)
    exact = np.tanh(x.astype(np.float64) @ w)
    bound = 129 * 2.0**-24 * (np.abs(x.astype(np.float64)) @ np.abs(w)) + 8 * 2.0**-24 * np.abs(exact)
    parts = np.concatenate([part for part, _ in results], 1)
    assert (np.abs(parts - exact) <= bound).all()
    total = (exact**2).sum()
    # Of a sum of 2^15 squares, each off by twice its bound, in any order.
    allowed = (2 * bound * np.abs(exact)).sum() + 2**15 * 2.0**-24 * total
    assert all(abs(value - total) <= allowed for _, value in results)
