"""Transformer Engine's fused attention against softmax attention as JAX computes and differentiates it in f64.

Bounds: with u = 2⁻²⁴, a score is off by at most δ = (d + 3) u scale Σ|q k| + 2u |bias|; a probability, which depends on
two sums of exponentials, relatively by ρ = 2 max δ + (t + 8 + |lse|) u, with the largest δ of its query; and the rest
follows by linearity, as the probabilities of a query add up to one.
"""

import functools
from functools import cache
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.cell import shape_of
from hloexec.core.dtypes import element_type_of
from tests.drawing import examples
from tests.library_calls.calls import HALF_ULP, U32, by_jax, numbers, refusal, run_call, wide, within

jax = pytest.importorskip("jax", reason="JAX computes the expected values")
jnp = pytest.importorskip("jax.numpy")

MASKS = {"none": 0, "padding": 1, "causal": 2, "padding causal": 3, "causal bottom": 4, "padding causal bottom": 5}
ATTRIBUTES = {
    "attn_heads": 4, "bias_batch": 0, "bias_heads": 0, "bias_type": 0, "deterministic": False,
    "dropout_probability": 0.0, "input_batch": 2, "is_training": True, "kv_max_seqlen": 7, "mask_type": 2,
    "max_segments_per_seq": 1, "num_gqa_groups": 2, "q_max_seqlen": 5, "qk_head_dim": 8, "qkv_layout": 9,
    "scaling_factor": 0.35355339059327379, "v_head_dim": 8, "window_size_left": -1, "window_size_right": -1,
}  # fmt: skip


@attrs.frozen
class Case:
    """Queries [b, s, h, d], keys and values, one mask [b, s, t] of what is seen, and the scale."""

    q: Any
    k: Any
    v: Any
    seen: Any
    scale: float = ATTRIBUTES["scaling_factor"]
    bias: Any = None
    bias_first: bool = False
    sink: Any = None


def oracle(
    bias_first: bool, scale: Any, seen: Any, q: Any, k: Any, v: Any, bias: Any, sink: Any = None
) -> tuple[Any, Any]:
    """The output and the log-sum-exps [b, h, s]; a query that sees nothing gives 0 and −∞."""
    rep = q.shape[2] // k.shape[2]
    products = jnp.einsum("bshd,bthd->bhst", q, jnp.repeat(k, rep, 2))
    scores = scale * (products + bias) if bias_first else scale * products + bias
    seen = seen[:, None]
    anything = seen.any(-1) | (sink is not None)
    scores = jnp.where(seen, scores, -jnp.inf)
    if sink is not None:
        scores = jnp.concatenate([scores, jnp.broadcast_to(sink[None, :, None, None], (*scores.shape[:3], 1))], -1)
    sums = jax.nn.logsumexp(jnp.where(anything[..., None], scores, 0), -1)
    weights = jnp.where(anything[..., None], jnp.exp(scores - sums[..., None]), 0)[..., : k.shape[1]]
    return jnp.einsum("bhst,bthe->bshe", weights, jnp.repeat(v, rep, 2)), jnp.where(anything, sums, -jnp.inf)


@cache
def differentiated(bias_first: bool) -> Any:
    """One function for all masks, so that it is compiled once."""

    def both(cotangent: Any, scale: Any, seen: Any, *given: Any) -> Any:
        output, pull, sums = jax.vjp(functools.partial(oracle, bias_first, scale, seen), *given, has_aux=True)
        return output, sums, pull(cotangent)

    return both


