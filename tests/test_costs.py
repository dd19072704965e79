"""Contractions against counts by definition, and the totals of a module."""

import itertools
from typing import Any

import pytest

import hloexec.ops  # noqa: F401 - fills the registry
from hloexec.core.ir import Module
from hloexec.engine.devices.topology import device_counts
from hloexec.language.text import parse
from hloexec.ops.costs import contraction_of
from hloexec.tools.summary import summarize, summarize_computations
from tests.text.building import ADD, module, op


def root_cost(text: str) -> Any:
    entry = parse(text).entry
    return contraction_of(entry.root, [operand.shape for operand in entry.operands_of(entry.root)])


def test_a_batched_dot_costs_two_operations_per_product() -> None:
    cost = root_cost(
        op(
            "bf16[3,4,6] dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
            x="bf16[3,4,5]",
            y="bf16[3,5,6]",
        )
    )
    assert (cost.contracted_size, cost.flops) == (5, 2 * 3 * 4 * 5 * 6)
    assert cost.byte_count == 2 * (3 * 4 * 5 + 3 * 5 * 6 + 3 * 4 * 6)


CONVOLUTIONS = [
    # input size, window size, stride, low, high, base dilation, window dilation, output size
    (7, 3, 1, 0, 0, 1, 1, 5),
    (7, 3, 2, 1, 1, 1, 1, 4),
    (7, 3, 1, 2, 2, 1, 2, 7),
    (4, 3, 1, 1, 1, 2, 1, 7),
    (5, 2, 3, -1, 2, 1, 1, 2),
]


@pytest.mark.parametrize(("size", "taps", "stride", "low", "high", "base", "dilation", "out"), CONVOLUTIONS)
def test_a_convolution_does_not_count_what_falls_into_padding(
    size: int, taps: int, stride: int, low: int, high: int, base: int, dilation: int, out: int
) -> None:
    window = f"size={taps} stride={stride} pad={low}_{high} lhs_dilate={base} rhs_dilate={dilation}"
    cost = root_cost(
        op(
            f"f32[2,{out},6] convolution(x, w), window={{{window}}}, dim_labels=b0f_0io->b0f",
            x=f"f32[2,{size},5]",
            w=f"f32[{taps},5,6]",
        )
    )
    pairs = sum(
        0 <= o * stride + t * dilation - low <= (size - 1) * base and (o * stride + t * dilation - low) % base == 0
        for o, t in itertools.product(range(out), range(taps))
    )
    assert cost.flops == 2 * 2 * 6 * 5 * pairs and cost.contracted_size == 5 * taps


def test_a_library_call_of_a_matrix_product_is_read_from_its_config() -> None:
    config = '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
    call = '(f32[4,6], s8[16]) custom-call(x, y), custom_call_target="__cublas$gemm", backend_config='
    assert root_cost(op(call + config, x="f32[4,5]", y="f32[5,6]")).flops == 2 * 4 * 5 * 6
    assert root_cost(op(call + '{"gemm_backend_config":7}', x="f32[4,5]", y="f32[5,6]")) is None
    assert root_cost(op(call + '"no json"', x="f32[4,5]", y="f32[5,6]")) is None


def loop(config: str) -> Module:
    computations = """body {
  x = f32[4,4] parameter(0)
  ROOT d = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
condition {
  y = f32[4,4] parameter(0)
  ROOT c = pred[] constant(false)
}
"""
    return parse(op(f"f32[4,4] while(z), condition=condition, body=body{config}", computations, z="f32[4,4]"))


def test_loops_count_as_often_as_they_say() -> None:
    counted = summarize(loop(', backend_config={"known_trip_count":{"n":"7"}}'))
    assert counted.flops == 7 * 2 * 4**3 and counted.loops_without_trip_count == 0
    unknown = summarize(loop(""))
    assert unknown.flops == 2 * 4**3 and unknown.loops_without_trip_count == 1


def test_loops_whose_bounds_are_constants_count_as_often_as_these_say() -> None:
    computations = """body {
  state = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4,4] get-tuple-element(state), index=1
  two = s32[] constant(2)
  next = s32[] add(i, two)
  d = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[4,4]) tuple(next, d)
}
condition {
  state = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(9)
  ROOT c = pred[] compare(i, limit), direction=LT
}
"""
    counted = summarize(
        parse(f"""HloModule m
{computations}
ENTRY e {{
  one = s32[] constant(1)
  x = f32[4,4] parameter(0)
  start = (s32[], f32[4,4]) tuple(one, x)
  ROOT w = (s32[], f32[4,4]) while(start), condition=condition, body=body
}}
""")
    )
    assert counted.flops == 4 * 2 * 4**3 and counted.loops_without_trip_count == 0


