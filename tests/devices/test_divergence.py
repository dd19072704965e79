"""Devices that take different ways: what meets, and what joins again.

Expected values are worked out in the tests from what each device does.
"""

import pytest

import hloexec
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.statistics import Statistics
from tests.devices.diverging import ADD, HANDLE, branch, chosen, looped, numbers, run, summed

pytestmark = pytest.mark.timeout(60)


class Watcher:
    def on_instruction(self, event: Event) -> None:
        """Having an observer is what matters."""


def test_groups_that_agree_meet_within_a_branch() -> None:
    text = (
        ADD
        + branch("pairs", "ROOT " + summed("{{0,1},{2,3}}"))
        + branch("nothing", "ROOT n = s32[] negate(x)")
        + chosen(2, "pairs", "nothing")
    )
    assert numbers(run(text, 4)) == [1, 1, -2, -3]


def test_collectives_with_one_channel_meet_in_different_branches() -> None:
    """As on XLA:CPU: the channel says what belongs together."""
    channel = "channel_id=5, use_global_device_ids=true, "
    text = (
        ADD
        + branch("plain", "ROOT " + summed("{{0,1,2,3}}", channel=channel))
        + branch("negated", summed("{{0,1,2,3}}", channel=channel) + "\n  ROOT n = s32[] negate(total)")
        + chosen(1, "plain", "negated")
    )
    assert numbers(run(text, 4)) == [6, -6, -6, -6]


def test_pairs_of_devices_loop_different_numbers_of_times() -> None:
    """The first pair doubles its sum once per iteration and loops twice, the second pair loops five times."""
    body = summed("{{0,1},{2,3}}", name="y", operand="v")
    times = """two = s32[] constant(2)
  three = s32[] constant(3)
  second = s32[] divide(x, two)
  more = s32[] multiply(second, three)
  times = s32[] add(two, more)"""
    expected = [(0 + 1) * 2, (0 + 1) * 2, (2 + 3) * 2**4, (2 + 3) * 2**4]
    assert numbers(run(ADD + looped(body, times), 4)) == expected


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("is_planned", [True, False])
@pytest.mark.parametrize("is_observed", [True, False])
def test_devices_of_different_indices_take_one_branch(first: int, is_planned: bool, is_observed: bool) -> None:
    """An index out of range chooses the last branch, so 1, 2 and 3, or 5 to 8, choose alike."""
    text = (
        branch("negated", "ROOT n = s32[] negate(x)")
        + branch("inverted", "ROOT n = s32[] not(x)")
        + f"""ENTRY main {{
  x = s32[] parameter(0)
  first = s32[] constant({first})
  index = s32[] add(x, first)
  ROOT out = s32[] conditional(index, x, x), branch_computations={{negated, inverted}}
}}
"""
    )
    observers = [Watcher()] if is_observed else []
    expected = [-x if first + x == 0 else ~x for x in range(4)]
    assert numbers(run(text, 4, planner=is_planned, observers=observers)) == expected


def test_loops_without_communication_join_again_before_a_collective() -> None:
    """Device d adds 10 d times; then all devices add up."""
    body = "ten = s32[] constant(10)\n  y = s32[] add(v, ten)"
    after = "mine = s32[] get-tuple-element(done), index=1\n  ROOT " + summed("{}", operand="mine")
    text = ADD + looped(body, "times = s32[] copy(x)", after)
    assert numbers(run(text, 5)) == [sum(11 * d for d in range(5))] * 5


