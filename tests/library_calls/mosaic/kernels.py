"""Pallas kernels for TPUs, written for these tests: dense algebra, normalisation, attention.

A case says what to run, on what, and how close to the true value the result has to be. True values are computed in
f64; bounds are derived beside them, with u = 2⁻²⁴ for f32 and γₖ = k·u / (1 − k·u). Data movement and integers have no
bound: they are equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

import hloexec
from hloexec.errors import HloWarning

U = 2.0**-24
"""Unit roundoff of f32."""
U_BF16 = 2.0**-8
FUNCTION_ULPS = 8
"""What a function (exp, tanh, rsqrt…) may be off in f32, in units of u: XLA:CPU's and NumPy's are within 4 ULP."""


def gamma(terms: int) -> float:
    """γₖ of f32."""
    return terms * U / (1 - terms * U)


@attrs.frozen
class Case:
    """A kernel with its arguments, and the true value with the bound of each of its elements."""

    name: str
    build: Callable[[Any], Callable[..., Any]]
    """Given `interpret`, the function to be lowered."""
    arguments: tuple[Any, ...]
    expected: tuple[Any, ...]
    bounds: tuple[Any, ...] | None = None
    """None where the results must be equal."""
    interpret: Any = True
    """The interpret mode that can run it: True, or "tpu" for `pltpu.InterpretParams`, or None where neither can."""


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Register a case under the name of the function that makes it."""
    CASES[make.__name__] = make
    return make


def random(seed: int, *sizes: int, dtype: Any = np.float32, scale: float = 1.0) -> Any:
    values = np.random.default_rng(seed).standard_normal(sizes) * scale
    return values.astype(np.float32).astype(dtype)


def integers(seed: int, *sizes: int, low: int = -100, high: int = 100, dtype: Any = np.int32) -> Any:
    return np.random.default_rng(seed).integers(low, high, sizes).astype(dtype)


