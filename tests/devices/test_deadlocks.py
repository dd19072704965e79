"""What can never meet is reported: who waits where for whom, and where the others are."""

import pytest

import hloexec
from tests.devices.diverging import ADD, HANDLE, branch, chosen, looped, numbers, run, summed

pytestmark = pytest.mark.timeout(60)


def assert_deadlock(text: str, devices: int, *parts: str) -> None:
    """The report names, among other things, each of `parts`."""
    with pytest.raises(hloexec.DeadlockError) as caught:
        run(text, devices)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_a_collective_that_a_device_never_reaches_is_reported() -> None:
    text = (
        ADD
        + branch("all", "ROOT " + summed("{}"))
        + branch("none", "ROOT n = s32[] negate(x)")
        + chosen(3, "all", "none")
    )
    assert_deadlock(text, 4, "devices 0, 1, 2 wait", "device 3", "all-reduce", "total", "all", "device 3 has finished")


def test_a_loop_that_ends_earlier_on_one_device_is_reported() -> None:
    text = ADD + looped(summed("{}", name="y", operand="v"), "times = s32[] copy(x)")
    # Nobody but device 0 finishes: it never enters the loop.
    assert_deadlock(text, 3, "devices 1, 2 wait", "device 0 has finished", "all-reduce", "%y", "body")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("channel_id=2, use_global_device_ids=true, ", "another channel"),
        ("", "no channel"),
    ],
)
def test_collectives_with_other_channels_do_not_meet(other: str, why: str) -> None:
    text = (
        ADD
        + branch("one", "ROOT " + summed("{{0,1}}", name="here", channel="channel_id=1, use_global_device_ids=true, "))
        + branch("two", "ROOT " + summed("{{0,1}}", name="there", channel=other))
        + chosen(1, "one", "two")
    )
    assert_deadlock(
        text, 2, "device 0 waits for device 1", "%here", "device 1 waits for device 0", "%there", "all-reduce"
    )


def test_who_waits_in_vain_is_found_among_devices_that_went_on() -> None:
    """Devices 0 and 2 reach the sum together, but only device 2's group is complete; both would join device 1 after."""
    text = (
        ADD
        + branch("skip", "ROOT c = s32[] copy(x)")
        + branch("meet", "ROOT " + summed("{{0,1},{2}}"))
        + """ENTRY main {
  x = s32[] parameter(0)
  one = s32[] constant(1)
  odd = pred[] compare(x, one), direction=EQ
  ROOT out = s32[] conditional(odd, x, x), true_computation=skip, false_computation=meet
}
"""
    )
    assert_deadlock(text, 3, "device 0 waits for device 1", "%total", "devices 1, 2 have finished")


def test_collectives_without_a_channel_meet_in_different_branches() -> None:
    """As on XLA:CPU: kind and participants are enough."""
    text = (
        ADD
        + branch("plain", "ROOT " + summed("{{0,1,2,3}}"))
        + branch("negated", summed("{{0,1,2,3}}") + "\n  ROOT n = s32[] negate(total)")
        + chosen(1, "plain", "negated")
    )
    assert numbers(run(text, 4)) == [6, -6, -6, -6]


def test_collectives_of_other_shapes_do_not_meet() -> None:
    channel = "channel_id=1, use_global_device_ids=true, "
    wide = f"""b = s32[2] broadcast(x), dimensions={{}}
  total = s32[2] all-reduce(b), {channel}replica_groups={{{{0,1}}}}, to_apply=add
  s = s32[1] slice(total), slice={{[0:1]}}
  ROOT r = s32[] reshape(s)"""
    text = (
        ADD
        + branch("one", "ROOT " + summed("{{0,1}}", channel=channel))
        + branch("two", wide)
        + chosen(1, "one", "two")
    )
    assert_deadlock(text, 2, "device 0 waits", "device 1 waits", "s32[2]", "%total")


def test_collectives_of_other_opcodes_do_not_meet() -> None:
    channel = "channel_id=1, "
    text = (
        ADD
        + branch("one", "ROOT moved = s32[] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,0}}")
        + branch("two", "ROOT cast = s32[] collective-broadcast(x), channel_id=1, replica_groups={{0,1}}")
        + chosen(1, "one", "two")
    )
    assert channel in text
    with pytest.raises(hloexec.DeadlockError) as caught:
        run(text, 2, replicas=False)
    assert "%moved" in str(caught.value) and "%cast" in str(caught.value)


def test_devices_that_wait_for_each_other_in_a_circle_are_reported() -> None:
    one, two = (f"channel_id={n}, use_global_device_ids=true, " for n in (1, 2))
    first = (
        summed("{{0,1}}", name="a", channel=one) + "\n  ROOT " + summed("{{0,1}}", name="b", operand="a", channel=two)
    )
    second = (
        summed("{{0,1}}", name="c", channel=two) + "\n  ROOT " + summed("{{0,1}}", name="d", operand="c", channel=one)
    )
    text = ADD + branch("up", first) + branch("down", second) + chosen(1, "up", "down")
    assert_deadlock(text, 2, "device 0 waits for device 1", "%a", "device 1 waits for device 0", "%c")


def test_a_recv_that_nobody_sends_to_is_reported() -> None:
    text = f"""ENTRY main {{
  x = s32[] parameter(0)
  t = token[] after-all()
  r = {HANDLE} recv(t), channel_id=4
  rd = (s32[], token[]) recv-done(r), channel_id=4
  ROOT out = s32[] get-tuple-element(rd), index=0
}}
"""
    assert_deadlock(text, 2, "devices 0, 1 wait for data on channel 4", "%rd")


def test_a_recv_whose_sender_takes_the_other_branch_is_reported() -> None:
    pairs = ", frontend_attributes={_xla_send_recv_source_target_pairs={{0,1}}}"
    text = (
        branch("idle", "ROOT n = s32[] negate(x)")
        + branch(
            "receiver",
            f"""t = token[] after-all()
  r = {HANDLE} recv(t), channel_id=3{pairs}
  rd = (s32[], token[]) recv-done(r), channel_id=3
  ROOT out = s32[] get-tuple-element(rd), index=0""",
        )
        + chosen(1, "idle", "receiver")
    )
    assert_deadlock(text, 2, "device 1 waits for data on channel 3 from device 0", "device 0 has finished")


def test_a_send_that_nobody_receives_is_reported() -> None:
    text = f"""ENTRY main {{
  x = s32[] parameter(0)
  t = token[] after-all()
  s = {HANDLE} send(x, t), channel_id=9
  sd = token[] send-done(s), channel_id=9
  ROOT out = s32[] copy(x)
}}
"""
    assert_deadlock(text, 2, "channel 9", "device 0")


def test_a_report_of_many_devices_stays_short() -> None:
    text = (
        ADD
        + branch("all", "ROOT " + summed("{}"))
        + branch("none", "ROOT n = s32[] negate(x)")
        + chosen(100, "all", "none")
    )
    with pytest.raises(hloexec.DeadlockError) as caught:
        run(text, 128)
    assert len(str(caught.value)) < 2000 and "devices 0, 1, 2" in str(caught.value)
