"""A bug in two layers, beside harmless changes of how they are computed: the bug is named, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec

_RNG = np.random.default_rng(0)
_INPUTS = [_RNG.normal(size=shape).astype(np.float32) for shape in ((6, 8), (8, 8), (8, 8), (8, 8), (8,))]
_PROGRAM = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x0 = f32[6,8] parameter(0)
  w = f32[8,8] parameter(1)
  v = f32[8,8] parameter(2)
  u = f32[8,8] parameter(3)
  gain = f32[8] parameter(4)
  zero = f32[] constant(0)
  c = f32[] constant(0.35)
  small = f32[] constant(0.01)
  gains = f32[6,8] broadcast(gain), dimensions={1}
  smalls = f32[6] broadcast(small), dimensions={}
  LAYERS
  ROOT r = (f32[6,8], f32[6,8]) tuple(y1, x2)
}
"""
_BY_ROWS = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
_BY_COLUMNS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_LAYER = f"""squares# = f32[6,8] multiply(x#, x#)
  sums# = f32[6] reduce(squares#, zero), dimensions={{1}}, to_apply=add
  var# = f32[6] add(sums#, smalls)
  NORM
  q# = f32[6,8] dot(scaled#, w), {_BY_COLUMNS}
  k# = f32[6,8] dot(KEY#, v), {_BY_COLUMNS}
  h# = f32[6,8] dot(VALUE#, u), {_BY_COLUMNS}
  SCORES
  e# = f32[6,6] exponential(scores#)
  all# = f32[6] reduce(e#, zero), dimensions={{1}}, to_apply=add
  alls# = f32[6,6] broadcast(all#), dimensions={{0}}
  parts# = f32[6,6] divide(e#, alls#)
  o# = f32[6,8] dot(parts#, h#), {_BY_COLUMNS}
  y# = f32[6,8] add(REST#, o#)
  x@ = f32[6,8] tanh(y#)
  """
_AS_WRITTEN = {
    "NORM": """root# = f32[6] rsqrt(var#)
  roots# = f32[6,8] broadcast(root#), dimensions={0}
  unit# = f32[6,8] multiply(x#, roots#)
  scaled# = f32[6,8] multiply(unit#, gains)""",
    "SCORES": f"""product# = f32[6,6] dot(q#, k#), {_BY_ROWS}
  factors# = f32[6,6] broadcast(c), dimensions={{}}
  scores# = f32[6,6] multiply(product#, factors#)""",
    "KEY": "scaled",
    "VALUE": "scaled",
    "REST": "x",
}
_CHANGES = {
    "a root divided by": {
        "NORM": """root# = f32[6] sqrt(var#)
  roots# = f32[6,8] broadcast(root#), dimensions={0}
  unit# = f32[6,8] divide(x#, roots#)
  scaled# = f32[6,8] multiply(unit#, gains)"""
    },
    "factors in another order": {
        "NORM": """root# = f32[6] rsqrt(var#)
  roots# = f32[6,8] broadcast(root#), dimensions={0}
  half# = f32[6,8] multiply(gains, roots#)
  scaled# = f32[6,8] multiply(half#, x#)"""
    },
    "a factor moved before a product": {
        "SCORES": f"""factors# = f32[6,8] broadcast(c), dimensions={{}}
  less# = f32[6,8] multiply(q#, factors#)
  scores# = f32[6,6] dot(less#, k#), {_BY_ROWS}"""
    },
    "operands negated twice": {
        "SCORES": f"""minus# = f32[6,8] negate(q#)
  other# = f32[6,8] negate(k#)
  product# = f32[6,6] dot(minus#, other#), {_BY_ROWS}
  factors# = f32[6,6] broadcast(c), dimensions={{}}
  scores# = f32[6,6] multiply(product#, factors#)"""
    },
}
_BUGS = {
    "keys of what is not scaled": ({"KEY": "unit"}, "k"),
    "values of what is not scaled": ({"VALUE": "unit"}, "h"),
    "added to what is scaled": ({"REST": "scaled"}, "y"),
}


def _found(*changes: dict[str, str]) -> hloexec.Diff:
    """What a diff says of the program with some parts of its layers changed."""
    texts = []
    for each in ((), changes):
        layer = _LAYER
        for parts in (*reversed(each), _AS_WRITTEN):
            for name, part in parts.items():
                layer = layer.replace(name, part)
        layers = [layer.replace("#", str(number)).replace("@", str(number + 1)) for number in range(2)]
        texts.append(_PROGRAM.replace("LAYERS", "".join(layers)))
    before, after = map(hloexec.parse, texts)
    return hloexec.diff(before, after, [*_INPUTS])


@pytest.mark.parametrize("change", _CHANGES)
def test_a_harmless_change_alone_is_none(change: str) -> None:
    assert _found(_CHANGES[change]).verdict in ("agree", "rounding only")


_BESIDE = [
    (bug, change)
    for bug, (part, _) in _BUGS.items()
    for change in (None, *_CHANGES)
    if change is None or "unit" not in part.values() or "unit# " in _CHANGES[change].get("NORM", "unit# ")
]


@pytest.mark.parametrize(("bug", "change"), _BESIDE)
def test_a_bug_beside_a_harmless_change_is_named(bug: str, change: str | None) -> None:
    part, name = _BUGS[bug]
    found = _found(part, *([_CHANGES[change]] if change else []))
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction in (f"{name}0", f"{name}1")
