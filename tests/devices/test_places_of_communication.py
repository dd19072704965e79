"""What devices exchange wherever it stands: in loops, in loops within loops, in branches, in calls, on replicas and
partitions at once. Expected values follow from what the exchange means, computed here."""

from collections.abc import Callable

import numpy as np
import pytest

import hloexec

Numbers = list[int]
HANDLE = "(s32[], u32[], token[])"
PARTNERS = "{{0,1},{1,0}}"
TRANSFER = f"frontend_attributes={{_xla_send_recv_source_target_pairs={PARTNERS}}}"

# Of two replicas of two partitions each: device = 2 · replica + partition.
EXCHANGES: dict[str, tuple[str, Callable[[Numbers], Numbers]]] = {
    "sum over replicas": (
        "y = s32[] all-reduce(x), replica_groups={{0,1}}, to_apply=add",
        lambda x: [x[0] + x[2], x[1] + x[3], x[0] + x[2], x[1] + x[3]],
    ),
    "sum over partitions": (
        "y = s32[] all-reduce(x), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=add",
        lambda x: [x[0] + x[1], x[0] + x[1], x[2] + x[3], x[2] + x[3]],
    ),
    "swap of partitions": (
        f"y = s32[] collective-permute(x), channel_id=1, source_target_pairs={PARTNERS}",
        lambda x: [x[1], x[0], x[3], x[2]],
    ),
    "swap of replicas": (
        f"y = s32[] collective-permute(x), source_target_pairs={PARTNERS}",
        lambda x: [x[2], x[3], x[0], x[1]],
    ),
    "send to a partition": (
        f"t = token[] after-all()\n  r = {HANDLE} recv(t), channel_id=1, {TRANSFER}\n"
        f"  s = {HANDLE} send(x, t), channel_id=1, {TRANSFER}\n  rd = (s32[], token[]) recv-done(r), channel_id=1\n"
        "  sd = token[] send-done(s), channel_id=1\n  y = s32[] get-tuple-element(rd), index=0",
        lambda x: [x[1], x[0], x[3], x[2]],
    ),
}

LOOP = """less_{name} {{ state = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  end = s32[] constant({trips})
  ROOT more = pred[] compare(i, end), direction=LT }}
body_{name} {{ state = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = s32[] get-tuple-element(state), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  w = s32[] call(v), to_apply={inner}
  ROOT next = (s32[], s32[]) tuple(j, w) }}
{name} {{ a = s32[] parameter(0)
  zero = s32[] constant(0)
  first = (s32[], s32[]) tuple(zero, a)
  last = (s32[], s32[]) while(first), condition=less_{name}, body=body_{name}
  ROOT out = s32[] get-tuple-element(last), index=1 }}
"""
BRANCHES = """plain_{name} {{ a = s32[] parameter(0)
  ROOT b = s32[] negate(a) }}
{name} {{ a = s32[] parameter(0)
  k = s32[] constant({taken})
  ROOT out = s32[] conditional(k, a, a), branch_computations={{{branches}}} }}
"""


def loop(
    name: str, inner: str, trips: int
) -> tuple[str, Callable[[Callable[[Numbers], Numbers]], Callable[[Numbers], Numbers]]]:
    def repeated(function: Callable[[Numbers], Numbers]) -> Callable[[Numbers], Numbers]:
        def run(x: Numbers) -> Numbers:
            for _ in range(trips):
                x = function(x)
            return x

        return run

    return LOOP.format(name=name, inner=inner, trips=trips), repeated


def second_branch(name: str, inner: str) -> str:
    return BRANCHES.format(name=name, branches=f"plain_{name}, {inner}", taken=1)


def first_branch(name: str, inner: str) -> str:
    return BRANCHES.format(name=name, branches=f"{inner}, plain_{name}", taken=0)


PLACES = (
    "call",
    "loop",
    "loop in a loop",
    "second branch in a loop",
    "first branch in a loop",
    "loop in a branch in a loop",
)