def test_devices_come_from_the_header_or_else_from_collectives() -> None:
    reduce = "f32[2] all-reduce(x), replica_groups={}, to_apply=add_f32"
    assert device_counts(parse(op(reduce.replace("{}", "{{0,1},{2,3}}"), ADD, x="f32[2]"))) == (4, 1)
    across = reduce.replace("{}", "[2,4]<=[8]") + ", channel_id=1"
    assert device_counts(parse(op(across, ADD, x="f32[2]"))) == (8, 1)  # groups of replicas, with all their partitions
    assert device_counts(parse(op(across + ", use_global_device_ids=true", ADD, x="f32[2]"))) == (1, 8)
    permute = "f32[2] collective-permute(x), source_target_pairs={{0,3}}"
    assert device_counts(parse(op(permute, x="f32[2]"))) == (4, 1)
    assert device_counts(parse(op(permute + ", channel_id=1", x="f32[2]"))) == (1, 4)
    gather = "f32[8] all-gather(x), replica_groups={}, dimensions={0}"  # everyone, of whom the result has the parts
    assert device_counts(parse(op(gather, x="f32[2]"))) == (4, 1)
    assert device_counts(parse(op(gather + ", channel_id=1", x="f32[2]"))) == (4, 1)
    assert device_counts(parse(op(gather, x="f32[8]"))) == (1, 1)
    assert device_counts(parse(op("(f32[2], f32[6]) all-gather-start(x), dimensions={0}", x="f32[2]"))) == (3, 1)
    assert device_counts(parse(op("(f32[2], f32[6], u32[]) all-gather-start(x), dimensions={0}", x="f32[2]"))) == (3, 1)
    scatter = "f32[2] reduce-scatter(x), replica_groups={}, dimensions={0}, to_apply=add_f32"
    assert device_counts(parse(op(scatter, ADD, x="f32[6]"))) == (3, 1)
    exchange = "(f32[2], f32[2]) all-to-all(x, y), replica_groups={}"
    assert device_counts(parse(op(exchange, x="f32[2]", y="f32[2]"))) == (2, 1)
    header = ", num_partitions=2"
    assert device_counts(parse(op(reduce.replace("{}", "{{0,1}}"), ADD, header, x="f32[2]"))) == (1, 2)
    assert device_counts(parse(module("x = f32[] parameter(0)"))) == (1, 1)


@pytest.mark.parametrize(
    "collective",
    [
        "() all-gather-start(x), dimensions={0}",
        "(f32[2], ()) all-gather-start(x), dimensions={0}",
        "f32[8] all-gather(x), dimensions={5}",
        "f32[8] all-gather(x), dimensions={-3}",
        "f32[0] all-gather(x), dimensions={0}",
        "() reduce-scatter(x), dimensions={0}, to_apply=add_f32",
    ],
)
def test_shapes_that_do_not_fit_say_nothing_of_devices(collective: str) -> None:
    """The module need not be verified."""
    assert device_counts(parse(op(collective, ADD, x="f32[2]"))) == (1, 1)


def test_a_summary_says_what_keeps_a_module_from_running() -> None:
    summary = summarize(parse(op('f32[2] custom-call(x), custom_call_target="who_knows"', x="f32[2]")))
    assert [(entry.kind, entry.name) for entry in summary.unsupported] == [("custom-call", "who_knows")]
    assert summary.custom_calls == {"who_knows": 1} and summary.opcodes == {"custom-call": 1, "parameter": 1}


CALLS = """HloModule calls
lonely { ROOT x = f32[] parameter(0) }
leaf { ROOT x = f32[4,4] parameter(0) }
body {
  s = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4,4] get-tuple-element(s), index=1
  d = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[4,4] call(d), to_apply=leaf
  ROOT r = (s32[], f32[4,4]) tuple(i, c)
}
condition {
  s = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT l = pred[] compare(i, n), direction=LT
}
ENTRY main {
  i = s32[] constant(0)
  x = f32[4,4] parameter(0)
  t = (s32[], f32[4,4]) tuple(i, x)
  w = (s32[], f32[4,4]) while(t), condition=condition, body=body, backend_config={"known_trip_count":{"n":"5"}}
  y = f32[4,4] get-tuple-element(w), index=1
  ROOT c = f32[4,4] call(y), to_apply=leaf
}
"""


def test_computations_are_listed_in_the_order_of_calls_with_their_runs() -> None:
    found = summarize_computations(parse(CALLS))
    assert [(entry.name, entry.calling_computation, entry.calling_instruction, entry.runs) for entry in found] == [
        ("main", None, None, 1),
        ("condition", "main", "w", 5),
        ("body", "main", "w", 5),
        ("leaf", "body", "c", 6),
        ("lonely", None, None, 0),
    ]
    body = found[2]
    assert (body.calling_opcode, body.instructions, body.parameter_bytes) == ("while", 6, 4 + 64)
    assert body.flops == 5 * 2 * 4**3