def expected(case: Case, cotangent: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """The output, the log-sum-exps and the gradients in f64."""
    bias = np.zeros((1, 1, case.q.shape[1], case.k.shape[1])) if case.bias is None else case.bias
    given = [wide(x) for x in (case.q, case.k, case.v, bias, case.sink) if x is not None]
    return by_jax(differentiated(case.bias_first), wide(cotangent), case.scale, case.seen, *given)


def bounds(case: Case, sums: Any, cotangent: Any, name: str, rounded: Any = 0.0, unit: float = U32) -> dict[str, Any]:
    """Of the error before the last rounding, by the derivation above; `rounded` is that of the probabilities that the
    gradients start from, beside ρ, and `unit` u."""
    q, k, v, o = (np.abs(wide(x)) for x in (case.q, case.k, case.v, cotangent))
    s, t, d, e, rep = q.shape[1], k.shape[1], q.shape[3], v.shape[3], q.shape[2] // k.shape[2]
    keys, values = np.repeat(k, rep, 2), np.repeat(v, rep, 2)
    factor = max(1.0, case.scale)
    score = (d + 3) * unit * case.scale * np.einsum("bshd,bthd->bhst", q, keys)
    if case.bias is not None:
        score = score + 2 * unit * factor * np.abs(wide(case.bias))
    # Of each query of each head: [b, s, h, 1].
    score = score.max(-1).transpose(0, 2, 1)[..., None]
    seen = np.where(np.isfinite(sums), np.abs(sums), 0).transpose(0, 2, 1)[..., None]
    relative = 2 * score + (t + 8 + seen) * unit
    # dP is at most m; dP - D is off by its own sum's error, D's, and the rounding of the output that D is made of.
    m = np.einsum("bshe,bthe->bsht", o, values).max(-1, keepdims=True)
    delta = 2 * m * (relative + 2 * rounded) + 4 * (e + 2) * unit * m + HALF_ULP[name] * m

    def off(terms: int) -> Any:
        """A sum of so many elements of dS."""
        return delta + 2 * m * (terms + 2) * unit

    def grouped(terms: Any) -> Any:
        """Summed over queries, and over the heads that share one of the keys'."""
        return terms.sum(1, keepdims=True).reshape(len(q), 1, -1, rep, terms.shape[3]).sum(3)

    rows = s * rep
    return {
        "score": score[..., 0].transpose(0, 2, 1),
        "output": (relative + t * unit) * values.max(1, keepdims=True),
        "q": case.scale * keys.max(1, keepdims=True) * off(t),
        "k": case.scale * grouped(q * off(rows)) + 0 * k,
        "v": grouped(o * (relative + rounded + (rows + 1) * unit)) + 0 * v,
        "bias": factor * off(len(q) * rows).sum((0, 2))[:, 0, None],
        "sink": off(len(q) * s).sum((0, 1))[:, 0],
    }


def seen(mask: str, queries: list[int], keys: list[int], s: int, t: int, left: int = -1, right: int = -1) -> Any:
    """[b, s, t]: which keys the queries see, from the definition of each mask, element by element."""
    found = np.zeros((len(queries), s, t), np.bool_)
    for b, (n, m) in enumerate(zip(queries, keys, strict=True)):
        if "padding" not in mask:
            n, m = s, t
        for i in range(n):
            for j in range(m):
                distance = j - i - (m - n if "bottom" in mask else 0)
                found[b, i, j] = (
                    ("causal" not in mask or distance <= 0)
                    and (left < 0 or distance >= -left)
                    and (right < 0 or distance <= right or "causal" in mask)
                )
    return found


def packed(q: Any, k: Any, v: Any, layout: int) -> tuple[Any, Any, Any]:
    nothing = np.zeros(0, q.dtype)
    if layout in (5, 10):
        return np.stack([q, k, v], -3), nothing, nothing
    if layout in (7, 12):
        return q, np.stack([k, v], -3), nothing
    return q, k, v


def lengths(sizes: list[int]) -> Any:
    return np.cumsum([0, *sizes]).astype(np.int32)


def check(
    case: Case,
    name: str,
    tail: list[Any],
    arrays: tuple[Any, ...] | None = None,
    auxiliary: str | None = None,
    **changes: Any,
) -> None:
    """Forward and backward through their calls, against f64."""
    arrays = arrays or (case.q, case.k, case.v)
    auxiliary = auxiliary or sums_shape(case.q)
    attributes = ATTRIBUTES | {"scaling_factor": case.scale} | changes
    newer = "softmax_type" in changes
    bias = np.zeros(0, case.q.dtype) if case.bias is None else case.bias
    sink = np.zeros(0, np.float32) if case.sink is None else case.sink.reshape(1, -1, 1, 1)
    head = [*arrays, bias, *([sink] if newer else [])]
    seed = np.array([7, 9], np.uint32)
    out_shape = (*case.q.shape[:3], case.v.shape[3])
    cotangent = numbers(99, out_shape, name)
    wanted, sums, gradients = expected(case, cotangent)
    bound = bounds(case, sums, cotangent, name)
    results = [f"{name}[{','.join(map(str, out_shape))}]", auxiliary, "u32[2,4]", "u8[16]"]
    operands = [*head, *tail, seed] if len(tail) == 4 else [*head, seed, *tail]
    output, left, state, workspace = run_call("te_fused_attn_forward_ffi", operands, results, attributes)
    within(output, wanted, name, bound["output"])
    assert state.reshape(-1).tolist() == [7, 9, 0, 0, 0, 0, 0, 0] and not workspace.any()
    if auxiliary.startswith("f32") and left.shape[-1] == 1 and left.shape[1] == sums.shape[1]:
        finite = np.isfinite(sums)
        assert (np.isfinite(left[..., 0]) == finite).all()
        bound_of_sums = bound["score"][finite] + (case.k.shape[1] + 8) * U32 * (1 + np.abs(sums[finite]))
        assert (np.abs(left[..., 0][finite] - sums[finite]) <= bound_of_sums).all()
    given = [*head, left, state, output, cotangent, *tail]
    shapes = [shape_of(array) for array in head] + ["u8[0]"]
    found = run_call("te_fused_attn_backward_ffi", given, shapes, attributes)
    layout = changes.get("qkv_layout", 9)
    packed_bounds = packed(*(bound[key] for key in "qkv"), layout)
    for ours, theirs, limit in zip(found, packed(*gradients[:3], layout), packed_bounds, strict=False):
        within(ours, theirs, name, limit)
    if case.bias is not None:
        within(found[3], gradients[3], name, bound["bias"])
    if changes.get("softmax_type") == 2:
        within(found[4].reshape(-1), gradients[4], "f32", bound["sink"])


def sums_shape(q: Any) -> str:
    b, s, h, _ = q.shape
    return f"f32[{b},{h},{s},1]"


def drawn(name: str = "f32", b: int = 2, s: int = 5, t: int = 7, h: int = 4, g: int = 2, d: int = 8, e: int = 6) -> Any:
    """Queries, keys and values."""
    return numbers(1, (b, s, h, d), name), numbers(2, (b, t, g, d), name), numbers(3, (b, t, g, e), name)


def plain_tail(queries: list[int], keys: list[int]) -> list[Any]:
    nothing = np.zeros(0, np.float32)
    return [lengths(queries), lengths(keys), *[nothing] * 6]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        *((name, -1, -1) for name in ("f32", "bf16", "f16")),
        *(("f32", *ends) for ends in ((2, 0), (0, -1), (1, 2), (-1, 1))),
    ],
)
@pytest.mark.parametrize("mask", MASKS)
def test_masks_and_windows_bound_the_keys_forward_and_backward(mask, name, left, right):
    queries, keys = [5, 3], [7, 2]
    q, k, v = drawn(name)
    case = Case(q, k, v, seen(mask, queries, keys, 5, 7, left, right))
    window = {"window_size_left": left, "window_size_right": right} if (left, right) != (-1, -1) else {}
    check(case, name, plain_tail(queries, keys), mask_type=MASKS[mask], **window)