def module_of(exchange: str, place: str) -> tuple[str, Callable[[Numbers], Numbers]]:
    line, meaning = EXCHANGES[exchange]

    def step(x: Numbers) -> Numbers:
        return [(value + device) % 1009 for device, value in enumerate(meaning(x))]

    text = (
        f"step {{ x = s32[] parameter(0)\n  {line}\n  p = u32[] partition-id()\n  r0 = u32[] replica-id()\n"
        "  two = u32[] constant(2)\n  rr = u32[] multiply(r0, two)\n  d = u32[] add(rr, p)\n  e = s32[] convert(d)\n"
        "  f = s32[] add(y, e)\n  m = s32[] constant(1009)\n  ROOT g = s32[] remainder(f, m) }\n"
    )
    inner, found = "step", step
    if place == "loop in a branch in a loop":
        made, again = loop("within", inner, 2)
        text, inner, found = text + made, "within", again(found)
    if "second branch" in place or "in a branch" in place:
        text, inner = text + second_branch("chosen", inner), "chosen"
    if "first branch" in place:
        text, inner = text + first_branch("chosen", inner), "chosen"
    if place == "loop in a loop":
        made, again = loop("within", inner, 2)
        text, inner, found = text + made, "within", again(found)
    if place != "call":
        made, again = loop("around", inner, 20)
        text, inner, found = text + made, "around", again(found)
    head = "HloModule m, replica_count=2, num_partitions=2\nadd { a = s32[] parameter(0)\n  b = s32[] parameter(1)\n"
    entry = f"ENTRY main {{ x = s32[] parameter(0)\n  ROOT y = s32[] call(x), to_apply={inner} }}\n"
    return f"{head}  ROOT c = s32[] add(a, b) }}\n{text}{entry}", found


@pytest.mark.sampled(7)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("inputs", [[3, 5, 8, 13], [3, 3, 8, 8], [7, 7, 7, 7]], ids=str)
def test_devices_get_what_the_exchange_means(exchange, place, inputs):
    text, meaning = module_of(exchange, place)
    module = hloexec.parse(text)
    for options in ({}, {}, {"planner": False}):
        found = hloexec.run_devices(module, [[np.array(value, np.int32)] for value in inputs], **options)
        assert [int(value) for value in found] == meaning(inputs)


@pytest.mark.parametrize("devices", [2, 3, 5])
@pytest.mark.parametrize("after", ["nothing", "a sum", "another branch", "a loop"])
def test_a_branch_may_wait_for_what_others_send_after_theirs(devices, after):
    """Device 0 receives within its branch what device 1 sends once it has left the other branch, for which the others
    cannot wait; what follows is done by all, and a sum over all devices by all together."""
    pairs = "frontend_attributes={_xla_send_recv_source_target_pairs={{1,0}}}"
    rest = {
        "nothing": "out = s32[] copy(w)",
        "a sum": "out = s32[] all-reduce(w), channel_id=9, to_apply=add, use_global_device_ids=true, replica_groups={"
        + f"{{{','.join(map(str, range(devices)))}}}}}",
        "another branch": "out = s32[] conditional(first, w, w), true_computation=no, false_computation=same",
        "a loop": "out = s32[] call(w), to_apply=again",
    }[after]
    made, _ = loop("again", "no", 3)
    text = (
        f"HloModule m, num_partitions={devices}\nadd {{ a = s32[] parameter(0)\n  b = s32[] parameter(1)\n"
        f"  ROOT c = s32[] add(a, b) }}\nyes {{ y = s32[] parameter(0)\n  t = token[] after-all()\n"
        f"  r = {HANDLE} recv(t), channel_id=3, {pairs}\n  rd = (s32[], token[]) recv-done(r), channel_id=3\n"
        "  g = s32[] get-tuple-element(rd), index=0\n  ROOT h = s32[] add(g, y) }\n"
        "no { y = s32[] parameter(0)\n  ROOT n = s32[] negate(y) }\nsame { y = s32[] parameter(0)\n  ROOT n = s32[] copy(y) }\n"
        f"{made}ENTRY main {{ x = s32[] parameter(0)\n  p = u32[] partition-id()\n  z = u32[] constant(0)\n"
        "  first = pred[] compare(p, z), direction=EQ\n"
        "  w = s32[] conditional(first, x, x), true_computation=yes, false_computation=no\n  t0 = token[] after-all()\n"
        f"  s = {HANDLE} send(x, t0), channel_id=3, {pairs}\n  sd = token[] send-done(s), channel_id=3\n  {rest}\n"
        "  ROOT both = (s32[], s32[]) tuple(w, out) }\n"
    )
    inputs = [10 * device + 7 for device in range(devices)]
    values = [inputs[0] + inputs[1], *(-value for value in inputs[1:])]
    expected = {
        "nothing": values,
        "a sum": [sum(values)] * devices,
        "another branch": [-values[0], *values[1:]],
        "a loop": [-value for value in values],
    }[after]
    module = hloexec.parse(text)
    for options in ({}, {"planner": False}):
        found = hloexec.run_devices(module, [[np.array(value, np.int32)] for value in inputs], **options)
        assert [(int(w), int(out)) for w, out in found] == list(zip(values, expected, strict=True))
