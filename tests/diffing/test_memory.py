"""What `diff` takes, beside the plain run, for a scan: a loop that writes into an array in each iteration."""

import subprocess
import sys
from pathlib import Path

import pytest

import hloexec
from hloexec.tools.diffing.replaying import replay

MEASURE = """
import resource, sys
import hloexec
command, *paths = sys.argv[1:]
modules = [hloexec.load(path) for path in paths]
if command == "run":
    hloexec.run(modules[0], *hloexec.random_inputs(modules[0]))
else:
    found = hloexec.diff(*modules)
    print(found.verdict, *(finding.after.instruction for finding in found.findings))
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(kilobytes * (1 if sys.platform == "darwin" else 1024))
"""


def scan(
    steps: int, width: int, slope: str = "multiply(state, factors)", factor: str = "0.0001", row: str = "count"
) -> str:
    """An integrator that stacks its states."""
    state, stack = f"f32[{width}]", f"f32[{steps},{width}]"
    loop = f"(s32[], {state}, {stack})"
    return f"""HloModule scan

body {{
  carried = {loop} parameter(0)
  count = s32[] get-tuple-element(carried), index=0
  one = s32[] constant(1)
  next = s32[] add(count, one)
  state = {state} get-tuple-element(carried), index=1
  factor = f32[] constant({factor})
  factors = {state} broadcast(factor), dimensions={{}}
  slope = {state} {slope}
  bent = {state} tanh(slope)
  moved = {state} subtract(state, bent)
  stack = {stack} get-tuple-element(carried), index=2
  row = f32[1,{width}] reshape(moved)
  zero = s32[] constant(0)
  written = {stack} dynamic-update-slice(stack, row, {row}, zero)
  ROOT result = {loop} tuple(next, moved, written)
}}

condition {{
  carried = {loop} parameter(0)
  count = s32[] get-tuple-element(carried), index=0
  steps = s32[] constant({steps})
  ROOT goes_on = pred[] compare(count, steps), direction=LT
}}

ENTRY main {{
  count = s32[] constant(0)
  state = {state} parameter(0)
  zero = f32[] constant(0)
  stack = {stack} broadcast(zero), dimensions={{}}
  start = {loop} tuple(count, state, stack)
  end = {loop} while(start), condition=condition, body=body
  ROOT written = {stack} get-tuple-element(end), index=2
}}
"""


def measured(command: str, *paths: Path) -> tuple[str, int]:
    """What a command says, and its peak memory, in a process of its own."""
    process = [sys.executable, "-c", MEASURE, command, *map(str, paths)]
    *lines, size = subprocess.run(process, check=True, capture_output=True, text=True).stdout.splitlines()
    return " ".join(lines), int(size)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    path = tmp_path / "before.hlo"
    path.write_text(scan(500, 2000))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"slope": "divide(state, factors)", "factor": "10000"}, "rounding only"),
        ({"row": "zero"}, "differ written"),
    ],
)
def test_memory_of_a_scan_is_a_small_multiple_of_the_plain_run(
    before: Path, tmp_path: Path, change: dict[str, str], expected: str
) -> None:
    after = tmp_path / "after.hlo"
    after.write_text(scan(500, 2000, **change))
    _, plain = measured("run", before)
    said, taken = measured("diff", before, after)
    assert said == expected
    assert taken <= 4 * plain + 100e6


def test_bounds_that_are_not_kept_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    step = "  d{n} = f32[16,16] dot(t{m}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n"
    lines = "".join(f"{step.format(n=n, m=n - 1)}  t{n} = f32[16,16] tanh(d{n})\n" for n in range(1, 6))
    before = (
        "HloModule m\nENTRY e {\n  t0 = f32[16,16] parameter(0)\n  w = f32[16,16] parameter(1)\n"
        f"{lines}  ROOT r = (f32[16,16], f32[16,16]) tuple(t3, t5)\n}}\n"
    )
    after = before.replace("tanh(d2)", "logistic(d2)").replace("dot(t3, w)", "dot(w, t3)")
    modules = hloexec.parse(before), hloexec.parse(after)
    expected = str(hloexec.diff(*modules))
    kept: list[int] = []
    keep = replay.KnownBounds.keep

    def note(known: replay.KnownBounds, most: int) -> None:
        keep(known, most)
        kept.append(len(known))

    monkeypatch.setattr(replay.KnownBounds, "keep", note)
    monkeypatch.setattr(replay, "_MOST_BYTES", 0)
    assert str(hloexec.diff(*modules)) == expected
    assert kept and not any(kept)