def test_versions_before_2_have_the_seed_behind_the_offsets():
    queries, keys = [5, 3], [7, 2]
    case = Case(*drawn("bf16"), seen("padding causal", queries, keys, 5, 7))
    check(case, "bf16", plain_tail(queries, keys)[:4], mask_type=3)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("layout", "groups"), [(5, 4), (7, 2), (9, 2)])
def test_queries_keys_and_values_may_lie_in_one_array(layout, groups):
    b, s, h, d = 2, 5, 4, 8
    q, k, v = (numbers(n, (b, s, h if n == 1 else groups, d), "bf16") for n in (1, 2, 3))
    case = Case(q, k, v, seen("causal", [s] * b, [s] * b, s, s))
    check(case, "bf16", plain_tail([s] * b, [s] * b), packed(q, k, v, layout), qkv_layout=layout)


@pytest.mark.sampled(2)
@pytest.mark.slow_cases("dims3-False")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dims", [(1, 1), (1, 4), (2, 1), (2, 4)])
def test_a_bias_is_added_before_or_after_the_scale_and_broadcast(first, dims):
    q, k, v = drawn()
    case = Case(q, k, v, seen("padding", [5, 3], [7, 2], 5, 7), bias=numbers(4, (*dims, 5, 7)), bias_first=first)
    check(
        case, "f32", plain_tail([5, 3], [7, 2]), mask_type=1, bias_type=1 if first else 2, bias_batch=dims[0], bias_heads=dims[1],
    )  # fmt: skip


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_the_newer_softmaxes_add_a_key_of_value_zero(kind):
    sink = {0: None, 1: np.zeros(4, np.float32), 2: numbers(5, (4,))}[kind]
    case = Case(*drawn(), seen("causal", [5, 5], [7, 7], 5, 7), sink=sink)
    check(case, "f32", plain_tail([5, 5], [7, 7]), softmax_type=kind, bottom_right_diagonal=False)


