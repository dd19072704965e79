"""Random programs in which devices part, loop, meet and wait: hloexec gives what coroutines give, one per device.

The model runs each device by itself, as a generator that stops where it needs others. Where none can go on, or something
sent is never received, hloexec must report a deadlock; otherwise values must be equal.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import hloexec
from tests.drawing import examples

pytestmark = pytest.mark.timeout(60)

Node = tuple[Any, ...]
TEAM = 2
"""Devices 0 and 1 are a team, 2 and 3, …: predicates and groups are often about teams, so that not all programs hang."""

predicates = st.one_of(
    st.tuples(st.just("team below"), st.integers(0, 3)),
    st.tuples(st.just("team below"), st.integers(0, 3)),
    st.tuples(st.just("device below"), st.integers(0, 5)),
    st.tuples(st.just("odd"), st.just(0)),
    st.tuples(st.just("team is"), st.integers(0, 2)),
)
trip_counts = st.one_of(
    st.tuples(st.just("constant"), st.integers(0, 3)),
    st.tuples(st.just("team"), st.integers(0, 2)),
    st.tuples(st.just("team"), st.integers(0, 2)),
    st.tuples(st.just("device"), st.integers(0, 1)),
)
groupings = st.sampled_from(["teams", "teams", "teams", "all", "alone", "reversed teams"])
leaves = st.one_of(
    st.tuples(st.just("add"), st.integers(-3, 3)),
    st.tuples(st.just("mix")),
    st.tuples(st.just("sum"), groupings, st.sampled_from([0, 0, 1, 2]), st.booleans()),
    st.tuples(st.just("sum"), groupings, st.sampled_from([0, 0, 1, 2]), st.booleans()),
    st.tuples(st.just("rotate"), st.sampled_from(["teams", "all"])),
    st.tuples(st.just("transfer"), st.sampled_from(["teams", "teams", "all"])),
)
blocks = st.recursive(
    st.lists(leaves, max_size=3),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.tuples(st.just("if"), predicates, inner, inner),
            st.tuples(st.just("loop"), trip_counts, inner),
            st.tuples(st.just("call"), inner),
        ),
        min_size=1,
        max_size=3,
    ),
    max_leaves=12,
)


def _groups(grouping: str, devices: int) -> list[list[int]]:
    everyone = list(range(devices))
    teams = [everyone[start : start + TEAM] for start in range(0, devices, TEAM)]
    return {
        "teams": teams,
        "all": [everyone],
        "alone": [[device] for device in everyone],
        "reversed teams": [team[::-1] for team in teams],
    }[grouping]


def _pairs(grouping: str, devices: int) -> list[tuple[int, int]]:
    return [
        (source, group[(place + 1) % len(group)])
        for group in _groups(grouping, devices)
        for place, source in enumerate(group)
    ]


def _braces(rows: Any) -> str:
    return "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in rows) + "}"


@dataclass
class Writer:
    """HLO text of a block: one computation per block, from s32[] to s32[]."""

    devices: int
    computations: list[str] = field(default_factory=list)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def block(self, nodes: list[Node], header: str = "") -> str:
        name = header or self.name("block")
        lines = ["x = s32[] parameter(0)", "id = u32[] replica-id()", "device = s32[] convert(id)"]
        lines += [f"size = s32[] constant({TEAM})", "team = s32[] divide(device, size)"]
        value = "x"
        for node in nodes:
            value = getattr(self, f"_{node[0]}")(lines, value, *node[1:])
        lines.append(f"ROOT out = s32[] copy({value})")
        body = "".join(f"  {line}\n" for line in lines)
        self.computations.append(f"{name} {{\n{body}}}\n")
        return name

    def _add(self, lines: list[str], value: str, number: int) -> str:
        result, constant = self.name("v"), self.name("limit")
        lines += [f"{constant} = s32[] constant({number})", f"{result} = s32[] add({value}, {constant})"]
        return result

    def _mix(self, lines: list[str], value: str) -> str:
        """3 v + device"""
        result, constant, product = self.name("v"), self.name("limit"), self.name("m")
        lines += [
            f"{constant} = s32[] constant(3)",
            f"{product} = s32[] multiply({value}, {constant})",
            f"{result} = s32[] add({product}, device)",
        ]
        return result

    def _sum(self, lines: list[str], value: str, grouping: str, channel: int, split: bool) -> str:
        result = self.name("v")
        attributes = f"replica_groups={_braces(_groups(grouping, self.devices))}, to_apply=sum"
        if channel:
            attributes = f"channel_id={channel}, use_global_device_ids=true, {attributes}"
        if split:
            lines += [
                f"{result}s = s32[] all-reduce-start({value}), {attributes}",
                f"{result} = s32[] all-reduce-done({result}s)",
            ]
        else:
            lines.append(f"{result} = s32[] all-reduce({value}), {attributes}")
        return result

    def _rotate(self, lines: list[str], value: str, grouping: str) -> str:
        result = self.name("v")
        pairs = _braces(_pairs(grouping, self.devices))
        lines.append(f"{result} = s32[] collective-permute({value}), source_target_pairs={pairs}")
        return result

    def _transfer(self, lines: list[str], value: str, grouping: str) -> str:
        result = self.name("v")
        number = 100 + self.count
        pairs = _braces(_pairs(grouping, self.devices))
        attributes = f"channel_id={number}, frontend_attributes={{_xla_send_recv_source_target_pairs={pairs}}}"
        handle = "(s32[], u32[], token[])"
        lines += [
            f"{result}t = token[] after-all()",
            f"{result}r = {handle} recv({result}t), {attributes}",
            f"{result}s = {handle} send({value}, {result}t), {attributes}",
            f"{result}rd = (s32[], token[]) recv-done({result}r), channel_id={number}",
            f"{result}sd = token[] send-done({result}s), channel_id={number}",
            f"{result} = s32[] get-tuple-element({result}rd), index=0",
        ]
        return result

    def _if(self, lines: list[str], value: str, predicate: Node, yes: list[Node], no: list[Node]) -> str:
        result, condition, limit = self.name("v"), self.name("p"), self.name("limit")
        kind, number = predicate
        compared = {"odd": f"{condition}bit"}.get(kind, kind.split()[0])
        if kind == "odd":
            lines += [f"{condition}one = s32[] constant(1)", f"{condition}bit = s32[] and({value}, {condition}one)"]
        lines.append(f"{limit} = s32[] constant({number})")
        branches = self.block(yes), self.block(no)
        if kind == "team is":
            # Indices out of range, on both sides, choose the last branch.
            lines.append(f"{condition} = s32[] subtract({compared}, {limit})")
            chosen = "branch_computations={{{}, {}}}".format(*branches)
        else:
            direction = "NE" if kind == "odd" else "LT"
            lines.append(f"{condition} = pred[] compare({compared}, {limit}), direction={direction}")
            chosen = "true_computation={}, false_computation={}".format(*branches)
        lines.append(f"{result} = s32[] conditional({condition}, {value}, {value}), {chosen}")
        return result

    def _loop(self, lines: list[str], value: str, trips: Node, nodes: list[Node]) -> str:
        result = self.name("v")
        kind, number = trips
        body = self.block(nodes)
        self.computations.append(f"""{result}_body {{
  state = (s32[], s32[]) parameter(0)
  left = s32[] get-tuple-element(state), index=0
  v = s32[] get-tuple-element(state), index=1
  one = s32[] constant(1)
  rest = s32[] subtract(left, one)
  w = s32[] call(v), to_apply={body}
  ROOT next = (s32[], s32[]) tuple(rest, w)
}}
{result}_condition {{
  state = (s32[], s32[]) parameter(0)
  left = s32[] get-tuple-element(state), index=0
  zero = s32[] constant(0)
  ROOT more = pred[] compare(left, zero), direction=GT
}}
""")
        lines.append(f"{result}c = s32[] constant({number})")
        times = f"{result}c"
        if kind != "constant":
            lines.append(f"{result}n = s32[] add({kind}, {times})")
            times = f"{result}n"
        lines += [
            f"{result}i = (s32[], s32[]) tuple({times}, {value})",
            f"{result}w = (s32[], s32[]) while({result}i), condition={result}_condition, body={result}_body",
            f"{result} = s32[] get-tuple-element({result}w), index=1",
        ]
        return result

    def _call(self, lines: list[str], value: str, nodes: list[Node]) -> str:
        result = self.name("v")
        lines.append(f"{result} = s32[] call({value}), to_apply={self.block(nodes)}")
        return result


def text_of(nodes: list[Node], devices: int) -> str:
    writer = Writer(devices)
    writer.block(nodes, "ENTRY main")
    add = "sum {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  ROOT s = s32[] add(a, b)\n}\n"
    return f"HloModule random, replica_count={devices}\n{add}{''.join(writer.computations)}"


class Model:
    """All devices of a program as coroutines."""

    def __init__(self, nodes: list[Node], devices: int) -> None:
        self.devices = devices
        self.steps_left = 3000
        self.mail: dict[tuple[int, int], deque[int]] = {}
        self.results: dict[int, int] = {}
        self.tasks = {device: self._device(nodes, device) for device in range(devices)}

    def run(self) -> list[int] | None:
        """The values, or None for a deadlock."""
        wishes: dict[int, Any] = {}
        for device in range(self.devices):
            self._resume(device, None, wishes)
        while wishes:
            before = dict(wishes)
            for device, (kind, key, group, value) in before.items():
                if device not in wishes or wishes[device] is not before[device]:
                    continue
                if kind == "mail":
                    box = self.mail.get(key)
                    if box:
                        self._resume(device, box.popleft(), wishes)
                elif all(other in wishes and wishes[other][:3] == (kind, key, group) for other in group):
                    values = {other: wishes[other][3] for other in group}
                    for other in group:
                        answer = _wrapped(sum(values.values()))
                        if kind == "permute":
                            answer = values[group[group.index(other) - 1]]
                        self._resume(other, answer, wishes)
                else:
                    assert value is not None
            if wishes == before and all(wishes[d] is before[d] for d in wishes):
                return None
        if any(self.mail.values()):
            return None
        return [self.results[device] for device in range(self.devices)]

    def _resume(self, device: int, answer: int | None, wishes: dict[int, Any]) -> None:
        wishes.pop(device, None)
        try:
            wishes[device] = self.tasks[device].send(answer)
        except StopIteration as end:
            self.results[device] = end.value

    def _count(self) -> None:
        """Loops within loops multiply: programs that take long are not for this test."""
        self.steps_left -= 1
        hypothesis.assume(self.steps_left > 0)

    def _device(self, nodes: list[Node], device: int) -> Iterator[Any]:
        return (yield from self._block(nodes, device, device))

    def _block(self, nodes: list[Node], device: int, value: int) -> Any:
        team = device // TEAM
        for node in nodes:
            kind = node[0]
            self._count()
            if kind == "add":
                value = _wrapped(value + node[1])
            elif kind == "mix":
                value = _wrapped(3 * value + device)
            elif kind == "sum":
                group = next(group for group in _groups(node[1], self.devices) if device in group)
                # Not the instruction, but the channel must be the same (or there is none), as on XLA:CPU.
                value = yield ("sum", node[2], group, value)
            elif kind == "rotate":
                group = next(group for group in _groups(node[1], self.devices) if device in group)
                value = yield ("permute", 0, group, value)
            elif kind == "transfer":
                target = dict(_pairs(node[1], self.devices))[device]
                self.mail.setdefault((id(node), target), deque()).append(value)
                value = yield ("mail", (id(node), device), [device], value)
            elif kind == "call":
                value = yield from self._block(node[1], device, value)
            elif kind == "if":
                (what, number), yes, no = node[1:]
                holds = {
                    "team below": team < number,
                    "device below": device < number,
                    "odd": value % 2 == 1,
                    "team is": team == number,
                }[what]
                value = yield from self._block(yes if holds else no, device, value)
            else:
                (what, number), body = node[1:]
                for _ in range(number + {"constant": 0, "team": team, "device": device}[what]):
                    self._count()
                    value = yield from self._block(body, device, value)
        return value


def _wrapped(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _distinct(nodes: list[Node]) -> list[Node]:
    """The same program with no node object used twice, since the model tells instructions apart by identity."""
    return [tuple(_distinct(part) if isinstance(part, list) else part for part in [*node]) for node in nodes]


@hypothesis.settings(max_examples=examples(120), deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(blocks, st.integers(2, 6))
def test_random_control_flow_agrees_with_coroutines(nodes: list[Node], devices: int) -> None:
    nodes = _distinct(nodes)
    text = text_of(nodes, devices)
    expected = Model(nodes, devices).run()
    module = hloexec.parse(text)
    inputs = [[np.int32(device)] for device in range(devices)]
    if expected is None:
        with pytest.raises(hloexec.DeadlockError):
            hloexec.run_devices(module, inputs)
    else:
        assert [int(output) for output in hloexec.run_devices(module, inputs)] == expected, text


@pytest.mark.slow
def test_both_deadlocks_and_results_are_drawn() -> None:
    """The test above would say little if programs of one kind only were drawn."""
    outcomes = {True: 0, False: 0}

    @hypothesis.settings(max_examples=600, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(blocks, st.integers(2, 6))
    def draw(nodes: list[Node], devices: int) -> None:
        if "sum" in str(nodes) and ("if" in str(nodes) or "loop" in str(nodes)):
            outcomes[Model(_distinct(nodes), devices).run() is None] += 1

    draw()
    assert min(outcomes.values()) > 3, outcomes
