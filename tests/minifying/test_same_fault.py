"""`minify` of two modules keeps the fault that was given: the instruction that was changed, and how it was changed."""

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from numpy.testing import assert_allclose

import hloexec
from hloexec.core.ir import Module
from hloexec.engine.exec.observers import Stages
from hloexec.engine.options import DEFAULTS
from hloexec.tools.minifying import oracles
from hloexec.tools.minifying.case import Case
from hloexec.tools.minifying.oracles import blame_of, found_by_diff
from hloexec.tools.minifying.searching import Search
from tests.command_line import CommandLine
from tests.here import on_xla
from tests.minifying.packages import needs_scipy
from tests.records import read_record

LOOP = """HloModule power
body {{
  state = (s32[], f32[2,2], f32[2,2]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  g = f32[2,2] get-tuple-element(state), index=1
  a = f32[2,2] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  turned = f32[2,2] transpose(a), dimensions={{1,0}}
  product = f32[2,2] dot(g, {operand}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  scale = f32[] constant({scale})
  scales = f32[2,2] broadcast(scale), dimensions={{}}
  smaller = f32[2,2] multiply(product, scales)
  wide = f32[4,2] concatenate(smaller, g), dimensions={{0}}
  part = f32[2,2] slice(wide), slice={{{part}, [0:2]}}
  bounded = f32[2,2] tanh(part)
  ROOT end = (s32[], f32[2,2], f32[2,2]) tuple(next, bounded, a)
}}

condition {{
  given = (s32[], f32[2,2], f32[2,2]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(number, three), direction=LT
}}

ENTRY main {{
  x = f32[2,2] parameter(0)
  zero = s32[] constant(0)
  a = f32[2,2] constant({{{{1, 0.1}}, {{0, 1}}}})
  start = (s32[], f32[2,2], f32[2,2]) tuple(zero, a, a)
  loop = (s32[], f32[2,2], f32[2,2]) while(start), condition=condition, body=body
  found = f32[2,2] get-tuple-element(loop), index=1
  sum = f32[2,2] add(found, x)
  ROOT root = f32[2,2] sine(sum)
}}
"""
NESTED = """HloModule nested
inner_body {{
  state = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[3] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  back = f32[3] reverse(v), dimensions={{0}}
  mixed = f32[3] {mixed}
  ROOT end = (s32[], f32[3]) tuple(next, mixed)
}}
inner_condition {{
  given = (s32[], f32[3]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  two = s32[] constant(2)
  ROOT goes_on = pred[] compare(number, two), direction=LT
}}
odd {{
  w = f32[3] parameter(0)
  ROOT s = f32[3] sine(w)
}}
even {{
  w = f32[3] parameter(0)
  c = f32[3] {even}(w)
  ROOT t = f32[3] negate(c)
}}
body {{
  state = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[3] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  zero = s32[] constant(0)
  start = (s32[], f32[3]) tuple(zero, v)
  loop = (s32[], f32[3]) while(start), condition=inner_condition, body=inner_body
  last = f32[3] get-tuple-element(loop), index=1
  low = s32[] and(i, one)
  is_odd = pred[] compare(low, one), direction=EQ
  chosen = f32[3] conditional(is_odd, last, last), true_computation=odd, false_computation=even
  ROOT end = (s32[], f32[3]) tuple(next, chosen)
}}
condition {{
  given = (s32[], f32[3]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(number, three), direction=LT
}}
ENTRY main {{
  x = f32[3] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[3]) tuple(zero, x)
  loop = (s32[], f32[3]) while(start), condition=condition, body=body
  ROOT found = f32[3] get-tuple-element(loop), index=1
}}
"""
TWO = """HloModule two
ENTRY main {{
  x = f32[5] parameter(0)
  y = f32[5] parameter(1)
  first = f32[5] {first}(x, y)
  second = f32[5] {second}(first)
  ROOT both = (f32[5], f32[5]) tuple(first, second)
}}
"""
_RIGHT_LOOP = {"operand": "turned", "scale": "0.5", "part": "[0:2]"}
_RIGHT_NESTED = {"mixed": "multiply(v, back)", "even": "cosine"}


