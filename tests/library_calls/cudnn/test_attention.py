"""cuDNN's attention as JAX lowers it for CUDA, against plain attention and its gradients by XLA:CPU in f64."""

import functools
import itertools
import json
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from conformance.cell import shape_of
from hloexec.errors import EvaluationError, UnsupportedError, VerificationError
from hloexec.ops.library_calls.cudnn.attention_parts import KINDS
from tests.drawing import normal
from tests.library_calls.calls import by_jax, with_gradients_by_jax
from tests.library_calls.cudnn.modules import call, module, whole

jax = pytest.importorskip("jax")
library = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")

MaskType = library.MaskType
SCALE = 0.375
HALF_ULP = {np.dtype(np.float16): 2.0**-11, np.dtype(ml_dtypes.bfloat16): 2.0**-8}


@pytest.fixture
def on_cuda(monkeypatch):
    """JAX asks for the library's version and the GPU's, and gets recent ones."""
    monkeypatch.setattr(library, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(library, "check_compute_capability", lambda capability: True)


def lowered(function: Any, *arguments: Any) -> str:
    """HLO as JAX makes it for CUDA."""
    trace = jax.jit(function, keep_unused=True).trace(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments))
    return str(trace.lower(lowering_platforms=("cuda",)).compiler_ir("hlo").as_hlo_text())


def run(function: Any, *arguments: Any) -> Any:
    text = lowered(function, *arguments)
    parsed = hloexec.parse(text)
    hloexec.verify(parsed)
    assert hloexec.parse(hloexec.format(parsed)) == parsed
    return hloexec.run(parsed, *arguments)


def visible(queries: int, keys: int, *, causal: bool = False, window: int | None = None, lengths: Any = None) -> Any:
    """[batch, 1, queries, keys], whether the query sees the key; one batch where there are no lengths."""
    i, j = np.arange(queries)[:, None], np.arange(keys)
    seen = np.ones((queries, keys), bool)
    if causal:
        seen &= j <= i
    if window is not None:
        seen &= j > i - window
    if lengths is None:
        return seen[None, None]
    return np.stack([seen & (i < t) & (j < s) for t, s in zip(*lengths, strict=True)])[:, None]


def plain(q: Any, k: Any, v: Any, bias: Any, seen: Any) -> Any:
    """Attention of [batch, rows, heads, depth]; a query that sees nothing gives 0."""
    shared = q.shape[2] // k.shape[2]
    k, v = (jax.numpy.repeat(array, shared, 2) for array in (k, v))
    scores = SCALE * jax.numpy.einsum("btnh,bsnh->bnts", q, k)
    scores = jax.numpy.where(seen, scores + bias, -1e300)
    scores = scores - scores.max(-1, keepdims=True)
    weights = jax.numpy.exp(scores) * seen
    total = weights.sum(-1, keepdims=True)
    return jax.numpy.einsum("bnts,bsne->btne", weights / jax.numpy.where(total == 0, 1, total), v)


def plain_with_gradients(arrays: Any, seen: Any) -> tuple[Any, Any]:
    """In f64, of the arrays of a problem."""
    q, k, v, bias, gradient = wide(*arrays)
    return with_gradients_by_jax(functools.partial(plain, seen=seen), q, k, v, bias, cotangent=gradient)


def wide(*arrays: Any) -> list[Any]:
    return [np.asarray(array).astype(np.float64) for array in arrays]


def problem(dtype: Any, *, groups: int = 4, bias: tuple[int, int] | None = None, depth: int = 8, rows: int = 10) -> Any:
    """q, k, v, the bias and the output's gradient."""
    sizes = [
        (2, rows, 4, 8),
        (2, 12, groups, 8),
        (2, 12, groups, depth),
        (*(bias or (1, 1)), rows, 12),
        (2, rows, 4, depth),
    ]
    arrays = [normal(*size, seed=n).astype(dtype) for n, size in enumerate(sizes)]
    if bias is None:
        arrays[3] = np.zeros_like(arrays[3])
    return arrays