def test_branches_join_again_before_a_collective_in_a_loop() -> None:
    """Three iterations: odd values are negated, then everyone adds up."""
    text = (
        ADD
        + branch("negated", "ROOT n = s32[] negate(x)")
        + branch("same", "ROOT c = s32[] copy(x)")
        + looped(
            """two = s32[] constant(2)
  odd = s32[] remainder(v, two)
  zero = s32[] constant(0)
  is_odd = pred[] compare(odd, zero), direction=NE
  w = s32[] conditional(is_odd, v, v), true_computation=negated, false_computation=same
  """
            + summed("{{0,1},{2,3}}", name="total", operand="w")
            + "\n  y = s32[] add(total, x0)",
            "times = s32[] constant(3)",
        ).replace(
            "y = s32[] add(total, x0)", "id = u32[] replica-id()\n  d = s32[] convert(id)\n  y = s32[] add(total, d)"
        )
    )
    values = [0, 1, 2, 3]
    for _ in range(3):
        kept = [-v if v % 2 else v for v in values]
        values = [kept[d // 2 * 2] + kept[d // 2 * 2 + 1] + d for d in range(4)]
    assert numbers(run(text, 4)) == values


def test_a_branch_within_a_branch_within_a_loop_meets_its_group() -> None:
    """Devices 0 and 1 meet inside, device 2 goes elsewhere, device 3 leaves the loop early."""
    text = (
        ADD
        + branch("inner", "ROOT " + summed("{{0,1},{2},{3}}"))
        + branch("elsewhere", "ROOT n = s32[] negate(x)")
        + branch(
            "outer",
            """id = u32[] replica-id()
  two = u32[] constant(2)
  low = pred[] compare(id, two), direction=LT
  ROOT out = s32[] conditional(low, x, x), true_computation=inner, false_computation=elsewhere""",
        )
        + branch("last", "hundred = s32[] constant(100)\n  ROOT s = s32[] add(x, hundred)")
        + looped(
            """id = u32[] replica-id()
  three = u32[] constant(3)
  low = pred[] compare(id, three), direction=LT
  y = s32[] conditional(low, v, v), true_computation=outer, false_computation=last""",
            """three = s32[] constant(3)
  is_last = pred[] compare(x, three), direction=EQ
  one = s32[] constant(1)
  times = s32[] select(is_last, one, three)""",
        )
    )
    assert numbers(run(text, 4)) == [4, 4, -2, 103]


def test_a_started_collective_is_done_after_devices_have_parted() -> None:
    text = (
        ADD
        + """left {
  s = s32[] parameter(0)
  ROOT d = s32[] all-reduce-done(s)
}
right {
  s = s32[] parameter(0)
  d = s32[] all-reduce-done(s)
  ROOT n = s32[] negate(d)
}
ENTRY main {
  x = s32[] parameter(0)
  s = s32[] all-reduce-start(x), replica_groups={}, to_apply=add
  one = s32[] constant(1)
  low = pred[] compare(x, one), direction=LT
  ROOT out = s32[] conditional(low, s, s), true_computation=left, false_computation=right
}
"""
    )
    assert numbers(run(text, 3)) == [3, -3, -3]


def test_a_permute_is_carried_through_a_pipelined_loop() -> None:
    """Each iteration finishes the permute that the one before it started: four rotations of three devices."""
    state = "(s32[], (s32[], s32[], u32[], u32[]))"
    text = f"""body {{
  state = {state} parameter(0)
  left = s32[] get-tuple-element(state), index=0
  moving = (s32[], s32[], u32[], u32[]) get-tuple-element(state), index=1
  arrived = s32[] collective-permute-done(moving)
  one = s32[] constant(1)
  rest = s32[] subtract(left, one)
  again = (s32[], s32[], u32[], u32[]) collective-permute-start(arrived), source_target_pairs={{{{0,1}},{{1,2}},{{2,0}}}}
  ROOT next = {state} tuple(rest, again)
}}
condition {{
  state = {state} parameter(0)
  left = s32[] get-tuple-element(state), index=0
  zero = s32[] constant(0)
  ROOT more = pred[] compare(left, zero), direction=GT
}}
ENTRY main {{
  x = s32[] parameter(0)
  first = (s32[], s32[], u32[], u32[]) collective-permute-start(x), source_target_pairs={{{{0,1}},{{1,2}},{{2,0}}}}
  three = s32[] constant(3)
  start = {state} tuple(three, first)
  done = {state} while(start), condition=condition, body=body
  moving = (s32[], s32[], u32[], u32[]) get-tuple-element(done), index=1
  ROOT out = s32[] collective-permute-done(moving)
}}
"""
    assert numbers(run(text, 3)) == [(d - 4) % 3 for d in range(3)]


# Send and recv


def transfers(pairs: str = "") -> str:
    attribute = f", frontend_attributes={{_xla_send_recv_source_target_pairs={pairs}}}" if pairs else ""
    return f"""t = token[] after-all()
  r = {HANDLE} recv(t), channel_id=1{attribute}
  s = {HANDLE} send(x, t), channel_id=1{attribute}
  rd = (s32[], token[]) recv-done(r), channel_id=1
  sd = token[] send-done(s), channel_id=1
"""


def test_send_and_recv_move_values_along_their_pairs() -> None:
    text = f"ENTRY main {{\n  x = s32[] parameter(0)\n  {transfers('{{0,1},{1,2},{2,0}}')}  ROOT out = s32[] get-tuple-element(rd), index=0\n}}\n"
    assert numbers(run(text, 3)) == [2, 0, 1]
    assert numbers(run(text, 3, replicas=False)) == [2, 0, 1]


@pytest.mark.parametrize("pairs", ["{{0,1},{1}}", "{{0,x}}", "{{0,%s}}" % ("9" * 5000)])
def test_what_spells_no_pairs_is_refused(pairs: str) -> None:
    text = f"ENTRY main {{\n  x = s32[] parameter(0)\n  {transfers(pairs)}  ROOT out = s32[] copy(x)\n}}\n"
    with pytest.raises(hloexec.InputError, match="should transfer between pairs like"):
        run(text, 2)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("{{0,1},{1,2}}", "names {} 2 as a target, but there are 2"),
        ("{{2,1},{1,0}}", "names {} 2 as a source, but there are 2"),
        ("{{0,1},{7,0}}", "names {} 7 as a source, but there are 2"),
        ("{{0,1},{0,0}}", "names {} 0 as a source twice"),
        ("{{0,1},{1,1}}", "names {} 1 as a target twice"),
    ],
)
@pytest.mark.parametrize("replicas", [True, False])
def test_pairs_of_a_channel_name_devices_that_are_there_once_at_either_end(
    pairs: str, message: str, replicas: bool
) -> None:
    text = f"ENTRY main {{\n  x = s32[] parameter(0)\n  {transfers(pairs)}}}\n"
    kind = "replica" if replicas else "partition"
    with pytest.raises(hloexec.InputError, match=message.format(kind)):
        run(text, 2, replicas=replicas)


