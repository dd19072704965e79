"""cuDNN's graphs behind a convolution against the HLO that XLA makes them of, run by XLA:CPU."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.errors import UnsupportedError, VerificationError
from tests.library_calls.cudnn.modules import call, module, whole

xla = pytest.importorskip("conformance.xla")

F8 = ml_dtypes.float8_e4m3fn
ATTRIBUTES = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f"
X, W = whole(1, 4, 4, 6).astype(F8), whole(5, 3, 3, 6, seed=1).astype(F8)


def config(graph: Any, **changes: Any) -> dict[str, Any]:
    fields = {"conv_result_scale": 1, "activation_mode": "kNone", "side_input_scale": 0, "leakyrelu_alpha": 0}
    return {"cudnn_conv_backend_config": fields | {"serialized_graph": graph} | changes}


def graph(text: str, *others: Any, result: str = "f32[1,4,4,5]") -> Any:
    return call(
        "__cudnn$convForwardGraph",
        X,
        W,
        *others,
        result=f"({result}, u8[8])",
        config=config(text),
        attributes=ATTRIBUTES,
    )


def by_xla(body: str, *others: Any, parameters: str = "") -> list[Any]:
    """The HLO after `y = f32[1,4,4,5] convolution`, on whole numbers that f8e4m3fn holds."""
    text = f"""HloModule m

largest {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}}

