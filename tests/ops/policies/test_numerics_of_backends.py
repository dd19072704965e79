"""The policies that reproduce what backends do, against XLA:CPU and against their definitions in f64."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.ops.policies.policy import REFERENCE, combined, numerics_policy
from tests.here import on_xla

DOT = """HloModule dot
ENTRY main {
  x = f32[24,32] parameter(0)
  w = f32[32,20] parameter(1)
  d = f32[24,20] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT e = f32[24,24] dot(d, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}WORD
}
""".replace("f32[24,24]", "f32[24,32]")


def _module(word: str = "") -> hloexec.Module:
    return hloexec.parse(DOT.replace("WORD", word))


def _inputs(module: hloexec.Module) -> list[Any]:
    return hloexec.random_inputs(module, seed=3)


def _bf16(array: Any) -> Any:
    return array.astype(ml_dtypes.bfloat16).astype(np.float64)


def _parts(array: Any, count: int) -> list[Any]:
    """An f32 array in bf16 parts, each the rest of the ones before, in f64."""
    rest, found = np.asarray(array, np.float64), []
    for _ in range(count):
        found.append(_bf16(rest.astype(np.float32)))
        rest = rest - found[-1]
    return found


@pytest.mark.parametrize(("policy", "terms"), [("bf16", 1), ("bf16x3", 2), ("bf16x6", 3)])
def test_passes_add_up_the_products_of_parts(policy: str, terms: int) -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e { x = f32[9,16] parameter(0)\n w = f32[16,7] parameter(1)\n"
        " ROOT d = f32[9,7] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0} }\n"
    )
    lhs, rhs = _inputs(module)
    ours, theirs = _parts(lhs, terms), _parts(rhs, terms)
    wanted = sum(ours[i] @ theirs[j] for i in range(terms) for j in range(terms) if i + j < terms)
    # Each of up to six products of 16 terms is accumulated in f32, and they are added up in it: γ₂₂ of |x| |w|.
    allowed = 22 * 2.0**-24 * (np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64)))
    result = np.asarray(hloexec.run(module, lhs, rhs, numerics=policy), np.float64)
    assert (np.abs(result - wanted) <= allowed).all()
    exact = lhs.astype(np.float64) @ rhs.astype(np.float64)
    assert np.abs(wanted - exact).max() < {1: 0.1, 2: 3e-4, 3: 2e-6}[terms]


@pytest.mark.parametrize("policy", "tf32 tf32-cut bf16 bf16x3 bf16x6 tf32x3".split())
def test_a_precision_or_an_algorithm_is_left_alone(policy: str) -> None:
    for word in (", operand_precision={highest,highest}", ", algorithm=dot_f32_f32_f32"):
        module = _module(word)
        inputs = _inputs(module)
        only_last = hloexec.run(module, *inputs, numerics={"": "reference", "e": policy})
        assert_array_equal(only_last, hloexec.run(module, *inputs))


def test_each_instruction_has_its_own_policy() -> None:
    module = _module()
    lhs, rhs = _inputs(module)
    first = np.asarray(hloexec.run(_alone(), lhs, rhs, numerics="tf32"))
    both = np.asarray(hloexec.run(module, lhs, rhs, numerics="reference,d=tf32"))
    wanted = first.astype(np.float64) @ rhs.astype(np.float64).T
    allowed = 20 * 2.0**-24 * (np.abs(first.astype(np.float64)) @ np.abs(rhs.astype(np.float64)).T)
    assert (np.abs(both - wanted) <= allowed).all()
    named = hloexec.run(module, lhs, rhs, numerics={"main/d": "tf32"})
    assert_array_equal(both, named)
    unplanned = hloexec.run(module, lhs, rhs, numerics="reference,d=tf32", planner=False)
    assert_array_equal(both, unplanned)


def _alone() -> hloexec.Module:
    return hloexec.parse(
        "HloModule m\nENTRY e { x = f32[24,32] parameter(0)\n w = f32[32,20] parameter(1)\n"
        " ROOT d = f32[24,20] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0} }\n"
    )


def test_names_of_policies_are_read_back_as_they_are() -> None:
    for name in ("tf32+ftz", "reference,d=tf32", "xla-cpu+bf16x3,a/d=tf32+ftz,e=excess"):
        policy = numerics_policy(name)
        assert numerics_policy(policy.name) == policy
    assert numerics_policy({"": "ftz", "d": "tf32"}).of("main", "d").contraction_operand_mantissa_bits == 10
    assert numerics_policy({"": "ftz", "d": "tf32"}).of("main", "e").flushes_denormals


def test_policies_that_contradict_one_another_do_not_combine() -> None:
    policies = [numerics_policy(name) for name in ("bf16", "bf16x3", "tf32")]
    assert combined(policies[0], policies[1]) is None
    assert combined(policies[0], policies[2]) is None
    assert combined(policies[0], REFERENCE) == policies[0]


SUM = """HloModule m
a {{ p = bf16[] parameter(0)
  q = bf16[] parameter(1)
  ROOT s = bf16[] add(p, q) }}
ENTRY e {{ x = bf16[{sizes}] parameter(0)
  c = bf16[] constant(0)
  ROOT r = bf16[6] reduce(x, c), dimensions={{{dimension}}}, to_apply=a }}
