"""What library calls and others read as sizes: lengths, offsets, sizes of groups. They fit the smaller module."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from tests.command_line import CommandLine
from tests.records import read_record
from tests.shrinking.smallest import assert_valid

pytest.importorskip("scipy", reason="scipy is not installed, which finds smaller dimensions")

ADD = "add { x = s32[] parameter(0) y = s32[] parameter(1) ROOT z = s32[] add(x, y) }\n"
LATER = "later { x = s32[] parameter(0) ROOT y = s32[] parameter(1) }\n"
LARGEST = "largest { x = s32[] parameter(0) y = s32[] parameter(1) ROOT z = s32[] maximum(x, y) }\n"
CONFIG = (
    "{attn_heads = 8 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, deterministic = false, "
    "dropout_probability = 0.0 : f64, head_dim = 64 : i64, input_batch = 2 : i64, is_training = true, "
    "kv_max_seqlen = 2048 : i64, mask_type = 3 : i64, max_segments_per_seq = SEGMENTS : i64, num_gqa_groups = 8 : i64, "
    "q_max_seqlen = 2048 : i64, qkv_layout = LAYOUT : i64, scaling_factor = 0.125 : f64, window_size_left = -1 : i64, "
    "window_size_right = -1 : i64}"
)


def attention(sums: str, *, layout: int = 9, segments: int = 1, count: int = 3, more: str = "") -> hloexec.Module:
    """Attention of two rows of 2048 whose running sums of lengths, `sums`, are `found`; offsets are `starts`."""
    starts = "starts" if layout == 14 else "none"
    config = CONFIG.replace("SEGMENTS", str(segments)).replace("LAYOUT", str(layout))
    return hloexec.parse(f"""HloModule m

{ADD}{LATER}{LARGEST}{more}
ENTRY main {{
  q = f32[2,2048,8,64] parameter(0)
  k = f32[2,2048,8,64] parameter(1)
  v = f32[2,2048,8,64] parameter(2)
  none = f32[0] constant({{}})
  seed = u32[2] constant({{1, 2}})
  zero = s32[] constant(0)
{sums}
  c = (f32[2,2048,8,64], f32[2,8,2048,{segments}], u32[2,4], u8[16]) custom-call(q, k, v, none, found, found, {starts}, {starts}, seed), custom_call_target="te_fused_attn_forward_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={config}
  ROOT r = f32[2,2048,8,64] get-tuple-element(c), index=0
}}
""")


def run(shrinkage: hloexec.Shrinkage, *inputs: Any, seed: int = 0) -> Any:
    assert_valid(shrinkage.module)
    result = hloexec.run(shrinkage.module, *(inputs or hloexec.random_inputs(shrinkage.module, seed=seed)))
    assert np.isfinite(result).all()
    return result


SCATTERED = """  zeros = s32[3] broadcast(zero), dimensions={}
  places = s32[2,1] constant({{1}, {2}})
  sums = s32[2] reduce-window(lengths, zero), window={size=2 pad=1_0}, to_apply=add
  nothing = s32[2] broadcast(zero), dimensions={}
  less = s32[] constant(-1)
  lesses = s32[2] broadcast(less), dimensions={}
  is_negative = pred[2] compare(lengths, nothing), direction=LT
  chosen = s32[2] select(is_negative, lesses, sums)
  found = s32[3] scatter(zeros, places, chosen), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=later
"""
COUNTED = """  segments = s32[2,2048] parameter(3)
  rows = s32[2,2048] broadcast(zero), dimensions={}
  mask = pred[2,2048] compare(segments, rows), direction=NE
  ones = s32[2,2048] convert(mask)
  counts = s32[2] reduce(ones, zero), dimensions={1}, to_apply=add
  lengths = s32[2] copy(counts)
"""


def test_what_is_counted_is_as_long_as_what_it_counts() -> None:
    shrinkage = hloexec.shrink(attention(COUNTED + SCATTERED), max_bytes="200K")
    q, *_, segments = (shape.dimensions for shape in shrinkage.module.entry.parameter_shapes)  # type: ignore[union-attr]
    assert q[:2] == segments and q[1] < 128
    run(shrinkage)
    assert not shrinkage.fitted  # proven


DRAWN = """  lengths = s32[2] parameter(3)
"""
OF_CONSTANTS = """  numbers = s32[3] constant({0, 2048, 2600})
  found = s32[3] copy(numbers)
"""


def test_lengths_that_are_inputs_are_cut_off() -> None:
    shrinkage = hloexec.shrink(attention(DRAWN + SCATTERED), max_bytes="200K")
    assert [(fitted.operand, fitted.is_constant) for fitted in shrinkage.fitted] == [(4, False), (5, False)]
    run(shrinkage)


def first_sums(shrinkage: hloexec.Shrinkage) -> list[int]:
    """What the attention reads as the running sums of its queries' lengths."""
    module = shrinkage.module
    seen: dict[str, Any] = {}

    class Watch:
        def on_instruction(self, event: Any) -> None:
            seen[event.name] = event.value

    hloexec.run(module, *hloexec.random_inputs(module), observers=[Watch()])
    return seen[module.entry.by_name["c"].operands[4]].tolist()


