"""cuDNN's convolutions against the convolution instructions that they stand for, run by XLA:CPU, and their gradients."""

import json
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from conformance.cell import shape_of
from hloexec.errors import EvaluationError, UnsupportedError, VerificationError
from hloexec.ops.library_calls.cudnn import convolutions, geometry
from tests.drawing import normal
from tests.library_calls.calls import with_gradients_by_jax
from tests.library_calls.cudnn.modules import call, module, whole

xla = pytest.importorskip("conformance.xla")


def config(**changes: Any) -> dict[str, Any]:
    fields = {
        "algorithm": {"algo_id": "0", "math_type": "TENSOR_OP_MATH", "is_cudnn_frontend": True},
        "activation_mode": "kNone",
        "conv_result_scale": 1,
        "side_input_scale": 0,
        "leakyrelu_alpha": 0,
    }
    return {"operation_queue_id": "0", "cudnn_conv_backend_config": fields | changes}


# Window and feature groups, labels, the dimensions of x, w and y.
GEOMETRIES = {
    "2d": ("size=3x2 pad=1_1x0_1", "b01f_01io->b01f", 1, (2, 6, 5, 4), (3, 2, 4, 5), (2, 6, 5, 5)),
    "strided": ("size=3x3 stride=2x2 pad=0_1x1_1", "bf01_oi01->bf01", 1, (2, 3, 8, 7), (4, 3, 3, 3), (2, 4, 4, 4)),
    "dilated": ("size=2x3 pad=2_2x1_0 rhs_dilate=3x2", "b01f_o01i->b01f", 1, (1, 7, 9, 2), (3, 2, 3, 2), (1, 8, 6, 3)),
    "grouped": ("size=3x3 stride=1x2 pad=1_1x1_1", "b01f_01io->b01f", 3, (2, 5, 6, 6), (3, 3, 2, 9), (2, 5, 3, 9)),
    "depthwise": ("size=3 pad=1_1", "b0f_0io->b0f", 4, (2, 5, 4), (3, 1, 8), (2, 5, 8)),
    "turned": ("size=3x2 stride=2x1 rhs_reversal=1x1", "b01f_01io->b01f", 1, (2, 7, 5, 3), (3, 2, 3, 4), (2, 3, 4, 4)),
    "3d": ("size=2x2x2 stride=1x2x1", "b012f_012io->b012f", 1, (1, 3, 5, 4, 2), (2, 2, 2, 2, 3), (1, 2, 2, 3, 3)),
}


def attributes(name: str) -> str:
    window, labels, groups = GEOMETRIES[name][:3]
    return f"window={{{window}}}, dim_labels={labels}" + f", feature_group_count={groups}" * (groups > 1)


def expected(x: Any, w: Any, y: str, name: str) -> Any:
    """The convolution, by XLA:CPU."""
    text = f"""HloModule m

ENTRY e {{
  x = {shape_of(x)} parameter(0)
  w = {shape_of(w)} parameter(1)
  ROOT y = {y} convolution(x, w), {attributes(name)}
}}
"""
    return xla.run_hlo(text, x, w)[0]


def dims(sizes: tuple[int, ...], element: str = "f32") -> str:
    return f"{element}[{','.join(map(str, sizes))}]"


def tupled(shape: str) -> str:
    return f"({shape}, u8[16])"


@pytest.mark.parametrize("name", GEOMETRIES)
def test_forward_is_the_convolution(name):
    x, w = whole(*GEOMETRIES[name][3]), whole(*GEOMETRIES[name][4], seed=1)
    y = dims(GEOMETRIES[name][5])
    value, scratch = call("__cudnn$convForward", x, w, result=tupled(y), config=config(), attributes=attributes(name))
    assert (value == expected(x, w, y, name)).all()
    assert scratch.shape == (16,)
    assert not scratch.any()


def forward_and_gradient(name: str, seed: int) -> tuple[Any, Any, Any]:
    """x, w and dy, whole numbers."""
    sizes = GEOMETRIES[name]
    return whole(*sizes[3], seed=seed), whole(*sizes[4], seed=seed + 1), whole(*sizes[5], seed=seed + 2)


