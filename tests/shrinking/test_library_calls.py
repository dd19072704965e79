"""Library calls: their dimensions, and configs that repeat sizes."""

import re

import numpy as np
import pytest

import hloexec
from tests.shrinking.smallest import assert_valid, smallest

GEMM = (
    '{"gemm_backend_config":{"alpha_real":1,"alpha_imag":0,"beta":0,"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"],'
    '"rhs_batch_dimensions":["0"]},"epilogue":"DEFAULT","lhs_stride":"8192","rhs_stride":"4096"}}'
)
ATTENTION = (
    "{attn_heads = 16 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, deterministic = false, "
    "dropout_probability = 0.0 : f64, input_batch = 3 : i64, is_training = true, kv_max_seqlen = 256 : i64, "
    "mask_type = 2 : i64, max_segments_per_seq = 1 : i64, num_gqa_groups = 4 : i64, q_max_seqlen = 256 : i64, "
    "qk_head_dim = 64 : i64, qkv_layout = 9 : i64, scaling_factor = 0.125 : f64, v_head_dim = 64 : i64, "
    "window_size_left = -1 : i64, window_size_right = -1 : i64}"
)


def module(body: str, computations: str = "") -> hloexec.Module:
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    return hloexec.parse(f"HloModule m\n\n{computations}\nENTRY main {{\n{lines}\n}}\n")


def dimensions(found: hloexec.Module) -> list[tuple[int, ...]]:
    return [shape.dimensions for shape in found.entry.parameter_shapes]


def test_a_product_is_a_dot_and_its_config_has_the_new_strides() -> None:
    large = module(f"""
      a = f32[8,64,128] parameter(0)
      b = f32[8,128,32] parameter(1)
      c = (f32[8,64,32], s8[4194304]) custom-call(a, b), custom_call_target="__cublas$lt$matmul", backend_config={GEMM}
      ROOT r = f32[8,64,32] get-tuple-element(c), index=0""")
    found = hloexec.shrink(large, dims={64: 16, 128: 8, 32: 4}, keep=[8]).module
    assert_valid(found)
    assert dimensions(found) == [(8, 16, 8), (8, 8, 4)]
    config = found.entry.by_name["c"].backend_config
    assert config is not None and '"lhs_stride":"128","rhs_stride":"32"' in config


def test_attention_keeps_its_groups_and_repeats_its_new_sizes() -> None:
    large = module(f"""
      q = bf16[3,256,16,64] parameter(0)
      k = bf16[3,256,4,64] parameter(1)
      v = bf16[3,256,4,64] parameter(2)
      bias = bf16[0] constant({{}})
      seed = u32[2] constant({{0, 0}})
      i = s32[4] iota(), iota_dimension=0
      n = s32[] constant(256)
      ns = s32[4] broadcast(n), dimensions={{}}
      lengths = s32[4] multiply(i, ns)
      none = f32[0] constant({{}})
      c = (bf16[3,256,16,64], f32[3,16,256,1], u32[2,4], u8[1]) custom-call(q, k, v, bias, seed, lengths, lengths, none, none, none, none, none, none), custom_call_target="te_fused_attn_forward_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={ATTENTION}
      ROOT r = bf16[3,256,16,64] get-tuple-element(c), index=0""")
    found = hloexec.shrink(large, dims={256: 8, 64: 16, 16: 8}, keep=[3])
    assert_valid(found.module)
    # The groups are four heads each, and stay so.
    assert dimensions(found.module) == [(3, 8, 8, 16), (3, 8, 2, 16), (3, 8, 2, 16)]
    config = str(found.module.entry.by_name["c"].backend_config)
    for words in (
        "attn_heads = 8 ",
        "num_gqa_groups = 2 ",
        "q_max_seqlen = 8 ",
        "kv_max_seqlen = 8 ",
        "qk_head_dim = 16 ",
    ):
        assert words in config
    assert [(each.before, each.after, each.is_certain) for each in found.constants] == [(256, 8, True)]
    hloexec.run(found.module, *hloexec.random_inputs(found.module))


