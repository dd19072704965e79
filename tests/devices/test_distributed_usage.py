"""What ranks would hold and send, from a module's plan, against figures worked out by hand."""

import sys
from types import FrameType

import pytest

import hloexec
from hloexec.errors import HloError, InputError, UnsupportedError
from tests.text.building import ADD, module, op

FOUR = ", replica_count=4"
PAIRS = "frontend_attributes={_xla_send_recv_source_target_pairs="


def usage(text: str, ranks: int, network: str | None = None) -> hloexec.DistributedUsage:
    return hloexec.distributed_usage(hloexec.parse(text), ranks, network)


def sent(text: str, ranks: int) -> tuple[list[int], list[int], list[int]]:
    """What each rank sends, receives, and in how many messages."""
    rows = usage(text, ranks).ranks
    return [r.sent_bytes for r in rows], [r.received_bytes for r in rows], [r.messages for r in rows]


def collective(text: str, x: str = "f32[8]", header: str = FOUR) -> str:
    return op(text, ADD, header, x=x)


ALL = "replica_groups={{0,1,2,3}}"


@pytest.mark.parametrize(
    ("text", "four", "two"),
    [
        # 32 bytes on each of four devices. On four ranks, 2 · 32 · 3 / 4; on two, a rank sends the other half of its
        # two values, 2 · 16, and the 16 bytes of the sum that it works out.
        (f"f32[8] all-reduce(x), {ALL}, to_apply=add_f32", [48] * 4, [48] * 2),
        # Three of four parts of 8 bytes; of two values the two parts for the other rank.
        (f"f32[2] reduce-scatter(x), {ALL}, dimensions={{0}}, to_apply=add_f32", [24] * 4, [32] * 2),
        # To three ranks; two values to one.
        (f"f32[32] all-gather(x), {ALL}, dimensions={{0}}", [96] * 4, [64] * 2),
        (f"f32[8] all-to-all(x), {ALL}, dimensions={{0}}", [24] * 4, [32] * 2),
        ("f32[8] collective-permute(x), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", [32] * 4, [32] * 2),
        ("f32[8] collective-permute(x), source_target_pairs={{1,0},{2,3}}", [0, 32, 32, 0], [0, 0]),
        ("f32[8] collective-broadcast(x), replica_groups={{2,0,1,3}}", [0, 0, 96, 0], [0, 32]),
        # Each sends its own to the root, device 1.
        ("f32[8] collective-reduce(x), replica_groups={{1,0,2,3}}, to_apply=add_f32", [32, 0, 32, 32], [0, 64]),
    ],
)
def test_collectives_send(text: str, four: list[int], two: list[int]) -> None:
    assert sent(collective(text), 4)[0] == four
    assert sent(collective(text), 2)[0] == two
    assert sent(collective(text), 1)[0] == [0]
    assert usage(collective(text), 1).collectives == ()


def test_what_is_received_and_in_how_many_messages() -> None:
    assert sent(collective(f"f32[8] all-reduce(x), {ALL}, to_apply=add_f32"), 4) == ([48] * 4, [48] * 4, [6] * 4)
    broadcast = collective("f32[8] collective-broadcast(x), replica_groups={{0,1,2,3}}")
    assert sent(broadcast, 4) == ([96, 0, 0, 0], [0, 32, 32, 32], [3, 1, 1, 1])


def test_groups_that_a_rank_holds_send_nothing() -> None:
    assert sent(collective("f32[8] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add_f32"), 2)[0] == [0, 0]
    # Two groups, each of one device on either rank: 2 · (2 · 32 / 2).
    across = collective("f32[8] all-reduce(x), replica_groups={{0,2},{1,3}}, to_apply=add_f32")
    assert sent(across, 2) == ([64, 64], [64, 64], [4, 4])


