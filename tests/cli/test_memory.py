"""`hloexec memory` as its users meet it: verdict, tables, JSON, exit codes."""

import ctypes
import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hloexec.cli import main, process
from tests.buffers.dumps import seed_dump, xla_dumps
from tests.buffers.test_comparison import ASSIGNMENT, MODULE
from tests.command_line import CommandLine


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "m.hlo").write_text(MODULE)
    return str(tmp_path / "m.hlo")


def write(tmp_path: Path, content: str | bytes) -> str:
    path = tmp_path / "assignment.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_the_tpu_dump_agrees_and_shows_every_live_range_beside_xlas(cli: CommandLine) -> None:
    dump = seed_dump()
    out = cli("memory", dump.module, "--assignment", dump.parts[0], "--top", "0")
    first = out.splitlines()[0]
    assert first.startswith("agrees  XLA allocates 2.9 GB (2 885 767 252 bytes); at most ")
    assert first.endswith("83 of 83 live ranges agree")
    ranges = out.partition("\nlive ranges")[2].partition("\nalive at")[0].strip().splitlines()[2:]
    assert len(ranges) == 83
    assert all(row.split()[-1] == row.split()[-2] for row in ranges)
    assert not any(line != line.rstrip() for line in out.splitlines())


@pytest.mark.slow
def test_the_files_that_xla_cpu_writes_are_given_one_by_one(cli: CommandLine) -> None:
    dump = next(dump for dump in xla_dumps() if "carried" in dump.name)
    options = [text for part in dump.parts for text in ("--assignment", str(part))]
    record = cli.record("memory", dump.module, *options)
    found = record["assignment"]
    assert found["agrees"] and found["range_count"] == found["range_agreements"] > 20
    ranges = {(each["instruction"], *each["index"]): (each["start"], each["end"]) for each in record["values"]}
    listed = {(each["instruction"], *each["index"]): (each["start"], each["end"]) for each in found["listed_ranges"]}
    assert all(listed[key] == live for key, live in ranges.items())
    assert found["peak_time"] == record["peak"]["time"] or found["listed_peak_bytes"]


def test_a_module_alone_shows_its_largest_buffers(module: str, cli: CommandLine) -> None:
    out = cli("memory", module, "--top", "2")
    assert out.splitlines()[0] == "m  at most 256 B are alive at once, at %c"
    assert "alive at 3 (our peak)  4 buffers, 256 bytes" in out
    assert "… and 2 more (--top 0 shows all)" in out
    # sin, cos and their sum, 64 bytes each; p is the caller's.
    assert [line.split()[4:6] for line in out.splitlines() if line.startswith("hloexec's own run")] == [["192", "192"]]


def test_a_module_that_hloexec_cannot_run_is_looked_at_all_the_same(tmp_path: Path, cli: CommandLine) -> None:
    text = 'HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] custom-call(x), custom_call_target="?" }'
    (tmp_path / "m.hlo").write_text(text)
    out = cli("memory", tmp_path / "m.hlo")
    assert "at most 32 B are alive at once" in out and "own run" not in out


def test_an_unscheduled_module_says_whose_order_it_is(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "m.hlo").write_text(MODULE.replace(", is_scheduled=true", ""))
    assert "not scheduled: the order is the one hloexec runs in" in cli("memory", tmp_path / "m.hlo")


def test_a_difference_is_shown_and_exits_with_1(module: str, tmp_path: Path, cli: CommandLine) -> None:
    wrong = write(tmp_path, ASSIGNMENT.replace("a{}:1-3", "a{}:1-2"))
    out = cli("memory", module, "--assignment", wrong, code=1)
    assert out.startswith("differs  XLA allocates 320 B (320 bytes); ")
    assert out.splitlines()[0].endswith("3 of 4 live ranges agree")
    differing = [line.split() for line in out.splitlines() if line.startswith("live range ")]
    assert differing == ["live range a 1-2 1-3".split()]


def test_what_xla_allocates_is_taken_apart_without_a_rest(module: str, tmp_path: Path, cli: CommandLine) -> None:
    out = cli("memory", module, "--assignment", write(tmp_path, ASSIGNMENT))
    # 320 bytes: 64 between a and b are never used; the rest is alive at the addition.
    rows = {line[:26].strip(): line[26:].split()[0] for line in out.splitlines()[3:8]}
    assert rows == {
        "allocated by XLA": "320",
        "gaps and padding": "64",
        "at different times": "0",
        "in use at once, at most": "256",
        "alive at once, at most": "256",
    }


def test_totals_alone_are_shown_as_not_compared(module: str, tmp_path: Path, cli: CommandLine) -> None:
    assert cli("memory", module, "--assignment", write(tmp_path, "Total bytes used: 320 (320B)\n")).startswith(
        "not compared  XLA allocates 320 B"
    )


