"""Texts that XLA's parser rejects though their grammar is right: parts of an instruction that do not fit each other."""

from __future__ import annotations

from tests.text.building import ADD, ADD2, module, op

_INNER = "inner {\n x = f32[2] parameter(0)\n ROOT r = f32[2] negate(x)\n}\n"
_OTHER = _INNER.replace("inner", "other")
_START = "s = ((f32[2]), f32[2], s32[]) async-start(a), calls=inner"
_UPDATE = "u = ((f32[2]), f32[2], s32[]) async-update(s)"
_DONE = "ROOT d = f32[2] async-done(u)"
_CONSTRAINED = 'f32[2] §custom-call(a), custom_call_target="t", operand_layout_constraints='


def _asynchronous(*lines: str) -> str:
    return module("\n".join(["a = f32[2] parameter(0)", *lines]), _INNER + _OTHER)


def _collective(shape: str, opcode: str) -> str:
    attributes = "replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add_f32"
    return op(f"{shape} §{opcode}(a), {attributes}{', dimensions={0}' if 'scatter' in opcode else ''}", ADD, a="f32[2]")


FORMS: dict[str, str] = {
    "async-start without a tuple": _asynchronous("s = f32[2] §async-start(a), calls=inner", "ROOT d = f32[2] async-done(s)"),
    "async-start without its operands": _asynchronous(
        "s = (f32[2], f32[2], s32[]) §async-start(a), calls=inner", "ROOT d = f32[2] async-done(s)"
    ),
    "async-start without a result": _asynchronous("s = ((f32[2])) §async-start(a), calls=inner", "ROOT n = f32[2] negate(a)"),
    "async-done of an async-done": _asynchronous(_START, _UPDATE, "d = f32[2] async-done(u)", "ROOT e = f32[2] §async-done(d)"),
    "async-update on another thread": _asynchronous(_START, _UPDATE.replace("async-u", "§async-u") + ', async_execution_thread="side"', _DONE),
    "async-done on another thread": _asynchronous(_START, _UPDATE, 'ROOT d = f32[2] §async-done(u), async_execution_thread="side"'),
    "async-update of another computation": _asynchronous(_START, _UPDATE.replace("async-u", "§async-u") + ", calls=other", _DONE),
    "async-done of another computation": _asynchronous(_START, _UPDATE, "ROOT d = f32[2] §async-done(u), calls=other"),
    "asynchronous opcode's done on another thread": module(
        'a = f32[2] parameter(0)\ns = ((f32[2]), f32[2], s32[]) negate-start(a), async_execution_thread="side"\n'
        'ROOT d = f32[2] §negate-done(s), async_execution_thread="main"'
    ),
    "global device numbers without a channel": _collective("f32[2]", "all-reduce"),
    "global device numbers without a channel of a start": _collective("f32[2]", "all-reduce-start"),
    "global device numbers without a channel of reduce-scatter": _collective("f32[1]", "reduce-scatter"),
    "layout constraints for too many operands": op(_CONSTRAINED + "{f32[2]{0}, f32[2]{0}}", a="f32[2]"),
    "layout constraints for no operand": op(_CONSTRAINED + "{}", a="f32[2]"),
    "layout constraint of another size": op(_CONSTRAINED + "{f32[3]{0}}", a="f32[2]"),
    "layout constraint of another width": op(_CONSTRAINED + "{bf16[2]{0}}", a="f32[2]"),
    "infeed without a tuple": op("f32[2] §infeed(t)", t="token[]"),
    "infeed of nothing": op("() §infeed(t)", t="token[]"),
    "conditional on a long index": op("f32[2] §conditional(i, a), branch_computations={inner}", _INNER, i="s64[]", a="f32[2]"),
    "conditional with a false computation only": op(
        "f32[2] §conditional(p, a, a), false_computation=inner", _INNER, p="pred[]", a="f32[2]"
    ),
    "conditional on a predicate with too few operands": op(
        "f32[2] §conditional(p, a), true_computation=inner, false_computation=inner", _INNER, p="pred[]", a="f32[2]"
    ),
    "shape left out of an opt-barrier": op("§opt-barrier(a)", a="f32[2]"),
    "nested opt-barrier without a shape": op("f32[2] negate(§opt-barrier(a))", a="f32[2]"),
    "nested instruction of an unknown opcode": op("f32[2] add(a, f32[2] §frobnicate(a))", a="f32[2]"),
    "nested instruction of an unknown operand": op("f32[2] add(a, f32[2] negate(§b))", a="f32[2]"),
    "nested instruction with a name": op("f32[2] add(a, f32[2] §n §negate(a))", a="f32[2]"),
    "shape left out of a reduce-window of two arrays": op(
        "§reduce-window(a, b, z, y), window={size=2}, to_apply=add_two", ADD2, a="f32[4]", b="s32[4]", z="f32[]", y="s32[]"
    ),
    "sum of sizes that do not broadcast": op("§add(a, b)", a="f32[2,3]", b="f32[3]"),
    "broadcast to a negative size without a shape": op("§broadcast(a), dimensions={-1}", a="f32[3]"),
    "thread of a computation twice": module("ROOT a = f32[] parameter(0)").rstrip()
    + ', execution_thread="x", §execution_thread="x"',
    "types on operands of another bound": module("a = f32[<=2] parameter(0)\nROOT b = f32[<=2] negate(§f32[<=3] §a)"),
}  # fmt: skip