def test_several_operands_are_sent_together() -> None:
    text = op(f"(f32[8], s32[8]) all-gather(x, y), {ALL}, dimensions={{0}}", header=FOUR, x="f32[2]", y="s32[2]")
    # 8 bytes of each to three ranks.
    assert sent(text, 4) == ([48] * 4, [48] * 4, [3] * 4)
    parts = op("(f32[2], f32[2], f32[2], f32[2]) all-to-all(x, x, x, x), " + ALL, header=FOUR, x="f32[2]")
    assert sent(parts, 4)[0] == [24] * 4
    assert sent(parts, 2)[0] == [32] * 2


def test_what_a_rank_holds_twice_is_sent_once() -> None:
    # After the first sum all devices agree. Of the second, on two ranks: 2 · 32 / 2.
    text = module(
        """x = f32[8] parameter(0)
        first = f32[8] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add_f32
        ROOT second = f32[8] all-reduce(first), replica_groups={{0,1,2,3}}, to_apply=add_f32""",
        ADD,
        FOUR,
    )
    assert sent(text, 2)[0] == [32, 32]


def test_started_collectives_and_those_of_other_computations_count_the_same() -> None:
    started = module(
        f"""x = f32[8] parameter(0)
        begun = (f32[8], f32[32]) all-gather-start(x), {ALL}, dimensions={{0}}
        ROOT done = f32[32] all-gather-done(begun)""",
        header=FOUR,
    )
    assert sent(started, 4)[0] == [96] * 4
    wrapped = module(
        """x = f32[8] parameter(0)
        begun = ((f32[8]), f32[2]) async-start(x), calls=scatter
        ROOT done = f32[2] async-done(begun), calls=scatter""",
        ADD
        + f"""
scatter {{
  y = f32[8] parameter(0)
  ROOT part = f32[2] reduce-scatter(y), {ALL}, dimensions={{0}}, to_apply=add_f32
}}
""",
        FOUR,
    )
    (result,) = usage(wrapped, 4).collectives
    assert (result.computation, result.instruction, result.opcode, result.sent_bytes) == (
        "scatter",
        "part",
        "reduce-scatter",
        24,
    )


def transfer(pairs: str) -> str:
    return module(
        f"""x = f32[8] parameter(0)
        begin = token[] after-all()
        sent = (f32[8], u32[], token[]) send(x, begin), channel_id=1{pairs}
        asked = (f32[8], u32[], token[]) recv(begin), channel_id=1{pairs}
        received = (f32[8], token[]) recv-done(asked), channel_id=1
        gone = token[] send-done(sent), channel_id=1
        ROOT result = f32[8] get-tuple-element(received), index=0""",
        header=FOUR,
    )


def test_sends_go_where_their_pairs_say() -> None:
    assert sent(transfer(f", {PAIRS}{{{{0,2}},{{1,3}}}}}}"), 2) == ([64, 0], [0, 64], [1, 1])
    untold = usage(transfer(""), 2)
    assert (untold.total_bytes, untold.unknown) == (0, ("main/sent",))


def test_slices_are_sent_alone() -> None:
    text = module(
        """x = s32[4] parameter(0)
        o = s32[4] parameter(1)
        at = s32[] constant(1)
        ROOT z = s32[4] collective-permute(x, o, at, at), source_target_pairs={{0,1}}, slice_sizes={{3}}""",
        header=", replica_count=2",
    )
    assert sent(text, 2)[0] == [12, 0]


def test_what_only_a_run_tells_is_named() -> None:
    ragged = module(
        """x = s32[4] parameter(0)
        o = s32[4] parameter(1)
        at = s32[2] parameter(2)
        ROOT r = s32[4] ragged-all-to-all(x, o, at, at, at, at), replica_groups={{0,1}}""",
        header=", replica_count=2",
    )
    assert (usage(ragged, 2).unknown, usage(ragged, 2).total_bytes) == (("main/r",), 0)
    assert usage(ragged, 1).unknown == ()


