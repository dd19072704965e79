"""What ranks that hold the devices of a run send one another: bytes, messages, and the time that these take.

A collective's group touches R ranks; members on one rank exchange nothing. What members of one rank hold alike is sent
once. n being the bytes that a member holds, and k how many different values of them a rank has, it sends to

- everywhere: k n to each of the other R - 1 ranks.
- a fold: as the bits of a fold depend on the order of the group, ranks fold a slice of n / R bytes each, of which all
  others send them theirs, k n (R - 1) / R bytes, and send its result to all others, n (R - 1) / R.
- parts, be it of what is held or of a fold: what the members on other ranks get of k n.
- targets, or from or to a root: what is addressed to other ranks.

A rank's messages are at least one for each group, for each rank that it sends to and, of folds, for both ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from hloexec.core.arguments import require_text
from hloexec.core.structs import define, frozen
from hloexec.core.wording import argument, quoted
from hloexec.engine.devices.varying import Classes
from hloexec.errors import InputError
from hloexec.ops.traits import Route

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER = r"(\d{1,19}(?:\.\d{1,19})?) *"
_BANDWIDTH = re.compile(rf"{_NUMBER}([kKmMgGtT]?)(bps|B/s)", re.ASCII)
_LATENCY = re.compile(rf"{_NUMBER}(s|ms|us|µs|ns)", re.ASCII)


@frozen
class Network:
    """How fast ranks send."""

    text: str
    """As it was described."""
    bytes_per_second: float
    """How many bytes a rank sends, and receives at the same time, in a second."""
    latency_seconds: float
    """What each message takes besides."""


def network_of(text: str) -> Network:
    """The network that a text such as `100Gbps,2us` describes: a bandwidth, in bits or bytes, and perhaps a latency."""
    expected = "a bandwidth and perhaps a latency, such as '100Gbps,2us' or '12.5GB/s'"
    require_text("network", text, expected)
    first, comma, second = (part.strip() for part in text.partition(","))
    bandwidth, latency = _BANDWIDTH.fullmatch(first), _LATENCY.fullmatch(second)
    reason = ""
    if bandwidth is None:
        reason = f"{quoted(first)} is no bandwidth: its unit is bps or B/s, or one of them behind k, M, G or T"
    elif comma and latency is None:
        reason = f"{quoted(second)} is no latency: its unit is s, ms, us or ns"
    elif not float(bandwidth[1]):
        reason = "nothing arrives without bandwidth"
    if bandwidth is None or reason:
        raise InputError(f"{argument('network')} must be {expected}, but is {quoted(text)}; {reason}")
    bytes_per_second = float(bandwidth[1]) * _PREFIXES[bandwidth[2].lower()] / (8 if bandwidth[3] == "bps" else 1)
    return Network(text, bytes_per_second, 0.0 if latency is None else float(latency[1]) * _SECONDS[latency[2]])


@frozen
class Bundle:
    """Operands of which the same devices hold the same, those of one class."""

    classes: Classes
    """Of each device."""
    byte_size: int


@define(eq=False)
class Traffic:
    """What ranks send and receive when devices exchange values once, each by the number of the rank."""

    rank_of: Sequence[int]
    """The rank of each device."""
    sent_bytes: list[int]
    received_bytes: list[int]
    sent_messages: list[int]
    received_messages: list[int]

    @classmethod
    def between(cls, rank_of: Sequence[int]) -> Traffic:
        """Nothing yet."""
        ranks = max(rank_of) + 1
        return cls(rank_of, *([0] * ranks for _ in range(4)))

    def add(self, other: Traffic, times: int) -> None:
        """Add what is sent otherwise, so many times."""
        for name in _COUNTS:
            ours, theirs = getattr(self, name), getattr(other, name)
            ours[:] = [count + times * more for count, more in zip(ours, theirs, strict=True)]

    @property
    def messages(self) -> list[int]:
        """How many messages each rank sends or receives, whichever are more."""
        return list(map(max, self.sent_messages, self.received_messages))

    @property
    def crosses(self) -> bool:
        """Whether anything leaves a rank."""
        return any(self.sent_messages)

    def seconds(self, network: Network) -> float:
        """The time of the rank that takes the longest, which sends while it receives, one message after the other."""
        sizes = map(max, self.sent_bytes, self.received_bytes)
        return max(
            count * network.latency_seconds + size / network.bytes_per_second
            for count, size in zip(self.messages, sizes, strict=True)
        )

    def add_group(self, route: Route, devices: Iterable[int], bundles: Sequence[Bundle]) -> None:
        """Add what the devices of a group, in its order, exchange; the first is the root, if there is one."""
        members: dict[int, list[int]] = {}
        for device in devices:
            members.setdefault(self.rank_of[device], []).append(device)
        if len(members) == 1:
            return
        sizes = [len(group) for group in members.values()]
        ways = 2 if route is Route.FOLDED else 1
        volumes = _AS_MESSAGES.get(route, _to_all)(1, [1] * len(sizes), sizes)
        for rank, (sent, received) in zip(members, volumes, strict=True):
            self.sent_messages[rank] += ways * sent
            self.received_messages[rank] += ways * received
        for bundle in bundles:
            held = [len({bundle.classes[device] for device in group}) for group in members.values()]
            volumes = _IN_BYTES[route](bundle.byte_size, held, sizes)
            for rank, (sent, received) in zip(members, volumes, strict=True):
                self.sent_bytes[rank] += sent
                self.received_bytes[rank] += received

    def add_pairs(self, pairs: Iterable[tuple[int, int]], bundles: Sequence[Bundle]) -> None:
        """Add what devices send one another, as pairs (source, target) say."""
        sent: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for source, target in pairs:
            ends = self.rank_of[source], self.rank_of[target]
            if ends[0] != ends[1]:
                values = ((number, bundle.classes[source]) for number, bundle in enumerate(bundles))
                sent.setdefault(ends, set()).update(values)
        for (source_rank, target_rank), values_sent in sent.items():
            size = sum(bundles[number].byte_size for number, _ in values_sent)
            self.sent_messages[source_rank] += 1
            self.received_messages[target_rank] += 1
            self.sent_bytes[source_rank] += size
            self.received_bytes[target_rank] += size


_COUNTS = "sent_bytes received_bytes sent_messages received_messages".split()

_Volumes: TypeAlias = "Iterator[tuple[int, int]]"
"""What each of the ranks that a group touches sends and receives, given the bytes of a value, how many of them each
rank holds, and how many members it has."""


def _to_all(size: int, held: Sequence[int], members: Sequence[int]) -> _Volumes:
    total = sum(held)
    return ((count * size * (len(held) - 1), (total - count) * size) for count in held)


def _folded(size: int, held: Sequence[int], members: Sequence[int]) -> _Volumes:
    total, ranks = sum(held), len(held)
    for place, count in enumerate(held):
        own = size * (place + 1) // ranks - size * place // ranks
        yield count * (size - own) + own * (ranks - 1), (total - count) * own + size - own


def _parted(size: int, held: Sequence[int], members: Sequence[int]) -> _Volumes:
    total, parts = sum(held), sum(members)
    for count, own in zip(held, members, strict=True):
        yield count * size * (parts - own) // parts, (total - count) * size * own // parts


def _from_root(size: int, held: Sequence[int], members: Sequence[int]) -> _Volumes:
    yield size * (len(held) - 1), 0
    yield from ((0, size) for _ in held[1:])


def _to_root(size: int, held: Sequence[int], members: Sequence[int]) -> _Volumes:
    yield 0, sum(held[1:]) * size
    yield from ((count * size, 0) for count in held[1:])


_AS_MESSAGES = {Route.FROM_ROOT: _from_root, Route.TO_ROOT: _to_root}
_IN_BYTES = {Route.EVERYWHERE: _to_all, Route.FOLDED: _folded, Route.PARTED: _parted, **_AS_MESSAGES}