@pytest.mark.slow
def test_the_backend_for_short_sequences_leaves_probabilities():
    b, s, t, h, d = 2, 4, 6, 2, 8
    q, k, v = (numbers(n, (b, s if n == 1 else t, h, d), "f16") for n in (1, 2, 3))
    case = Case(q, k, v, seen("padding causal", [4, 3], [6, 2], s, t))
    attributes = ATTRIBUTES | {"mask_type": 3, "head_dim": 8}
    head, tail = [q, k, v, np.zeros(0, np.float16)], plain_tail([4, 3], [6, 2])
    shapes = [f"f16[{b},{s},{h},{d}]", f"f16[{b},{h},{s},{t}]", "u32[1,4]", "u8[0]"]
    seed = np.zeros(2, np.uint32)
    output, left, state, _ = run_call("te_fused_attn_forward_ffi", [*head, seed, *tail], shapes, attributes)
    cotangent = numbers(9, (b, s, h, d), "f16")
    wanted, sums, gradients = expected(case, cotangent)
    bound = bounds(case, sums, cotangent, "f16")
    within(output, wanted, "f16", bound["output"])
    expanded = np.repeat(case.seen[:, None], h, 1)
    assert (left[~expanded] == 0).all()
    rows = expanded.any(-1)
    # Each of t probabilities is rounded once.
    assert np.abs(left.astype(np.float64).sum(-1) - 1)[rows].max() <= 2 * t * HALF_ULP["f16"]
    found = run_call(
        "te_fused_attn_backward_ffi", [*head, left, state, output, cotangent, *tail],
        [*map(shape_of, head), "u8[0]"], attributes,
    )  # fmt: skip
    # The probabilities were rounded to f16, relatively by 2⁻¹¹ (or absolutely by 2⁻²⁵, below its normal numbers).
    bound = bounds(case, sums, cotangent, "f16", rounded=HALF_ULP["f16"] + t * 2.0**-25)
    for ours, theirs, key in zip(found, gradients[:3], "qkv", strict=False):
        within(ours, theirs, "f16", bound[key])


@pytest.mark.sampled(20)
@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("layout", [10, 12, 14])
@pytest.mark.parametrize("mask", ["padding", "padding causal", "padding causal bottom"])
def test_packed_sequences_attend_to_themselves_alone(layout, by_tokens, mask):
    """Two rows of 8: sequences of 3 and 4, then of 2; keys of the last start after a gap."""
    b, s, h, d, most = 2, 8, 2, 4, 3
    g = h if layout == 10 else 1
    q, k, v = (numbers(n, (b, s, h if n == 1 else g, d)) for n in (1, 2, 3))
    sizes, starts = [3, 4, 2, 0, 0, 0], [0, 3, 9, 16, 16, 16]
    visible = np.zeros((b, s, s), np.bool_)
    for size, start in zip(sizes, starts, strict=True):
        row, at = divmod(start, s)
        if size:
            visible[row, at : at + size, at : at + size] = seen(mask, [size], [size], size, size)[0]
    offsets = np.array(starts, np.int32)
    tail = [lengths(sizes), lengths(sizes), offsets, offsets, *[np.zeros(0, np.int32)] * 4]
    auxiliary = f"f32[{b},{s},{h},1]" if by_tokens else f"f32[{b},{h},{s},{most}]"
    changes = {"qkv_layout": layout, "mask_type": MASKS[mask], "max_segments_per_seq": most}
    check(Case(q, k, v, visible), "f32", tail, packed(q, k, v, layout), auxiliary, **changes)


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_any_lengths_masks_and_windows(data):
    """More queries than keys and the other way round, empty sequences, windows that hide everything."""
    b, s, t = data.draw(st.sampled_from([(2, 3, 6), (1, 6, 3)]), label="sizes")
    mask = data.draw(st.sampled_from(sorted(MASKS)), label="mask")
    queries = data.draw(st.lists(st.integers(0, s), min_size=b, max_size=b), label="lengths of queries")
    keys = data.draw(st.lists(st.integers(0, t), min_size=b, max_size=b), label="lengths of keys")
    left, right = (data.draw(st.integers(-1, 4), label=name) for name in ("left", "right"))
    case = Case(*drawn("f32", b, s, t, 2, 1, 3, 2), seen(mask, queries, keys, s, t, left, right))
    window = {"window_size_left": left, "window_size_right": right}
    check(case, "f32", plain_tail(queries, keys), mask_type=MASKS[mask], **window)


