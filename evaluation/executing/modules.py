"""A folder of small modules of which some are faulty, crash, hang or take too much memory.

Faults are an operation in the place of another one, with another opcode to blame each time, or results of a backend that
rounds operands. Modules crash at a library call, `CRASHING`, that processes have which find `write_site`'s folder on
their PYTHONPATH: no module is known that crashes hloexec.
"""

from pathlib import Path

import attrs
import ml_dtypes
import numpy as np

CRASHING = "tests.crash"
_PAIRS = {
    "subtract": ("subtract(s, x)", "subtract(x, s)"),
    "add": ("add(s, x)", "multiply(s, x)"),
    "maximum": ("maximum(s, x)", "minimum(s, x)"),
    "sine": ("sine(s)", "cosine(s)"),
    "exponential": ("exponential(s)", "exponential-minus-one(s)"),
    "divide": ("divide(s, y)", "divide(y, s)"),
    "reverse": ("reverse(s), dimensions={0}", "reverse(s), dimensions={1}"),
    "negate": ("negate(s)", "abs(s)"),
    "compare": ("select(pred[8,8] compare(s, x), direction=LT, s, x)", ""),
    "transpose": ("transpose(s), dimensions={1,0}", "copy(s)"),
    "round": ("floor(y)", "ceil(y)"),
}
_BEFORE = """HloModule {name}
ENTRY main {{
  x = f32[8,8] parameter(0)
  y = f32[8,8] parameter(1)
  s = f32[8,8] tanh(y)
  t = f32[8,8] {line}
  ROOT r = f32[8,8] {last}(t, x)
}}
"""
_COMPARE = (
    "select(p, s, x)",
    "\n  p = pred[8,8] compare(s, x), direction=LT",
    "\n  p = pred[8,8] compare(s, x), direction=GT",
)
_DOT = """HloModule dot
ENTRY main {
  x = f32[16,24] parameter(0)
  y = f32[24,8] parameter(1)
  ROOT r = f32[16,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
_ENDLESS = """HloModule endless
c { i = s32[] parameter(0)
  ROOT l = pred[] constant(true) }
b { i = s32[] parameter(0)
  n = s32[] constant(NUMBER)
  ROOT a = s32[] add(i, n) }
ENTRY e { z = s32[] parameter(0)
  ROOT w = s32[] while(z), condition=c, body=b }
"""
_LARGE = "HloModule l\nENTRY e { x = f32[SIZE] parameter(0)\n  ROOT y = f32[SIZE] sine(x) }\n"
_CRASH = f"""HloModule crash
ENTRY e {{ x = f32[SIZE] parameter(0)
  ROOT y = f32[SIZE] custom-call(x), custom_call_target="{CRASHING}" }}
"""
_SITE = f'''
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "hloexec.tools.triaging.judging":
            sys.meta_path.remove(self)
            import os
            import hloexec
            hloexec.register_custom_call("{CRASHING}")(lambda x: os.abort())
sys.meta_path.insert(0, Finder())
'''


@attrs.frozen
class Farm:
    """How many modules of each kind there are."""

    clean: int = 270
    faulty: int = 12
    """At most as many as there are causes, 12."""
    crashing: int = 6
    endless: int = 6
    large: int = 6

    def write(self, folder: Path) -> None:
        """Write the modules."""
        folder.mkdir(parents=True)
        causes = list(_PAIRS)[: self.faulty]
        for number, cause in enumerate(causes):
            _write_pair(folder, f"fault{number:02}", *_sides(cause))
        if self.faulty > len(_PAIRS):
            _write_rounded(folder, "fault11")
        for number in range(self.clean):
            side, _ = _sides(list(_PAIRS)[number % len(_PAIRS)])
            side = side.replace("8,8", f"{8 + number // len(_PAIRS)},{8 + number // len(_PAIRS)}")
            _write_pair(folder, f"{'abc'[number % 3]}/clean{number:03}", side, side)
        for number in range(self.crashing):
            (folder / f"crash{number}.hlo").write_text(_CRASH.replace("SIZE", str(number + 4)))
            np.savez(folder / f"crash{number}.expected.npz", value=np.zeros(number + 4, np.float32))
        for number in range(self.endless):
            text = _ENDLESS.replace("NUMBER", str(number))
            _write_pair(folder, f"endless{number}", text, text.replace("add(i, n)", "multiply(i, n)"))
        for number in range(self.large):
            text = _LARGE.replace("SIZE", str(400_000_000 + number))
            _write_pair(folder, f"large{number}", text, text)


def write_site(folder: Path) -> None:
    """Write a folder for PYTHONPATH."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE)


def _sides(cause: str) -> tuple[str, str]:
    name, last = cause, "add" if cause != "add" else "subtract"
    if cause == "compare":
        line, before, after = _COMPARE
        text = _BEFORE.format(name=name, line=line, last=last)
        anchor = "tanh(y)"
        return text.replace(anchor, anchor + before), text.replace(anchor, anchor + after)
    before, after = (_BEFORE.format(name=name, line=line, last=last) for line in _PAIRS[cause])
    return before, after


def _write_pair(folder: Path, name: str, before: str, after: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / f"{name}.before.hlo").write_text(before)
    (folder / f"{name}.after.hlo").write_text(after)


def _write_rounded(folder: Path, name: str) -> None:
    """A product with results of operands that are rounded to bf16."""
    draw = np.random.default_rng(0).normal
    x, y = draw(size=(16, 24)).astype(np.float32), draw(size=(24, 8)).astype(np.float32)
    (folder / f"{name}.hlo").write_text(_DOT)
    np.savez(folder / f"{name}.inputs.npz", x=x, y=y)
    rounded = [value.astype(ml_dtypes.bfloat16).astype(np.float64) for value in (x, y)]
    np.savez(folder / f"{name}.expected.npz", value=(rounded[0] @ rounded[1]).astype(np.float32))