def without_warnings(module: hloexec.Module, case: Case) -> tuple[Any, ...]:
    """The results of a case, of a run without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HloWarning)
        result = hloexec.run(module, *case.arguments)
    return result if isinstance(result, tuple) else (result,)


def require_expected(case: Case, results: Sequence[Any]) -> None:
    """Fails where a result is not what the author of a kernel meant, within its bound."""
    assert len(results) == len(case.expected)
    for number, (result, expected) in enumerate(zip(results, case.expected, strict=True)):
        assert result.shape == np.shape(expected)
        if case.bounds is None:
            assert result.tobytes() == np.asarray(expected, result.dtype).tobytes()
        else:
            assert (np.abs(result.astype(np.float64) - expected) <= case.bounds[number]).all()


def product_bound(lhs: Any, rhs: Any, extra: int = 2) -> Any:
    """γₖ Σ|aᵢbᵢ| of a product that is accumulated in f32, in any order, with some further additions."""
    terms = lhs.shape[-1] + extra
    return gamma(terms) * (np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64)))


def _matmul(lhs_block: int, k_block: int, rhs_block: int, out_type: Any, acc_type: Any, precision: Any = None) -> Any:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, y: Any, out: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x[...], y[...], preferred_element_type=acc_type, precision=precision)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            out[...] = acc[...].astype(out_type)

    def build(interpret: Any) -> Any:
        def run(x: Any, y: Any) -> Any:
            rows, columns = x.shape[0], y.shape[1]
            return pl.pallas_call(
                kernel,
                grid=(rows // lhs_block, columns // rhs_block, x.shape[1] // k_block),
                in_specs=[
                    pl.BlockSpec((lhs_block, k_block), lambda i, j, k: (i, k)),
                    pl.BlockSpec((k_block, rhs_block), lambda i, j, k: (k, j)),
                ],
                out_specs=pl.BlockSpec((lhs_block, rhs_block), lambda i, j, k: (i, j)),
                out_shape=jax.ShapeDtypeStruct((rows, columns), out_type),
                scratch_shapes=[pltpu.VMEM((lhs_block, rhs_block), acc_type)],
                compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
                interpret=interpret,
            )(x, y)

        return run

    return build


@case
def matmul_bf16() -> Case:
    import ml_dtypes

    x, y = random(0, 64, 256, dtype=ml_dtypes.bfloat16), random(1, 256, 256, dtype=ml_dtypes.bfloat16)
    true = x.astype(np.float64) @ y.astype(np.float64)
    bound = product_bound(x, y)
    bound = bound + U_BF16 * (np.abs(true) + bound)
    build = _matmul(32, 128, 128, ml_dtypes.bfloat16, np.float32)
    return Case("matmul_bf16", build, (x, y), (true,), (bound,))


@case
def matmul_f32_highest() -> Case:
    x, y = random(2, 32, 256), random(3, 256, 128)
    build = _matmul(16, 128, 128, np.float32, np.float32, "highest")
    return Case("matmul_f32_highest", build, (x, y), (x.astype(np.float64) @ y,), (product_bound(x, y),))


@case
def matmul_int8() -> Case:
    x, y = integers(4, 64, 256, dtype=np.int8), integers(5, 256, 128, dtype=np.int8)
    true = x.astype(np.int32) @ y.astype(np.int32)
    return Case("matmul_int8", _matmul(32, 128, 128, np.int32, np.int32), (x, y), (true,))


@case
def matmul_fp8() -> Case:
    import ml_dtypes

    x = random(6, 32, 128, dtype=ml_dtypes.float8_e4m3fn)
    y = random(7, 128, 128, dtype=ml_dtypes.float8_e5m2)
    true = x.astype(np.float64) @ y.astype(np.float64)
    bound = product_bound(x.astype(np.float32), y.astype(np.float32))
    return Case("matmul_fp8", _matmul(32, 128, 128, np.float32, np.float32), (x, y), (true,), (bound,))


def whole_kernel(kernel: Any, *shapes: Any, scratch: Any = ()) -> Any:
    """A kernel without a grid, of which all operands are in VMEM."""
    import jax
    from jax.experimental import pallas as pl

    def build(interpret: Any) -> Any:
        results = [jax.ShapeDtypeStruct(sizes, dtype) for sizes, dtype in shapes]
        single = results[0] if len(results) == 1 else results
        return pl.pallas_call(kernel, out_shape=single, scratch_shapes=scratch, interpret=interpret)

    return build


def rows_kernel(kernel: Any, block: int, inputs: Any, *shapes: Any) -> Any:
    """A kernel over blocks of rows; inputs that are not blocked are given as False."""
    import jax
    from jax.experimental import pallas as pl

    def spec(array: Any, is_blocked: bool) -> Any:
        sizes = array.shape
        if not is_blocked:
            return pl.BlockSpec(sizes, lambda i: (0,) * len(sizes))
        return pl.BlockSpec((block, *sizes[1:]), lambda i: (i, *(0,) * (len(sizes) - 1)))

    def build(interpret: Any) -> Any:
        results = [jax.ShapeDtypeStruct(sizes, dtype) for sizes, dtype in shapes]

        def run(*operands: Any) -> Any:
            specs = [spec(each, is_blocked) for each, is_blocked in zip(operands, inputs, strict=True)]
            outs = [spec(each, True) for each in results]
            return pl.pallas_call(
                kernel,
                grid=(pl.cdiv(results[0].shape[0], block),),
                in_specs=specs,
                out_specs=outs if len(outs) > 1 else outs[0],
                out_shape=results if len(results) > 1 else results[0],
                interpret=interpret,
            )(*operands)

        return run

    return build


@case
def layer_norm() -> Case:
    import jax
    import jax.numpy as jnp

    def kernel(x: Any, scale: Any, shift: Any, out: Any) -> None:
        rows = x[...]
        mean = jnp.mean(rows, axis=-1, keepdims=True)
        centred = rows - mean
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        out[...] = centred * jax.lax.rsqrt(variance + 1e-5) * scale[...] + shift[...]

    x, scale, shift = random(10, 32, 256), random(11, 1, 256), random(12, 1, 256)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    true = centred / np.sqrt(variance + 1e-5) * scale + shift
    # The mean is off by γ₂₅₇ Σ|x|/n; so is each centred element, plus u of it; the variance by a relative γ₂₆₀ plus
    # 2·(error of centred)/(its root mean square); a product of three factors adds those up.
    mean_error = gamma(257) * np.abs(wide).mean(-1, keepdims=True)
    deviation = np.sqrt(variance)
    relative = gamma(260) + 4 * mean_error / deviation + FUNCTION_ULPS * U
    bound = (np.abs(centred) * relative + mean_error) / deviation * np.abs(scale) + 4 * U * (
        np.abs(true) + np.abs(shift)
    )
    return Case(
        "layer_norm",
        rows_kernel(kernel, 8, (True, False, False), (x.shape, np.float32)),
        (x, scale, shift),
        (true,),
        (bound,),
    )


def softmax_of(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def softmax_relative_bound(scores: Any) -> Any:
    """The argument of exp is off by u·|s − max|, exp by its ULPs, the sum by a relative γₙ and what its terms are."""
    spread = scores.max(-1, keepdims=True) - scores
    return 2 * (U * np.where(np.isfinite(spread), spread, 0).max() + FUNCTION_ULPS * U) + gamma(scores.shape[-1] + 2)


@case
def softmax() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, out: Any) -> None:
        powers = jnp.exp(x[...] - jnp.max(x[...], axis=1, keepdims=True))
        out[...] = powers / jnp.sum(powers, axis=1, keepdims=True)

    x = random(13, 24, 384, scale=3)
    true = softmax_of(x.astype(np.float64))
    bound = true * softmax_relative_bound(x.astype(np.float64)) + 2.0**-126
    return Case("softmax", rows_kernel(kernel, 8, (True,), (x.shape, np.float32)), (x,), (true,), (bound,))


@case
def cross_entropy() -> Case:
    import jax
    import jax.numpy as jnp

    def kernel(logits: Any, labels: Any, loss: Any) -> None:
        rows = logits[...]
        top = jnp.max(rows, axis=1, keepdims=True)
        total = jnp.log(jnp.sum(jnp.exp(rows - top), axis=1, keepdims=True)) + top
        columns = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 1)
        picked = jnp.sum(jnp.where(columns == labels[...], rows, 0.0), axis=1, keepdims=True)
        loss[...] = total - picked

    logits, labels = random(14, 16, 256, scale=2), integers(15, 16, 1, low=0, high=256)
    wide = logits.astype(np.float64)
    total = np.log(np.exp(wide).sum(1, keepdims=True))
    true = total - np.take_along_axis(wide, labels, 1)
    # The logarithm of a sum that is off by a relative e is off by e; then three roundings of what is added.
    bound = softmax_relative_bound(wide) + (FUNCTION_ULPS + 4) * U * (np.abs(total) + np.abs(wide).max())
    shape = ((16, 1), np.float32)
    return Case(
        "cross_entropy", rows_kernel(kernel, 8, (True, True), shape), (logits, labels), (true,), (bound + 0 * true,)
    )


def _attention(block_q: int, block_k: int, *, is_causal: bool) -> Any:
    """Flash attention, forward: `[heads, length, width]`, with a running maximum and sum."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(q: Any, k: Any, v: Any, out: Any, top: Any, total: Any, acc: Any) -> None:
        row, step, last = pl.program_id(1), pl.program_id(2), pl.num_programs(2) - 1

        @pl.when(step == 0)
        def _() -> None:
            top[...] = jnp.full_like(top, -1e30)
            total[...] = jnp.zeros_like(total)
            acc[...] = jnp.zeros_like(acc)

        def attend() -> None:
            dims = (((1,), (1,)), ((), ()))
            scores = jax.lax.dot_general(q[0], k[0], dims, preferred_element_type=jnp.float32) * 0.125
            if is_causal:
                rows = row * block_q + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
                columns = step * block_k + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
                scores = jnp.where(columns <= rows, scores, -1e30)
            before = top[...]
            now = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
            weights = jnp.exp(scores - now[:, :1])
            factor = jnp.exp(before - now)
            total[...] = total[...] * factor + jnp.sum(weights, axis=1, keepdims=True)
            acc[...] = acc[...] * factor[:, :1] + jnp.dot(
                weights.astype(v.dtype), v[0], preferred_element_type=jnp.float32
            )
            top[...] = now

        if is_causal:
            pl.when(step * block_k < (row + 1) * block_q)(attend)
        else:
            attend()

        @pl.when(step == last)
        def _() -> None:
            out[0] = (acc[...] / total[:, :1]).astype(out.dtype)

    def build(interpret: Any) -> Any:
        def run(q: Any, k: Any, v: Any) -> Any:
            heads, length, width = q.shape
            return pl.pallas_call(
                kernel,
                grid=(heads, length // block_q, k.shape[1] // block_k),
                in_specs=[
                    pl.BlockSpec((1, block_q, width), lambda h, i, j: (h, i, 0)),
                    pl.BlockSpec((1, block_k, width), lambda h, i, j: (h, j, 0)),
                    pl.BlockSpec((1, block_k, width), lambda h, i, j: (h, j, 0)),
                ],
                out_specs=pl.BlockSpec((1, block_q, width), lambda h, i, j: (h, i, 0)),
                out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
                scratch_shapes=[pltpu.VMEM((block_q, 128), jnp.float32)] * 2
                + [pltpu.VMEM((block_q, width), jnp.float32)],
                interpret=interpret,
            )(q, k, v)

        return run

    return build


def attention_of(q: Any, k: Any, v: Any, mask: Any = True, *, scale: float = 1.0, unit: float = U) -> tuple[Any, Any]:
    """Attention `[heads, length, width]` where a mask is true, and its bound if weights and result are rounded by u.

    Scores are off by γ of their terms, which is the relative error of a weight, as is that of the softmax, whose running
    maximum and sum add the ULPs of some more exponentials; sums of products add γ of their terms.
    """
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    scores = np.where(mask, q @ np.swapaxes(k, -1, -2) * scale, -1e30)
    size = (np.abs(q) @ np.swapaxes(np.abs(k), -1, -2)).max() * scale
    weights = softmax_of(scores)
    met = scores[scores > -1e29]
    terms = gamma(q.shape[-1] + 2) * size + gamma(k.shape[-2] + 2) + 4 * U * np.ptp(met) + 12 * FUNCTION_ULPS * U
    true = weights @ v
    return true, (2 * terms + unit) * (weights @ np.abs(v)) + unit * np.abs(true)


def _attention_case(name: str, *, is_causal: bool, dtype: Any, unit: float) -> Case:
    q, k, v = (random(20 + number, 2, 128, 64, dtype=dtype) for number in range(3))
    mask = np.tri(128, dtype=bool) if is_causal else True
    true, bound = attention_of(q, k, v, mask, scale=0.125, unit=unit)
    return Case(name, _attention(64, 32, is_causal=is_causal), (q, k, v), (true,), (bound,))


@case
def flash_attention() -> Case:
    return _attention_case("flash_attention", is_causal=False, dtype=np.float32, unit=U)


@case
def flash_attention_causal() -> Case:
    return _attention_case("flash_attention_causal", is_causal=True, dtype=np.float32, unit=U)


@case
def flash_attention_causal_bf16() -> Case:
    import ml_dtypes

    return _attention_case("flash_attention_causal_bf16", is_causal=True, dtype=ml_dtypes.bfloat16, unit=U_BF16)


@case
def quantisation() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, out: Any, scales: Any) -> None:
        largest = jnp.max(jnp.abs(x[...]), axis=1, keepdims=True)
        scale = jnp.exp2(jnp.ceil(jnp.log2(largest / 127.0)))
        out[...] = jnp.clip(jnp.round(x[...] / scale), -127, 127).astype(jnp.int8)
        scales[...] = scale

    # Scales are powers of two, so that quotients are exact; log2 is not near a whole number for these rows.
    x = random(30, 32, 256)
    largest = np.abs(x.astype(np.float64)).max(1, keepdims=True)
    scale = 2.0 ** np.ceil(np.log2(largest / 127))
    true = np.clip(np.round(x / scale), -127, 127).astype(np.int8)
    build = rows_kernel(kernel, 32, (True,), (x.shape, np.int8), ((32, 1), np.float32))
    return Case("quantisation", build, (x,), (true, scale.astype(np.float32)))


@case
def gelu_and_tanh() -> Case:
    import jax.numpy as jnp

    def kernel(x: Any, out: Any) -> None:
        value = x[...]
        out[...] = 0.5 * value * (1 + jnp.tanh(0.7978846 * (value + 0.044715 * value**3)))

    x = random(31, 16, 128)
    wide = x.astype(np.float64)
    inner = 0.7978846 * (wide + 0.044715 * wide**3)
    true = 0.5 * wide * (1 + np.tanh(inner))
    # The argument of tanh is off by some 8 u of |x| + |x|³, tanh by no more than that and its ULPs.
    bound = np.abs(wide) * (10 * U * np.abs(inner) + (FUNCTION_ULPS + 6) * U)
    return Case("gelu_and_tanh", rows_kernel(kernel, 8, (True,), (x.shape, np.float32)), (x,), (true,), (bound,))