def test_several_batch_dimensions_are_one_batch():
    q, k, v = numbers(1, (4, 5, 2, 4)), numbers(2, (4, 5, 2, 4)), numbers(3, (4, 5, 2, 4))
    tail = plain_tail([5] * 4, [5] * 4)
    bias, seed = np.zeros(0, np.float32), np.zeros(2, np.uint32)
    flat = run_call(
        "te_fused_attn_forward_ffi", [q, k, v, bias, seed, *tail],
        "f32[4,5,2,4] f32[4,2,5,1] u32[1,4] u8[1]".split(), ATTRIBUTES,
    )  # fmt: skip
    nested = run_call(
        "te_fused_attn_forward_ffi", [*(x.reshape(1, 4, 5, 2, 4) for x in (q, k, v)), bias, seed, *tail],
        "f32[1,4,5,2,4] f32[1,4,2,5,1] u32[1,4] u8[1]".split(), ATTRIBUTES,
    )  # fmt: skip
    assert (flat[0] == nested[0][0]).all() and (flat[1] == nested[1][0]).all()


def test_tiles_of_queries_do_not_change_what_is_computed(monkeypatch):
    case = Case(*drawn(), seen("causal", [5, 5], [7, 7], 5, 7), bias=numbers(4, (1, 4, 5, 7)))
    monkeypatch.setattr("hloexec.ops.library_calls.activations._MOST_SCORES", 4 * 7 * 2)
    check(case, "f32", plain_tail([5, 5], [7, 7]), bias_type=2)


