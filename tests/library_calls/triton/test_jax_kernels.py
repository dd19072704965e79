"""Kernels for GPUs that JAX ships: attention, also of pages, and normalizations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning
from tests.library_calls.mosaic.kernels import FUNCTION_ULPS, U, gamma, random, softmax_of, softmax_relative_bound
from tests.library_calls.triton.lowering import lowered, require_pallas

SHIPPED = "jax.experimental.pallas.ops.gpu"
U_TF32 = 2.0**-11
"""Unit roundoff of tf32, to which both operands of a product are rounded."""


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def shipped(name: str) -> Any:
    return pytest.importorskip(f"{SHIPPED}.{name}")


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, of a run without a warning."""
    module = lowered(function, *arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HloWarning)
        return hloexec.run(module, *arguments)


def within(actual: Any, true: Any, bound: Any) -> None:
    assert actual.shape == true.shape
    assert (np.abs(actual.astype(np.float64) - true) <= bound).all()


def attention_of(q: Any, k: Any, v: Any, mask: Any = True, scale: float = 1.0) -> tuple[Any, Any]:
    """Attention `[heads, length, width]` and its bound.

    A product rounds both operands to tf32, which is a relative 2.01 u of each term, and its sums add γ. What a score is
    off by is the relative error of a weight, twice with that of the sum of weights; the functions, the running maximum
    and sum add some units of roundoff of f32, and the second product what the first does.
    """
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    scores = np.where(mask, q @ np.swapaxes(k, -1, -2) * scale, -1e30)
    size = (np.abs(q) @ np.swapaxes(np.abs(k), -1, -2)).max() * scale
    weights, met = softmax_of(scores), scores[scores > -1e29]
    product = 2.01 * U_TF32 + gamma(max(q.shape[-1], k.shape[-2]) + 2)
    relative = 2 * (product * size + 4 * U * np.ptp(met) + 12 * FUNCTION_ULPS * U) + product + gamma(k.shape[-2] + 2)
    true = weights @ v
    return true, 1.01 * relative * (weights @ np.abs(v)) + U * np.abs(true)


Q, K, V = (random(600 + number, 128, 2, 64, scale=0.5) for number in range(3))


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention(is_causal: bool) -> None:
    module = shipped("attention")
    sizes = module.BlockSizes(block_q=64, block_k=64)
    attend = lambda *each: module.mha(  # noqa: E731
        *(part[None] for part in each), None, sm_scale=0.125, causal=is_causal, block_sizes=sizes
    )[0]
    mask = np.tri(128, dtype=bool) if is_causal else True
    true, bound = attention_of(*(part.transpose(1, 0, 2) for part in (Q, K, V)), mask, 0.125)
    within(run(attend, Q, K, V), true.transpose(1, 0, 2), bound.transpose(1, 0, 2))


def test_attention_of_pages() -> None:
    attend = shipped("paged_attention").paged_attention
    q, keys, values = random(610, 2, 8, 64, scale=0.3), *(random(611 + number, 4, 32, 16, 64) for number in range(2))
    pages = np.random.default_rng(0).permutation(32)[:16].reshape(2, 8).astype(np.int32)
    lengths = np.array([100, 77], np.int32)
    said = {"block_h": 16, "pages_per_compute_block": 4, "k_splits": 2}
    result = run(lambda *each: attend(*each, **said), q, keys, values, pages, lengths)
    for sequence, length in enumerate(lengths):
        own = [each[:, pages[sequence]].reshape(4, 128, 64)[:, :length] for each in (keys, values)]
        true, bound = attention_of(q[sequence].reshape(4, 2, 64), *own)
        within(result[sequence], true.reshape(8, 64), bound.reshape(8, 64))


def test_softmax() -> None:
    x = random(620, 8, 200, scale=3)
    true = softmax_of(x.astype(np.float64))
    result = run(lambda x: shipped("softmax").softmax(x), x)
    within(result, true, true * softmax_relative_bound(x.astype(np.float64)) + 2.0**-126)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_normalization_of_rows(name: str) -> None:
    """The mean is off by γ of the mean size, a difference from it by that and u; the sum of squares by γ and twice a
    difference's error, of which the root takes half; then a few roundings and the ULPs of rsqrt."""
    normalize = getattr(shipped(name), name)
    x, scale, shift = random(630, 4, 16, 128), random(631, 128), random(632, 128)
    exact = x.astype(np.float64)
    mean = exact.mean(-1, keepdims=True) if name == "layer_norm" else np.zeros((4, 16, 1))
    mean_error = gamma(130) * np.abs(exact).mean(-1, keepdims=True) if name == "layer_norm" else 0.0
    centred = exact - mean
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    true = centred / deviation * scale + shift
    relative = gamma(132) + 4 * mean_error / deviation + (FUNCTION_ULPS + 4) * U
    bound = (np.abs(centred) * relative + mean_error) / deviation * np.abs(scale) + 4 * U * (
        np.abs(true) + np.abs(shift)
    )
    within(run(normalize, x, scale, shift), true, bound)
