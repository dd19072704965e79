"""Modules to draw: a loop, a fusion, a branch, a computation that two instructions call, and names that are hostile."""

import attrs

import hloexec
from hloexec.core.ir import Module

LOOP = """HloModule loop

fused {
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  product = f32[8] multiply(a, b)
  ROOT shifted = f32[8] add(product, a)
}

body {
  state = (s32[], f32[8], f32[8]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  x = f32[8] get-tuple-element(state), index=1
  kept = f32[8] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(count, one)
  fusion = f32[8] fusion(x, kept), kind=kLoop, calls=fused
  ROOT end = (s32[], f32[8], f32[8]) tuple(next, fusion, kept)
}

condition {
  given = (s32[], f32[8], f32[8]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  five = s32[] constant(5)
  ROOT goes_on = pred[] compare(number, five), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  zero = s32[] constant(0)
  size = f32[8] exponential(x)
  start = (s32[], f32[8], f32[8]) tuple(zero, size, y)
  loop = (s32[], f32[8], f32[8]) while(start), condition=condition, body=body
  found = f32[8] get-tuple-element(loop), index=1
  ROOT root = f32[8] negate(found)
}
"""

SHARED = """HloModule shared

sum {
  l = f32[] parameter(0)
  r = f32[] parameter(1)
  ROOT total = f32[] add(l, r)
}

half {
  given = f32[8] parameter(0)
  ROOT doubled = f32[8] add(given, given)
}

yes {
  taken = f32[8] parameter(0)
  ROOT sine = f32[8] sine(taken)
}

no {
  left = f32[8] parameter(0)
  ROOT cosine = f32[8] cosine(left)
}

ENTRY main {
  x = f32[8] parameter(0)
  which = pred[] parameter(1)
  first = f32[8] call(x), to_apply=half
  second = f32[8] call(first), to_apply=half
  chosen = f32[8] conditional(which, first, second), true_computation=yes, false_computation=no
  zero = f32[] constant(0)
  ROOT all = f32[] reduce(chosen, zero), dimensions={0}, to_apply=sum
}
"""

HOSTILE = (
    'a"b',
    "<script>alert(1)</script>",
    "x&y&amp;&#60;",
    "back\\slash\\N\\",
    "line\nbreak",
    "日本語 ü \u202e",
    "</B>]]>--><",
    'q\\"];n9 [label="taken over"',
    "\x00\x1b[31m\ud800",
    "a/b%2F",
)


def hostile() -> Module:
    """A chain of instructions with hostile names, computation names and metadata."""
    module = hloexec.parse(SHARED)
    computations = []
    for computation, new in zip(module, HOSTILE, strict=False):
        names = {each.name: f"{new}{number}" for number, each in enumerate(computation)}
        instructions = tuple(
            attrs.evolve(
                each,
                name=names[each.name],
                operands=tuple(names[operand] for operand in each.operands),
                metadata=hloexec.ir.Metadata(op_name=f"f/{new}/{HOSTILE[-1 - number]}", source_file=new, source_line=3),
            )
            for number, each in enumerate(computation)
        )
        root = names[computation.root_name]
        computations.append(attrs.evolve(computation, instructions=instructions, root_name=root))
    return attrs.evolve(module, name=HOSTILE[1], computations=tuple(computations))