def assert_is_attention(value: Any, expected: Any, half_ulp: float) -> None:
    """|o| ≤ 4 here. f32 scores below 16 in magnitude err by some 8·16·2⁻²⁴, which moves weights relatively as much and
    outputs by 4 times that; then comes one rounding."""
    assert (np.abs(value.astype(np.float64) - expected) <= half_ulp * np.abs(expected) + 4 * 256 * 2.0**-24).all()


def gradient_bounds(arrays: Any, seen: Any, half_ulp: float) -> list[Any]:
    """What gradients may err by, beyond their own rounding: Σ dO ∘ O takes the rounded output, so it errs by up to
    half_ulp·Σ|dO ∘ O|, and dS by P times that; f32 errors are as above, of terms of the same size."""
    q, k, v, bias, gradient = wide(*arrays)
    output = np.abs(by_jax(plain, q, k, v, bias, seen))
    shared = q.shape[2] // k.shape[2]
    weights = by_jax(plain, q, k, np.broadcast_to(np.eye(12)[None, :, None], (2, 12, k.shape[2], 12)), bias, seen)
    mean = (np.abs(gradient) * output).sum(-1)
    each = np.abs(np.einsum("btne,bsne->btns", np.abs(gradient), np.abs(np.repeat(v, shared, 2))))
    scores = weights * (half_ulp * mean[..., None] + 512 * 2.0**-24 * (each + mean[..., None]))
    keys = np.einsum("btns,btnh->bsnh", scores, np.abs(q)).reshape(2, 12, k.shape[2], shared, 8).sum(3)
    values = 512 * 2.0**-24 * np.einsum("btns,btne->bsne", weights, np.abs(gradient))
    return [
        SCALE * np.einsum("btns,bsnh->btnh", scores, np.abs(np.repeat(k, shared, 2))),
        SCALE * keys,
        values.reshape(2, 12, k.shape[2], shared, -1).sum(3),
        np.moveaxis(scores, 2, 1),
    ]


LENGTHS = (np.array([7, 10], np.int32), np.array([12, 5], np.int32))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": MaskType.CAUSAL},
    "window": {"mask": MaskType.CAUSAL, "window": 3},
    "padded": {"mask": MaskType.PADDING, "lengths": LENGTHS},
    "padded causal": {"mask": MaskType.PADDING_CAUSAL, "lengths": (np.array([0, 9], np.int32), LENGTHS[1])},
    "shared heads": {"groups": 2},
    "one head for all": {"groups": 1, "mask": MaskType.CAUSAL},
    "wider values": {"depth": 16},
    "bias": {"bias": (1, 4)},
    "bias of the batch": {"bias": (2, 1), "mask": MaskType.CAUSAL},
    "bias and padding": {"bias": (2, 4), "mask": MaskType.PADDING, "lengths": LENGTHS},
    "heads first": {"layout": "BNTH", "groups": 2, "bias": (1, 1)},
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, np.float16) for name in CASES] + [("bias of the batch", ml_dtypes.bfloat16)]
)
def test_attention_and_its_gradients_are_those_of_plain_attention(on_cuda, name, dtype):
    case = CASES[name]
    arrays = problem(dtype, groups=case.get("groups", 4), bias=case.get("bias"), depth=case.get("depth", 8))
    lengths, mask = case.get("lengths"), case.get("mask", MaskType.NO_MASK)
    layout, has_bias = case.get("layout", "BTNH"), "bias" in case
    order = (0, 2, 1, 3) if layout == "BNTH" else (0, 1, 2, 3)

    def fused(q: Any, k: Any, v: Any, bias: Any, gradient: Any, *lengths: Any) -> Any:
        def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
            return library.dot_product_attention(
                q, k, v, bias if has_bias else None, None, *lengths,
                scale=SCALE, mask_type=mask, qkv_layout=layout, sliding_window_length=case.get("window"),
            )  # fmt: skip

        output, pull = jax.vjp(attend, q, k, v, bias)
        return output, *pull(gradient)

    placed = [array if n == 3 else np.ascontiguousarray(array.transpose(order)) for n, array in enumerate(arrays)]
    value = run(fused, *placed, *(lengths or ()))
    value = [array if n == 4 else array.transpose(order) for n, array in enumerate(value)]
    seen = visible(10, 12, causal="CAUSAL" in mask.name, window=case.get("window"), lengths=lengths)
    output, gradients = plain_with_gradients(arrays, seen)
    half_ulp = HALF_ULP[np.dtype(dtype)]
    assert_is_attention(value[0], output, half_ulp)
    bounds = gradient_bounds(arrays, seen, half_ulp)
    for n, (ours, theirs, bound) in enumerate(zip(value[1:], gradients, bounds, strict=True)):
        if n == 3 and not has_bias:
            continue
        assert ours.dtype == dtype
        if n == 3:
            bound = bound.sum(tuple(axis for axis in (0, 1) if theirs.shape[axis] == 1), keepdims=True)
        assert (np.abs(ours.astype(np.float64) - theirs) <= bound + half_ulp * np.abs(theirs) + 2.0**-24).all()


