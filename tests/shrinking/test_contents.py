"""What library calls and others read as sizes: lengths, offsets, sizes of groups. They fit the smaller module."""

from typing import Any

import numpy as np
import pytest

import hloexec
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
    ((_, _, size, _), *_) = (shape.dimensions for shape in shrinkage.module.entry.parameter_shapes)  # type: ignore[union-attr]
    (first, second) = shrinkage.fitted
    print(hloexec.format(shrinkage.module), first, second)
    run(shrinkage)