def test_tiles_are_sent_where_a_manual_region_ends() -> None:
    text = module(
        """x = f32[8] parameter(0), sharding={manual}
        ROOT whole = f32[32] custom-call(x), custom_call_target="SPMDShardToFullShape", sharding={devices=[4]0,1,2,3}""",
        header=", num_partitions=4",
    )
    # As an all-gather of 32 bytes.
    assert sent(text, 4)[0] == [96] * 4


def looping(bound: str) -> str:
    return f"""HloModule loop, replica_count=4
{ADD}
body {{
  state = (s32[], f32[8], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[8] get-tuple-element(state), index=1
  n = s32[] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  sum = f32[8] all-reduce(x), {ALL}, to_apply=add_f32
  y = f32[8] add(x, sum)
  ROOT out = (s32[], f32[8], s32[]) tuple(next, y, n)
}}
condition {{
  state = (s32[], f32[8], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] get-tuple-element(state), index=2
  ROOT again = pred[] compare(i, n), direction=LT
}}
ENTRY main {{
  x = f32[8] parameter(0)
  m = s32[] parameter(1)
  zero = s32[] constant(0)
  five = s32[] constant(5)
  start = (s32[], f32[8], s32[]) tuple(zero, x, {bound})
  loop = (s32[], f32[8], s32[]) while(start), condition=condition, body=body
  ROOT r = f32[8] get-tuple-element(loop), index=1
}}
"""


def test_loops_count_as_often_as_they_run() -> None:
    (known,) = usage(looping("five"), 4, "1kB/s").collectives
    assert (known.runs, known.is_counted, known.sent_bytes, known.messages) == (5, True, 5 * 48, 5 * 6)
    assert known.seconds == pytest.approx(5 * 0.048)
    (unknown,) = usage(looping("m"), 4).collectives
    assert (unknown.runs, unknown.is_counted, unknown.sent_bytes) == (1, False, 48)


def test_branches_count_as_taken_and_are_marked() -> None:
    text = module(
        """p = pred[] parameter(0)
        x = f32[8] parameter(1)
        ROOT r = f32[8] conditional(p, x, x), true_computation=summed, false_computation=kept""",
        ADD
        + f"""
summed {{
  y = f32[8] parameter(0)
  ROOT s = f32[8] all-reduce(y), {ALL}, to_apply=add_f32
}}
kept {{
  ROOT z = f32[8] parameter(0)
}}
""",
        FOUR,
    )
    (result,) = usage(text, 4).collectives
    assert (result.instruction, result.runs, result.is_counted, result.sent_bytes) == ("s", 1, False, 48)


def test_a_rank_holds_its_devices_inputs_results_and_what_is_alive() -> None:
    # 32 bytes of x on each device. The sine is alive with the cosine, then with their sum; devices that agree share.
    text = module(
        """x = f32[8] parameter(0)
        a = f32[8] sine(x)
        b = f32[8] cosine(x)
        ROOT r = f32[8] atan2(a, b)""",
        header=", replica_count=5",
    )
    rows = usage(text, 2).ranks
    assert [(row.rank, row.first_device, row.device_count) for row in rows] == [(0, 0, 3), (1, 3, 2)]
    assert [row.input_bytes for row in rows] == [96, 64]
    assert [row.equal_input_bytes for row in rows] == [32, 32]
    assert [row.result_bytes for row in rows] == [96, 64]
    assert [row.equal_result_bytes for row in rows] == [32, 32]
    for row in rows:
        # Two operands and the result, of each device; of each class but the last, the operands are freed.
        assert row.result_bytes <= row.peak_bytes <= 3 * row.input_bytes
        assert row.bytes == row.input_bytes + row.peak_bytes
        assert row.equal_peak_bytes in (64, 96)


def test_all_devices_on_one_rank_hold_what_a_run_is_refused_for() -> None:
    text = collective(f"f32[8192] all-gather(x), {ALL}, dimensions={{0}}", x="f32[2048]")
    (row,) = usage(text, 1).ranks
    inputs = [[hloexec.random_inputs(hloexec.parse(text), seed=device)[0]] for device in range(4)]
    with pytest.raises(hloexec.ResourceError, match="on all devices"):
        hloexec.run_devices(hloexec.parse(text), inputs, memory_limit=row.peak_bytes - 1)
    hloexec.run_devices(hloexec.parse(text), inputs, memory_limit=row.peak_bytes)


