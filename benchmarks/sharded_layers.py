"""Texts of any size for many devices: a training step of layers one after the other, as a partitioner leaves them.

A layer has what unrolled dumps have: weights that are gathered and of which each device has its own part, at an offset
from a table; heads that are reshaped and turned by halves of their features; a mask of positions; means; reductions
each with a computation of its own; parameters and results that are as many as there are layers.
"""

from __future__ import annotations

import re

DEVICES = 8

_COMPUTATIONS = """\
%sum.@ (a.@: f32[], b.@: f32[]) -> f32[] {
  %a.@ = f32[] parameter(0)
  %b.@ = f32[] parameter(1)
  ROOT %added.@ = f32[] add(%a.@, %b.@)
}

%larger.@ (c.@: f32[], d.@: f32[]) -> f32[] {
  %c.@ = f32[] parameter(0)
  %d.@ = f32[] parameter(1)
  ROOT %maximum.@ = f32[] maximum(%c.@, %d.@)
}

%sum_bf16.@ (e.@: bf16[], f.@: bf16[]) -> bf16[] {
  %e.@ = bf16[] parameter(0)
  %f.@ = bf16[] parameter(1)
  ROOT %summed.@ = bf16[] add(%e.@, %f.@)
}

"""

_LAYER = """\
  %gain.@ = f32[4096] parameter(#0)
  %weight.@ = bf16[512,4096] parameter(#1)
  %wide.@ = f32[2,1024,4096] convert(%out.@-) !norm/convert
  %square.@ = f32[2,1024,4096] multiply(%wide.@, %wide.@) !norm/square
  %squares.@ = f32[2,1024] reduce(%square.@, %zero), dimensions={2}, to_apply=%sum.@ !norm/reduce_sum
  %shares.@ = f32[2,1024] broadcast(%share), dimensions={} !norm/div
  %mean.@ = f32[2,1024] multiply(%squares.@, %shares.@) !norm/div
  %root.@ = f32[2,1024] rsqrt(%mean.@) !norm/rsqrt
  %roots.@ = f32[2,1024,4096] broadcast(%root.@), dimensions={0,1} !norm/mul
  %normal.@ = f32[2,1024,4096] multiply(%wide.@, %roots.@) !norm/mul
  %gains.@ = f32[2,1024,4096] broadcast(%gain.@), dimensions={2} !norm/mul
  %gained.@ = f32[2,1024,4096] multiply(%normal.@, %gains.@) !norm/mul
  %normed.@ = bf16[2,1024,4096] convert(%gained.@) !norm/convert
  %gathered.@ = bf16[4096,4096] all-gather(%weight.@), channel_id=!1, ~, dimensions={0}, \
use_global_device_ids=true !gather
  %product.@ = bf16[2,1024,4096] dot(%normed.@, %gathered.@), lhs_contracting_dims={2}, rhs_contracting_dims={0} !dot
  %heads.@ = bf16[2,1024,32,128] reshape(%product.@) !split
  %left.@ = bf16[2,1024,32,64] slice(%heads.@), slice={[0:2], [0:1024], [0:32], [0:64]} !rotary/slice
  %right.@ = bf16[2,1024,32,64] slice(%heads.@), slice={[0:2], [0:1024], [0:32], [64:128]} !rotary/slice
  %minus.@ = bf16[2,1024,32,64] negate(%right.@) !rotary/neg
  %turned.@ = bf16[2,1024,32,128] concatenate(%minus.@, %left.@), dimensions={3} !rotary/concatenate
  %mixed.@ = bf16[2,1024,32,128] add(%heads.@, %turned.@) !rotary/add
  %scores.@ = f32[2,32,1024,1024] dot(%mixed.@, %heads.@), lhs_batch_dims={0,2}, lhs_contracting_dims={3}, \
rhs_batch_dims={0,2}, rhs_contracting_dims={3} !scores
  %position.@ = s32[1024] iota(), iota_dimension=0 !mask/iota
  %rows.@ = s32[1024,1024] broadcast(%position.@), dimensions={0} !mask/rows
  %columns.@ = s32[1024,1024] broadcast(%position.@), dimensions={1} !mask/columns
  %is_before.@ = pred[1024,1024] compare(%rows.@, %columns.@), direction=GE !mask/ge
  %mask.@ = pred[2,32,1024,1024] broadcast(%is_before.@), dimensions={2,3} !mask/broadcast
  %lowest.@ = f32[2,32,1024,1024] broadcast(%low), dimensions={} !mask/broadcast
  %masked.@ = f32[2,32,1024,1024] select(%mask.@, %scores.@, %lowest.@) !mask/select
  %largest.@ = f32[2,32,1024] reduce(%masked.@, %low), dimensions={3}, to_apply=%larger.@ !softmax/reduce_max
  %tops.@ = f32[2,32,1024,1024] broadcast(%largest.@), dimensions={0,1,2} !softmax/sub
  %below.@ = f32[2,32,1024,1024] subtract(%masked.@, %tops.@) !softmax/sub
  %exponential.@ = f32[2,32,1024,1024] exponential(%below.@) !softmax/exp
  %total.@ = f32[2,32,1024] reduce(%exponential.@, %zero), dimensions={3}, to_apply=%sum.@ !softmax/reduce_sum
  %totals.@ = f32[2,32,1024,1024] broadcast(%total.@), dimensions={0,1,2} !softmax/div
  %chances.@ = f32[2,32,1024,1024] divide(%exponential.@, %totals.@) !softmax/div
  %narrow.@ = bf16[2,32,1024,1024] convert(%chances.@) !softmax/convert
  %attended.@ = bf16[2,32,1024,128] dot(%narrow.@, %heads.@), lhs_batch_dims={0,1}, lhs_contracting_dims={3}, \
rhs_batch_dims={0,2}, rhs_contracting_dims={1} !attend
  %back.@ = bf16[2,1024,32,128] transpose(%attended.@), dimensions={0,2,1,3} !transpose
  %joined.@ = bf16[2,1024,4096] reshape(%back.@) !join
  %out.@ = bf16[2,1024,4096] add(%out.@-, %joined.@) !add
  %gradient.@ = bf16[4096,4096] dot(%normed.@, %joined.@), lhs_contracting_dims={0,1}, \
rhs_contracting_dims={0,1} !gradient
  %gradients.@ = bf16[4096,4096] all-reduce(%gradient.@), channel_id=!2, ~, use_global_device_ids=true, \
to_apply=%sum_bf16.@ !gradient
  %offset.@ = s32[1] dynamic-slice(%offsets, %device), dynamic_slice_sizes={1} !own
  %start.@ = s32[] reshape(%offset.@) !own
  %own.@ = bf16[512,4096] dynamic-slice(%gradients.@, %start.@, %none), dynamic_slice_sizes={512,4096} !own
  %rates.@ = bf16[512,4096] broadcast(%rate), dimensions={} !update/mul
  %step.@ = bf16[512,4096] multiply(%own.@, %rates.@) !update/mul
  %updated.@ = bf16[512,4096] subtract(%weight.@, %step.@) !update/sub
"""