@pytest.mark.slow_cases("1-dilated", "1-turned")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("position", [0, 1])
def test_a_gradient_is_the_adjoint_of_the_forward_convolution(name, position):
    """⟨dy, conv(x, w)⟩ = ⟨dx, x⟩ = ⟨dw, w⟩, whole numbers throughout; for a basis of x or of w this defines dx and dw.

    Several random x or w stand for a basis: an error in any element of the gradient shows in each of them unless its
    sum with random coefficients happens to be 0.
    """
    x, w, dy = forward_and_gradient(name, 1)
    y = dims(GEOMETRIES[name][5])
    if position == 0:
        gradient, _ = call(
            "__cudnn$convBackwardInput",
            dy, w, result=tupled(shape_of(x)), config=config(), attributes=attributes(name),
        )  # fmt: skip
    else:
        gradient, _ = call(
            "__cudnn$convBackwardFilter",
            x, dy, result=tupled(shape_of(w)), config=config(), attributes=attributes(name),
        )  # fmt: skip
    for seed in range(10, 14):
        other = whole(*(x, w)[position].shape, seed=seed)
        forward = expected(other, w, y, name) if position == 0 else expected(x, other, y, name)
        assert np.vdot(dy, forward) == np.vdot(gradient, other)


@pytest.mark.parametrize("name", "2d strided dilated grouped depthwise 3d".split())
def test_gradients_are_jaxs(name):
    """Sums of whole numbers are exact, so the gradients are equal."""
    jax = pytest.importorskip("jax")
    _, labels, groups = GEOMETRIES[name][:3]
    x, w, dy = forward_and_gradient(name, 3)
    window = hloexec.parse(
        module("__cudnn$convForward", x, w, result=tupled(shape_of(dy)), config=config(), attributes=attributes(name))
    ).entry.root.attributes.window
    lhs, rest = labels.split("_")
    letters = str.maketrans("bfio", "NCIO")
    sides = (lhs, *rest.split("->"))

    def conv(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            window_strides=[d.stride for d in window.dimensions],
            padding=[(d.padding_low, d.padding_high) for d in window.dimensions],
            rhs_dilation=[d.window_dilation for d in window.dimensions],
            dimension_numbers=tuple(side.translate(letters) for side in sides),
            feature_group_count=groups,
        )

    _, (dx, dw) = with_gradients_by_jax(conv, x, w, cotangent=dy)
    how = {"config": config(), "attributes": attributes(name)}
    assert (call("__cudnn$convBackwardInput", dy, w, result=tupled(shape_of(x)), **how)[0] == dx).all()
    assert (call("__cudnn$convBackwardFilter", x, dy, result=tupled(shape_of(w)), **how)[0] == dw).all()


def test_narrow_floats_add_up_in_f32_and_round_once():
    """4096 ones and one more in bf16: 4097 rounds to 4096 once, where sums of bf16 would stop at 256."""
    x, w = np.ones((1, 1, 4097), ml_dtypes.bfloat16), np.ones((1, 4097, 1), ml_dtypes.bfloat16)
    how = {"config": config(), "attributes": "window={size=1}, dim_labels=b0f_0io->b0f"}
    value = call("__cudnn$convForward", x, w, result="(bf16[1,1,1], u8[0])", **how)[0]
    assert value.dtype == ml_dtypes.bfloat16
    assert float(value[0, 0, 0]) == 4096
    assert call("__cudnn$convForward", x, w, result="(f32[1,1,1], u8[0])", **how)[0][0, 0, 0] == 4097


def test_the_policy_reaches_the_sums():
    x, w = np.full((1, 1, 1), 1 + 2.0**-9, np.float32), np.ones((1, 1, 1), np.float32)
    how = {
        "config": config(),
        "attributes": "window={size=1}, dim_labels=b0f_0io->b0f",
        "result": "(f32[1,1,1], u8[0])",
    }
    assert call("__cudnn$convForward", x, w, numerics="bf16", **how)[0] == 1
    assert call("__cudnn$convForward", x, w, numerics="exact", **how)[0] == x
    tiny = np.full((1, 1, 1), 2.0**-140, np.float32)
    assert call("__cudnn$convForward", tiny, w, **how)[0] == tiny
    assert call("__cudnn$convForward", tiny, w, numerics="ftz", **how)[0] == 0
    assert call("__cudnn$convBackwardInput", tiny, w, numerics="ftz", **how)[0] == 0