def _pair(text: str, right: dict[str, str], **wrong: str) -> tuple[Module, Module]:
    return hloexec.parse(text.format(**right)), hloexec.parse(text.format(**{**right, **wrong}))


def _computing(module: Module) -> list[str]:
    glue = {"parameter", "constant", "tuple", "get-tuple-element"}
    return [each.opcode for computation in module for each in computation if each.opcode not in glue]


@needs_scipy
@pytest.mark.parametrize(
    ("pair", "opcode", "opcode_before", "is_written_alike"),
    [
        (_pair(LOOP, _RIGHT_LOOP, operand="a"), "dot", "dot", True),
        (_pair(LOOP, _RIGHT_LOOP, part="[2:4]"), "slice", "slice", False),
        (_pair(LOOP, _RIGHT_LOOP, part="[1:3]"), "slice", "slice", False),
        (_pair(LOOP, _RIGHT_LOOP, scale="0.75"), "multiply", "multiply", True),
        (_pair(NESTED, _RIGHT_NESTED, mixed="multiply(v, v)"), "multiply", "multiply", True),
        (_pair(NESTED, _RIGHT_NESTED, mixed="add(v, back)"), "add", "multiply", False),
        (_pair(NESTED, _RIGHT_NESTED, even="sine"), "sine", "cosine", False),
    ],
    ids="transpose slice shifted-slice constant nested-operands nested-opcode conditional".split(),
)
def test_the_fault_that_was_given_is_kept(
    pair: tuple[Module, Module], opcode: str, opcode_before: str, is_written_alike: bool
) -> None:
    before, after = pair
    found = hloexec.minify(after, differs_from=before)
    assert found.other is not None and found.is_confirmed and found.notes == ()
    blame, is_certain = blame_of(found_by_diff(Case(found.module, found.inputs, found.other), DEFAULTS))
    assert blame is not None and is_certain
    assert (blame.opcode, blame.opcode_before, blame.is_written_alike) == (opcode, opcode_before, is_written_alike)
    assert opcode in _computing(found.module) and opcode_before in _computing(found.other)
    assert len(_computing(found.module)) <= 2 and len(_computing(found.other)) <= 3
    assert f"to blame is {opcode}" in found.failure


@needs_scipy
def test_a_product_by_a_matrix_instead_of_its_transpose_stays_a_product() -> None:
    before, after = _pair(LOOP, _RIGHT_LOOP, operand="a")
    found = hloexec.minify(after, differs_from=before)
    assert _computing(found.module) == ["dot"] and found.other is not None
    assert sorted(_computing(found.other)) == ["dot", "transpose"]
    ours, theirs = (np.asarray(hloexec.run(each, *(found.inputs or [[]])[0])) for each in (found.module, found.other))
    matrix = np.array([[1, 0.1], [0, 1]])
    assert_allclose(ours, matrix @ matrix, rtol=1e-6)
    assert_allclose(theirs, matrix @ matrix.T, rtol=1e-6)


def test_what_the_other_module_goes_without_is_kept_in_front_of_a_parameter() -> None:
    text = TWO.replace("(f32[5], f32[5]) tuple(first, second)", "f32[5] {root}(second, second)")
    text = text.replace("{second}(first)", "tanh(first)")
    before = hloexec.parse(text.format(first="add", root="add").replace("add(second, second)", "copy(second)"))
    after = hloexec.parse(text.format(first="add", root="add"))
    found = hloexec.minify(after, differs_from=before)
    assert (_computing(found.module), found.notes) == (["add"], ())
    assert found.other is not None and "add" not in _computing(found.other)


@needs_scipy
def test_diff_is_asked_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(*arguments: Any) -> Any:
        asked.append(arguments)
        return found_by_diff(*arguments)

    monkeypatch.setattr(oracles, "found_by_diff", counted)
    before, after = _pair(LOOP, _RIGHT_LOOP, scale="0.75")
    found = hloexec.minify(after, differs_from=before)
    assert 0 < len(asked) < found.trial_count