def test_random_bits_are_as_many_as_their_config_says() -> None:
    large = module(r"""
      k = u32[4096] parameter(0)
      c = (u32[4096], u32[4096]) custom-call(k, k, k, k), custom_call_target="cuda_threefry2x32", backend_config="\000\020\000\000\000\000\000\000"
      ROOT r = u32[4096] get-tuple-element(c), index=1""")
    found = hloexec.shrink(large, dims={4096: 640}).module
    assert_valid(found)
    hloexec.run(found, *hloexec.random_inputs(found))


def test_a_shape_rule_says_which_sizes_may_change() -> None:
    pytest.importorskip("scipy", reason="scipy is not installed, which finds smaller dimensions")
    large = module("""
      a = f32[96,96] parameter(0)
      b = f32[96,32] parameter(1)
      ROOT r = f32[96,32] custom-call(a, b), custom_call_target="lapack_strsm_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8}""")
    found = hloexec.shrink(large, dims={96: 12, 32: 8}).module
    assert_valid(found)
    assert dimensions(found) == [(12, 12), (12, 8)]


def test_a_search_keeps_the_number_of_its_results() -> None:
    large = module(
        """
      x = f32[64,4096] parameter(0)
      ROOT r = (f32[64,8], s32[64,8]) custom-call(x), custom_call_target="TopK", called_computations={more}""",
        "more {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT r = pred[] compare(x, y), direction=GT\n}\n",
    )
    found = smallest(large)
    assert_valid(found)
    assert dimensions(found) == [(2, 8)]


def test_an_unknown_call_keeps_its_sizes() -> None:
    large = module("""
      x = f32[64] parameter(0)
      ROOT r = f32[64] custom-call(x), custom_call_target="nobody" """)
    with pytest.raises(
        hloexec.InputError, match=re.escape("the library call nobody depend on one another is not known")
    ):
        hloexec.shrink(large, dims={64: 2})


def test_slices_that_are_put_together_are_shares_of_the_whole() -> None:
    large = module("""
      a = bf16[1024,512] parameter(0)
      b = bf16[1024,512] parameter(1)
      c = bf16[1024,1024] custom-call(a, b), custom_call_target="ConcatBitcast"
      ROOT r = bf16[1024,1024] negate(c)""")
    found = hloexec.shrink(large, dims={512: 16, 1024: 8}).module
    assert_valid(found)
    assert dimensions(found) == [(8, 16), (8, 16)]
    assert found.entry.by_name["c"].shape.array_shape.dimensions == (8, 32)


@pytest.mark.parametrize("target", ["HostExecute", "TODO(b/522284627)"])
def test_a_computation_that_a_call_runs_has_its_dimensions(target: str) -> None:
    large = module(
        f"""
      a = f32[64,32] parameter(0)
      c = f32[64,32] custom-call(a), custom_call_target="{target}", called_computations={{squared}}
      ROOT r = f32[64,32] negate(c)""",
        "squared {\n  x = f32[64,32] parameter(0)\n  ROOT y = f32[64,32] multiply(x, x)\n}",
    )
    found = hloexec.shrink(large, dims={64: 8, 32: 4}).module
    assert_valid(found)
    assert dimensions(found) == [(8, 4)]
    (a,) = hloexec.random_inputs(found)
    np.testing.assert_array_equal(hloexec.run(found, a), -(a * a))


CONVOLUTION = (
    '{"cudnn_conv_backend_config":{"activation_mode":"kNone","conv_result_scale":1,"side_input_scale":0,'
    '"leakyrelu_alpha":0}}'
)
INPUT, FILTER, OUTPUT = "f32[8,32,32,64]", "f32[256,3,3,64]", "f32[8,16,16,256]"
SMALL = [(4, 8, 8, 16), (32, 3, 3, 16), (4, 4, 4, 32)]
WINDOW = "window={size=3x3 stride=2x2 pad=0_1x0_1}, dim_labels=b01f_o01i->b01f"