X8, W8 = whole(2, 5, 4, 3, dtype=np.int8, largest=127), whole(3, 3, 3, 8, seed=1, dtype=np.int8, largest=127)
INT8 = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"


@cache
def int8_sums() -> Any:
    text = f"""HloModule m

ENTRY e {{
  x = s8[2,5,4,3] parameter(0)
  w = s8[3,3,3,8] parameter(1)
  a = s32[2,5,4,3] convert(x)
  b = s32[3,3,3,8] convert(w)
  ROOT y = s32[2,5,4,8] convolution(a, b), {INT8}
}}
"""
    return xla.run_hlo(text, X8, W8)[0]


def test_integers_add_up_in_s32_and_saturate():
    sums = int8_sums()
    assert np.abs(sums).max() > 127
    how = {"config": config(), "attributes": INT8}
    value = call("__cudnn$convForward", X8, W8, result="(s8[2,5,4,8], u8[0])", **how)[0]
    assert (value == np.clip(sums, -128, 127)).all()
    value = call("__cudnn$convForward", X8, W8, result="(f32[2,5,4,8], u8[0])", **how)[0]
    assert (value == sums).all()


@pytest.mark.parametrize("with_side", [False, True])
def test_scaled_integers_round_to_nearest_and_saturate(with_side):
    """scale · sum + side + bias is exact in f32: products of sums below 2²⁰ with 2⁻¹⁰, plus eighths."""
    sums = int8_sums()
    bias, side = whole(8, seed=2) / np.float32(8), whole(2, 5, 4, 8, seed=3, dtype=np.int8, largest=127)
    operands = (X8, W8, bias, side)[: 3 + with_side]
    changes = config(conv_result_scale=2.0**-8, side_input_scale=0.5 * with_side)
    value = call(
        "__cudnn$convBiasActivationForward", *operands, result="(s8[2,5,4,8], u8[0])", config=changes, attributes=INT8
    )[0]
    exact = sums * 2.0**-8 + bias.astype(np.float64) + 0.5 * with_side * side
    assert (value == np.clip(np.rint(exact), -128, 127)).all()