def forward_operands(name: str = "bf16") -> tuple[list[Any], list[str]]:
    x = numbers(1, (2, 5, 2, 4), name)
    operands = [x, x, x, np.zeros(0, x.dtype), np.zeros(2, np.uint32), *plain_tail([5, 5], [5, 5])]
    return operands, [shape_of(x), "f32[2,2,5,1]", "u32[1,4]", "u8[1]"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dropout_probability": 0.1}, "dropout_probability is 0.1"),
        ({"qkv_layout": 4}, "qkv_layout is 4"),
        ({"qkv_layout": 19}, "qkv_layout is 19"),
        ({"mask_type": 9}, "mask_type is 9"),
        ({"bias_type": 3}, "bias_type is 3"),
        ({"softmax_type": 3}, "softmax_type is 3"),
        ({"return_max_logit": True}, "return_max_logit"),
        ({"bias_type": 2, "qkv_layout": 14}, "bias_type"),
        ({"softcap": 30.0}, "the attribute softcap"),
        ({"mask_type": "causal"}, "mask_type must be a whole number"),
        ({"scaling_factor": True}, "scaling_factor must be a number"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(changes, words):
    operands, results = forward_operands()
    assert words in refusal("te_fused_attn_forward_ffi", operands, results, ATTRIBUTES | changes)


def test_attributes_that_decide_values_must_be_there():
    operands, results = forward_operands()
    for name in "mask_type qkv_layout scaling_factor bias_type dropout_probability".split():
        attributes = {key: value for key, value in ATTRIBUTES.items() if key != name}
        assert f"lacks the attribute {name}" in refusal("te_fused_attn_forward_ffi", operands, results, attributes)


def test_attention_in_eight_bits_is_refused():
    operands, results = forward_operands("f8e4m3fn")
    assert "f8e4m3fn" in refusal("te_fused_attn_forward_ffi", operands, results, ATTRIBUTES)


def wrong(index: int, array: Any) -> tuple[list[Any], list[str]]:
    operands, results = forward_operands()
    operands[index] = array
    return operands, results


@pytest.mark.parametrize(
    ("operands", "results", "words"),
    [
        (*wrong(1, numbers(1, (2, 5, 3, 4), "bf16")), "heads a multiple of groups"),
        (*wrong(1, numbers(1, (3, 5, 2, 4), "bf16")), "keys [batch..., t, groups, d]"),
        (*wrong(2, numbers(1, (2, 6, 2, 4), "bf16")), "values [batch..., t, groups, e]"),
        (*wrong(0, numbers(1, (5, 4), "bf16")), "queries must be"),
        (forward_operands()[0], [*forward_operands()[1][:1], "f32[2,5,5,1]", "u32[1,4]", "u8[1]"], "auxiliary array"),
        (forward_operands()[0], forward_operands()[1][:2], "4 results"),
        (forward_operands()[0][:6], forward_operands()[1], "at least 9 operands"),
        (forward_operands()[0], ["bf16[2,5,2,3]", *forward_operands()[1][1:]], "bf16[2,5,2,4]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(operands, results, words):
    assert words in refusal("te_fused_attn_forward_ffi", operands, results, ATTRIBUTES)


def test_lengths_that_do_not_fit_are_refused():
    for sums in ([0, 5], [0, 6, 11], [0, 5, 2**31 - 1]):
        operands, results = wrong(5, np.array(sums, np.int32))
        message = refusal("te_fused_attn_forward_ffi", operands, results, ATTRIBUTES | {"mask_type": 1})
        assert "running sums" in message or "takes elements" in message


@pytest.mark.slow_cases("f32")
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_the_exact_policy_rounds_once(name):
    """f64 leaves 10⁻¹³ of scores and values of a few units."""
    b, s, t, h, e = 2, 5, 7, 4, 6
    q, k, v = drawn(name)
    case = Case(q, k, v, seen("causal", [s] * b, [t] * b, s, t), sink=numbers(5, (h,)))
    head = [q, k, v, np.zeros(0, q.dtype), case.sink.reshape(1, h, 1, 1)]
    results = [f"{name}[{b},{s},{h},{e}]", f"f32[{b},{h},{s},1]", "u32[1,4]", "u8[0]"]
    operands = [*head, np.zeros(2, np.uint32), *plain_tail([s] * b, [t] * b)]
    attributes = ATTRIBUTES | {"softmax_type": 2, "bottom_right_diagonal": False}
    output, sums, state, _ = run_call("te_fused_attn_forward_ffi", operands, results, attributes, numerics="exact")
    cotangent = numbers(9, output.shape, name)
    wanted, wanted_sums, gradients = expected(case, cotangent)
    within(output, wanted, name, 1e-13)
    within(sums[..., 0], wanted_sums, "f32", 1e-13)
    given = [*head, sums, state, output, cotangent, *operands[6:]]
    found = run_call("te_fused_attn_backward_ffi", given, [*map(shape_of, head), "u8[0]"], attributes, numerics="exact")
    # What forward left was rounded: probabilities are off by |lse| u, dS by that and by u of the output's type.
    left = U32 * np.abs(wanted_sums).transpose(0, 2, 1)[..., None]
    bound = bounds(case, wanted_sums, cotangent, name, rounded=left, unit=HALF_ULP["f64"])
    for ours, theirs, key in zip(found, gradients, ("q", "k"), strict=False):
        within(ours, theirs, name, bound[key])
    within(found[4].reshape(-1), gradients[4], "f32", bound["sink"])


def test_the_bf16_policy_rounds_the_probabilities_too():
    """As the hardware does: what is multiplied by bf16 values is bf16 itself."""
    operands, results = forward_operands()
    texts = {policy: run_call("te_fused_attn_forward_ffi", operands, results, ATTRIBUTES, numerics=policy)[0]
             for policy in ("reference", "bf16")}  # fmt: skip
    difference = np.abs(wide(texts["bf16"]) - wide(texts["reference"]))
    # Probabilities add up to one, so that roundings of theirs and of the result are some of the largest value of a head.
    largest = np.abs(wide(operands[2])).max(1, keepdims=True)
    assert (difference <= 4 * HALF_ULP["bf16"] * np.repeat(largest, difference.shape[2] // largest.shape[2], 2)).all()
    assert element_type_of(texts["bf16"].dtype).name == "bf16"
