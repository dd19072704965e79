"""What holds of the source: short functions where plans are made and run, and a short way through it for a small run."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 60
MOST_FILES = 30
"""Files of hloexec's that the first run of one instruction may enter."""

COLD_RUN = """
import sys
import numpy as np
import hloexec
module = hloexec.parse("HloModule m\\nENTRY e { x = f32[4] parameter(0)\\n ROOT y = f32[4] add(x, x) }\\n")
x = np.ones(4, np.float32)
entered = set()

def note(frame, event, _):
    if event == "call":
        entered.add(frame.f_code.co_filename)

hloexec.run  # is imported when it is first asked for
sys.setprofile(note)
hloexec.run(module, x)
sys.setprofile(None)
print("\\n".join(sorted(entered)))
"""


def test_functions_that_make_and_run_plans_are_short() -> None:
    long = []
    for folder in ("exec", "plan", "devices"):
        for path in (ROOT / "hloexec" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    assert node.end_lineno is not None
                    if node.end_lineno - node.lineno + 1 > MOST_LINES:
                        long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert long == []


def test_the_first_run_of_one_instruction_enters_few_files() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", COLD_RUN], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = [path for path in printed if "hloexec" in path.split("/") and "site-packages" not in path]
    assert 10 < len(files) <= MOST_FILES, files
