"""Kernels for TPUs that JAX ships and others use: attention, also of pages and in ragged batches, and grouped products."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning
from tests.library_calls.mosaic.kernels import Case, attention_of, product_bound, random
from tests.library_calls.mosaic.lowering import lowered, require_pallas

SHIPPED = "jax.experimental.pallas.ops.tpu"


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def shipped(name: str) -> Any:
    return pytest.importorskip(f"{SHIPPED}.{name}")


def run(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str]]:
    """The result, and the warnings of the run."""
    module = lowered(Case("shipped", lambda interpret: function, arguments, ()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HloWarning)
        return hloexec.run(module, *arguments), [str(each.message) for each in caught]


def within(actual: Any, true: Any, bound: Any) -> None:
    assert actual.shape == true.shape
    assert (np.abs(actual.astype(np.float64) - true) <= bound).all()


Q, K, V = (random(300 + number, 2, 256, 128, scale=0.3) for number in range(3))
CAUSAL = np.tri(256, dtype=bool)


@pytest.mark.parametrize("is_causal", [True, False])
def test_flash_attention(is_causal: bool) -> None:
    flash = shipped("flash_attention").flash_attention
    result, said = run(lambda q, k, v: flash(q[None], k[None], v[None], causal=is_causal)[0], Q, K, V)
    assert said == []
    within(result, *attention_of(Q, K, V, CAUSAL if is_causal else True))


def test_flash_attention_of_segments() -> None:
    module = shipped("flash_attention")
    segments = np.repeat(np.arange(4, dtype=np.int32), [50, 14, 128, 64])
    ids = module.SegmentIds(segments[None], segments[None])
    result, said = run(lambda q, k, v: module.flash_attention(q[None], k[None], v[None], segment_ids=ids)[0], Q, K, V)
    assert said == []
    within(result, *attention_of(Q, K, V, segments[:, None] == segments))


def test_splash_attention() -> None:
    """Its outputs that are scratch memory are written by all heads, but with zeros in the end, so that no order of
    heads gives another result."""
    kernels, masks = (
        shipped("splash_attention.splash_attention_kernel"),
        shipped("splash_attention.splash_attention_mask"),
    )
    mask = masks.MultiHeadMask([masks.CausalMask((256, 256))] * 2)
    attend = kernels.make_splash_mha_single_device(mask)
    result, said = run(lambda q, k, v: attend(q, k, v), Q, K, V)
    assert said == []
    within(result, *attention_of(Q, K, V, CAUSAL))


def test_attention_of_pages() -> None:
    """Pages are rounded to bf16 in the kernel."""
    paged = shipped("paged_attention").paged_attention
    pages = np.random.default_rng(0).permutation(16).reshape(2, 8).astype(np.int32)
    q, k, v = random(310, 2, 4, 128, scale=0.3), random(311, 2, 16, 16, 128), random(312, 2, 16, 16, 128)
    lengths = np.array([37, 100], np.int32)
    result, said = run(lambda *each: paged(*each, pages_per_compute_block=4), q, k, v, lengths, pages)
    assert said == []
    rounded = [each.astype(ml_dtypes.bfloat16).astype(np.float32) for each in (k, v)]
    for sequence, length in enumerate(lengths):
        keys, values = (each[:, pages[sequence]].reshape(2, 128, 128)[:, :length] for each in rounded)
        true, bound = attention_of(q[sequence].reshape(2, 2, 128), keys, values)
        within(result[sequence], true.reshape(4, 128), bound.reshape(4, 128))


def test_attention_of_ragged_batches() -> None:
    """Queries of several sequences one behind the other; transfers are the kernel's own."""
    ragged = shipped("ragged_paged_attention.kernel").ragged_paged_attention
    generator = np.random.default_rng(1)
    pages, starts = generator.permutation(16).reshape(4, 4).astype(np.int32), np.array([0, 16, 40, 48, 48], np.int32)
    lengths, count = np.array([32, 24, 50, 0], np.int32), np.array([3], np.int32)
    q, kv = random(313, 48, 4, 128, scale=0.3), random(314, 16, 16, 4, 128, scale=0.5)
    said: dict[str, Any] = {"num_kv_pages_per_block": 2, "num_queries_per_block": 16}
    result, found = run(lambda *each: ragged(*each, **said), q, kv, lengths, pages, starts, count)
    assert found == []
    for sequence in range(3):
        rows = slice(starts[sequence], starts[sequence + 1])
        new, length = starts[sequence + 1] - starts[sequence], lengths[sequence]
        cache = kv[pages[sequence]].reshape(64, 2, 2, 128)[:length]
        keys, values = (cache[:, :, number].transpose(1, 0, 2).repeat(2, 0) for number in range(2))
        mask = np.arange(length) <= np.arange(length - new, length)[:, None]
        true, bound = attention_of(q[rows].transpose(1, 0, 2), keys, values, mask)
        within(result[rows], true.transpose(1, 0, 2), bound.transpose(1, 0, 2))


SIZES = np.array([100, 0, 300, 112], np.int32)
GROUPS = [slice(stop - size, stop) for size, stop in zip(SIZES, np.cumsum(SIZES), strict=True)]


def test_grouped_products() -> None:
    gmm = shipped("megablox.gmm").gmm
    x, w = random(320, 512, 128), random(321, 4, 128, 256)
    result, said = run(lambda *each: gmm(*each, tiling=(128, 128, 128)), x, w, SIZES)
    assert said == []
    for rows, matrix in zip(GROUPS, w, strict=True):
        within(result[rows], x[rows].astype(np.float64) @ matrix, product_bound(x[rows], matrix, 6))


def test_products_over_groups() -> None:
    tgmm = shipped("megablox.gmm").tgmm
    x, y = random(322, 128, 512), random(323, 512, 256)
    result, said = run(lambda *each: tgmm(*each, tiling=(128, 128, 128)), x, y, SIZES)
    assert said == []
    for number, rows in enumerate(GROUPS):
        within(result[number], x[:, rows].astype(np.float64) @ y[rows], product_bound(x[:, rows], y[rows], 130))


def test_random_bits_of_threefry() -> None:
    """Each number is encrypted, as JAX's own generator does it on any backend."""
    jax = pytest.importorskip("jax")
    random_bits = pytest.importorskip("jax.extend.random")
    count = shipped("random.threefry").threefry_2x32_count
    key = np.array([1, 2], np.uint32)
    result, said = run(lambda pair: count(pair, (256, 256), (256, 256), (128, 128)), key)
    assert said == []
    numbers = np.arange(256 * 256, dtype=np.uint32)
    first, second = jax.jit(random_bits.threefry2x32_p.bind)(key[0], key[1], np.zeros_like(numbers), numbers)
    assert np.array_equal(result, (np.asarray(first) ^ np.asarray(second)).reshape(256, 256))
