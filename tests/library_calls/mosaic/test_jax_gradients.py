"""Gradients of the attention kernels for TPUs that JAX ships, and the variants of its other kernels.

True values are computed in f64. Bounds go through the same formulas with the size of each error beside its value: u is
2⁻²⁴, γₖ = k·u / (1 − k·u), and functions may be off by some ULP, as in `kernels`; 1.01 stands for products of errors.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloexec.errors import EvaluationError
from tests.library_calls.mosaic.kernels import (
    FUNCTION_ULPS,
    U_BF16,
    U,
    attention_of,
    gamma,
    integers,
    product_bound,
    random,
    softmax_of,
)
from tests.library_calls.mosaic.lowering import require_pallas
from tests.library_calls.mosaic.test_jax_kernels import CAUSAL, GROUPS, SIZES, run, shipped, within

LENGTH = 256
Q, K, V, DO = (random(400 + number, 2, LENGTH, 128, scale=0.3) for number in range(4))
BIAS = random(410, 2, LENGTH, LENGTH, scale=0.3)
SEGMENTS = np.repeat(np.arange(4, dtype=np.int32), [50, 14, 128, 64])
SAME = SEGMENTS[:, None] == SEGMENTS


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


def gradients_of(
    q: Any, k: Any, v: Any, do: Any, mask: Any = True, bias: Any = 0.0, cap: float | None = None
) -> Mapping[str, tuple[Any, Any]]:
    """Attention, and the gradients of its operands and of the bias, each with a bound; heads come first."""
    q, k, v, do = (each.astype(np.float64) for each in (q, k, v, do))
    transposed, values = np.swapaxes(k, -1, -2), np.swapaxes(v, -1, -2)
    plain = q @ transposed + bias
    capped = plain if cap is None else cap * np.tanh(plain / cap)
    scores = np.where(mask, capped, -1e30)
    met = scores[scores > -1e29]
    width, length = q.shape[-1], k.shape[-2]
    # What a score is off by, and a weight, relative to itself: its exponential, the maximum and the sum.
    off_score = gamma(width + 2) * (np.abs(q) @ np.abs(transposed)).max() + 2 * U * np.abs(plain).max()
    off_capped = off_score + (0 if cap is None else (FUNCTION_ULPS + 2) * U * cap)
    logs = np.log(np.exp(met - met.max()).sum()) + np.abs(met).max()
    off = 2 * (off_capped + gamma(length + 2) + 4 * U * (np.ptp(met) + logs) + 12 * FUNCTION_ULPS * U) + U
    p = softmax_of(scores)
    o = p @ v
    off_o = (off + gamma(length + 2)) * (p @ np.abs(v)) + U * np.abs(o)
    di = (o * do).sum(-1, keepdims=True)
    off_di = (off_o * np.abs(do)).sum(-1, keepdims=True) + gamma(width + 2) * np.abs(o * do).sum(-1, keepdims=True)
    dp = do @ values
    off_dp = gamma(width + 2) * (np.abs(do) @ np.abs(values))
    ds = p * (dp - di)
    off_ds = (off + 3 * U) * np.abs(ds) + p * (off_dp + off_di + 2 * U * (np.abs(dp) + np.abs(di)))
    if cap is not None:
        tanh = capped / cap
        off_slope = 2 * (off_score / cap + FUNCTION_ULPS * U) + 4 * U
        off_ds = off_ds * (1 - tanh**2) + np.abs(ds) * off_slope
        ds = ds * (1 - tanh**2)
    sums = gamma(length + 8)
    turned, off_turned, weights = (np.swapaxes(each, -1, -2) for each in (ds, off_ds, p))
    return {
        "o": (o, 1.01 * off_o),
        "dq": (ds @ k, 1.01 * (off_ds @ np.abs(k)) + sums * (np.abs(ds) @ np.abs(k))),
        "dk": (turned @ q, 1.01 * (off_turned @ np.abs(q)) + sums * (np.abs(turned) @ np.abs(q))),
        "dv": (weights @ do, 1.01 * (off + sums) * (weights @ np.abs(do))),
        "ds": (ds, 1.01 * off_ds),
    }


def with_gradients(attend: Any, *operands: Any) -> tuple[Any, list[str]]:
    """The value, and the gradients of all operands but the last, which is the cotangent."""
    import jax

    def both(*given: Any) -> Any:
        value, pull = jax.vjp(attend, *given[:-1])
        return (value, *pull(given[-1]))

    return run(both, *operands)


def require(results: Any, expected: Mapping[str, tuple[Any, Any]], *names: str) -> None:
    for result, name in zip(results, names, strict=True):
        within(np.asarray(result), *expected[name])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_segments", [False, True])
def test_flash_attention_and_its_gradients(is_causal: bool, has_segments: bool) -> None:
    module = shipped("flash_attention")
    ids = module.SegmentIds(SEGMENTS[None], SEGMENTS[None]) if has_segments else None

    def attend(*operands: Any) -> Any:
        return module.flash_attention(*(each[None] for each in operands), causal=is_causal, segment_ids=ids)[0]

    results, said = with_gradients(attend, Q, K, V, DO)
    assert said == []
    mask = (CAUSAL if is_causal else True) & (SAME if has_segments else np.True_)
    require(results, gradients_of(Q, K, V, DO, mask), "o", "dq", "dk", "dv")


def test_flash_attention_with_a_bias_and_its_gradients() -> None:
    flash = shipped("flash_attention").flash_attention
    results, said = with_gradients(lambda *each: flash(*(x[None] for x in each), causal=True)[0], Q, K, V, BIAS, DO)
    assert said == []
    require(results, gradients_of(Q, K, V, DO, CAUSAL, BIAS), "o", "dq", "dk", "dv", "ds")


PLACES = np.arange(LENGTH)
WINDOW = (PLACES[:, None] - PLACES <= 64) & (PLACES[:, None] >= PLACES)
MASKS = {"causal": CAUSAL, "window": WINDOW, "full": np.ones((LENGTH, LENGTH), bool), "segments": CAUSAL & SAME}


def splash(kind: str, *, is_fused: bool, heads: int = 2, **said: Any) -> Any:
    """A kernel of splash attention, as a function of q, k and v."""
    kernels = shipped("splash_attention.splash_attention_kernel")
    masks = shipped("splash_attention.splash_attention_mask")
    one = {
        "causal": lambda size: masks.CausalMask(size),
        "window": lambda size: masks.LocalMask(size, (64, 0), 0),
        "full": lambda size: masks.FullMask(size),
        "segments": lambda size: masks.CausalMask(size),
    }[kind]((LENGTH, LENGTH))
    names = "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute".split()
    sizes = dict.fromkeys(names if is_fused else [*names, "block_q_dq", "block_kv_dq"], 128)
    sizes = kernels.BlockSizes(**sizes, use_fused_bwd_kernel=is_fused)
    make = kernels.make_splash_mqa_single_device if heads > 2 else kernels.make_splash_mha_single_device
    attend = make(masks.MultiHeadMask([one] * heads), block_sizes=sizes, **said)
    ids = [kernels.SegmentIds(SEGMENTS, SEGMENTS)] if kind == "segments" else []
    return lambda q, k, v: attend(q, k, v, *ids)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("is_fused", [True, False])
def test_splash_attention_and_its_gradients(kind: str, is_fused: bool) -> None:
    results, said = with_gradients(splash(kind, is_fused=is_fused), Q, K, V, DO)
    assert said == []
    require(results, gradients_of(Q, K, V, DO, MASKS[kind]), "o", "dq", "dk", "dv")


def test_splash_attention_with_capped_scores_and_its_gradients() -> None:
    results, said = with_gradients(splash("causal", is_fused=False, attn_logits_soft_cap=2.0), Q, K, V, DO)
    assert said == []
    require(results, gradients_of(Q, K, V, DO, CAUSAL, cap=2.0), "o", "dq", "dk", "dv")


def test_splash_attention_of_heads_that_share_keys_and_its_gradients() -> None:
    """Gradients of keys and values are sums over four heads."""
    q, do = (random(420 + number, 4, LENGTH, 128, scale=0.3) for number in range(2))
    results, said = with_gradients(splash("causal", is_fused=True, heads=4), q, K[0], V[0], do)
    assert said == []
    expected = dict(gradients_of(q, K[0], V[0], do, CAUSAL))
    for name in ("dk", "dv"):
        true, bound = expected[name]
        expected[name] = true.sum(0), bound.sum(0) + gamma(4) * (np.abs(true) + bound).sum(0)
    require(results, expected, "o", "dq", "dk", "dv")


def test_attention_of_pages_in_a_grid_of_blocks() -> None:
    """With the sequence as a dimension of the grid, not as a loop."""
    paged = shipped("paged_attention").paged_attention
    q, k, v, lengths, pages = paged_operands()
    attend = functools.partial(paged, pages_per_compute_block=4, inline_seq_dim=False)
    result, said = run(lambda *each: attend(*each), q, k, v, lengths, pages)
    assert said == []
    require_pages(result, q, *(each.astype(ml_dtypes.bfloat16).astype(np.float32) for each in (k, v)), lengths, pages)


@pytest.mark.parametrize("mode", ["kv_head", "batch"])
def test_attention_of_pages_for_two_cores_hangs_on_one_as_its_documentation_says(mode: str) -> None:
    """Only the first point of the grid starts a transfer; each of two cores has scalars of its own that say so."""
    paged = shipped("paged_attention").paged_attention
    attend = functools.partial(paged, pages_per_compute_block=4, megacore_mode=mode)
    with pytest.raises(EvaluationError, match=r"at grid point \(1, 0, 0\) waits for \d+ bytes.* it would wait forever"):
        run(lambda *each: attend(*each), *paged_operands())


def paged_operands() -> tuple[Any, ...]:
    pages = np.random.default_rng(2).permutation(16).reshape(2, 8).astype(np.int32)
    q, k, v = random(430, 2, 4, 128, scale=0.3), random(431, 2, 16, 16, 128), random(432, 2, 16, 16, 128)
    return q, k, v, np.array([37, 100], np.int32), pages


def require_pages(result: Any, q: Any, k: Any, v: Any, lengths: Any, pages: Any) -> None:
    for sequence, length in enumerate(lengths):
        keys, values = (each[:, pages[sequence]].reshape(2, 128, 128)[:, :length] for each in (k, v))
        true, bound = attention_of(q[sequence].reshape(2, 2, 128), keys, values)
        within(result[sequence], true.reshape(4, 128), bound.reshape(4, 128))


def test_attention_of_pages_of_bytes() -> None:
    """Keys and values are x · h / 127.5, rounded to bf16 in the kernel."""
    paged = shipped("paged_attention").paged_attention
    tensor = shipped("paged_attention.quantization_utils").QuantizedTensor
    pages = np.random.default_rng(3).permutation(16).reshape(2, 8).astype(np.int32)
    q, lengths = random(440, 2, 4, 128, scale=0.3), np.array([37, 100], np.int32)
    weights = [integers(441 + number, 2, 16, 16, 128, low=-127, high=128, dtype=np.int8) for number in range(2)]
    scales = [np.abs(random(443 + number, 2, 16, 16, 1)) + np.float32(0.5) for number in range(2)]

    def attend(q: Any, k: Any, h: Any, v: Any, g: Any, lengths: Any, pages: Any) -> Any:
        return paged(q, tensor(k, h), tensor(v, g), lengths, pages, pages_per_compute_block=4)

    operands = weights[0], scales[0], weights[1], scales[1]
    result, said = run(attend, q, *operands, lengths, pages)
    assert said == []
    k, v = (weight.astype(np.float64) * scale / 127.5 for weight, scale in zip(weights, scales, strict=True))
    for sequence, length in enumerate(lengths):
        keys, values = (each[:, pages[sequence]].reshape(2, 128, 128)[:, :length] for each in (k, v))
        rows = q[sequence].reshape(2, 2, 128)
        true, bound = attention_of(rows, keys, values)
        # A key is off by three roundings to bf16, of a byte, of a product and of a quotient, and so is a value; scores
        # are off by their sum, and weights by twice that.
        off = 3.02 * U_BF16
        size = off * (np.abs(rows.astype(np.float64)) @ np.swapaxes(np.abs(keys), -1, -2)).max()
        bound = bound + (np.expm1(2 * size) * 1.01 + off) * (
            np.exp(2 * size) * attention_of(rows, keys, np.abs(values))[0]
        )
        within(result[sequence], true.reshape(4, 128), bound.reshape(4, 128))


@pytest.mark.parametrize(("window", "cap"), [(20, None), (None, 1.5), (12, 3.0)])
def test_attention_of_ragged_batches_with_windows_and_capped_scores(window: int | None, cap: float | None) -> None:
    ragged = shipped("ragged_paged_attention.kernel").ragged_paged_attention
    generator = np.random.default_rng(4)
    pages, starts = generator.permutation(16).reshape(4, 4).astype(np.int32), np.array([0, 16, 40, 48, 48], np.int32)
    lengths, count = np.array([32, 24, 50, 0], np.int32), np.array([3], np.int32)
    q, kv = random(450, 48, 4, 128, scale=0.3), random(451, 16, 16, 4, 128, scale=0.5)
    sizes: dict[str, Any] = {"num_kv_pages_per_block": 2, "num_queries_per_block": 16}
    result, said = run(
        lambda *each: ragged(*each, **sizes, sliding_window=window, soft_cap=cap), q, kv, lengths, pages, starts, count
    )
    assert said == []
    for sequence in range(3):
        rows = slice(starts[sequence], starts[sequence + 1])
        new, length = starts[sequence + 1] - starts[sequence], lengths[sequence]
        cache = kv[pages[sequence]].reshape(64, 2, 2, 128)[:length]
        keys, values = (cache[:, :, number].transpose(1, 0, 2).repeat(2, 0) for number in range(2))
        behind = np.arange(length - new, length)[:, None] - np.arange(length)
        mask = (behind >= 0) & (behind < (length if window is None else window))
        mine = q[rows].transpose(1, 0, 2)
        true, bound = gradients_of(mine, keys, values, mine, mask, cap=cap)["o"]
        within(result[rows], true.transpose(1, 0, 2), bound.transpose(1, 0, 2))


def test_grouped_products_and_their_gradients() -> None:
    """dx = dy · wᵀ in each group; dw = xᵀ · dy over the rows of each group, which are 300 at most."""
    grouped = shipped("megablox.ops").gmm
    x, w, dy = random(460, 512, 128), random(461, 4, 128, 256), random(462, 512, 256)
    results, said = with_gradients(lambda x, w: grouped(x, w, SIZES, np.float32, (128, 128, 128)), x, w, dy)
    assert said == []
    y, dx, dw = map(np.asarray, results)
    for number, (rows, matrix) in enumerate(zip(GROUPS, w, strict=True)):
        within(y[rows], x[rows].astype(np.float64) @ matrix, product_bound(x[rows], matrix, 6))
        within(dx[rows], dy[rows].astype(np.float64) @ matrix.T, product_bound(dy[rows], matrix.T, 6))
        within(dw[number], x[rows].T.astype(np.float64) @ dy[rows], product_bound(x[rows].T, dy[rows], 130))


def test_grouped_products_with_transposed_matrices_in_bf16() -> None:
    """Products of bf16 are exact in f32, in which they are added up; the sum is rounded to bf16."""
    grouped = shipped("megablox.gmm").gmm
    x, w = (
        random(470 + number, *sizes, dtype=ml_dtypes.bfloat16)
        for number, sizes in enumerate([(512, 128), (4, 256, 128)])
    )
    result, said = run(
        lambda *each: grouped(
            *each, preferred_element_type=ml_dtypes.bfloat16, tiling=(128, 128, 128), transpose_rhs=True
        ),
        x,
        w,
        SIZES,
    )
    assert said == []
    for rows, matrix in zip(GROUPS, w, strict=True):
        true = x[rows].astype(np.float64) @ matrix.T.astype(np.float64)
        within(result[rows], true, 1.01 * U_BF16 * np.abs(true) + 1.01 * product_bound(x[rows], matrix.T, 6))


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_plain_products(dtype: Any) -> None:
    multiply = shipped("matmul").matmul
    if dtype is np.int8:
        x, y = (integers(480 + number, 256, 256, dtype=np.int8) for number in range(2))
    else:
        x, y = (random(480 + number, 256, 256) for number in range(2))
    out = np.int32 if dtype is np.int8 else np.float32
    result, said = run(lambda *each: multiply(*each, block_shape=(128, 128), block_k=128, out_dtype=out), x, y)
    assert said == []
    true = x.astype(np.float64) @ y.astype(np.float64)
    within(result, true, 0 if dtype is np.int8 else product_bound(x, y))


def philox(counters: Any, key: Any) -> Any:
    """Philox4x32-10 of counters (0, c, 0, 0). Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"."""
    words = [np.zeros_like(counters), counters, np.zeros_like(counters), np.zeros_like(counters)]
    words = [word.astype(np.uint64) for word in words]
    one, two = (int(part) for part in key)
    for _ in range(10):
        high, low = words[2] * np.uint64(0xCD9E8D57), words[0] * np.uint64(0xD2511F53)
        words = [
            (high >> np.uint64(32)) ^ words[1] ^ np.uint64(one),
            high & np.uint64(0xFFFFFFFF),
            (low >> np.uint64(32)) ^ words[3] ^ np.uint64(two),
            low & np.uint64(0xFFFFFFFF),
        ]
        one, two = (one + 0x9E3779B9) % 2**32, (two + 0xBB67AE85) % 2**32
    return (words[0] ^ words[1]).astype(np.uint32)


def test_random_bits_of_philox() -> None:
    count = shipped("random.philox").philox_4x32_count
    key = np.array([0xDEADBEEF, 42], np.uint32)
    result, said = run(lambda pair: count(pair, (256, 512), offset=7), key)
    assert said == []
    assert np.array_equal(result, philox(np.arange(256 * 512, dtype=np.uint32).reshape(256, 512) + 7, key))


def test_random_bits_of_sizes_that_are_no_multiples_of_blocks() -> None:
    """What lies beyond is made, and cut off."""
    jax = pytest.importorskip("jax")
    random_bits = pytest.importorskip("jax.extend.random")
    bits = shipped("random.threefry").plthreefry_random_bits
    key = np.array([1, 2], np.uint32)
    result, said = run(lambda pair: bits(pair, 32, (100, 300)), key)
    assert said == []
    numbers = np.arange(100 * 300, dtype=np.uint32)
    first, second = jax.jit(random_bits.threefry2x32_p.bind)(key[0], key[1], np.zeros_like(numbers), numbers)
    assert np.array_equal(result, (np.asarray(first) ^ np.asarray(second)).reshape(100, 300))