def test_constants_shrink_in_proportion() -> None:
    shrinkage = hloexec.shrink(attention(OF_CONSTANTS), dims={2048: 64}, keep=[8])
    assert [fitted.is_constant for fitted in shrinkage.fitted] == [True, True]
    assert first_sums(shrinkage) == [0, 64, 81]
    run(shrinkage)


def test_what_fits_is_left_as_it_is() -> None:
    shrinkage = hloexec.shrink(attention(DRAWN + SCATTERED), dims={2048: 64})
    plain = hloexec.shrink(attention(COUNTED + SCATTERED), dims={2048: 64})
    q, k, v, _ = hloexec.random_inputs(shrinkage.module)
    segments = np.zeros((2, 64), np.int32)
    segments[0, :64] = segments[1, :17] = 1
    for lengths in (np.array([64, 17], np.int32), np.array([90, 17], np.int32)):
        cut_off = run(shrinkage, q, k, v, lengths)
        np.testing.assert_array_equal(cut_off, run(plain, q, k, v, segments))


PACKED = """  found = s32[9] parameter(3)
  starts = s32[9] parameter(4)
"""


@pytest.mark.parametrize("seed", range(3))
def test_packed_sequences_lie_within_their_rows(seed: int) -> None:
    large = attention(PACKED, layout=14, segments=4)
    shrinkage = hloexec.shrink(large, max_bytes="200K")
    assert {fitted.operand for fitted in shrinkage.fitted} == {4, 5, 6, 7}
    assert shrinkage.module.entry.parameter_shapes[0].dimensions[1] < 128  # type: ignore[union-attr]
    run(shrinkage, seed=seed)
    q, k, v, *_ = hloexec.random_inputs(shrinkage.module)
    wild = np.random.default_rng(seed).integers(-(2**31), 2**31, (2, 9)).astype(np.int32)
    run(shrinkage, q, k, v, *wild)


def test_parts_that_devices_send_one_another_lie_within_what_they_have() -> None:
    large = hloexec.parse("""HloModule m, num_partitions=2

ENTRY main {
  x = f32[64,4096] parameter(0)
  y = f32[64,4096] parameter(1)
  from = s32[2] parameter(2)
  sizes = s32[2] parameter(3)
  to = s32[2] parameter(4)
  ROOT r = f32[64,4096] ragged-all-to-all(x, y, from, sizes, to, sizes), replica_groups={{0,1}}, channel_id=1
}
""")
    shrinkage = hloexec.shrink(large, max_bytes="20K")
    assert_valid(shrinkage.module)
    assert {fitted.operand for fitted in shrinkage.fitted} == {2, 3, 4}
    inputs = [hloexec.random_inputs(shrinkage.module, seed=seed) for seed in range(2)]
    hloexec.run_devices(shrinkage.module, inputs)
    for seed in range(3):
        wild = np.random.default_rng(seed).integers(-(2**31), 2**31, (2, 3, 2)).astype(np.int32)
        hloexec.run_devices(shrinkage.module, [(*own[:2], *more) for own, more in zip(inputs, wild, strict=True)])


def test_sizes_of_groups_that_are_constants_shrink_with_the_rows() -> None:
    large = hloexec.parse("""HloModule m

ENTRY main {
  x = f32[2048,512] parameter(0)
  w = f32[4,512,256] parameter(1)
  sizes = s32[4] constant({1000, 24, 600, 424})
  ROOT r = f32[2048,256] ragged-dot(x, w, sizes), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}
}
""")
    shrinkage = hloexec.shrink(large, dims={2048: 64}, keep=[4])
    assert_valid(shrinkage.module)
    (fitted,) = shrinkage.fitted
    assert fitted.is_constant and fitted.operation == "ragged-dot"
    constant = shrinkage.module.entry.by_name[shrinkage.module.entry.root.operands[2]]
    assert constant.attributes.literal.value.tolist() == [31, 1, 18, 14]


PRODUCT = '{"lhs_contracting_dimensions":["3"],"rhs_contracting_dimensions":["%d"],"lhs_batch_dimensions":["0","1"],"rhs_batch_dimensions":["0","1"]}'
CUDNN = (
    '{"cudnn_fmha_backend_config":{"algorithm":{"algo_id":"0"},"fmha_scale":0.125,"dropout_rate":0,"seed":"42",'
    f'"bmm1_dot_dimension_numbers":{PRODUCT % 3},"bmm2_dot_dimension_numbers":{PRODUCT % 2},'
    '"is_flash_attention":true,"mask_type":"NO_MASK",MORE}}'
)


