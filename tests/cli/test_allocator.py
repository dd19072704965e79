"""Memory that the command line keeps for the arrays to come."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest

from hloexec.cli import process

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