@pytest.mark.parametrize(
    ("call", "operands", "result"),
    [
        ("Forward", (INPUT, FILTER), OUTPUT),
        ("BackwardInput", (OUTPUT, FILTER), INPUT),
        ("BackwardFilter", (INPUT, OUTPUT), FILTER),
        ("BiasActivationForward", (INPUT, FILTER, "f32[256]"), OUTPUT),
        ("BiasActivationForward", (INPUT, FILTER, "f32[256]", OUTPUT), OUTPUT),
    ],
)
def test_a_convolution_and_its_gradients_are_the_forward_one(call: str, operands: tuple[str, ...], result: str) -> None:
    parameters = "\n".join(f"p{number} = {shape} parameter({number})" for number, shape in enumerate(operands))
    names = ", ".join(f"p{number}" for number in range(len(operands)))
    large = module(f"""{parameters}
      c = ({result}, u8[4096]) custom-call({names}), {WINDOW}, custom_call_target="__cudnn$conv{call}", backend_config={CONVOLUTION}
      ROOT r = {result} get-tuple-element(c), index=0""")
    small = hloexec.shrink(large, dims={8: 4, 32: 8, 64: 16, 256: 32}).module
    assert_valid(small)
    expected = {INPUT: SMALL[0], FILTER: SMALL[1], OUTPUT: SMALL[2], "f32[256]": (32,)}
    assert dimensions(small) == [expected[operand] for operand in operands]
    assert small.entry.result_shape.array_shape.dimensions == expected[result]
    hloexec.run(small, *hloexec.random_inputs(small))


def test_a_window_as_large_as_its_input_and_groups_of_features_follow() -> None:
    large = module(f"""
      x = f32[4,64,64,128] parameter(0)
      w = f32[128,64,64,1] parameter(1)
      c = (f32[4,1,1,128], u8[16]) custom-call(x, w), window={{size=64x64}}, dim_labels=b01f_o01i->b01f, feature_group_count=128, custom_call_target="__cudnn$convForward", backend_config={CONVOLUTION}
      ROOT r = f32[4,1,1,128] get-tuple-element(c), index=0""")
    small = hloexec.shrink(large, dims={64: 8, 128: 16}).module
    assert_valid(small)
    assert dimensions(small) == [(4, 8, 8, 16), (16, 8, 8, 1)]
    attributes = small.entry.by_name["c"].attributes
    assert ([each.size for each in attributes.window.dimensions], attributes.feature_group_count) == ([8, 8], 16)
    hloexec.run(small, *hloexec.random_inputs(small))


def test_vectors_of_features_keep_their_features() -> None:
    large = module(f"""
      x = s8[8,16,64,64,4] parameter(0)
      w = s8[256,16,3,3,4] parameter(1)
      c = (s8[8,64,64,64,4], u8[16]) custom-call(x, w), window={{size=3x3 pad=1_1x1_1}}, dim_labels=bf01?_oi01?->bf01?, custom_call_target="__cudnn$convForward", backend_config={CONVOLUTION}
      ROOT r = s8[8,64,64,64,4] get-tuple-element(c), index=0""")
    small = smallest(large)
    assert_valid(small)
    assert dimensions(small)[1] == (256, 16, 3, 3, 4)
    hloexec.run(small, *hloexec.random_inputs(small))


def test_operands_of_a_graph_are_scalars_or_like_the_result() -> None:
    graph = CONVOLUTION.replace(
        '{"activ', '{"serialized_graph":"1:[f32]conv();2:[f32]scale(1);3:[f32]add(2);4:[f32]relu(3);","activ'
    )
    large = module(f"""
      x = f32[8,32,32,64] parameter(0)
      w = f32[256,3,3,64] parameter(1)
      s = f32[] parameter(2)
      a = f32[8,16,16,256] parameter(3)
      c = (f32[8,16,16,256], u8[16]) custom-call(x, w, s, a), {WINDOW}, custom_call_target="__cudnn$convForwardGraph", backend_config={graph}
      ROOT r = f32[8,16,16,256] get-tuple-element(c), index=0""")
    small = hloexec.shrink(large, dims={8: 4, 32: 8, 64: 16, 256: 32}).module
    assert_valid(small)
    assert dimensions(small) == [*SMALL[:2], (), SMALL[2]]
    hloexec.run(small, *hloexec.random_inputs(small))
