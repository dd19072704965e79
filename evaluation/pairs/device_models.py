"""Small programs for four devices, as HLO text."""

from __future__ import annotations

_SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}
"""

_TENSOR_PARALLEL = f"""HloModule tensor_parallel, num_partitions=4
{_SUM}
ENTRY layer_spmd {{
  x = f32[8,16] parameter(0)
  up = f32[16,8] parameter(1)
  down = f32[8,16] parameter(2)
  rows = f32[32,16] all-gather(x), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, use_global_device_ids=true
  hidden = f32[32,8] dot(rows, up), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  zero = f32[] constant(0)
  zeros = f32[32,8] broadcast(zero), dimensions={{}}
  active = f32[32,8] maximum(hidden, zeros)
  part = f32[32,16] dot(active, down), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  whole = f32[8,16] reduce-scatter(part), channel_id=2, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, use_global_device_ids=true, to_apply=sum
  residual = f32[8,16] add(whole, x)
  squares = f32[8,16] multiply(residual, residual)
  norm = f32[8] reduce(squares, zero), dimensions={{1}}, to_apply=sum
  norms = f32[8] all-reduce(norm), channel_id=3, replica_groups={{{{0,1}},{{2,3}}}}, use_global_device_ids=true, to_apply=sum
  inverse = f32[8] rsqrt(norms)
  inverses = f32[8,16] broadcast(inverse), dimensions={{0}}
  scaled = f32[8,16] multiply(residual, inverses)
  ROOT result = (f32[8,16], f32[8]) tuple(scaled, norms)
}}
"""

_RING_ATTENTION = f"""HloModule ring_attention, num_partitions=4
{_SUM}
turn {{
  state = (s32[], f32[4,8], f32[4,8], f32[4,8]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  queries = f32[4,8] get-tuple-element(state), index=1
  keys = f32[4,8] get-tuple-element(state), index=2
  found = f32[4,8] get-tuple-element(state), index=3
  one = s32[] constant(1)
  next_count = s32[] add(count, one)
  scores = f32[4,4] dot(queries, keys), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  weights = f32[4,4] tanh(scores)
  part = f32[4,8] dot(weights, keys), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  age = f32[] convert(count)
  ages = f32[4,8] broadcast(age), dimensions={{}}
  faded = f32[4,8] exponential-minus-one(ages)
  weighted = f32[4,8] multiply(part, faded)
  more = f32[4,8] add(found, weighted)
  handed_on = f32[4,8] collective-permute(keys), channel_id=1, source_target_pairs={{{{0,1}},{{1,2}},{{2,3}},{{3,0}}}}
  ROOT next = (s32[], f32[4,8], f32[4,8], f32[4,8]) tuple(next_count, queries, handed_on, more)
}}

is_going_on {{
  state = (s32[], f32[4,8], f32[4,8], f32[4,8]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  turns = s32[] constant(4)
  ROOT goes_on = pred[] compare(count, turns), direction=LT
}}

ENTRY ring_spmd {{
  queries = f32[4,8] parameter(0)
  keys = f32[4,8] parameter(1)
  none = s32[] constant(0)
  zero = f32[] constant(0)
  zeros = f32[4,8] broadcast(zero), dimensions={{}}
  state = (s32[], f32[4,8], f32[4,8], f32[4,8]) tuple(none, queries, keys, zeros)
  end = (s32[], f32[4,8], f32[4,8], f32[4,8]) while(state), condition=is_going_on, body=turn
  found = f32[4,8] get-tuple-element(end), index=3
  exchanged = f32[4,8] all-to-all(found), channel_id=2, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
  ROOT result = f32[4,8] add(exchanged, queries)
}}
"""

DEVICE_MODELS = {"tensor_parallel": _TENSOR_PARALLEL, "ring_attention": _RING_ATTENTION}
"""From a name to the text of a module whose parameters are all f32."""
