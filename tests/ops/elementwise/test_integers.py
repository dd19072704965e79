"""Operations on integers and pred: bit for bit as XLA:CPU, or as Python's integers where XLA:CPU is wrong or silent."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from tests.drawing import examples
from tests.families import of_each_family
from tests.ops.against_xla import Case, assert_same_as_xla, evaluated, module_text
from tests.ops.elements import INTEGERS, crossed, elements

_BINARY = (
    "add subtract multiply divide remainder maximum minimum and or xor shift-left shift-right-arithmetic "
    "shift-right-logical"
).split()  # fmt: skip
_DIRECTIONS = "EQ NE GE GT LE LT".split()


def _evaluated(opcode: str, result: str, *operands: np.ndarray) -> list[int]:
    return [int(x) for x in evaluated(module_text([Case(opcode, operands, result)]), operands)[0]]


def _wrapped(value: int, name: str) -> int:
    bits = ELEMENT_TYPES[name].bits
    value %= 1 << bits
    return value - (1 << bits) if name.startswith("s") and value >> (bits - 1) else value


@pytest.mark.parametrize("name", of_each_family(INTEGERS))
def test_integer_operations_have_the_bits_of_xla(name: str) -> None:
    single = elements(name)
    lhs, rhs = crossed(single, single)
    low, middle, high = crossed(*[single[:: max(1, single.size // 12)]] * 3)
    cases = [Case(opcode, [lhs, rhs], f"{name}[{lhs.size}]") for opcode in _BINARY]
    unary = ["not", "negate", "count-leading-zeros"] + (["abs", "sign"] if name.startswith("s") else [])
    if name != "s4":  # XLA:CPU counts the bits of a sign-extended s4
        unary.append("popcnt")
    cases += [Case(opcode, [single], f"{name}[{single.size}]") for opcode in unary]
    cases += [Case("compare", [lhs, rhs], f"pred[{lhs.size}]", f"direction={d}") for d in _DIRECTIONS]
    cases += [
        Case("clamp", [low, middle, high], f"{name}[{low.size}]"),
        Case("select", [lhs < rhs, lhs, rhs], f"{name}[{lhs.size}]"),
    ]
    assert_same_as_xla(cases)


@pytest.mark.usefixtures("newer_emitters")
def test_powers_have_the_bits_of_xla() -> None:
    cases = []
    for name in INTEGERS:
        single = elements(name)
        # XLA:CPU looks at the lowest six bits of an exponent only, and takes large unsigned ones for negative.
        exponents = single[(single < 64) if ELEMENT_TYPES[name].bits > 4 else slice(None)]
        base, exponent = crossed(single, exponents)
        cases.append(Case("power", [base, exponent], f"{name}[{base.size}]"))
    assert_same_as_xla(cases)


def test_operations_on_pred_have_the_bits_of_xla() -> None:
    pred = elements("pred")
    lhs, rhs = crossed(pred, pred)
    cases = [Case(o, [lhs, rhs], "pred[4]") for o in "add multiply maximum minimum and or xor".split()]
    cases += [Case("compare", [lhs, rhs], "pred[4]", f"direction={d}") for d in _DIRECTIONS]
    cases.append(Case("not", [pred], "pred[2]"))
    assert_same_as_xla(cases)


@pytest.mark.usefixtures("newer_emitters")
def test_clamped_predicates_have_the_bits_of_xla() -> None:
    assert_same_as_xla([Case("clamp", crossed(*[elements("pred")] * 3), "pred[8]")])


@pytest.mark.parametrize("name", ["s1", "u1"])
def test_one_bit_integers_wrap(name: str) -> None:
    entry = ELEMENT_TYPES[name]
    values = np.array([0, 1], np.uint8).astype(entry.compute).astype(entry.storage)
    lhs, rhs = crossed(values, values)
    for opcode, formula in (
        ("add", lambda a, b: a + b),
        ("subtract", lambda a, b: a - b),
        ("multiply", lambda a, b: a * b),
        ("xor", lambda a, b: a ^ b),
    ):
        expected = [_wrapped(formula(int(a), int(b)), name) for a, b in zip(lhs, rhs, strict=True)]
        assert _evaluated(opcode, f"{name}[4]", lhs, rhs) == expected


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(INTEGERS), st.integers(0, 2**32))
def test_mulhi_is_the_upper_half_of_the_product(name: str, seed: int) -> None:
    values = elements(name, seed=seed)
    lhs, rhs = crossed(values, values)
    expected = [int(a) * int(b) >> ELEMENT_TYPES[name].bits for a, b in zip(lhs, rhs, strict=True)]
    assert _evaluated("mulhi", f"{name}[{lhs.size}]", lhs, rhs) == expected


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from(INTEGERS), st.integers(0, 2**32))
def test_power_wraps_for_exponents_of_any_size(name: str, seed: int) -> None:
    values = elements(name, seed=seed)
    base, exponent = crossed(values, values[values >= 0])
    modulus = 1 << ELEMENT_TYPES[name].bits
    expected = [_wrapped(pow(int(a), int(b), modulus), name) for a, b in zip(base, exponent, strict=True)]
    assert _evaluated("power", f"{name}[{base.size}]", base, exponent) == expected


def test_power_with_a_negative_exponent_keeps_units_only() -> None:
    base, exponent = np.array([1, -1, -1, 0, 2, -7], np.int32), np.array([-3, -1, -2, -1, -1, -2], np.int32)
    assert _evaluated("power", "s32[6]", base, exponent) == [1, -1, 1, 0, 0, 0]


@pytest.mark.parametrize("name", INTEGERS)
def test_popcnt_counts_the_bits_of_the_element_type(name: str) -> None:
    values = elements(name)
    modulus = 1 << ELEMENT_TYPES[name].bits
    expected = [_wrapped((int(x) % modulus).bit_count(), name) for x in values]
    assert _evaluated("popcnt", f"{name}[{values.size}]", values) == expected


@pytest.mark.parametrize("name", ["s8", "u8", "s32"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 64, 100, 127, -1, -3, 0])
def test_division_by_a_constant_truncates(name: str, divisor: int) -> None:
    if divisor < 0 and name == "u8":
        divisor += 256
    limits = np.iinfo(ELEMENT_TYPES[name].storage)
    values = range(limits.min, limits.max + 1) if limits.bits == 8 else [*range(-300, 300), limits.min, limits.max]
    operand = np.array(values, ELEMENT_TYPES[name].storage)
    text = (
        f"HloModule m\n\nENTRY e {{\n  x = {name}[{operand.size}] parameter(0)\n  d = {name}[] constant({divisor})\n"
        f"  ds = {name}[{operand.size}] broadcast(d), dimensions={{}}\n  q = {name}[{operand.size}] divide(x, ds)\n"
        f"  r = {name}[{operand.size}] remainder(x, ds)\n"
        f"  ROOT t = ({name}[{operand.size}], {name}[{operand.size}]) tuple(q, r)\n}}\n"
    )
    quotients, remainders = hloexec.run(hloexec.parse(text), operand)
    for value, quotient, remainder in zip(values, quotients.tolist(), remainders.tolist(), strict=True):
        if divisor:
            whole = abs(value) // abs(divisor) * (1 if (value < 0) == (divisor < 0) else -1)
            assert (quotient, remainder) == (_wrapped(whole, name), value - divisor * whole)
        else:
            assert (quotient, remainder) == (_wrapped(-1, name), value)
