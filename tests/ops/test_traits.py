"""What traits say holds of what the opcodes compute."""

import numpy as np
import pytest

import hloexec
import hloexec.ops
from hloexec.core.values import Array
from hloexec.ops.registry import OPCODES

KEEPS_ALL = {
    "bitcast": "s32[3,2] bitcast(x)",
    "broadcast": "s32[4,2,3] broadcast(x), dimensions={1,2}",
    "copy": "s32[2,3] copy(x)",
    "reshape": "s32[6] reshape(x)",
    "reverse": "s32[2,3] reverse(x), dimensions={1}",
    "transpose": "s32[3,2] transpose(x), dimensions={1,0}",
}


def _opcodes(trait: str) -> list[str]:
    return sorted(name for name, entry in OPCODES.items() if getattr(entry.traits, trait))


def _result(body: str, *inputs: Array) -> Array:
    return np.asarray(hloexec.run(hloexec.parse(f"HloModule m\nENTRY e {{\n{body}\n}}\n"), *inputs))


@pytest.mark.parametrize("opcode", _opcodes("keeps_all"))
def test_every_element_of_the_operand_shows(opcode: str) -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    result = _result(f"  x = s32[2,3] parameter(0)\n  ROOT y = {KEEPS_ALL[opcode]}", values)
    assert {*result.reshape(-1).tolist()} == {*range(6)}
    assert result.size == 6 or OPCODES[opcode].traits.repeats


@pytest.mark.parametrize("opcode", _opcodes("is_involution"))
def test_twice_gives_the_operand(opcode: str) -> None:
    values = np.array([-(2**31), -5, 0, 1, 2**31 - 1], np.int32)
    body = f"  x = s32[5] parameter(0)\n  y = s32[5] {opcode}(x)\n  ROOT z = s32[5] {opcode}(y)"
    assert (_result(body, values) == values).all()
    assert (_result(body.rpartition("\n")[0].replace("  y", "  ROOT y"), values) != values).any()


@pytest.mark.parametrize("opcode", _opcodes("is_injective"))
def test_different_operands_have_different_results(opcode: str) -> None:
    values = np.array([*np.geomspace(1e-30, 1e30, 62), *-np.geomspace(1e30, 1e-30, 62)], np.float32)
    result = _result(f"  x = f32[124] parameter(0)\n  ROOT y = f32[124] {opcode}(x)", values)
    numbers = result[~np.isnan(result)]
    assert len(numbers) > 60 and np.isfinite(numbers).all()
    assert len({*numbers.tolist()}) == len(numbers)


@pytest.mark.parametrize("opcode", _opcodes("commutes"))
@pytest.mark.parametrize("element_type", ["f32", "s32"])
def test_operands_may_change_places(opcode: str, element_type: str) -> None:
    if element_type == "f32" and opcode in "and mulhi or xor".split():
        pytest.skip("takes no floats")
    rng = np.random.default_rng(0)
    dtype = np.float32 if element_type == "f32" else np.int32
    x, y = (np.array([*rng.integers(-9, 9, 60), 0, 0, 3], dtype) for _ in range(2))
    if element_type == "f32":
        x[:3], y[:4] = [-0.0, np.inf, np.nan], [0.0, -np.inf, 1.0, np.nan]
    found = [
        _result(
            f"  x = {element_type}[63] parameter(0)\n  y = {element_type}[63] parameter(1)\n"
            f"  ROOT z = {element_type}[63] {opcode}({operands})",
            x,
            y,
        )
        for operands in ("x, y", "y, x")
    ]
    same = (found[0].view("u4") == found[1].view("u4")) | (np.isnan(found[0]) & np.isnan(found[1]))
    assert same.all()


@pytest.mark.parametrize("opcode", _opcodes("keeps_relative_errors"))
def test_errors_of_operands_stay_as_large_relative_to_the_result(opcode: str) -> None:
    # cond(f) = |x f'(x) / f(x)|: 1 for products and quotients, 1/2 for roots, 1/3 for the cube root.
    x, step = np.array([0.1, 0.7, 3.0, 250.0]), 1e-6
    both = OPCODES[opcode].minimum_operands == 2
    body = (
        "  x = f64[4] parameter(0)\n  y = f64[4] parameter(1)\n  ROOT z = f64[4] "
        + opcode
        + ("(x, y)" if both else "(x)")
    )
    y = np.array([2.0, 5.0, 0.3, 11.0])
    before, after = _result(body, x, y), _result(body, x * (1 + step), y)
    assert (np.abs(after / before - 1) <= step * 1.01).all()