def test_the_log_sum_exp_is_the_second_result(on_cuda):
    """Scores below 16 in magnitude err by some 8·16·2⁻²⁴ in f32, and so does their log-sum-exp."""
    q, k, v, _, _ = problem(np.float16)

    def fused(q: Any, k: Any, v: Any) -> Any:
        return library.dot_product_attention(q, k, v, scale=SCALE, mask_type=MaskType.CAUSAL, return_residual=True)

    output, residual = run(fused, q, k, v)
    scores = SCALE * np.einsum("btnh,bsnh->bnts", *wide(q, k))
    scores = np.where(visible(10, 12, causal=True), scores, -np.inf)
    expected = np.log(np.exp(scores).sum(-1))
    assert residual.dtype == np.float32
    residual = residual if residual.shape == expected.shape else residual.swapaxes(1, 2)
    assert (np.abs(residual - expected) <= 256 * 2.0**-24).all()
    assert output.shape == q.shape


@pytest.mark.slow
def test_packed_sequences_do_not_see_each_other(on_cuda):
    """Two sequences in each of two rows, one of them alone in its row; tokens beside them stay 0."""
    q, k, v, _, gradient = problem(np.float16, rows=12)
    lengths = [np.array([[5, 4], [8, -1]], np.int32), np.array([[3, 7], [12, -1]], np.int32)]
    starts = [np.array([[0, 6, -1], [1, -1, -1]], np.int32), np.array([[1, 5, -1], [0, -1, -1]], np.int32)]

    def fused(q: Any, k: Any, v: Any, gradient: Any, *packing: Any) -> Any:
        def attend(q: Any, k: Any, v: Any) -> Any:
            return library.dot_product_attention(
                q, k, v, None, None, *packing, scale=SCALE, mask_type=MaskType.PADDING_CAUSAL
            )

        output, pull = jax.vjp(attend, q, k, v)
        return output, *pull(gradient)

    value = run(fused, q, k, v, gradient, *lengths, *starts)
    seen = np.zeros((2, 1, 12, 12), bool)
    for row, number in itertools.product(range(2), range(2)):
        t, s, i, j = (int(array[row, number]) for array in (*lengths, *starts))
        if t > 0:
            seen[row, 0, i : i + t, j : j + s] = visible(t, s, causal=True)[0, 0]
    arrays = [q, k, v, np.zeros((1, 1, 12, 12), np.float16), gradient]
    output, gradients = plain_with_gradients(arrays, seen)
    assert_is_attention(value[0], output, 2.0**-11)
    assert not value[0][0, 5].any()
    for ours, theirs, bound in zip(value[1:], gradients, gradient_bounds(arrays, seen, 2.0**-11), strict=False):
        assert (np.abs(ours.astype(np.float64) - theirs) <= bound + 2.0**-11 * np.abs(theirs) + 2.0**-24).all()


