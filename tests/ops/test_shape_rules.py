"""Shape rules of control flow, asynchronous pairs and collectives: what they give, and what they refuse."""

import warnings

import pytest

from hloexec.errors import ShapeError
from hloexec.language.text import parse
from tests.ops.evaluation import infer_all

COMPUTATIONS = """
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
twice {
  x = f32[4] parameter(0)
  ROOT z = f32[4] add(x, x)
}
less {
  x = f32[4] parameter(0)
  ROOT z = pred[] constant(false)
}
never {
  ROOT z = pred[] constant(false)
}
count {
  x = f32[4] parameter(0)
  ROOT z = s32[] constant(1)
}
"""


def check(*lines: str) -> None:
    """Apply the shape rules of a module with these instructions in its entry computation."""
    body = """
  p = f32[4] parameter(0)
  q = f32[4,6] parameter(1)
  yes = pred[] parameter(2)
  index = s32[] parameter(3)
  t = token[] after-all()
"""
    whole = "\n".join(f"  {line}" for line in lines)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infer_all(parse(f"HloModule m\n{COMPUTATIONS}\nENTRY e {{{body}{whole}\n  ROOT end = () tuple()\n}}"))


GROUPS = "replica_groups={{0,1},{2,3}}"

RIGHT = {
    "tuple": ["a = (f32[4], (s32[])) tuple(p, b)", "b = (s32[]) tuple(index)"][::-1],
    "get-tuple-element": ["a = (f32[4], s32[]) tuple(p, index)", "b = s32[] get-tuple-element(a), index=1"],
    "call": ["a = f32[4] call(p), to_apply=twice"],
    "fusion": ["a = f32[4] fusion(p), kind=kLoop, calls=twice"],
    "while": ["a = f32[4] while(p), condition=less, body=twice"],
    "conditional on a predicate": ["a = f32[4] conditional(yes, p, p), true_computation=twice, false_computation=twice"],
    "conditional on an index": ["a = f32[4] conditional(index, p, p, p), branch_computations={twice, twice, twice}"],
    "custom-call": ["a = (f32[7], s8[0]) custom-call(p, q), custom_call_target=\"f\""],
    "custom-call with layouts": [
        'a = f32[7]{0} custom-call(p), custom_call_target="f", operand_layout_constraints={f32[4]{0}}'
    ],
    "forwarding": [
        "a = f32[4] opt-barrier(p)", "b = f32[4] add-dependency(p, t)",
        'c = f32[4] domain(p), domain={kind="sharding", entry={maximal device=0}, exit={maximal device=1}}',
    ],
    "tokens": ["u = token[] after-all(t, t)"],
    "async": [
        "a = ((f32[4]), f32[4], u32[]) async-start(p), calls=twice", "b = ((f32[4]), f32[4], u32[]) async-update(a)",
        "c = f32[4] async-done(b)",
    ],
    "copy": ["a = (f32[4], f32[4], u32[]) copy-start(p)", "b = f32[4] copy-done(a)"],
    "send": ["a = (f32[4], u32[], token[]) send(p, t), channel_id=1", "b = token[] send-done(a), channel_id=1"],
    "recv": ["a = (f32[4], u32[], token[]) recv(t), channel_id=1", "b = (f32[4], token[]) recv-done(a), channel_id=1"],
    "feeds": ["a = ((f32[4], s32[]), token[]) infeed(t)", "b = token[] outfeed(p, t), outfeed_shape=f32[4]{0}"],
    "all-gather": [f"a = f32[8,6] all-gather(q), dimensions={{0}}, {GROUPS}"],
    "all-gather of many": ["a = (f32[8], f32[8,6]) all-gather(p, q), dimensions={0}, replica_groups=[2,2]<=[4]"],
    "all-gather without groups": ["a = f32[12] all-gather(p), dimensions={0}, replica_groups={}"],
    "all-gather-start": [f"a = (f32[4], f32[8]) all-gather-start(p), dimensions={{0}}, {GROUPS}", "b = f32[8] all-gather-done(a)"],
    "all-reduce": [f"a = f32[4] all-reduce(p), to_apply=add, {GROUPS}", f"b = (f32[4], f32[4,6]) all-reduce(p, q), to_apply=add, {GROUPS}"],
    "all-reduce-start": ["a = f32[4] all-reduce-start(p), to_apply=add", "b = f32[4] all-reduce-done(a)"],
    "reduce-scatter": [f"a = f32[4,3] reduce-scatter(q), dimensions={{1}}, to_apply=add, {GROUPS}"],
    "all-to-all": [f"a = f32[4,6] all-to-all(q), dimensions={{1}}, {GROUPS}", f"b = (f32[4], f32[4]) all-to-all(p, p), {GROUPS}"],
    "ragged-all-to-all": ["i = s32[2] constant({0, 1})", f"a = f32[4,6] ragged-all-to-all(q, q, i, i, i, i), {GROUPS}"],
    "collective-broadcast": [f"a = f32[4] collective-broadcast(p), {GROUPS}"],
    "collective-permute": [
        "a = f32[4] collective-permute(p), source_target_pairs={{0,1},{1,0}}",
        "b = (f32[4], f32[4], u32[], u32[]) collective-permute-start(p), source_target_pairs={{0,1}}",
        "c = f32[4] collective-permute-done(b)",
        "d = ((f32[4], f32[4,6]), (f32[4], f32[4,6])) collective-permute-start(p, q), source_target_pairs={{0,1}}",
    ],
    "ids": ["a = u32[] partition-id()", "b = u32[] replica-id()"],
    "mixed float widths": ["h = bf16[4] convert(p)", "a = f32[4] call(h), to_apply=twice"],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_instructions_have_the_declared_shape(name: str) -> None:
    check(*RIGHT[name])


WRONG = [
    (["a = f32[4] get-tuple-element(p), index=0"], "must be a tuple"),
    (["b = (s32[]) tuple(index)", "a = s32[] get-tuple-element(b), index=1"], "index 1 .* out of range"),
    (["a = f32[4] call(q), to_apply=twice"], "parameter 0 of to_apply of call has shape f32"),
    (["a = f32[4] call(p, p), to_apply=twice"], "takes 1 parameters, but 2 operands"),
    (["a = f32[4] fusion(index), kind=kLoop, calls=twice"], "parameter 0 of the computation of fusion"),
    (["a = f32[4] while(p), condition=count, body=twice"], "condition of while must return pred"),
    (["a = f32[4] while(p), condition=never, body=twice"], "condition of while takes 0 parameters"),
    (["a = f32[4] while(p), condition=less, body=less"], "the result of body of while has shape pred"),
    (["a = f32[4] conditional(index, p, p), true_computation=twice, false_computation=twice"], r"must be pred\[\]"),
    (["a = f32[4] conditional(yes, p), branch_computations={twice}"], r"must be s32\[\]"),
    (["a = f32[4] conditional(index, p), branch_computations={twice, twice}"], "2 branches, but 1 branch operands"),
    (["a = f32[4] conditional(index, p, p), branch_computations={twice, less}"], "the result of branch 1"),
    (['a = f32[7]{0} custom-call(p), custom_call_target="f", operand_layout_constraints={f32[5]{0}}'], "layout constr"),
    (['a = f32[7]{0} custom-call(p), custom_call_target="f", operand_layout_constraints={}'], "0 operand layout"),
    (["a = f32[4] add-dependency(p, p)"], "must be a token"),
    (["a = ((f32[4]), f32[5], u32[]) async-start(p), calls=twice"], "element 1 of async-start"),
    (["a = ((f32[5]), f32[4], u32[]) async-start(p), calls=twice"], "element 0 of async-start"),
    (["a = f32[4] async-done(p)"], "must be a tuple of at least 2"),
    (["a = (f32[4], f32[5], u32[]) copy-start(p)"], "element 1 of copy-start"),
    (["a = (f32[4], u32[], token[]) send(p, p)"], "operand 1 of send must be a token"),
    (["a = (f32[4], f32[], token[]) recv(t)"], r"element 1 of the handle of recv must be u32\[\]"),
    (["a = ((f32[4], s32[]), token[]) infeed(p)"], "operand 0 of infeed must be a token"),
    (["a = token[] outfeed(p, t), outfeed_shape=f32[5]{0}"], "operand 0 of outfeed"),
    ([f"a = f32[12] all-gather(p), dimensions={{0}}, {GROUPS}"], "a part of its result along dimension 0 with 2"),
    ([f"a = f32[8,6] all-gather(q), dimensions={{2}}, {GROUPS}"], "dimension 2 is out of range"),
    ([f"a = f32[8,7] all-gather(q), dimensions={{0}}, {GROUPS}"], "a part of its result"),
    (["a = f32[8] all-gather(p), dimensions={0}, replica_groups={{0,1},{2}}"], "must be of one size"),
    (["a = f32[8] all-gather(p), dimensions={0}, replica_groups={{0,1},{1,2}}"], "at most once"),
    (["a = f32[4] all-to-all(p), dimensions={0}, replica_groups={{}}"], "must not be empty"),
    (["a = f32[4] all-gather(p), dimensions={0}, replica_groups={{0},{}}"], "must not be empty"),
    ([f"a = f32[4] all-reduce(p), to_apply=twice, {GROUPS}"], "must take 2 parameters, but takes 1"),
    ([f"a = f32[3,6] reduce-scatter(q), dimensions={{0}}, to_apply=add, {GROUPS}"], "a part of its operand"),
    (["a = f32[4,6] all-to-all(q), dimensions={1}, replica_groups={{0,1,2,3}}"], "must be divisible by the 4"),
    ([f"a = (f32[4], f32[4], f32[4]) all-to-all(p, p, p), {GROUPS}"], "one operand per device"),
    ([f"a = (f32[4], f32[4,6]) all-to-all(p, q), {GROUPS}"], "operand 1 of all-to-all has shape"),
    (["i = s32[2] constant({0, 1})", "a = f32[4,6] ragged-all-to-all(q, p, i, i, i, i)"], "same dimensions but for"),
    (["i = s32[2] constant({0, 1})", "a = f32[4] ragged-all-to-all(p, p, i, i, p, i)"], "operand 4 .* integers"),
    (["a = f32[4] collective-permute(p), source_target_pairs={{0,1},{0,2}}"], "be a source twice"),
    (["a = f32[4] collective-permute(p), source_target_pairs={{0,1},{2,1}}"], "be a target twice"),
    (["a = (f32[4], f32[5]) collective-permute-start(p), source_target_pairs={{0,1}}"], "element 1 of collective-perm"),
]


@pytest.mark.parametrize(("lines", "message"), WRONG, ids=[lines[-1][:60] for lines, _ in WRONG])
def test_wrong_instructions_are_refused(lines: list[str], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        check(*lines)