def test_pages_and_lengths_of_attention_in_pages_are_those_that_there_are() -> None:
    large = hloexec.parse(f"""HloModule m

ENTRY main {{
  q = f32[2,8,512,64] parameter(0)
  k = f32[96,8,256,64] parameter(1)
  v = f32[96,8,256,64] parameter(2)
  queries = s32[2] parameter(3)
  keys = s32[2] constant({{500, 2000}})
  pages = s32[2,1,8,1] constant({{{{{{{{1}},{{5}},{{9}},{{13}},{{17}},{{95}},{{3}},{{2}}}}}},{{{{{{0}},{{4}},{{80}},{{12}},{{16}},{{20}},{{31}},{{7}}}}}}}})
  others = s32[2,1,8,1] parameter(4)
  c = (f32[2,8,512,64], u8[0]) custom-call(q, k, v, queries, keys, pages, others), custom_call_target="__cudnn$fmhaSoftmax", backend_config={CUDNN.replace("MORE", '"is_paged_attention":true')}
  ROOT r = f32[2,8,512,64] get-tuple-element(c), index=0
}}
""")
    shrinkage = hloexec.shrink(large, dims={96: 12, 256: 32})
    assert {fitted.operand: fitted.is_constant for fitted in shrinkage.fitted} == {3: False, 4: True, 5: True, 6: False}
    call = shrinkage.module.entry.by_name["c"]
    keys, pages = (
        shrinkage.module.entry.by_name[call.operands[number]].attributes.literal.value.reshape(-1) for number in (4, 5)
    )
    assert keys.tolist() == [62, 250] and pages.max() == 11 and len({*pages.tolist()}) > 4
    run(shrinkage)


def test_offsets_of_packed_attention_leave_room_for_the_lengths() -> None:
    large = hloexec.parse(f"""HloModule m

ENTRY main {{
  q = f32[2,8,512,64] parameter(0)
  k = f32[2,8,512,64] parameter(1)
  v = f32[2,8,512,64] parameter(2)
  lengths = s32[4] parameter(3)
  steps = s32[4] iota(), iota_dimension=0
  number = s32[] constant(131072)
  numbers = s32[4] broadcast(number), dimensions={{}}
  starts = s32[4] multiply(steps, numbers)
  c = (f32[2,8,512,64], u8[0]) custom-call(q, k, v, lengths, lengths, starts, starts), custom_call_target="__cudnn$fmhaSoftmax", backend_config={CUDNN.replace("MORE", '"max_seg_per_batch":2')}
  ROOT r = f32[2,8,512,64] get-tuple-element(c), index=0
}}
""")
    shrinkage = hloexec.shrink(large, dims={512: 32}, keep=[8, 64])
    assert {fitted.operand for fitted in shrinkage.fitted} == {3, 4, 5, 6}
    starts = shrinkage.module.entry.by_name["c"].operands[5]
    assert "fitting" in starts
    run(shrinkage)


def test_the_report_and_the_command_say_what_is_made_to_fit(cli: CommandLine, empty_folder: Path) -> None:
    (empty_folder / "m.hlo").write_text(hloexec.format(attention(DRAWN + SCATTERED)))
    report = cli.ended("shrink m.hlo --max-bytes 200K --report", code=0).out
    assert "integers that are made to fit the sizes" in report and "running sums of lengths" in report
    record = read_record(cli.ended("shrink m.hlo --max-bytes 200K --json", code=0).out)
    (first, _) = record["fitted"]
    assert first["operation"] == "te_fused_attn_forward_ffi" and first["operand"] == 4 and not first["is_constant"]
    said = cli.ended("run m.hlo --shrink 200K", code=0).err
    assert ", 2 operands made to fit (hloexec shrink --report says how)" in said


@pytest.mark.parametrize(
    "sums",
    [
        "  found = s64[3] parameter(3)\n",
        "  found = s8[3] parameter(3)\n",
        "  found = s32[3,1] parameter(3)\n",
        "  found = s32[300] parameter(3)\n",
        "  numbers = s32[3] parameter(3)\n  found = s32[3] call(numbers), to_apply=copied\n",
        "  found = s32[3] constant({5, -2147483648, 2147483647})\n",
    ],
)
def test_running_sums_of_any_type_and_shape_fit(sums: str) -> None:
    more = "copied { p = s32[3] parameter(0) ROOT q = s32[3] copy(p) }\n"
    shrinkage = hloexec.shrink(attention(sums, more=more), max_bytes="200K")
    assert [(fitted.operand, fitted.is_constant) for fitted in shrinkage.fitted] == [(4, False), (5, False)]
    run(shrinkage)


@pytest.mark.parametrize("sums", ["  found = s32[2] parameter(3)\n", "  found = s32[0] constant({})\n"])
def test_what_lacks_running_sums_still_says_so(sums: str) -> None:
    shrinkage = hloexec.shrink(attention(sums), max_bytes="200K")
    with pytest.raises(hloexec.EvaluationError, match="must have 3 running sums of lengths"):
        hloexec.run(shrinkage.module, *hloexec.random_inputs(shrinkage.module))
