"""Modules with narrow instructions: what is converted, what is not, and that XLA gives the same."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from conformance import xla
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import Module
from hloexec.tools.narrowing.rewriting import candidates_of, rewritten
from tests.text.seeds import SEEDS, seed_path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

CHAIN = """HloModule chain

ENTRY main {
  x = f32[8,16] parameter(0)
  y = f32[16,4] parameter(1)
  one = f32[] constant(1)
  tenth = f32[] constant(0.1)
  ones = f32[8,4] broadcast(one), dimensions={}
  tenths = f32[8,4] broadcast(tenth), dimensions={}
  product = f32[8,4] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  sum = f32[8,4] add(product, ones)
  squashed = f32[8,4] tanh(sum)
  turned = f32[4,8] transpose(squashed), dimensions={1,0}
  back = f32[8,4] transpose(turned), dimensions={1,0}
  scaled = f32[8,4] multiply(back, tenths)
  ROOT result = f32[8,4] subtract(scaled, product)
}
"""

UNFUSED = CHAIN.replace("multiply(back", "minimum(back")
"""No product to subtract from: on processors with f16 arithmetic, XLA:CPU rounds such a pair once."""

LOOP = """HloModule loop

body {
  state = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[64] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  sine = f32[64] sine(x)
  doubled = f32[64] add(sine, sine)
  ROOT new = (s32[], f32[64]) tuple(next, doubled)
}

condition {
  state = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  five = s32[] constant(5)
  ROOT less = pred[] compare(i, five), direction=LT
}

