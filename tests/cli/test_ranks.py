"""`hloexec memory --ranks`: what ranks would hold and send, as its users meet it."""

from pathlib import Path

import pytest

import hloexec
from tests.command_line import CommandLine
from tests.devices.test_distributed_usage import ALL, FOUR, looping, transfer
from tests.report.needs import require_report_packages
from tests.text.building import ADD, op


@pytest.fixture
def step(tmp_path: Path) -> str:
    """32 bytes on each of four devices are summed up over all."""
    path = tmp_path / "step.hlo"
    path.write_text(op(f"f32[8] all-reduce(x), {ALL}, to_apply=add_f32", ADD, FOUR, x="f32[8]"))
    return str(path)


def rows(out: str, title: str) -> list[list[str]]:
    """The rows of a table, below its header."""
    table = out.partition(f"\n{title}")[2].partition("\n\n")[0].splitlines()[2:]
    return [line.replace(" B", "B").split() for line in table]


def test_ranks_and_collectives_are_tables_with_totals(step: str, cli: CommandLine) -> None:
    out = cli("memory", step, "--ranks", "4", "--network", "8kbps,1ms", "--top", "2")
    # The input, the sum and nothing else.
    assert "\nm  4 devices on 4 ranks; rank 0 holds most, 64 B (64 B if inputs are equal)\n" in out
    first, second, rest = rows(out, "ranks")
    assert first == ["0", "0", "32B", "32B", "64B", "64B", "32B", "48B", "48B", "6"]
    assert second[:2] == ["1", "1"] and rest == "… and 2 more (--top 0 shows all)".split()
    # 6 messages and 48 bytes, at 1000 bytes in a second.
    assert "messages between ranks  192 B in all, at least 54.0 ms over 8kbps,1ms\n" in out
    assert rows(out, "messages between ranks") == [["root", "all-reduce", "1", "48B", "48B", "6", "54.0", "ms"]]
    assert "The time is a lower bound" in out


def test_without_a_network_there_is_no_time(step: str, cli: CommandLine) -> None:
    out = cli("memory", step, "--ranks", "2")
    assert "messages between ranks  96 B in all\n" in out
    assert "time" not in out.partition("messages between ranks")[2]


def test_what_is_not_known_is_marked_and_named(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "loop.hlo").write_text(looping("m"))
    out = cli("memory", tmp_path / "loop.hlo", "--ranks", "4")
    assert rows(out, "messages between ranks")[0][2] == "1?"
    assert "1 instruction, marked ?, stands in loops that do not say how often they run" in out
    (tmp_path / "send.hlo").write_text(transfer(""))
    out = cli("memory", tmp_path / "send.hlo", "--ranks", "4")
    assert "Not counted, as only a run tells what is sent: %main/sent" in out and "messages between" not in out


def test_the_record_has_what_the_function_returns(step: str, cli: CommandLine) -> None:
    record = cli.record("memory", step, "--ranks", "2", "--network", "1GB/s")["distributed"]
    usage = hloexec.distributed_usage(hloexec.load(step), 2, "1GB/s")
    assert record["network"] == {"text": "1GB/s", "bytes_per_second": 1e9, "latency_seconds": 0.0}
    assert [rank["sent_bytes"] for rank in record["ranks"]] == [48, 48]
    assert record["ranks"][1]["bytes"] == usage.ranks[1].bytes
    assert record["collectives"][0]["instruction"] == "root"
    assert (record["total_bytes"], record["seconds"]) == (usage.total_bytes, usage.seconds)
    assert cli.record("memory", step)["distributed"] is None


def test_more_devices_than_the_module_says(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "m.hlo").write_text(op("f32[8] negate(x)", x="f32[8]"))
    assert "8 devices on 2 ranks" in cli("memory", tmp_path / "m.hlo", *"--ranks 2 --replicas 2 --partitions 4".split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ranks 0", "--ranks must be at least 1, but is 0"),
        ("--ranks -3", "--ranks must be at least 1, but is -3"),
        ("--ranks 5", "--ranks must be at most 4, as there are 4 devices"),
        ("--ranks two", "'two' is not a valid integer"),
        ("--ranks 2.5", "'2.5' is not a valid integer"),
        ("--ranks 2 --network fast", "--network must be a bandwidth and perhaps a latency"),
        ("--ranks 2 --network 100", "'100' is no bandwidth: its unit is bps or B/s"),
        ("--ranks 2 --network 1Gbps,2", "'2' is no latency: its unit is s, ms, us or ns"),
        ("--ranks 2 --network 0Gbps", "nothing arrives without bandwidth"),
        ("--network 1Gbps", "--network is for --ranks, which is not given"),
        ("--partitions 2", "--partitions is for --ranks, which is not given"),
        ("--ranks 2 --replicas 2", "%root names replica 2, but there are 2"),
    ],
)
def test_wrong_options_are_named(words: str, message: str, step: str, cli: CommandLine) -> None:
    assert message in cli.complaint("memory", step, *words.split())


def test_pages_and_notebooks_show_it(step: str, tmp_path: Path, cli: CommandLine) -> None:
    require_report_packages()
    module = hloexec.load(step)
    usage = hloexec.distributed_usage(module, 2, "1GB/s")
    assert repr(usage) == "<DistributedUsage m: 4 devices on 2 ranks, each with at most 96 B, which send 96 B>"
    shown = usage._repr_html_()
    assert shown is not None and "What ranks hold at most" in shown
    cli("memory", step, *"--ranks 2 --html".split(), tmp_path / "command.html")
    hloexec.write_html(usage, tmp_path / "function.html", module=module)
    for page in ("command.html", "function.html"):
        assert "4 devices on 2 ranks" in (tmp_path / page).read_text(encoding="utf-8")
    assert "a rank sends 48 B" in (tmp_path / "function.html").read_text(encoding="utf-8")
