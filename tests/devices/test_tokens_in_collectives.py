"""Operands that only keep collectives in order: tokens, and the scalars that PyTorch/XLA on AWS Neuron has for them.

What devices exchange is computed by NumPy from whole numbers; each device gets its own token back. XLA's parser reads such
modules, and its all-reduce adds a scalar up like any other operand.
"""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.values import TOKEN
from hloexec.errors import VerificationError
from tests.text.building import ADD, op

_X = [np.arange(8, dtype=np.float32).reshape(4, 2) * scale for scale in (1, 10)]
_SCALARS = [np.float32(2), np.float32(3)]

_COLLECTIVES = {
    "all-gather": ("f32[8,2]", "", [np.concatenate(_X)] * 2),
    "reduce-scatter": ("f32[2,2]", ", to_apply=add_f32", np.split(_X[0] + _X[1], 2)),
    "all-to-all": ("f32[4,2]", "", [np.concatenate([each[k : k + 2] for each in _X]) for k in (0, 2)]),
}


def _text(opcode: str, token: str) -> str:
    result, more, _ = _COLLECTIVES[opcode]
    body = f"({result}, {token}) {opcode}(x, t), replica_groups={{{{0,1}}}}, dimensions={{0}}{more}"
    return op(body, ADD, ", replica_count=2", x="f32[4,2]", t=token)


def _run(text: str, tokens: list[object], **options: bool) -> list[tuple[object, object]]:
    module = hloexec.parse(text)
    hloexec.verify(module)
    return hloexec.run_devices(module, [list(given) for given in zip(_X, tokens, strict=True)], **options)


@pytest.mark.parametrize("planner", [True, False])
@pytest.mark.parametrize(
    ("shape", "given"), [("f32[]", _SCALARS), ("token[]", [TOKEN, TOKEN])], ids=["scalars", "tokens"]
)
@pytest.mark.parametrize("opcode", _COLLECTIVES)
def test_what_stands_behind_what_is_divided_is_handed_on(
    opcode: str, shape: str, given: list[object], planner: bool
) -> None:
    found = _run(_text(opcode, shape), given, planner=planner)
    for result, expected, handed in zip(found, _COLLECTIVES[opcode][2], given, strict=True):
        assert_array_equal(result[0], expected)
        assert result[1] == handed


def test_an_all_reduce_adds_scalars_up_and_hands_tokens_on() -> None:
    body = "(f32[4,2], f32[], token[]) all-reduce(x, t, u), replica_groups={{0,1}}, to_apply=add_f32"
    module = hloexec.parse(op(body, ADD, ", replica_count=2", x="f32[4,2]", t="f32[]", u="token[]"))
    for result in hloexec.run_devices(module, [[x, s, TOKEN] for x, s in zip(_X, _SCALARS, strict=True)]):
        assert_array_equal(result[0], _X[0] + _X[1])
        assert result[1:] == (5, TOKEN)


def test_the_start_of_a_gather_gives_its_token_twice() -> None:
    start = "((f32[4,2], f32[]), (f32[8,2], f32[])) all-gather-start(x, t), replica_groups={{0,1}}, dimensions={0}"
    text = op(start, header=", replica_count=2", x="f32[4,2]", t="f32[]")
    done = text.replace("ROOT root", "s").replace("\n}", "\n  ROOT d = (f32[8,2], f32[]) all-gather-done(s)\n}")
    for result, scalar in zip(_run(done, _SCALARS), _SCALARS, strict=True):
        assert_array_equal(result[0], np.concatenate(_X))
        assert result[1] == scalar


def test_errors_go_through_a_collective_beside_its_token() -> None:
    gather = "replica_groups={{0,1}}, dimensions={0}"
    begin = "HloModule m, replica_count=2\nENTRY e {\nx = f32[4,2] parameter(0)\ny = f32[4,2] exponential(x)\n"
    plain = f"{begin}g = f32[8,2] all-gather(y), {gather}\nROOT r = f32[8,2] sine(g)\n}}"
    threaded = (
        f"{begin}t = f32[] constant(0)\ns = (f32[8,2], f32[]) all-gather(y, t), {gather}\n"
        "g = f32[8,2] get-tuple-element(s), index=0\nROOT r = f32[8,2] sine(g)\n}"
    )
    one, other = (
        {loss.instruction: loss.share for loss in hloexec.shadow(hloexec.parse(text), [[x] for x in _X]).losses}
        for text in (plain, threaded)
    )
    assert one == other
    assert one["y"] > 0


@pytest.mark.parametrize("opcode", _COLLECTIVES)
def test_what_is_divided_has_dimensions(opcode: str) -> None:
    result, more, _ = _COLLECTIVES[opcode]
    text = op(f"f32[] {opcode}(x), replica_groups={{{{0,1}}}}, dimensions={{0}}{more}", ADD, x="f32[]")
    with pytest.raises(VerificationError, match="dimension 0 is out of range"):
        hloexec.verify(hloexec.parse(text))
    changed = _text(opcode, "f32[]").replace(f"({result}, f32[])", f"({result}, f32[2])")
    with pytest.raises(VerificationError, match="result 1 of" if "to-all" not in opcode else "is declared"):
        hloexec.verify(hloexec.parse(changed))