def test_keys_and_values_may_lie_in_pages(on_cuda):
    """Twelve keys in three blocks of four, in another order for keys than for values."""
    q, k, v, _, _ = problem(np.float16)
    tables = [np.array([[4, 1, 0], [2, 5, 3]], np.int32), np.array([[0, 3, 5], [1, 2, 4]], np.int32)]
    lengths = [np.array([10, 6], np.int32), np.array([11, 4], np.int32)]

    def in_pages(array: Any, table: Any) -> Any:
        container = np.zeros((6, 4, *array.shape[2:]), array.dtype)
        container[table] = array.reshape(2, 3, 4, *array.shape[2:])
        return container

    def fused(q: Any, k: Any, v: Any, query_lengths: Any, key_lengths: Any, *tables: Any) -> Any:
        return library.paged_attention(
            q, k, v, query_lengths, key_lengths, *tables, scale=SCALE, mask_type=MaskType.PADDING
        )

    value = run(
        fused,
        q,
        in_pages(k, tables[0]),
        in_pages(v, tables[1]),
        *lengths,
        *(table[:, None, :, None] for table in tables),
    )
    value = value[0] if isinstance(value, tuple) else value
    seen = visible(10, 12, lengths=lengths)
    assert_is_attention(value, by_jax(plain, *wide(q, k, v), 0.0, seen), 2.0**-11)


def numbers(lhs: int, rhs: int, lhs_batch: Any = (0, 1), rhs_batch: Any = (0, 1)) -> dict[str, Any]:
    return {
        "lhs_contracting_dimensions": [str(lhs)],
        "rhs_contracting_dimensions": [str(rhs)],
        "lhs_batch_dimensions": list(map(str, lhs_batch)),
        "rhs_batch_dimensions": list(map(str, rhs_batch)),
    }


PRODUCTS = {
    "bmm1_dot_dimension_numbers": numbers(3, 3),
    "bmm2_dot_dimension_numbers": numbers(3, 2),
    "bmm1_grad_gemm1_dot_dimension_numbers": numbers(2, 2),
    "bmm1_grad_gemm2_dot_dimension_numbers": numbers(3, 2),
    "bmm2_grad_gemm1_dot_dimension_numbers": numbers(2, 2),
    "bmm2_grad_gemm2_dot_dimension_numbers": numbers(3, 3),
}


def config(**changes: Any) -> dict[str, Any]:
    """A config of the older form."""
    fields = {"algorithm": {"algo_id": "0"}, "fmha_scale": SCALE, "dropout_rate": 0, "seed": "42", **PRODUCTS} | changes
    return {"cudnn_fmha_backend_config": fields}


def older(q: Any, k: Any, v: Any, bias: Any, mask: Any, has_softmax: bool) -> Any:
    """[batch, heads, rows, depth]: output and probabilities."""
    scores = (SCALE * jax.numpy.einsum("bnth,bnsh->bnts", q, k) + bias) * mask
    weights = jax.nn.softmax(scores, -1) if has_softmax else scores
    return jax.numpy.einsum("bnts,bnse->bnte", weights, v), weights