def test_an_assignment_may_be_gzipped(module: str, tmp_path: Path) -> None:
    assert main(["memory", module, "--assignment", write(tmp_path, gzip.compress(ASSIGNMENT.encode()))]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected a buffer assignment"),
        (b" \n\n", "is empty; expected a buffer assignment"),
        (b"\x7fELF\x00\x01\xff\xfe", "is not text"),
        (b"\x1f\x8b\x08\x00broken", "cannot unpack"),
        (MODULE.encode(), "expected a buffer assignment, which begins with"),
        (ASSIGNMENT[:400].encode(), "expected"),
        (ASSIGNMENT.replace("size=64", "size=" + "9" * 30).encode(), "does not fit 63 bits"),
        (ASSIGNMENT.replace("f32[16]{0}", "f32[16]{1}").encode(), "assignment.txt:3:"),
        (ASSIGNMENT.replace(" a ", " other ").replace("a{}", "x{}").encode() + b"more\n", "found 'more'"),
        (ASSIGNMENT.replace("(max 4)", "(max 5)").encode(), "expected 5 instructions in the sequence, found 4"),
    ],
)
def test_files_that_are_no_assignment_are_refused_with_a_reason(
    content: bytes, message: str, module: str, tmp_path: Path, cli: CommandLine
) -> None:
    error = cli.complaint("memory", module, "--assignment", write(tmp_path, content))
    assert error.startswith("error:") and message in error and "Traceback" not in error


def test_the_assignment_of_another_module_is_refused(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "m.hlo").write_text("HloModule other\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] sine(x) }")
    assert "the buffer assignment is of another module: 4 of the 4 instructions" in cli.complaint(
        "memory", tmp_path / "m.hlo", "--assignment", write(tmp_path, ASSIGNMENT)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("- --assignment -", "cannot both come from standard input"),
        ("m --top -1", "-1 is not in the range"),
        ("m --top many", "is not a valid integer"),
        ("m --assignments x", "No such option"),
        ("", "Missing argument"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: str, message: str, cli: CommandLine) -> None:
    assert message in cli.complaint(f"memory {arguments}")


def test_a_file_that_is_not_there_is_named(module: str, tmp_path: Path, cli: CommandLine) -> None:
    assert f"cannot read {tmp_path / 'nothing'}" in cli.complaint(
        "memory", module, "--assignment", tmp_path / "nothing"
    )


PROGRAM = """
import numpy as np, resource
from hloexec.cli.process import keep_freed_memory
{first}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array = np.empty(24 << 20, np.uint8)
    array[::4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(sum(faults() for _ in range(4)))
"""


def page_faults(first: str, **variables: str) -> int:
    """Pages handed out for four arrays of 24 MB, one after the other, after one like them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    # Without huge pages there are 6 144 pages of 4 kB to each.
    environment = {**kept, "NUMPY_MADVISE_HUGEPAGE": "0", **variables}
    command = [sys.executable, "-c", PROGRAM.format(first=first)]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs the options of glibc's malloc"
)
def test_arrays_take_the_memory_of_those_before() -> None:
    assert page_faults("keep_freed_memory()") < 100
    assert page_faults("keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 20_000


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: asked.append(name) or object())
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    process.keep_freed_memory()
    assert asked == [None]


SUM_OF_A_BROADCAST = """
import numpy as np, resource
import hloexec
from hloexec.cli.process import keep_freed_memory
if {keeps}:
    keep_freed_memory()
module = hloexec.parse('''HloModule m

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}}

ENTRY main {{
  p = f32[8,75,512] parameter(0)
  zero = f32[] constant(0)
  wide = f32[8,75,40,512] broadcast(p), dimensions={{0,1,3}}
  ROOT r = f32[8,75] reduce(wide, zero), dimensions={{2,3}}, to_apply=add
}}
''')
inputs = hloexec.random_inputs(module, seed=0)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    hloexec.run(module, inputs)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(sum(faults() for _ in range(3)))
"""


@pytest.mark.slow
def test_a_sum_takes_no_more_pages_where_memory_is_kept() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    kept, given_back = (
        int(
            subprocess.run(
                [sys.executable, "-c", SUM_OF_A_BROADCAST.format(keeps=keeps)],
                env={**environment, "NUMPY_MADVISE_HUGEPAGE": "0"},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for keeps in (True, False)
    )
    # 300 pages hold p; the broadcast, which would take 12 000, is never laid out.
    assert kept < 300
    assert kept <= given_back + 100


HUGE_PAGES = """
import hloexec
from hloexec.cli.process import keep_freed_memory
keep_freed_memory()
module = hloexec.parse('''HloModule m

ENTRY main {
  n = f32[4000000] iota(), iota_dimension=0
  ROOT r = f32[4000000] cosine(n)
}
''')
hloexec.run(module)
mappings = open("/proc/self/smaps").read().split("VmFlags:")
heap = [flags.partition("\\n")[0] for mapping, flags in zip(mappings, mappings[1:]) if "[heap]" in mapping]
assert heap
print(sum("hg" in flags.split() for flags in heap))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of the process")
def test_no_huge_pages_are_asked_for_where_small_arrays_are_kept() -> None:
    """The first small array that lies in one would take 2 MB."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "NUMPY_"))}
    command = [sys.executable, "-c", HUGE_PAGES]
    assert subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout == "0\n"