ENTRY main {
  x = f32[64] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[64]) tuple(zero, x)
  end = (s32[], f32[64]) while(start), condition=condition, body=body
  ROOT result = f32[64] get-tuple-element(end), index=1
}
"""


def _narrowed(text: str, *names: str, to: str = "bf16", **options: Any) -> Module:
    module = hloexec.parse(text)
    places = [each.place for each in candidates_of(module) if not names or each.instruction.name in names]
    found = rewritten(module, dict.fromkeys(places, ELEMENT_TYPES[to]), **options).module
    hloexec.verify(found)
    return found


def _lines(module: Module, computation: str = "main") -> dict[str, str]:
    """The instructions by name, as `type opcode operands`."""
    return {
        each.name: f"{each.shape.element_type} {each.opcode} {' '.join(each.operands)}".strip()  # type: ignore[union-attr]
        for each in module.by_name[computation]
        if not hasattr(each.shape, "elements")
    }


def _inputs(text: str) -> list[np.ndarray[Any, Any]]:
    return hloexec.random_inputs(hloexec.parse(text), 3)  # type: ignore[return-value]


def test_neighbours_exchange_narrow_values_and_only_wide_users_get_them_converted() -> None:
    lines = _lines(_narrowed(CHAIN, "sum", "squashed"))
    assert lines["sum"] == "bf16 add product.bf16 ones.bf16"
    assert lines["squashed"] == "bf16 tanh sum"
    assert "sum.f32" not in lines
    assert lines["scaled"].startswith("f32 multiply")


def test_what_moves_narrow_elements_stays_narrow() -> None:
    lines = _lines(_narrowed(CHAIN, "squashed"))
    assert lines["turned"] == "bf16 transpose squashed"
    assert lines["back"] == "bf16 transpose turned"
    assert lines["scaled"] == "f32 multiply back.f32 tenths"


def test_contraction_takes_narrow_operands_and_adds_up_in_f32() -> None:
    lines = _lines(_narrowed(CHAIN, "product"))
    assert lines["product"] == "f32 dot x.bf16 y.bf16"
    assert lines["x.bf16"] == "bf16 convert x"


def test_portable_contraction_multiplies_rounded_operands_in_f32() -> None:
    lines = _lines(_narrowed(CHAIN, "product", is_portable=True))
    assert lines["product"] == "f32 dot x.bf16.f32 y.bf16.f32"
    assert lines["x.bf16.f32"] == "f32 convert x.bf16"


def test_constants_are_narrowed_once_and_repeated_after_that() -> None:
    module = _narrowed(CHAIN, "sum", "scaled")
    lines = _lines(module)
    assert lines["ones.bf16"] == "bf16 broadcast one.bf16"
    assert lines["one.bf16"] == "bf16 constant"
    assert "one" not in lines and "ones" not in lines, "what only the wide instruction used is gone"


def test_result_and_parameters_keep_their_types() -> None:
    module = _narrowed(CHAIN)
    assert module.entry.result_shape.compatible(hloexec.parse(CHAIN).entry.result_shape)
    assert module.entry.parameter_shapes == hloexec.parse(CHAIN).entry.parameter_shapes
    assert _lines(module)[module.entry.root_name] == "f32 convert result"


def test_convert_that_narrowing_makes_needless_is_gone() -> None:
    text = CHAIN.replace("subtract(scaled, product)", "add(wide, product)").replace(
        "  ROOT", "  half = bf16[8,4] convert(scaled)\n  wide = f32[8,4] convert(half)\n  ROOT"
    )
    lines = _lines(_narrowed(text, "scaled", "result"))
    assert lines["result"] == "bf16 add scaled product.bf16"


def test_loop_bodies_are_narrowed_and_carry_what_they_carried() -> None:
    lines = _lines(_narrowed(LOOP), "body")
    assert lines["sine"] == "bf16 sine x.bf16"
    assert lines["doubled"] == "bf16 add sine sine"
    assert lines["doubled.f32"] == "f32 convert doubled"


def test_names_in_use_are_not_taken() -> None:
    text = CHAIN.replace("  one = ", "  x.bf16 = f32[8,16] negate(x)\n  one = ").replace("dot(x,", "dot(x.bf16,")
    names = [each.name for each in _narrowed(text).entry]
    assert len(set(names)) == len(names)


def test_text_of_a_narrowed_module_reads_back() -> None:
    module = _narrowed(CHAIN)
    assert hloexec.parse(hloexec.format(module)) == module


def test_scheduled_instructions_stay_behind_their_operands() -> None:
    text = CHAIN.replace("HloModule chain", "HloModule chain, is_scheduled=true")
    seen: set[str] = set()
    for instruction in _narrowed(text).entry:
        assert seen.issuperset(instruction.operands)
        seen.add(instruction.name)


@pytest.mark.slow_cases("chain-bf16", "chain-f16", "chain-f8e4m3fn", "chain-f8e5m2")
@pytest.mark.parametrize("to", "bf16 f16 f8e4m3fn f8e5m2".split())
@pytest.mark.parametrize("text", [UNFUSED, LOOP], ids=["chain", "loop"])
def test_xla_computes_what_hloexec_does_for_narrowed_modules(text: str, to: str) -> None:
    if not xla.available():
        pytest.skip("jaxlib is not installed")
    module = _narrowed(text, to=to, is_portable=True)
    inputs = _inputs(text)
    ours = np.asarray(hloexec.run(module, *inputs))
    (theirs,) = xla.run_hlo(hloexec.format(module), *inputs)
    # XLA's tanh and sine are within 2 ulp of f32: rounded to the narrow type, they differ by one step of it at most, and
    # each of the at most ten roundings behind that may differ by one more; all values are below 8.
    step = float(ml_dtypes.finfo(ELEMENT_TYPES[to].storage).eps)
    assert np.all(np.isfinite(ours) == np.isfinite(theirs))
    agrees = np.abs(ours - theirs) <= 0
    assert agrees.mean() > 0.95, "what is rounded to a narrow type hardly ever differs"
    assert np.nanmax(np.abs(ours - theirs), initial=0) <= 10 * step * 8


def test_narrowed_values_are_those_of_numpy() -> None:
    x, y = _inputs(CHAIN)
    found = hloexec.run(_narrowed(CHAIN, "product"), x, y)
    bf16 = ml_dtypes.bfloat16
    product = x.astype(bf16).astype(np.float64) @ y.astype(bf16).astype(np.float64)
    # 16 products, exact in f32, are added with 15 roundings; the rest is computed from the rounded product.
    bound = 15 * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(y)) * (1 + 2.0**-7) ** 2
    expected = np.tanh(product + 1) * np.float32(0.1) - product
    assert np.all(np.abs(found - expected) <= 2 * bound + 2.0**-20)


@pytest.mark.parametrize("to", ["bf16", "f32"])
def test_f64_narrows_to_what_contractions_add_up_in(to: str) -> None:
    module = _narrowed(CHAIN.replace("f32", "f64"), "product", to=to)
    lines = _lines(module)
    assert lines["product"].startswith("f32 dot")
    assert lines["product.f64"] == "f64 convert product"


def test_reducers_and_comparators_are_left_alone() -> None:
    text = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[4,8] parameter(0)
  zero = f32[] constant(0)
  squares = f32[4,8] multiply(x, x)
  ROOT sums = f32[4] reduce(squares, zero), dimensions={1}, to_apply=add
}"""
    assert [each.instruction.name for each in candidates_of(hloexec.parse(text))] == ["squares"]
    module = _narrowed(text)
    assert module.by_name["add"] == hloexec.parse(text).by_name["add"]


def narrowed(module: hloexec.Module, to: str) -> hloexec.Module:
    chosen = [each.place for each in candidates_of(module) if each.can_be(ELEMENT_TYPES[to])]
    found = rewritten(module, dict.fromkeys(chosen, ELEMENT_TYPES[to])).module
    hloexec.verify(found)
    return found


@pytest.mark.parametrize("to", ["bf16", "f8e4m3fn"])
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.hlo")), ids=lambda path: path.stem)
def test_xla_reads_narrowed_examples(path: Path, to: str) -> None:
    if not xla.available():
        pytest.skip("jaxlib is not installed")
    assert f"{to}[" in xla.canonical_text(hloexec.format(narrowed(hloexec.load(path), to)))


@pytest.mark.slow_cases("000")
@pytest.mark.parametrize("name", SEEDS, ids=lambda name: name[:3])
def test_dumps_of_gpus_and_tpus_stay_valid(name: str) -> None:
    path = seed_path(name)
    if path is None:
        pytest.skip("the dump is not there")
    found = narrowed(hloexec.load(path), "bf16")
    assert hloexec.parse(hloexec.format(found)) == found