OLDER = {
    "BmmBmm": (),
    "Softmax": (),
    "SoftmaxDropout": (),
    "ScaleBiasSoftmax": ("bias",),
    "ScaleMaskSoftmax": ("mask",),
    "ScaleBiasMaskSoftmax": ("mask", "bias"),
    "ScaleBiasMaskSoftmaxDropout": ("mask", "bias"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("prefix", "name"), [("__cudnn$fmha", name) for name in OLDER] + [("__cudnn$fhma", "Softmax")])
def test_the_older_form_holds_probabilities(name, prefix):
    """f32 throughout. Scores below 16 err by some 8·16·2⁻²⁴; weights relatively as much; outputs and gradients, sums
    of up to 12 terms below 16, by less than 12·16 times that — of BmmBmm, whose weights are below 16, 16 times more."""
    has_softmax = name != "BmmBmm"
    q, k, v, gradient = (
        normal(*size, seed=n) for n, size in enumerate([(2, 3, 6, 8), (2, 3, 9, 8), (2, 3, 9, 4), (2, 3, 6, 4)])
    )
    bias, mask = normal(1, 3, 6, 9, seed=7), (whole(2, 3, 6, 9, seed=8) > -2).astype(np.float32)
    others = {"bias": np.ascontiguousarray(np.broadcast_to(bias, (2, 3, 6, 9))), "mask": mask}
    given = [others[other] for other in OLDER[name]]
    output, scratch, weights = call(
        f"{prefix}{name}", q, k, v, *given, config=config(), result="(f32[2,3,6,4], u8[0], f32[2,3,6,9])"
    )
    mask = mask if "mask" in OLDER[name] else np.ones_like(mask)
    bias = bias if "bias" in OLDER[name] else np.zeros_like(bias)
    (its_output, its_weights), expected = with_gradients_by_jax(
        lambda q, k, v, bias: older(q, k, v, bias, *wide(mask), has_softmax),
        *wide(q, k, v, bias),
        cotangent=(*wide(gradient), np.zeros((2, 3, 6, 9))),
    )
    bound = (1 if has_softmax else 16) * 12 * 16 * 128 * 2.0**-24
    assert (np.abs(output - its_output) <= bound).all()
    assert (np.abs(weights - its_weights) <= bound).all()
    assert scratch.shape == (0,)
    has_bias = "bias" in OLDER[name]
    backward = call(
        f"{prefix}{name}Backward", q, k, v, weights, gradient, *([mask] if "mask" in OLDER[name] else []), config=config(),
        result=f"({shape_of(q)}, {shape_of(k)}, {shape_of(v)}, f32[2,3,6,9], u8[0]{', f32[1,3,6,9]' * has_bias})",
    )  # fmt: skip
    for ours, theirs in zip(backward, expected[:3], strict=False):
        assert (np.abs(ours - theirs) <= bound).all()
    if has_bias:
        assert (np.abs(backward[5] - expected[3]) <= bound).all()
        # The gradient of the scores is the bias's, scaled and not yet summed.
        assert (np.abs(backward[3].sum(0) - SCALE * expected[3][0]) <= bound).all()


def test_products_of_one_batch_dimension_have_no_heads():
    q, k, v = normal(6, 5, 8), normal(6, 7, 8, seed=1), normal(6, 7, 4, seed=2)
    fields = {
        "bmm1_dot_dimension_numbers": numbers(2, 2, (0,), (0,)),
        "bmm2_dot_dimension_numbers": numbers(2, 1, (0,), (0,)),
    }
    output, _ = call("__cudnn$fhmaSoftmax", q, k, v, config=config(**fields), result="(f32[6,5,4], u8[0])")
    expected, _ = by_jax(lambda q, k, v: older(q, k, v, 0.0, 1.0, True), *(array[:, None] for array in wide(q, k, v)))
    assert (np.abs(output - expected[:, 0]) <= 12 * 16 * 128 * 2.0**-24).all()


def flash(**changes: Any) -> dict[str, Any]:
    return config(**({"is_flash_attention": True, "mask_type": "NO_MASK"} | changes))


Q, K, V = normal(2, 3, 6, 8), normal(2, 3, 9, 8, seed=1), normal(2, 3, 9, 4, seed=2)


def test_is_causal_mask_is_a_causal_mask_and_the_policy_reaches_the_products():
    how = {"result": "(f32[2,3,6,4], u8[0])"}
    causal = call("__cudnn$fmhaSoftmax", Q, K, V, config=flash(is_causal_mask=True), **how)[0]
    assert (causal == call("__cudnn$fmhaSoftmax", Q, K, V, config=flash(mask_type="CAUSAL"), **how)[0]).all()
    assert (causal != call("__cudnn$fmhaSoftmax", Q, K, V, config=flash(), **how)[0]).any()
    rounded = call("__cudnn$fmhaSoftmax", Q, K, V, config=flash(), numerics="tf32", **how)[0]
    usual = call("__cudnn$fmhaSoftmax", Q, K, V, config=flash(), **how)[0]
    expected, _ = by_jax(lambda q, k, v: older(q, k, v, 0.0, 1.0, True), *wide(Q, K, V))
    assert (np.abs(usual - expected) <= 12 * 16 * 128 * 2.0**-24).all()
    assert np.abs(rounded - expected).max() > np.abs(usual - expected).max()


@pytest.mark.parametrize(
    ("target", "changes", "reason"),
    [
        ("fmhaSoftmaxDropout", {"dropout_rate": 0.1}, "dropout_rate is 0.1, but the random numbers of cuDNN"),
        ("fmhaSoftmax", {"fmha_scale": "big"}, "fmha_scale of its backend_config must be a number"),
        ("fmhaSoftmax", {"mask_type": "ALIBI"}, "mask_type is ALIBI"),
        ("fmhaSoftmax", {"mask_type": "SOFT"}, "'SOFT'; known are NO_MASK, PADDING"),
        ("fmhaSoftmax", {"is_flash_attention": False, "mask_type": "CAUSAL"}, "without is_flash_attention"),
        ("fmhaSoftmax", {"is_flash_attention": False, "sliding_window_length": 3}, "without is_flash_attention"),
        ("fmhaScaleMaskSoftmax", {}, "not flash attention, but has is_flash_attention"),
        ("fmhaScaleBiasSoftmax", {"max_seg_per_batch": 2}, "a bias together with max_seg_per_batch of 2"),
        ("fmhaSoftmax", {"is_paged_attention": True, "max_seg_per_batch": 2}, "is_paged_attention together with"),
        ("fmhaSoftmax", {"sink_token": 1}, "the field sink_token"),
        ("fmhaSoftmax", {"bmm1_dot_dimension_numbers": None}, "lacks bmm1_dot_dimension_numbers"),
        ("fmhaSoftmax", {"bmm1_dot_dimension_numbers": 3}, "must be an object"),
        ("fmhaSoftmax", {"bmm2_dot_dimension_numbers": numbers(3, 1)}, "one contracting dimension"),
        ("fmhaSoftmax", {"bmm2_dot_dimension_numbers": {"rhs_batch_dimensions": "ab"}}, "list of whole numbers"),
        ("fmhaSoftmax", {"sliding_window_length": 1.5}, "sliding_window_length of its backend_config must be a whole"),
        ("fmhaSoftmax", {"is_flash_attention": "yes"}, "must be true or false"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(target, changes, reason):
    text = module(f"__cudnn${target}", Q, K, V, result="(f32[2,3,6,4], u8[0])", config=flash(**changes))
    with pytest.raises((UnsupportedError, VerificationError), match=reason):
        hloexec.run(hloexec.parse(text), Q, K, V)


def test_a_modifier_of_scores_is_refused():
    text = module("__cudnn$fmhaSoftmax", Q, K, V, result="(f32[2,3,6,4], u8[0])", config=flash())
    text = text.replace("ENTRY", "change {\n  ROOT a = f32[] parameter(0)\n}\n\nENTRY")
    text = text.replace(", custom_call_target=", ", called_computations={change}, custom_call_target=")
    with pytest.raises(UnsupportedError, match="calls a computation"):
        hloexec.run(hloexec.parse(text), Q, K, V)


@pytest.mark.parametrize(
    ("target", "sizes", "changes", "result", "message"),
    [
        ("fmhaSoftmax", "2,3,6,8 2,3,9,8", {}, "f32[2,3,6,4]", "operands queries, keys, values, but has 2"),
        ("fmhaSoftmax", "2,3,6,8 2,2,9,8 2,2,9,4", {}, "f32[2,3,6,4]", "do not fit each other"),
        ("fmhaSoftmax", "2,3,6,8 2,3,9,7 2,3,9,4", {}, "f32[2,3,6,4]", "do not fit each other"),
        ("fmhaSoftmax", "2,3,6 2,3,9,8 2,3,9,4", {}, "f32[2,3,6,4]", "must have 4 dimensions"),
        ("fmhaSoftmax", "2,3,6,8 2,3,9,8 2,3,9,4", {}, "f32[2,3,4,6]", r"f32\[2,3,6,4\]"),
        ("fmhaSoftmax", "2,3,6,8 2,3,9,8 2,3,9,4", {}, "f32[2,3,6,4], f32[2,3,5]", r"f32\[2,3,6\]"),
        (
            "fmhaSoftmax",
            "2,3,6,8 2,3,9,8 2,3,9,4",
            {"mask_type": "PADDING"},
            "f32[2,3,6,4]",
            "lengths",
        ),
        (
            "fmhaScaleBiasSoftmax",
            "2,3,6,8 2,3,9,8 2,3,9,4 2,3,9,6",
            {},
            "f32[2,3,6,4]",
            "bias of the attention must broadcast",
        ),
        (
            "fmhaSoftmaxBackward",
            "2,3,6,8 2,3,9,8 2,3,9,4 2,3,5 2,3,6,4 2,3,6,4",
            {},
            "f32[2,3,6,8], f32[2,3,9,8], f32[2,3,9,4]",
            "what forward left",
        ),
        (
            "fmhaSoftmaxBackward",
            "2,3,6,8 2,3,9,8 2,3,9,4 2,3,6 2,3,6,5 2,3,6,4",
            {},
            "f32[2,3,6,8], f32[2,3,9,8], f32[2,3,9,4]",
            "output gradient of the attention",
        ),
        (
            "fmhaSoftmaxBackward",
            "2,3,6,8 2,3,9,8 2,3,9,4 2,3,6 2,3,6,4 2,3,6,4",
            {},
            "f32[2,3,6,8], f32[2,3,9,8]",
            "3 results and scratch memory",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(target, sizes, changes, result, message):
    operands = [normal(*map(int, size.split(","))) for size in sizes.split()]
    text = module(f"__cudnn${target}", *operands, result=f"({result}, u8[0])", config=flash(**changes))
    with pytest.raises(VerificationError, match=message):
        hloexec.verify(hloexec.parse(text))


def test_lengths_and_pages_out_of_range_do_no_harm():
    """Lengths are cut to what there is, block numbers to the blocks."""
    lengths = np.array([-3, 100], np.int32)
    padded = call(
        "__cudnn$fmhaSoftmax", Q, K, V, lengths, lengths, config=flash(mask_type="PADDING"),
        result="(f32[2,3,6,4], u8[0])",
    )[0]  # fmt: skip
    assert not padded[0].any()
    assert (
        padded[1] == call("__cudnn$fmhaSoftmax", Q, K, V, config=flash(), result="(f32[2,3,6,4], u8[0])")[0][1]
    ).all()
    table = np.array([[[[-7]]], [[[99]]]], np.int32)
    paged = call(
        "__cudnn$fmhaSoftmax", Q, K, V, np.full(2, 6, np.int32), np.full(2, 9, np.int32), table, table,
        config=flash(is_paged_attention=True), result="(f32[2,3,6,4], u8[0])",
    )[0]  # fmt: skip
    assert (np.isfinite(paged)).all()


def test_every_target_is_registered():
    from hloexec.ops.registry import find_custom_call

    for target in KINDS:
        entry = find_custom_call(target)
        assert entry is not None, target
        assert entry.infer is not None
        assert re.search("Source:", entry.documentation)


def test_a_config_of_a_string_is_read_too():
    """Dumps of 2023 hold the inner object alone, quoted."""
    inner = json.dumps(config()["cudnn_fmha_backend_config"])
    text = module("__cudnn$fhmaSoftmax", Q, K, V, result="(f32[2,3,6,4], u8[0])", config=json.dumps(inner))
    value = hloexec.run(hloexec.parse(text), Q, K, V)[0]
    assert (value == call("__cudnn$fhmaSoftmax", Q, K, V, config=config(), result="(f32[2,3,6,4], u8[0])")[0]).all()


def test_calls_with_too_few_operands_are_errors_and_no_crashes():
    from hloexec.ops.library_calls.cudnn.attention import Attention
    from hloexec.ops.library_calls.cudnn.attention_parts import attention_config
    from hloexec.ops.policies.policy import REFERENCE

    parsed = hloexec.parse(module("__cudnn$fmhaSoftmax", Q, K, V, result="(f32[2,3,6,4], u8[0])", config=flash()))
    root = parsed.entry.root
    with pytest.raises(EvaluationError, match="operands queries, keys, values, but has 1"):
        Attention.evaluate(Q, config=attention_config(root), shape=root.shape, numerics=REFERENCE)


def test_attention_of_integers_is_refused():
    operands = [np.ones(array.shape, np.int32) for array in (Q, K, V)]
    text = module("__cudnn$fmhaSoftmax", *operands, result="(s32[2,3,6,4], u8[0])", config=flash())
    with pytest.raises(VerificationError, match="must be floating-point numbers"):
        hloexec.verify(hloexec.parse(text))