def blocks(array: Any, dimension: int, size: int, place: int) -> Any:
    """The features of a dimension in vectors of `size`, the new dimension at `place`."""
    sizes = (*array.shape[:dimension], array.shape[dimension] // size, size, *array.shape[dimension + 1 :])
    return np.ascontiguousarray(np.moveaxis(array.reshape(sizes), dimension + 1, place))


@pytest.mark.parametrize(
    ("labels", "places"),
    [("bf?01_i?01o->bf?01", (2, 1, 2)), ("bf01?_i01?o->bf01?", (4, 3, 4)), ("?bf01_?i01o->?bf01", (0, 0, 0))],
)
def test_vectors_of_features_are_features(labels, places):
    """NCHW_VECT_C: the unlabelled dimension holds four neighbouring features."""
    x, w = whole(2, 8, 5, 4, dtype=np.int8), whole(8, 3, 3, 12, seed=1, dtype=np.int8)
    window = "window={size=3x3 pad=1_1x1_1}"
    plain, _ = call(
        "__cudnn$convForward", x, w, result="(s8[2,12,5,4], u8[0])", config=config(),
        attributes=f"{window}, dim_labels=bf01_i01o->bf01",
    )  # fmt: skip
    wanted = blocks(plain, 1, 4, places[2])
    value, _ = call(
        "__cudnn$convForward", blocks(x, 1, 4, places[0]), blocks(w, 0, 4, places[1]),
        result=tupled(shape_of(wanted)), config=config(), attributes=f"{window}, dim_labels={labels}",
    )  # fmt: skip
    assert (value == wanted).all()


REORDERED = "window={size=3x2 pad=1_1x0_1}, dim_labels=bf01?_oi01?->bf01?"


def test_a_reordered_filter_and_bias_give_the_same_convolution():
    """What convReorderFilterAndBias does, reordered_int8_nchw_vect undoes."""
    x, w = (whole(*sizes, seed=n, dtype=np.int8) for n, sizes in enumerate([(1, 2, 4, 4, 32), (64, 2, 3, 2, 32)]))
    bias = whole(64, seed=5)
    how = {"result": "(s8[1,2,4,4,32], u8[0])", "attributes": REORDERED}
    plain = call("__cudnn$convBiasActivationForward", x, w, bias, config=config(), **how)[0]
    shuffled, mixed = call(
        "__cudnn$convReorderFilterAndBias", w, bias, result="(s8[64,2,3,2,32], f32[64])", attributes=REORDERED
    )
    assert (shuffled != w).any()
    assert (mixed != bias).any()
    config_of = config(reordered_int8_nchw_vect=True)
    value = call("__cudnn$convBiasActivationForward", x, shuffled, mixed, config=config_of, **how)[0]
    assert (value == plain).all()
    alone = call("__cudnn$convReorderFilter", w, result="s8[64,2,3,2,32]", attributes=REORDERED)
    assert (alone == shuffled).all()


def test_a_filter_is_reordered_as_the_hlo_that_xla_writes_for_it():
    """XLA's own expansion: reshape, transpose to I/32, H, W, O/8, 2, 8, 4, 4, reshape; of a bias to O/32, 2, 4, 4."""
    w, bias = whole(64, 2, 3, 2, 32, dtype=np.int8, largest=127), normal(64)
    text = """HloModule m

ENTRY e {
  w = s8[64,2,3,2,32] parameter(0)
  split = s8[8,4,2,2,3,2,8,4] reshape(w)
  moved = s8[2,3,2,8,2,8,4,4] transpose(split), dimensions={3,4,5,0,2,6,1,7}
  filter = s8[64,2,3,2,32] reshape(moved)
  b = f32[64] parameter(1)
  parts = f32[2,4,2,4] reshape(b)
  exchanged = f32[2,2,4,4] transpose(parts), dimensions={0,2,1,3}
  bias = f32[64] reshape(exchanged)
  ROOT r = (s8[64,2,3,2,32], f32[64]) tuple(filter, bias)
}
"""
    wanted = xla.run_hlo(text, w, bias)
    value = call("__cudnn$convReorderFilterAndBias", w, bias, result="(s8[64,2,3,2,32], f32[64])", attributes=REORDERED)
    assert all((ours == theirs).all() for ours, theirs in zip(value, wanted, strict=True))


FUSED = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
ACTIVATIONS = {
    "kNone": lambda v: v,
    "kRelu": lambda v: np.maximum(v, 0),
    "kRelu6": lambda v: np.clip(v, 0, 6),
    "kElu": lambda v: np.where(v > 0, v, np.expm1(v)),
    "kLeakyRelu": lambda v: np.where(v > 0, v, 0.125 * v),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize("with_side", [False, True])
@pytest.mark.parametrize("name", ["f32", "f16", "f64"])
def test_bias_side_input_and_activation_are_their_formula(mode, with_side, name):
    """The value before the activation is exact (eighths of whole numbers); exp(v) − 1 costs 4 ULPs, then one rounding."""
    storage = np.dtype({"f32": "f4", "f16": "f2", "f64": "f8"}[name])
    x, w, bias, side = (
        whole(*sizes, seed=n).astype(storage)
        for n, sizes in enumerate([(1, 4, 4, 3), (3, 3, 3, 5), (5,), (1, 4, 4, 5)])
    )
    changes = config(
        conv_result_scale=0.125, side_input_scale=0.5 * with_side, activation_mode=mode, leakyrelu_alpha=0.125
    )
    operands = (x, w, bias, side)[: 3 + with_side]
    value, _ = call(
        "__cudnn$convBiasActivationForward",
        *operands,
        result=f"({name}[1,4,4,5], u8[3])",
        config=changes,
        attributes=FUSED,
    )
    text = f"""HloModule m

ENTRY e {{
  x = f64[1,4,4,3] parameter(0)
  w = f64[3,3,3,5] parameter(1)
  ROOT y = f64[1,4,4,5] convolution(x, w), {FUSED}
}}
"""
    sums = xla.run_hlo(text, x.astype(np.float64), w.astype(np.float64))[0]
    wanted = ACTIVATIONS[mode](0.125 * sums + 0.5 * with_side * side.astype(np.float64) + bias.astype(np.float64))
    unit = np.finfo(np.float64 if name == "f64" else np.float32).eps
    bound = 4 * unit * np.abs(wanted) + np.abs(wanted) * np.finfo(storage).eps / 2
    assert value.dtype == storage
    assert (np.abs(value.astype(np.float64) - wanted) <= bound).all()


def test_activations_are_known_by_their_numbers_too():
    """Older dumps write the enumeration's number, as a string."""
    x, w, bias = whole(1, 4, 4, 3), whole(3, 3, 3, 5, seed=1), whole(5, seed=2)
    results = [
        call(
            "__cudnn$convBiasActivationForward", x, w, bias, result="(f32[1,4,4,5], u8[3])", attributes=FUSED,
            config=json.dumps(json.dumps({"algorithm": "1", "conv_result_scale": 1, "activation_mode": mode})),
        )[0]
        for mode in ("2", "kRelu")
    ]  # fmt: skip
    assert (results[0] == results[1]).all()
    assert (results[0] == 0).any()


def test_nan_passes_through_relu():
    x, w, bias = np.full((1, 1, 1), np.nan, np.float32), np.ones((1, 1, 1), np.float32), np.zeros(1, np.float32)
    for mode in "kRelu kRelu6 kElu kLeakyRelu".split():
        value = call(
            "__cudnn$convBiasActivationForward", x, w, bias, result="(f32[1,1,1], u8[0])",
            config=config(activation_mode=mode), attributes="window={size=1}, dim_labels=b0f_0io->b0f",
        )[0]  # fmt: skip
        assert np.isnan(value).all()


@pytest.mark.parametrize(
    ("target", "changes", "reason"),
    [
        ("convForward", {"conv_result_scale": 2}, "conv_result_scale is 2.0"),
        ("convForward", {"side_input_scale": 1}, "side_input_scale is 1.0"),
        ("convForward", {"activation_mode": "kRelu"}, "activation_mode is kRelu"),
        ("convForward", {"serialized_graph": "1:[f32]conv();"}, "serialized_graph"),
        ("convForward", {"new_field": 1}, "the field new_field"),
        ("convForward", {"conv_result_scale": "one"}, "conv_result_scale of its backend_config must be a number"),
        ("convBackwardInput", {"reordered_int8_nchw_vect": True}, "reordered_int8_nchw_vect"),
        ("convBackwardFilter", {"conv_result_scale": 0.5}, "conv_result_scale is 0.5"),
        ("convBiasActivationForward", {"activation_mode": "kTanh"}, "activation_mode is kTanh"),
        ("convBiasActivationForward", {"activation_mode": "kSwish"}, "'kSwish'; known are kNone"),
        ("convBiasActivationForward", {"reordered_int8_nchw_vect": 1}, "must be true or false"),
    ],
)
def test_fields_that_cannot_be_honoured_are_refused_by_name(target, changes, reason):
    x, w, bias = whole(1, 4, 4, 3), whole(3, 3, 3, 3, seed=1), whole(3)
    operands = (x, w, bias) if "Bias" in target else (x, w)
    text = module(
        f"__cudnn${target}", *operands, result="(f32[1,4,4,3], u8[0])", config=config(**changes), attributes=FUSED
    )
    with pytest.raises(UnsupportedError, match=reason):
        hloexec.run(hloexec.parse(text), *operands)


def test_a_call_without_config_labels_or_scale_is_refused():
    x, w = whole(1, 4, 4, 3), whole(3, 3, 3, 3, seed=1)
    result = "(f32[1,4,4,3], u8[0])"
    for how, reason in (
        ({"attributes": FUSED}, "no backend_config"),
        ({"attributes": FUSED, "config": {"cudnn_conv_backend_config": {}}}, "lacks conv_result_scale"),
        ({"config": config()}, "no dim_labels"),
        ({"attributes": f"{FUSED}, batch_group_count=2", "config": config()}, "batch_group_count=2"),
    ):
        with pytest.raises((UnsupportedError, VerificationError), match=reason):
            hloexec.run(hloexec.parse(module("__cudnn$convForward", x, w, result=result, **how)), x, w)


@pytest.mark.parametrize(
    ("target", "sizes", "result", "message"),
    [
        ("convForward", "1,4,4,3", "f32[1,4,4,3]", "must have 2 operands"),
        ("convForward", "1,4,4,3 3,3,4,3", "f32[1,4,4,3]", "input features"),
        ("convForward", "1,4,4,3 3,3,3,3", "f32[1,5,4,3]", r"f32\[1,4,4,3\]"),
        ("convForward", "1,4,4 3,3,3,3", "f32[1,4,4,3]", "rank"),
        ("convBackwardInput", "1,4,5,3 3,3,3,3", "f32[1,4,4,3]", "gradient of the convolution's output"),
        ("convBackwardFilter", "1,4,4,3 1,4,4,3", "f32[3,2,3,3]", "window"),
        ("convBiasActivationForward", "1,4,4,3 3,3,3,3", "f32[1,4,4,3]", "3 or 4 operands"),
        ("convBiasActivationForward", "1,4,4,3 3,3,3,3 4", "f32[1,4,4,3]", "bias of the convolution"),
        (
            "convBiasActivationForward",
            "1,4,4,3 3,3,3,3 3 3,4,4,1",
            "f32[1,4,4,3]",
            "side input of the convolution",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(target, sizes, result, message):
    operands = [whole(*map(int, size.split(","))) for size in sizes.split()]
    text = module(f"__cudnn${target}", *operands, result=tupled(result), config=config(), attributes=FUSED)
    with pytest.raises(VerificationError, match=message):
        hloexec.verify(hloexec.parse(text))


def test_vectors_and_filters_of_other_forms_are_refused():
    x, w = whole(1, 4, 4, 3), whole(3, 3, 3, 3, seed=1)
    for target, labels, ranks, changes, reason in (
        ("convBackwardInput", "b01f?_01io->b01f", 5, {}, "vectors of features"),
        ("convForward", "b01f_01io->b01f", 4, {"reordered_int8_nchw_vect": True}, "multiples of 32"),
        ("convForward", "b01f??_01io->b01f", 6, {}, "one role each"),
    ):
        first = x.reshape(*x.shape, *[1] * (ranks - 4))
        text = module(
            f"__cudnn${target}", first, w, result=tupled("f32[1,4,4,3]"), config=config(**changes),
            attributes=f"window={{size=3x3 pad=1_1x1_1}}, dim_labels={labels}",
        )  # fmt: skip
        with pytest.raises((UnsupportedError, VerificationError), match=reason):
            hloexec.run(hloexec.parse(text), first, w)
    for sizes, reason in (((32, 1, 3, 3), "vectors of 32"), ((30, 1, 3, 3, 32), "multiples of 32")):
        w = np.zeros(sizes, np.int8)
        labels = "_".join(["bf01?", "oi01?->bf01?" if w.ndim == 5 else "oi01->bf01?"])
        text = module("__cudnn$convReorderFilter", w, result=shape_of(w), attributes=f"dim_labels={labels}")
        with pytest.raises(UnsupportedError, match=reason):
            hloexec.run(hloexec.parse(text), w)


def test_a_side_input_that_is_scaled_but_missing_is_an_error():
    x, w, bias = whole(1, 4, 4, 3), whole(3, 3, 3, 3, seed=1), whole(3)
    text = module(
        "__cudnn$convBiasActivationForward", x, w, bias, result="(f32[1,4,4,3], u8[0])",
        config=config(side_input_scale=1), attributes=FUSED,
    )  # fmt: skip
    with pytest.raises(EvaluationError, match="no side input"):
        hloexec.run(hloexec.parse(text), x, w, bias)


def test_every_activation_has_a_test():
    assert set(ACTIVATIONS) == set(convolutions.ACTIVATIONS)


def test_reordering_twice_is_undone_by_its_inverse():
    bias = normal(96)
    assert (geometry.unreordered_bias(geometry._reordered_bias(bias)) == bias).all()


@pytest.mark.parametrize("dtype", [np.complex64, np.bool_])
def test_convolutions_of_other_than_floats_and_integers_are_refused(dtype):
    x, w = np.ones((1, 4, 4, 3), dtype), np.ones((3, 3, 3, 3), dtype)
    text = module(
        "__cudnn$convForward",
        x,
        w,
        result=tupled(shape_of(np.ones((1, 4, 4, 3), dtype))),
        config=config(),
        attributes=FUSED,
    )
    with pytest.raises(VerificationError, match="floats or integers"):
        hloexec.verify(hloexec.parse(text))