def test_a_device_that_nobody_sends_to_receives_zeros() -> None:
    """As GPUs do: a pipeline's first stage."""
    text = f"ENTRY main {{\n  x = s32[] parameter(0)\n  {transfers('{{1,2},{2,3}}')}  ROOT out = s32[] get-tuple-element(rd), index=0\n}}\n"
    assert numbers(run(text, 4)) == [0, 0, 1, 2]


def test_a_send_in_one_branch_meets_a_recv_in_the_other() -> None:
    text = (
        branch(
            "sender",
            f"""t = token[] after-all()
  seven = s32[] constant(7)
  s = {HANDLE} send(seven, t), channel_id=3
  sd = token[] send-done(s), channel_id=3
  ROOT out = s32[] negate(x)""",
        )
        + branch(
            "receiver",
            f"""t = token[] after-all()
  r = {HANDLE} recv(t), channel_id=3
  rd = (s32[], token[]) recv-done(r), channel_id=3
  ROOT out = s32[] get-tuple-element(rd), index=0""",
        )
        + chosen(1, "sender", "receiver")
    )
    assert numbers(run(text, 2)) == [0, 7]
    # And with the receiver first.
    assert numbers(run(text.replace("direction=LT", "direction=GE"), 2)) == [7, -1]


def test_recv_in_a_loop_takes_what_was_sent_in_order() -> None:
    """The sender's loop sends 3, 2, 1 to the receiver, whose own loop folds them as 10 · value + received."""
    sender = looped(
        f"""t = token[] after-all()
  s = {HANDLE} send(left, t), channel_id=1
  sd = token[] send-done(s), channel_id=1
  y = s32[] add(v, left)""",
        "times = s32[] constant(3)",
    )
    receiver = looped(
        f"""t = token[] after-all()
  r = {HANDLE} recv(t), channel_id=1
  rd = (s32[], token[]) recv-done(r), channel_id=1
  got = s32[] get-tuple-element(rd), index=0
  ten = s32[] constant(10)
  shifted = s32[] multiply(v, ten)
  y = s32[] add(shifted, got)""",
        "times = s32[] constant(3)",
    )
    text = "".join(
        part.replace("body {", f"body_{name} {{")
        .replace("condition {", f"condition_{name} {{")
        .replace("condition=condition, body=body", f"condition=condition_{name}, body=body_{name}")
        .replace("ENTRY main", name)
        for name, part in (("sender", sender), ("receiver", receiver))
    ) + chosen(1, "sender", "receiver")
    assert numbers(run(text, 2)) == [0 + 3 + 2 + 1, ((1 * 10 + 3) * 10 + 2) * 10 + 1]


def test_a_split_collective_meets_one_that_is_not_split() -> None:
    """Start and done are one collective, whatever a scheduler made of the other branch."""
    split = "s = s32[] all-reduce-start(x), replica_groups={{0,1}}, to_apply=add\n  ROOT d = s32[] all-reduce-done(s)"
    text = ADD + branch("whole", "ROOT " + summed("{{0,1}}")) + branch("split", split) + chosen(1, "whole", "split")
    assert numbers(run(text, 2)) == [1, 1]


def test_those_who_went_on_without_the_others_join_among_themselves() -> None:
    """Devices 2 and 3 leave the loop at once, and send to 0 and 1, which wait for that in the loop: so they cannot wait for
    these. 0 and 1 loop once and twice, then take the long way behind the loop together."""
    pairs, second = (
        f"frontend_attributes={{_xla_send_recv_source_target_pairs={p}}}" for p in ("{{2,0},{3,1}}", "{{3,1}}")
    )
    body = f"""t = token[] after-all()
  r = {HANDLE} recv(t), channel_id=1, {pairs}
  rd = (s32[], token[]) recv-done(r), channel_id=1
  got = s32[] get-tuple-element(rd), index=0
  y = s32[] add(v, got)"""
    times = """one = s32[] constant(1)
  two = s32[] constant(2)
  none = s32[] constant(0)
  receives = pred[] compare(x, two), direction=LT
  often = s32[] add(x, one)
  times = s32[] select(receives, often, none)"""
    sends = "".join(
        f"""t{number} = token[] after-all()
  sent{number} = {HANDLE} send(x, t{number}), channel_id=1, {attribute}
  done{number} = token[] send-done(sent{number}), channel_id=1
  """
        for number, attribute in enumerate((pairs, second))
    )
    chain = "".join(f"v{number + 1} = s32[] xor(v{number}, x)\n  " for number in range(400))
    after = f"{sends}v0 = s32[] get-tuple-element(done), index=1\n  {chain}ROOT out = s32[] negate(v400)"
    statistics = Statistics()
    text = looped(body, times, after)
    assert numbers(run(text, 4, statistics=statistics)) == [-2, -7, -2, -3]
    # Two ways behind the loop, of two devices each.
    assert 2 * 400 < statistics.steps < 3 * 400