def test_the_last_step_that_keeps_what_is_to_blame_is_x() -> None:
    before, _ = _pair(TWO, {"first": "add", "second": "sine"})
    cases = [Case(attrs.evolve(before, name=f"two{number}"), None) for number in range(9)]
    asked: list[str] = []

    class Everything:
        def holds(self, case: Case) -> bool:
            return True

    def is_kept(case: Case) -> bool:
        asked.append(case.module.name)
        return case.module.name < "two5"

    search = Search(cases[0], Everything(), None, Stages(()))  # type: ignore[arg-type]
    for case in cases[1:]:
        assert search.any([case])
    assert not search.confirm(is_kept) and search.best is cases[4]
    assert len(asked) <= 4 and not search.any(cases) and search.confirm(is_kept)


def test_of_two_faults_the_one_behind_a_result_is_kept() -> None:
    before, after = _pair(TWO, {"first": "add", "second": "sine"}, first="subtract", second="cosine")
    found = hloexec.minify(after, differs_from=before)
    assert (_computing(found.module), found.notes) == (["subtract"], ())
    assert found.other is not None and _computing(found.other) == ["add"]
    assert "to blame is subtract in place of add" in found.failure


def test_of_two_faults_behind_one_result_none_is_said_to_be_the_one_that_was_given() -> None:
    text = TWO.replace("(f32[5], f32[5]) tuple(first, second)", "f32[5] negate(second)")
    before, after = _pair(text, {"first": "add", "second": "sine"}, first="subtract", second="cosine")
    assert not any(each.is_certain for each in hloexec.diff(before, after).findings)
    found = hloexec.minify(after, differs_from=before)
    (note,) = found.notes
    assert "is not established" in note and "to blame is" not in found.failure


HIDDEN = """HloModule hidden
ENTRY main {{
  x = s32[6] parameter(0)
  ROOT r = s32[6] {root}(x)
}}
"""


def test_a_fault_that_is_not_established_is_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(oracles, "found_by_diff", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for name, root in (("before", "negate"), ("after", "not")):
        Path(f"{name}.hlo").write_text(HIDDEN.format(root=root))
    record = read_record(cli("minify after.hlo --differs-from before.hlo -o small --json"))
    (note,) = record["notes"]
    assert "is not established" in note and "to blame is" not in record["failure"]
    assert "is not established" in Path("small/README.md").read_text()
    assert "is not established" in " ".join(cli("minify after.hlo --differs-from before.hlo -o other").split())


BESIDE_DENORMALS = """HloModule beside_denormals

ENTRY main {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  large = f32[] constant(1e38)
  larges = f32[8] broadcast(large), dimensions={}
  scaled = f32[8] multiply(y, larges)
  wave = f32[8] sine(scaled)
  GIVEN
  both = f32[8] add(given, wave)
  ROOT results = (f32[8], f32[8]) tuple(both, wave)
}
"""


@needs_scipy
@pytest.mark.parametrize(
    ("against", "given", "opcode"),
    [
        # XLA before jaxlib 0.12 takes log(exp(x)) for x, where exp(x) is infinite.
        ("xla-cpu", "size = f32[8] exponential(x)\n  given = f32[8] log(size)", "log"),
        (
            "bf16+ftz",
            "table = f32[8,8] broadcast(x), dimensions={0}\n"
            "  given = f32[8] dot(table, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "dot",
        ),
    ],
)
def test_a_difference_beside_flushed_denormals_is_kept(against: str, given: str, opcode: str) -> None:
    if against == "xla-cpu":
        pytest.importorskip("jaxlib")
    module = hloexec.parse(BESIDE_DENORMALS.replace("GIVEN", given))
    x = np.array([1, 89, 2, 200, -1, 0.3, 3, 4], np.float32)
    y = np.array([0, 1e-40, 1e-39, 0, -1e-39, 0, 0, 0], np.float32)
    if against == "xla-cpu" and not np.isfinite(np.asarray(on_xla(module, [x, y])[0])).all():
        pytest.skip("this XLA does not take log(exp(x)) for x")
    found = hloexec.minify(module, [x, y], against=against)
    assert opcode in _computing(found.module)
    assert found.inputs is not None and found.is_confirmed
    least = float(np.finfo(np.float32).tiny)
    assert not any(((np.abs(each) < least) & (each != 0)).any() for each in map(np.asarray, found.inputs[0]))
    # Where denormals are all that differs, they stay.
    flushed = hloexec.minify(module, [x, y], against="ftz")
    assert "multiply" in _computing(flushed.module)