_CONSTANTS = """\
  %zero = f32[] constant(0)
  %low = f32[] constant(-inf)
  %share = f32[] constant(0.000244140625)
  %rate = bf16[] constant(0.01)
  %none = s32[] constant(0)
  %offsets = s32[8] constant({0, 512, 1024, 1536, 2048, 2560, 3072, 3584})
  %device = u32[] partition-id()
  %out.0 = bf16[2,1024,4096] parameter(0)
"""

_METADATA = re.compile(r" !([a-z_/]+)$", re.MULTILINE)


def sharded_layers(layers: int) -> str:
    """The text of a training step of so many layers."""
    weights = ", ".join(f"%updated.{number}" for number in range(1, layers + 1))
    shapes = ", ".join(["bf16[512,4096]"] * layers)
    return "".join(
        [
            f"HloModule sharded_step, num_partitions={DEVICES}\n\n",
            *(_numbered(_COMPUTATIONS, number) for number in range(1, layers + 1)),
            "ENTRY %main {\n",
            _CONSTANTS,
            *(_numbered(_LAYER, number) for number in range(1, layers + 1)),
            f"  ROOT %result = (bf16[2,1024,4096], {shapes}) tuple(%out.{layers}, {weights})\n}}\n",
        ]
    )


def layers_of(megabytes: float) -> int:
    """How many layers a text of about that size has."""
    one, more = len(sharded_layers(1000)), len(sharded_layers(1001))
    return max(1, round(megabytes * 1e6 / (more - one)))


def _numbered(template: str, number: int) -> str:
    """The template with the layer's number for `@`, the one before for `@-`, and the numbers of its parameters and
    channels, its groups of devices and its metadata."""
    metadata = r', metadata={op_name="jit(step)/layers_@/\1" source_file="/model/layers.py" source_line=12}'
    return (
        _METADATA.sub(metadata, template)
        .replace("#0", str(2 * number - 1))
        .replace("#1", str(2 * number))
        .replace("!1", str(2 * number - 1))
        .replace("!2", str(2 * number))
        .replace("~", f"replica_groups=[1,{DEVICES}]<=[{DEVICES}]")
        .replace("@-", str(number - 1))
        .replace("@", str(number))
    )
