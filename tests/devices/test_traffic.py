"""What ranks send in one collective, and what networks are, against figures worked out by hand."""

from collections.abc import Sequence

import hypothesis
import pytest
from hypothesis import strategies

from hloexec.engine.devices.ranks import blocks_of
from hloexec.engine.devices.topology import Topology, ends_of
from hloexec.engine.devices.traffic import Bundle, Network, Traffic, network_of
from hloexec.errors import InputError
from hloexec.ops.traits import Route

GROUP_ROUTES = [route for route in Route if route not in (Route.PAIRED, Route.COMPUTED)]


def traffic_of(
    route: Route, groups: Sequence[Sequence[int]], ranks: int, size: int, classes: Sequence[int] | None = None
) -> Traffic:
    """What ranks send for arrays of a size, of which all devices hold their own unless classes say otherwise."""
    count = sum(map(len, groups))
    traffic = Traffic.between([device * ranks // count for device in range(count)])
    for group in groups:
        traffic.add_group(route, group, [Bundle(tuple(classes or range(count)), size)])
    return traffic


@pytest.mark.parametrize(
    ("route", "ranks", "sent", "received", "messages"),
    [
        # 120 bytes on each of four devices. One device per rank: what a member holds goes to three others.
        (Route.EVERYWHERE, 4, [360] * 4, [360] * 4, [3] * 4),
        # Two devices per rank: both values go to the one other rank.
        (Route.EVERYWHERE, 2, [240, 240], [240, 240], [1, 1]),
        # 2 n (R - 1) / R = 2 · 120 · 3 / 4.
        (Route.FOLDED, 4, [180] * 4, [180] * 4, [6] * 4),
        # Two values' other halves, 60 bytes each, and the result of the own half.
        (Route.FOLDED, 2, [180, 180], [180, 180], [2, 2]),
        # n (R - 1) / R: three of four parts of 30 bytes.
        (Route.PARTED, 4, [90] * 4, [90] * 4, [3] * 4),
        # Of two values, the two parts that the members on the other rank get.
        (Route.PARTED, 2, [120, 120], [120, 120], [1, 1]),
        (Route.FROM_ROOT, 4, [360, 0, 0, 0], [0, 120, 120, 120], [3, 1, 1, 1]),
        (Route.FROM_ROOT, 2, [120, 0], [0, 120], [1, 1]),
        (Route.TO_ROOT, 4, [0, 120, 120, 120], [360, 0, 0, 0], [3, 1, 1, 1]),
        # The root's rank has two values, the other one sends its two.
        (Route.TO_ROOT, 2, [0, 240], [240, 0], [1, 1]),
    ],
)
def test_a_group_of_all_devices_sends(
    route: Route, ranks: int, sent: list[int], received: list[int], messages: list[int]
) -> None:
    traffic = traffic_of(route, [range(4)], ranks, 120)
    assert (traffic.sent_bytes, traffic.received_bytes, traffic.messages) == (sent, received, messages)


def test_blocks_that_differ_in_size_send_what_they_have() -> None:
    # Devices 0 and 1 are on rank 0, device 2 on rank 1.
    assert traffic_of(Route.EVERYWHERE, [range(3)], 2, 90).sent_bytes == [180, 90]
    # Rank 0 sends the parts of device 2, 30 bytes of two values; rank 1 those of devices 0 and 1 of its one value.
    assert traffic_of(Route.PARTED, [range(3)], 2, 90).sent_bytes == [60, 60]
    # Rank 0 sends the half of two values and the result of its own half, rank 1 those of its one value.
    assert traffic_of(Route.FOLDED, [range(3)], 2, 90).sent_bytes == [135, 90]


def test_values_that_a_rank_holds_twice_are_sent_once() -> None:
    equal = [0, 0, 1, 1]
    assert traffic_of(Route.EVERYWHERE, [range(4)], 2, 120, equal).sent_bytes == [120, 120]
    # 2 n (R - 1) / R with R = 2.
    assert traffic_of(Route.FOLDED, [range(4)], 2, 120, equal).sent_bytes == [120, 120]
    assert traffic_of(Route.PARTED, [range(4)], 2, 120, equal).sent_bytes == [60, 60]
    assert traffic_of(Route.TO_ROOT, [range(4)], 2, 120, equal).sent_bytes == [0, 120]


def test_groups_within_ranks_send_nothing_and_others_add_up() -> None:
    assert not traffic_of(Route.FOLDED, [[0, 1], [2, 3]], 2, 120).crosses
    across = traffic_of(Route.FOLDED, [[0, 2], [1, 3]], 2, 120)
    # Each of two groups touches both ranks once: 2 · (120 / 2 + 120 / 2), to and fro for each group.
    assert (across.sent_bytes, across.messages) == ([240, 240], [4, 4])


def test_the_first_device_of_a_group_is_its_root() -> None:
    assert traffic_of(Route.FROM_ROOT, [[2, 0, 1, 3]], 2, 120).sent_bytes == [0, 120]


def test_pairs_send_what_is_for_other_ranks_and_the_same_once() -> None:
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    traffic = Traffic.between([0, 0, 1, 1])
    traffic.add_pairs(ring, [Bundle((0, 1, 2, 3), 100)])
    assert (traffic.sent_bytes, traffic.received_bytes, traffic.messages) == ([100, 100], [100, 100], [1, 1])
    crossing = [(0, 2), (1, 3)]
    traffic = Traffic.between([0, 0, 1, 1])
    traffic.add_pairs(crossing, [Bundle((0, 1, 2, 3), 100), Bundle((0, 0, 0, 0), 7)])
    # Two values of 100 bytes, and one of 7 that devices 0 and 1 share, in one message.
    assert (traffic.sent_bytes, traffic.received_bytes, traffic.messages) == ([207, 0], [0, 207], [1, 1])


def test_ends_are_partitions_where_there_are_several_and_replicas_otherwise() -> None:
    assert ends_of(((0, 1),), Topology(2, 2)) == ({0: [1], 2: [3]}, {1: [0], 3: [2]})
    assert ends_of(((0, 1), (1, 0)), Topology(2, 1)) == ({0: [1], 1: [0]}, {1: [0], 0: [1]})


@hypothesis.given(strategies.data())
def test_all_that_is_sent_is_received(data: strategies.DataObject) -> None:
    count = data.draw(strategies.integers(1, 12))
    ranks = data.draw(strategies.integers(1, count))
    order = data.draw(strategies.permutations(range(count)))
    cuts = sorted(data.draw(strategies.sets(strategies.integers(1, count - 1)))) if count > 1 else []
    groups = [order[start:stop] for start, stop in zip([0, *cuts], [*cuts, count], strict=True)]
    classes = data.draw(strategies.lists(strategies.integers(0, 3), min_size=count, max_size=count))
    # Divisible by any number of members, as shapes of parts are.
    size = 27720 * data.draw(strategies.integers(1, 3))
    for route in GROUP_ROUTES:
        traffic = traffic_of(route, groups, ranks, size, classes)
        assert sum(traffic.sent_bytes) == sum(traffic.received_bytes)
        assert sum(traffic.sent_messages) == sum(traffic.received_messages)
        rank_of = [rank for rank, block in enumerate(blocks_of(count, ranks)) for _ in block]
        assert traffic.crosses == any(len({rank_of[device] for device in group}) > 1 for group in groups)


def test_the_time_is_that_of_the_busiest_rank() -> None:
    network = Network("8kbps,500ms", bytes_per_second=1000.0, latency_seconds=0.5)
    # Three messages of half a second, and 360 bytes at 1000 in a second; receiving goes on meanwhile.
    assert traffic_of(Route.EVERYWHERE, [range(4)], 4, 120).seconds(network) == pytest.approx(3 * 0.5 + 0.36)
    assert traffic_of(Route.FROM_ROOT, [range(4)], 4, 120).seconds(network) == pytest.approx(3 * 0.5 + 0.36)
    assert traffic_of(Route.TO_ROOT, [range(4)], 4, 120).seconds(network) == pytest.approx(3 * 0.5 + 0.36)
    assert traffic_of(Route.EVERYWHERE, [range(4)], 1, 120).seconds(network) == 0


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("100Gbps,2us", 12.5e9, 2e-6),
        ("100Gbps", 12.5e9, 0.0),
        ("12.5GB/s, 2 us", 12.5e9, 2e-6),
        ("8bps", 1.0, 0.0),
        ("1kbps", 125.0, 0.0),
        ("1Mbps,1ms", 125e3, 1e-3),
        ("1 Tbps,500ns", 125e9, 5e-7),
        ("7B/s", 7.0, 0.0),
        ("7kB/s", 7e3, 0.0),
        ("7MB/s,0s", 7e6, 0.0),
        ("7TB/s", 7e12, 0.0),
    ],
)
def test_networks_are_read(text: str, bandwidth: float, latency: float) -> None:
    network = network_of(text)
    assert network.bytes_per_second == pytest.approx(bandwidth)
    assert network.latency_seconds == pytest.approx(latency)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no bandwidth: its unit is bps or B/s, or one of them behind k, M, G or T"),
        ("100", "'100' is no bandwidth"),
        ("Gbps", "'Gbps' is no bandwidth"),
        ("-1Gbps", "'-1Gbps' is no bandwidth"),
        ("100Gb", "'100Gb' is no bandwidth"),
        ("100GBps", "'100GBps' is no bandwidth"),
        ("1e3Gbps", "'1e3Gbps' is no bandwidth"),
        ("nan bps", "'nan bps' is no bandwidth"),
        ("2us,100Gbps", "'2us' is no bandwidth"),
        ("100Gbps,", "'' is no latency: its unit is s, ms, us or ns"),
        ("100Gbps,2", "'2' is no latency"),
        ("100Gbps,2us,3us", "'2us,3us' is no latency"),
        ("100Gbps,-2us", "'-2us' is no latency"),
        ("0Gbps,2us", "nothing arrives without bandwidth"),
    ],
)
def test_texts_that_describe_no_network_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError) as error:
        network_of(text)
    assert str(error.value).startswith("network must be a bandwidth and perhaps a latency, such as '100Gbps,2us'")
    assert reason in str(error.value)


def test_a_network_is_given_as_a_text() -> None:
    with pytest.raises(InputError, match=r"network must be a bandwidth .*, but the Python float 1.0 was given"):
        network_of(1.0)  # type: ignore[arg-type]
