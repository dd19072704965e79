"""Asynchronous operations that end elsewhere than they begin, as XLA has them since jaxlib 0.12."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import HloError
from tests.text.building import module

_STARTED = "((f32[4], f32[4]), f32[4], s32[])"
_INNER = """difference {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  ROOT r = f32[4] subtract(x, y)
}
"""
_START = f"""a = f32[4] parameter(0)
b = f32[4] parameter(1)
s = {_STARTED} async-start(a, b), calls=difference
"""
_DONE = f"""done {{
  h = {_STARTED} parameter(0)
  ROOT d = f32[4] async-done(h)
}}
"""
_LOOP = f"""below {{
  p = (s32[], {_STARTED}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}}
step {{
  p = (s32[], {_STARTED}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  h = {_STARTED} get-tuple-element(p), index=1
  d = f32[4] subtract-done(h)
  k = f32[4] constant({{0.5, 1, 2, 4}})
  s = {_STARTED} subtract-start(d, k)
  ROOT t = (s32[], {_STARTED}) tuple(j, s)
}}
"""
A, B = np.float32([8, 16, -4, 0.5]), np.float32([1, 2, 0.25, -1])


class _Watch:
    def on_instruction(self, event: hloexec.Event) -> None:
        pass


@pytest.mark.parametrize(
    ("body", "computations", "subtracted"),
    [
        (f"t = ({_STARTED}, f32[4]) tuple(s, a)\nROOT d = f32[4] async-done(t#0)", "", 0),
        ("ROOT d = f32[4] call(s), to_apply=done", _DONE, 0),
        (
            "yes = pred[] constant(true)\n"
            "ROOT d = f32[4] conditional(yes, s, s), true_computation=done, false_computation=done",
            _DONE,
            0,
        ),
        (
            f"z = s32[] constant(0)\nt = (s32[], {_STARTED}) tuple(z, s)\n"
            f"w = (s32[], {_STARTED}) while(t), condition=below, body=step\n"
            "ROOT d = f32[4] async-done(w#1)",
            _LOOP,
            3,
        ),
    ],
    ids="tuple call conditional while".split(),
)
def test_started_operations_go_through_tuples_calls_branches_and_loops(
    body: str, computations: str, subtracted: int
) -> None:
    found = hloexec.parse(module(_START + body, _INNER + computations), strict=True)
    assert hloexec.parse(hloexec.format(found), strict=True) == found
    expected = A - B - subtracted * np.float32([0.5, 1, 2, 4])  # exact: small multiples of 1/4
    for options in ({}, {"planner": False}, {"observers": [_Watch()]}):
        assert_array_equal(hloexec.run(found, A, B, **options), expected)


_LATE = """a = f32[4] parameter(0)
b = f32[4] parameter(1)
"""
_SCALED = """scaled {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  n = s32[] parameter(2)
  f = f32[] convert(n)
  k = f32[4] broadcast(f), dimensions={}
  d = f32[4] subtract(x, y)
  ROOT r = f32[4] multiply(d, k)
}
"""


@pytest.mark.parametrize(
    "body",
    [
        """s = ((f32[4]), f32[4], s32[]) async-start(a), calls=difference
        u = ((f32[4], f32[4]), f32[4], s32[]) async-update(s, b)
        ROOT d = f32[4] async-done(u)""",
        """s = ((), (), s32[]) async-start(), calls=difference
        u = ((f32[4], f32[4]), f32[4], (s32[3], s32[])) async-update(s, a, b)
        v = ((f32[4], f32[4]), f32[4], (s32[3], s32[])) async-update(u)
        ROOT d = f32[4] async-done(v)""",
        """s = ((), f32[4], s32[]) subtract-start()
        t = ((f32[4]), f32[4], s32[]) subtract-update(s, a)
        u = ((f32[4], f32[4]), f32[4], s32[]) subtract-update(t, b)
        ROOT d = f32[4] subtract-done(u)""",
        """s = ((f32[4]), (), s32[]) call-start(a), to_apply=difference, async_execution_thread="sparsecore"
        t = ((f32[4]), (), s32[]) call-update(s)
        u = ((f32[4], f32[4]), f32[4], ()) call-update(t, b), output_to_operand_aliasing={{2}: (0, {2})}
        ROOT d = f32[4] call-done(u)""",
        """s = ((), (), (s32[8], s32[])) custom-call-start(), custom_call_target="TODO(b/522284627)",
            called_computations={difference}
        u = ((f32[4], f32[4]), f32[4], (s32[8])) custom-call-update(s, a, b),
            output_to_operand_aliasing={{2,0}: (0, {2,0})}
        ROOT d = f32[4] custom-call-done(u)""",
        "ROOT d = f32[4] async-done(((f32[4], f32[4]), f32[4]) call-update(((), ()) subtract-start(), a, b))",
    ],
    ids=["one late", "all late", "shorthand", "call", "library call", "nested"],
)
def test_operands_that_come_late_are_those_of_what_was_started(body: str) -> None:
    if "call-update(((), ())" in body:
        body = body.replace("call-update", "subtract-update")
    found = hloexec.parse(module(_LATE + body, _INNER), strict=True)
    printed = hloexec.parse(hloexec.format(found), strict=True)
    assert printed == found
    for options in ({}, {"planner": False}, {"observers": [_Watch()]}):
        assert_array_equal(hloexec.run(printed, A, B, **options), A - B)


def test_operands_come_late_by_several_updates() -> None:
    text = module(
        """a = f32[4] parameter(0)
        b = f32[4] parameter(1)
        n = s32[] parameter(2)
        s = ((f32[4]), (), s32[]) async-start(a), calls=scaled
        t = ((f32[4], f32[4]), (), s32[]) async-update(s, b)
        m = s32[] add(n, n)
        u = ((f32[4], f32[4], s32[]), f32[4], s32[]) async-update(t, m)
        ROOT d = f32[4] async-done(u)""",
        _SCALED,
    )
    found = hloexec.parse(text, strict=True)
    assert_array_equal(hloexec.run(found, A, B, np.int32(3)), 6 * (A - B))


def test_results_of_late_operands_may_be_tuples() -> None:
    text = module(
        """a = f32[4] parameter(0)
        b = f32[4] parameter(1)
        s = ((), (), s32[]) call-start(), to_apply=both
        u = ((f32[4], f32[4]), (f32[4], s32[]), s32[]) call-update(s, a, b)
        ROOT d = (f32[4], s32[]) call-done(u)""",
        """both {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  d = f32[4] subtract(x, y)
  n = s32[] constant(7)
  ROOT t = (f32[4], s32[]) tuple(d, n)
}
""",
    )
    difference, number = hloexec.run(hloexec.parse(text, strict=True), A, B)
    assert_array_equal(difference, A - B)
    assert number == 7


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("s = ((f32[4]), f32[4]) async-start(a), calls=difference\nROOT d = f32[4] async-done(s)", r"%d .* lacks 1 op"),
        ("s = ((), f32[4]) async-start(), calls=difference\nROOT d = f32[4] async-done(s)", r"%d .* lacks 2 operands"),
        ("ROOT s = ((f32[4]), f32[4]) async-start(a), calls=difference", "%s, the root in computation main, lacks 1 op"),
        (
            "s = ((), f32[4]) async-start(), calls=difference\n"
            "u = ((f32[4]), f32[4]) async-update(s, a)\nROOT d = f32[4] async-done(u)",
            r"%d .* uses %u, which lacks 1 operand of difference",
        ),
        (
            "s = ((), f32[4]) async-start(), calls=difference\nt = (((), f32[4])) tuple(s)\n"
            "u = ((f32[4], f32[4]), f32[4]) async-update(t#0, a, b)\nROOT d = f32[4] async-done(u)",
            "%t .* uses %s, which lacks 2 operands|was not started in this computation",
        ),
        (
            "s = ((f32[4]), f32[4]) async-start(a), calls=difference\n"
            "u = ((f32[4], f32[4], f32[4]), f32[4]) async-update(s, b, b)\nROOT d = f32[4] async-done(u)",
            "what was started takes 2 operands, but has 3",
        ),
        (
            "s = ((f32[4]), f32[4]) async-start(a), calls=difference\n"
            "u = ((f32[4], f32[4]), f32[5]) async-update(s, b)\nROOT d = f32[5] async-done(u)",
            "element 1 of async-update, its result,",
        ),
        (
            "s = ((f32[4]), f32[4]) async-start(a), calls=difference\nz = f32[5] constant(0)\n"
            "u = ((f32[4], f32[5]), f32[4]) async-update(s, z)\nROOT d = f32[4] async-done(u)",
            "computation that async-update goes on with",
        ),
        (
            "s = ((f32[4]), f32[4]) async-start(a), calls=difference\n"
            "u = ((f32[4]), f32[4]) async-update(s, b)\nROOT d = f32[4] async-done(u)",
            r"async-update is declared .*, but its operands give \(\(f32\[4\], f32\[4\]\), f32\[4\]\)",
        ),
        (
            's = ((), ()) custom-call-start(), custom_call_target="TODO(b/522284627)"\n'
            "u = ((f32[4]), f32[4]) custom-call-update(s, a)\nROOT d = f32[4] custom-call-done(u)",
            "it does not call one computation",
        ),
        (
            's = ((), ()) custom-call-start(), custom_call_target="TODO(b/522284627)", called_computations={difference}\n'
            "u = ((f32[4]), f32[4]) custom-call-update(s, a)\nROOT d = f32[4] custom-call-done(u)",
            "calls difference, whose parameters and result are not those of the call",
        ),
        (
            's = ((), ()) custom-call-start(), custom_call_target="TODO(b/522284627)", called_computations={difference}\n'
            "u = ((f32[4], f32[4]), f32[2]) custom-call-update(s, a, b)\nROOT d = f32[2] custom-call-done(u)",
            "calls difference, whose parameters and result are not those of the call",
        ),
    ],
)  # fmt: skip
def test_late_operands_that_do_not_fit_are_refused(body: str, message: str) -> None:
    found = hloexec.parse(module(_LATE + body, _INNER))
    with pytest.raises(HloError, match=message):
        hloexec.run(found, *hloexec.random_inputs(found, seed=0))