ENTRY e {{
  x = f32[1,4,4,6] parameter(0)
  w = f32[5,3,3,6] parameter(1)
{parameters}
  y = f32[1,4,4,5] convolution(x, w), {ATTRIBUTES}
  zero = f32[] constant(0)
  zeros = f32[1,4,4,5] broadcast(zero), dimensions={{}}
{body}
}}
"""
    return xla.run_hlo(text, X.astype(np.float32), W.astype(np.float32), *others)


def test_a_graph_of_the_convolution_alone_is_the_convolution():
    value, scratch = graph("7:[f32]conv();")
    assert (value == by_xla("  ROOT r = f32[1,4,4,5] copy(y)")[0]).all()
    assert not scratch.any()


def test_scales_addends_relu_and_amax_follow_each_other():
    """An eighth and a half of sums of products of whole numbers, and a whole addend, are exact in f32."""
    scale, inverse = np.array(0.125, np.float32), np.array(2, np.float32)
    addend = whole(1, 4, 4, 5, seed=4)
    value, largest, _ = graph(
        "1:[f32]conv();2:[f32]scale(1);3:[f32]invscale(2);4:[f32]add(3);5:[f32]relu(4);6:[f32]amax(5);",
        scale, inverse, addend, result="f32[1,4,4,5], f32[]",
    )  # fmt: skip
    wanted, wanted_largest = by_xla(
        """  eighth = f32[] parameter(2)
  two = f32[] parameter(3)
  addend = f32[1,4,4,5] parameter(4)
  eighths = f32[1,4,4,5] broadcast(eighth), dimensions={}
  twos = f32[1,4,4,5] broadcast(two), dimensions={}
  scaled = f32[1,4,4,5] multiply(y, eighths)
  halved = f32[1,4,4,5] divide(scaled, twos)
  sum = f32[1,4,4,5] add(halved, addend)
  relu = f32[1,4,4,5] maximum(sum, zeros)
  m = f32[] reduce(relu, zero), dimensions={0,1,2,3}, to_apply=largest
  ROOT r = (f32[1,4,4,5], f32[]) tuple(relu, m)""",
        scale, inverse, addend,
    )  # fmt: skip
    assert (value == wanted).all()
    assert largest == wanted_largest


def test_8_bit_results_saturate_and_the_maximum_sees_them_before():
    scale = np.array(16, np.float32)
    value, largest, _ = graph(
        "1:[f32]conv();2:[f32]amax(1);3:[f8e4m3fn]scale(1);", scale, result="f8e4m3fn[1,4,4,5], f32[]"
    )
    wanted, wanted_largest = by_xla(
        """  sixteen = f32[] parameter(2)
  factors = f32[1,4,4,5] broadcast(sixteen), dimensions={}
  scaled = f32[1,4,4,5] multiply(y, factors)
  limit = f32[] constant(448)
  low = f32[] constant(-448)
  clamped = f32[1,4,4,5] clamp(low, scaled, limit)
  magnitude = f32[1,4,4,5] abs(y)
  m = f32[] reduce(magnitude, zero), dimensions={0,1,2,3}, to_apply=largest
  ROOT r = (f8e4m3fn[1,4,4,5], f32[]) tuple(f8e4m3fn[1,4,4,5] convert(clamped), m)""",
        scale,
    )
    assert value.dtype == F8
    assert (value.astype(np.float32) == wanted.astype(np.float32)).all()
    assert np.abs(value.astype(np.float32)).max() == 448
    assert largest == wanted_largest


def test_operands_of_the_graph_itself_are_not_the_calls():
    """y·a + y·b, then a leaky and a clipped relu as XLA writes them: max(v, s·min(v, 0)) and min(relu(v), 6)."""
    a, b, zero, slope, six = (np.array(value, np.float32) for value in (0.5, -0.25, 0, 0.125, 6))
    y = by_xla("  ROOT r = f32[1,4,4,5] copy(y)")[0]
    value, _ = graph("1:[f32]conv();2:[f32]scale(1);3:[f32]scale(1);4:[f32]add(2,3);", a, b)
    assert (value == 0.25 * y).all()
    value, _ = graph("1:[f32]conv();2:[f32]min(1);3:[f32]scale(2);4:[f32]max(3,1);", zero, slope)
    assert (value == np.where(y > 0, y, 0.125 * y)).all()
    value, _ = graph("1:[f32]conv();2:[f32]relu(1);3:[f32]min(2);", six)
    assert (value == np.clip(y, 0, 6)).all()
    value, _ = graph("1:[f32]conv();2:[f32]elu(1);")
    assert (np.abs(value - np.where(y > 0, y, np.expm1(y.astype(np.float64)))) <= 4 * 2.0**-24).all()


def test_every_operation_rounds_to_its_own_type():
    """An eighth of 257 in bf16 is an eighth of 256."""
    x, w, scale = np.full((1, 1, 1), 257, np.float32), np.ones((1, 1, 1), np.float32), np.array(0.125, np.float32)
    value = call(
        "__cudnn$convForwardGraph", x, w, scale, result="(f32[1,1,1], u8[0])",
        config=config("1:[bf16]conv();2:[f32]scale(1);"), attributes="window={size=1}, dim_labels=b0f_o0i->b0f",
    )[0]  # fmt: skip
    assert value == 32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"serialized_graph": ""}, "is empty"),
        ({"serialized_graph": None}, "no serialized_graph"),
        ({"serialized_graph": "1:[f32]conv()"}, "must be like"),
        ({"serialized_graph": "1:[f32]conv();2:[f32]gelu(1);"}, "the operation 'gelu'; there are conv, add"),
        ({"serialized_graph": "1:[f32]relu();"}, "must have one convolution"),
        ({"serialized_graph": "1:[f32]conv();2:[f32]conv();"}, "must have one convolution"),
        ({"serialized_graph": "1:[f32]conv();2:[f32]relu(3);"}, "earlier operations"),
        ({"serialized_graph": "1:[f32]conv();1:[f32]relu(1);"}, "must be new"),
        ({"serialized_graph": "1:[f32]conv();2:[f32]relu();"}, "takes none"),
        ({"serialized_graph": "1:[s32]conv();"}, "'s32', which is not a floating-point type"),
        ({"serialized_graph": "1:[f31]conv();"}, "'f31'"),
        ({"conv_result_scale": 2}, "conv_result_scale is 2"),
        ({"side_input_scale": 1}, "side_input_scale is 1"),
        ({"activation_mode": "kRelu"}, "activation_mode is kRelu"),
        ({"reordered_int8_nchw_vect": True}, "reordered_int8_nchw_vect is True"),
        ({"novelty": 1}, "the field novelty"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(changes, reason):
    found = config("1:[f32]conv();", **changes)
    text = module("__cudnn$convForwardGraph", X, W, result="(f32[1,4,4,5], u8[8])", config=found, attributes=ATTRIBUTES)
    with pytest.raises((UnsupportedError, VerificationError), match=reason):
        hloexec.run(hloexec.parse(text), X, W)


@pytest.mark.parametrize(
    ("text", "others", "result", "message"),
    [
        ("1:[f32]conv();2:[f32]add(1);", [], "f32[1,4,4,5]", "must have 3 operands"),
        ("1:[f32]conv();", [(1,)], "f32[1,4,4,5]", "must have 2 operands"),
        ("1:[f32]conv();2:[f32]add(1);", [(1, 4, 4, 1)], "f32[1,4,4,5]", "scalar or have the result's shape"),
        ("1:[f32]conv();2:[f32]amax(1);", [], "f32[1,4,4,5], f32[2]", "must be a scalar"),
        ("1:[f32]conv();", [], "f32[1,4,5,5]", r"f32\[1,4,4,5\]"),
        ("1:[bf16]conv();", [], "f32[1,4,4,5]", r"bf16\[1,4,4,5\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(text, others, result, message):
    operands = [X, W, *(whole(*sizes) for sizes in others)]
    source = module(
        "__cudnn$convForwardGraph", *operands, result=f"({result}, u8[8])", config=config(text), attributes=ATTRIBUTES
    )
    with pytest.raises(VerificationError, match=message):
        hloexec.verify(hloexec.parse(source))