"""


@pytest.mark.slow_cases("1000,6-0")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sizes", "dimension"), [("6,32", 1), ("6,33", 1), ("1000,6", 0), ("6,1500", 1)])
def test_narrow_sums_have_the_bits_of_xla_cpu(sizes: str, dimension: int) -> None:
    xla = pytest.importorskip("conformance.xla")
    text = SUM.format(sizes=sizes, dimension=dimension)
    module = hloexec.parse(text)
    inputs = _inputs(module)
    (wanted,) = xla.run_hlo(text, *inputs)
    assert_array_equal(hloexec.run(module, *inputs, numerics="narrow-sums"), wanted)


def test_narrow_sums_of_products_round_at_each_step() -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e { x = bf16[300] parameter(0)\n y = bf16[300] parameter(1)\n"
        " ROOT d = bf16[] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0} }\n"
    )
    ones = np.ones(300, ml_dtypes.bfloat16)
    # 256 is where one more is lost.
    assert float(np.asarray(hloexec.run(module, ones, ones, numerics="narrow-sums"))) == 256
    assert float(np.asarray(hloexec.run(module, ones, ones))) == 300


CHAIN = """HloModule m
ENTRY e { x = bf16[999] parameter(0)
  y = bf16[999] parameter(1)
  m = bf16[999] multiply(x, y)
  n = bf16[999] negate(m)
  ROOT s = bf16[999] add(n, x) }
"""


@pytest.mark.parametrize("planner", [True, False])
def test_excess_precision_is_rounded_once_at_the_end(planner: bool) -> None:
    module = hloexec.parse(CHAIN)
    lhs, rhs = _inputs(module)
    wide = -(lhs.astype(np.float32) * rhs.astype(np.float32)) + lhs.astype(np.float32)
    result = hloexec.run(module, lhs, rhs, numerics="excess", planner=planner)
    assert_array_equal(result, wide.astype(ml_dtypes.bfloat16))
    assert (np.asarray(result) != hloexec.run(module, lhs, rhs)).any()


def test_observers_see_values_of_the_declared_type_under_excess_precision() -> None:
    module = hloexec.parse(CHAIN)
    seen: dict[str, str] = {}

    class Watch:
        def on_instruction(self, event: hloexec.Event) -> None:
            assert isinstance(event.value, np.ndarray)
            seen[event.name] = event.value.dtype.name

    hloexec.run(module, *_inputs(module), numerics="excess", observers=[Watch()])
    assert seen == dict.fromkeys("x y m n s".split(), "bfloat16")


@pytest.mark.slow
def test_converts_alone_give_the_excess_precision_of_xla_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")

    module = hloexec.parse(
        "HloModule m\nENTRY e { x = bf16[999] parameter(0)\n m = bf16[999] multiply(x, x)\n"
        " a = bf16[999] add(m, x)\n ROOT c = f32[999] convert(a) }\n"
    )
    inputs = _inputs(module)
    monkeypatch.setenv("XLA_FLAGS", "--xla_allow_excess_precision=true")
    (wanted,) = on_xla(module, inputs)
    assert_array_equal(hloexec.run(module, *inputs, numerics="reference,c=excess"), wanted)


@pytest.mark.parametrize(
    ("opcode", "formula"),
    [
        ("exponential", lambda x: np.exp2((x * np.float32(np.log2(np.e))).astype(np.float64))),
        (
            "exponential-minus-one",
            lambda x: np.exp2((x * np.float32(np.log2(np.e))).astype(np.float64)).astype("f4") - 1,
        ),
        ("log-plus-one", lambda x: np.log2((1 + x).astype("f8")).astype("f4") * np.float32(np.log(2))),
    ],
)
def test_fast_functions_are_made_of_powers_and_logarithms_to_base_2(opcode: str, formula: Any) -> None:
    module = hloexec.parse(f"HloModule m\nENTRY e {{ x = f32[500] parameter(0)\n ROOT r = f32[500] {opcode}(x) }}\n")
    values = np.linspace(0.001, 20, 500, dtype=np.float32)
    assert_array_equal(hloexec.run(module, values, numerics="fast-functions"), formula(values).astype(np.float32))


@pytest.mark.parametrize("policy", "reference tf32 bf16x3 excess narrow-sums fast-functions ftz".split())
def test_random_rounding_that_keeps_formats_stays_near_the_policy(policy: str) -> None:
    """In f32, sums of 32 terms and of 20 err by 20 roundings or so at most; the formats of operands stay as they are."""
    module = _module()
    inputs = _inputs(module)
    plain = np.asarray(hloexec.run(module, *inputs, numerics=policy), np.float64)
    scale = np.abs(inputs[0]) @ np.abs(inputs[1]) @ np.abs(inputs[1]).T
    differs = False
    for seed in (0, 2):
        at_random = numerics_policy(policy).changed(rounding_seed=seed, keeps_formats=True)
        found = np.asarray(hloexec.run(module, *inputs, numerics=at_random), np.float64)
        # A flip of an operand's last bit would be 2⁻⁸ or 2⁻¹¹ of one of 20 terms.
        usual = np.median(np.abs(found - plain) / scale)
        assert usual <= 20 * 2.0**-24
        differs |= bool((found != plain).any())
    assert differs