def test_totals_are_those_of_rows() -> None:
    text = module(
        f"""x = f32[8] parameter(0)
        g = f32[32] all-gather(x), {ALL}, dimensions={{0}}
        s = f32[8] all-reduce(x), {ALL}, to_apply=add_f32
        ROOT r = (f32[32], f32[8]) tuple(g, s)""",
        ADD,
        FOUR,
    )
    result = usage(text, 4, "8kbps,1ms")
    assert [each.instruction for each in result.collectives] == ["g", "s"]
    # Three messages and 96 bytes, six messages and 48 bytes, at 1000 bytes in a second.
    assert [each.seconds for each in result.collectives] == pytest.approx([0.099, 0.054])
    assert result.seconds == pytest.approx(0.153)
    assert result.total_bytes == 4 * (96 + 48) == sum(each.total_bytes for each in result.collectives)
    # 32 bytes of inputs, and the 128 and 32 of results.
    assert str(result) == "m: 4 devices on 4 ranks, each with at most 192 B, which send 576 B"
    assert usage(text, 4).seconds is None


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (0, {}, "ranks must be at least 1, but is 0"),
        (-1, {}, "ranks must be at least 1, but is -1"),
        (5, {}, "ranks must be at most 4, as there are 4 devices and each rank holds one or more, but is 5"),
        (1.5, {}, "ranks must be an integer, but the Python float 1.5 was given"),
        (None, {}, "ranks must be an integer, but None was given"),
        (2, {"network": "fast"}, "network must be a bandwidth"),
        (2, {"replicas": 0}, "replicas must be a number from 1"),
        (2, {"replicas": 2}, "%root names replica 2, but there are 2"),
    ],
)
def test_wrong_arguments_are_named(ranks: int, options: dict[str, object], message: str) -> None:
    parsed = hloexec.parse(collective(f"f32[8] all-reduce(x), {ALL}, to_apply=add_f32"))
    with pytest.raises(InputError) as error:
        hloexec.distributed_usage(parsed, ranks, **options)  # type: ignore[arg-type]
    assert str(error.value).startswith(message)


def test_what_cannot_be_run_cannot_be_planned() -> None:
    with pytest.raises(UnsupportedError, match="nothing-like-it"):
        usage(op('f32[4] custom-call(x), custom_call_target="nothing-like-it"', header=FOUR, x="f32[4]"), 2)
    with pytest.raises(InputError, match="module must be a Module"):
        hloexec.distributed_usage("m.hlo", 2)  # type: ignore[arg-type]
    with pytest.raises(HloError, match="at most 1"):
        usage(op("f32[4] negate(x)", x="f32[4]"), 2)


def calls_of_planning(devices: int, ranks: int) -> int:
    """How many functions planning calls."""
    text = module(
        f"""x = f32[8] parameter(0)
        a = f32[8] all-reduce(x), replica_groups=[2,{devices // 2}]<=[{devices}], to_apply=add_f32
        p = f32[8] collective-permute(a), source_target_pairs={{{",".join(f"{{{d},{(d + 1) % devices}}}" for d in range(devices))}}}
        s = f32[8] sine(p)
        ROOT g = f32[{8 * devices}] all-gather(s), replica_groups={{}}, dimensions={{0}}""",
        ADD,
        f", replica_count={devices}",
    )
    parsed = hloexec.parse(text)
    hloexec.verify(parsed)
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        hloexec.distributed_usage(parsed, ranks, "1Gbps")
    finally:
        sys.setprofile(None)
    return calls


def test_the_work_of_planning_grows_with_devices_and_not_with_their_square() -> None:
    few, many = calls_of_planning(64, 16), calls_of_planning(512, 128)
    assert many < 8.5 * few
