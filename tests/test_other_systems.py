"""Where what only Linux has is absent, as on Windows and macOS, everything works, or a sentence says what is missing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.other_systems.everything import digests

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "tests/other_systems"
OVERFLOW = """HloModule overflow
ENTRY main {
  x = f32[4] parameter(0)
  big = f32[] constant(1e30)
  bigs = f32[4] broadcast(big), dimensions={}
  ROOT y = f32[4] multiply(bigs, bigs)
}
"""
DOUBLES = """HloModule doubles
sum {
  a = f64[] parameter(0)
  b = f64[] parameter(1)
  ROOT c = f64[] add(a, b)
}
ENTRY main {
  x = f64[64] parameter(0)
  zero = f64[] constant(0)
  s = f64[64] sine(x)
  ROOT r = f64[] reduce(s, zero), dimensions={0}, to_apply=sum
}
"""
PAIR = """HloModule m
ENTRY main {
  x = f32[16] parameter(0)
  y = f32[16] sine(x)
  ROOT z = f32[16] subtract(%s)
}
"""
CHECK = "import sys; sys.exit('sine' not in open(sys.argv[1]).read())"
UNLIMITED = (
    "warning: only on Linux can the memory of a process be limited: a module is refused if its run is estimated to take "
    "more than 4.3 GB, but nothing ends one that takes more\n"
)
COMMANDS = [
    ("", "run attention.hlo --save result.npz", 0, "f32[16,32]", ""),
    ("", "run attention.hlo --against result.npz", 0, "equal  1 array", ""),
    ("", "info attention.hlo", 0, "167 instructions in 6 computations", ""),
    ("", "plan attention.hlo", 0, "return [add_7]", ""),
    ("", "memory attention.hlo", 0, "unstack.11", ""),
    ("", "fmt attention.hlo -o formatted.hlo", 0, "", ""),
    ("", "diff attention.hlo formatted.hlo", 0, "agree: 1 of 1 result bit for bit", ""),
    ("", "nan overflow.hlo", 1, "hloexec extract overflow.hlo --instruction y", ""),
    ("", "shadow doubles.hlo --samples 2", 0, "outputs of doubles", ""),
    ("", "golden record attention.hlo -o .", 0, "recorded  attention.golden", ""),
    ("", "golden check .", 0, "all agree  2 goldens", ""),
    ("", "trace markov_chain.hlo -o traced", 0, "hloexec.read_trace('traced')", ""),
    ("break most\nrun\nwhere\nprint\nquit\n", "step markov_chain.hlo", 0, "breakpoint 1 (most)", ""),
    ("", "triage modules --no-minify", 1, "2 modules: 1 differ, 1 agree", UNLIMITED),
    ("", "minify modules/a.after.hlo -o small --check", 0, "sine", ""),
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="takes from Linux what others lack")
def test_everything_works_or_says_what_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib", reason="jaxlib is not installed, whose version benchmarks say")
    pytest.importorskip("scipy", reason="scipy is not installed, without which minify warns")
    for path in (ROOT / "examples").glob("*.hlo"):
        shutil.copy(path, tmp_path)
    (tmp_path / "modules").mkdir()
    for name, text in {
        "overflow": OVERFLOW,
        "doubles": DOUBLES,
        "modules/a.before": PAIR % "y, x",
        "modules/a.after": PAIR % "x, y",
        "modules/b.before": PAIR % "y, x",
        "modules/b.after": PAIR % "y, x",
    }.items():
        (tmp_path / f"{name}.hlo").write_text(text, encoding="utf-8")
    (tmp_path / "check.py").write_text(CHECK, encoding="utf-8")
    expected = digests(tmp_path)
    lines = [[given, *line.split()] for given, line, *_ in COMMANDS]
    lines[-1].append(f"'{sys.executable}' check.py")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (PLACE, ROOT))),
        "HYPOTHESIS_NO_PLUGINS": "1",  # some are for Windows
        "COLUMNS": "120",
        "PATHEXT": Path(sys.executable).name,  # how names of programs end: .exe on Windows
    }
    done = subprocess.run(
        [sys.executable, PLACE / "everything.py", tmp_path],
        input=json.dumps(lines),
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: list[Any] = json.loads(done.stdout)
    count = len(list((ROOT / "hloexec").rglob("*.py"))) - 1
    assert found[0] == [False] * 5
    assert found[1:5] == [count, True, "hang; crash: it was ended by 0xc0000005", "None nan"]
    assert found[5] == expected
    for (_, line, code, out, errors), ran in zip(COMMANDS, found[6:], strict=True):
        assert [ran[0], ran[2]] == [code, errors], (line, ran)
        assert out in ran[1], (line, ran)
