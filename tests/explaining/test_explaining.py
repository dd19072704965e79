"""What `explain` says of truths that XLA:CPU made, of planted faults, and of what cannot be told apart."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from evaluation.explaining.cases import Case
from evaluation.explaining.judging import judged
from evaluation.processes import ENVIRONMENT
from hloexec.tools.explaining import Explained
from tests.command_line import CommandLine
from tests.text.building import op

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CASES = (
    "products/reference", "products/tf32", "products/bf16x3", "products/bf16x6", "three_layers/one tf32",
    "three_layers/half bf16", "chain_in_bf16/excess", "mean_in_bf16/narrow-sums", "tiny_products/ftz",
    "small_powers/fast-functions", "dense_in_bf16/excess", "products/fault 0", "three_layers/fault 1",
)  # fmt: skip
"""A few of the cases: `python -m evaluation explain` measures all."""
_LAYER = """HloModule layer
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}
ENTRY main {
  x = f32[16,32] parameter(0)
  w = f32[32,24] parameter(1)
  v = f32[24,32] parameter(2)
  zero = f32[] constant(0)
  squares = f32[16,32] multiply(x, x)
  power = f32[16] reduce(squares, zero), dimensions={1}, to_apply=sum
  epsilon = f32[] constant(1e-06)
  epsilons = f32[16] broadcast(epsilon), dimensions={}
  shifted = f32[16] add(power, epsilons)
  scale = f32[16] rsqrt(shifted)
  scales = f32[16,32] broadcast(scale), dimensions={0}
  normed = f32[16,32] multiply(x, scales)
  hidden = f32[16,24] dot(normed, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  bounded = f32[16,24] tanh(hidden)
  ROOT out = f32[16,32] dot(bounded, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
"""A norm and two products."""


@pytest.fixture(scope="module")
def _one_process() -> Iterator[None]:
    pytest.importorskip("jax")
    before = dict(os.environ)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.slow_cases("products/bf16x6")
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("name", CASES)
def test_the_policy_of_a_truth_that_xla_made_is_named(name: str) -> None:
    record = judged(Case(*name.split("/")))
    assert record is not None
    assert record["is_right"], record


@pytest.fixture(scope="module")
def attention() -> tuple[hloexec.Module, list[Any]]:
    module = hloexec.load(EXAMPLES / "attention.hlo")
    return module, hloexec.random_inputs(module, seed=4)


@pytest.fixture(scope="module")
def layer() -> tuple[hloexec.Module, list[Any]]:
    module = hloexec.parse(_LAYER)
    return module, hloexec.random_inputs(module, seed=4)


def test_equal_bits_need_no_explanation(attention: tuple[hloexec.Module, list[Any]]) -> None:
    module, inputs = attention
    found = hloexec.explain(module, inputs, hloexec.run(module, *inputs))
    assert found.verdict is Explained.EQUAL
    assert str(found) == "equal"


@pytest.mark.slow
def test_other_roundings_are_rounding_alone(attention: tuple[hloexec.Module, list[Any]]) -> None:
    module, inputs = attention
    result = np.asarray(hloexec.run(module, *inputs))
    up = np.random.default_rng(0).integers(0, 2, result.shape, dtype=bool)
    moved = np.nextafter(result, np.where(up, np.inf, -np.inf), dtype=np.float32)
    found = hloexec.explain(module, inputs, moved)
    assert found.verdict is Explained.ROUNDING
    assert found.is_explained


def test_one_element_that_is_wrong_is_not_explained(layer: tuple[hloexec.Module, list[Any]]) -> None:
    module, inputs = layer
    result = np.array(hloexec.run(module, *inputs, numerics="tf32"))
    result[3, 5] += 0.01
    found = hloexec.explain(module, inputs, result, runs=60)
    assert found.verdict is Explained.NONE
    assert found.best.name == "tf32"
    assert found.best.mismatches == 1
    (leaf,) = found.leaves
    assert leaf.worst[0].index == (3, 5)


@pytest.mark.parametrize("cut", [(True, True), (False, False), (False, True)])
def test_operands_that_are_cut_off_are_told_from_rounded_ones(cut: tuple[bool, bool]) -> None:
    """Against sums in f64 of operands of which NumPy clears, or rounds, the last 13 bits."""
    texts = (
        f"d{n} = f32[30,20] dot(x{n}, w{n}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}" for n in (0, 1)
    )
    parameters = "".join(
        f"x{n} = f32[30,40] parameter({2 * n})\n w{n} = f32[40,20] parameter({2 * n + 1})\n" for n in (0, 1)
    )
    body = "\n".join((parameters, *texts, "ROOT t = (f32[30,20], f32[30,20]) tuple(d0, d1)"))
    module = hloexec.parse(f"HloModule m\nENTRY e {{ {body} }}")
    inputs = [np.asarray(value) for value in hloexec.random_inputs(module, seed=5)]

    def kept(array: np.ndarray, is_cut: bool) -> np.ndarray:
        bits = array.view(np.uint32) + np.uint32(0 if is_cut else 1 << 12)
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)

    expected = [(kept(inputs[2 * n], cut[n]) @ kept(inputs[2 * n + 1], cut[n])).astype(np.float32) for n in range(2)]
    found = hloexec.explain(module, inputs, tuple(expected))
    names = ["tf32-cut" if is_cut else "tf32" for is_cut in cut]
    assert found.best.name == (names[0] if cut[0] == cut[1] else f"reference,e/d0={names[0]},e/d1={names[1]}")
    assert found.verdict is Explained.POLICY and not found.alike and not found.untold


def test_policies_with_no_effect_are_not_named() -> None:
    """Without denormals, nobody can tell whether they are flushed."""
    module = hloexec.parse("HloModule m\nENTRY e { x = f32[50] parameter(0)\n ROOT y = f32[50] multiply(x, x) }\n")
    (values,) = hloexec.random_inputs(module, seed=0)
    found = hloexec.explain(module, [values], np.nextafter(values * values, np.float32(9), dtype=np.float32))
    assert all(not trial.has_effect for trial in found.trials if trial.name == "ftz")
    assert "ftz" not in [trial.name for trial in (found.best, *found.alike)]


def test_values_of_instructions_show_the_first_that_nothing_explains(
    layer: tuple[hloexec.Module, list[Any]], tmp_path: Path
) -> None:
    module, inputs = layer
    wrong = hloexec.parse(hloexec.format(module).replace("constant(1e-06)", "constant(0.01)"))
    trace = hloexec.trace(wrong, inputs, tmp_path / "trace", numerics="tf32")
    found = hloexec.explain(module, inputs, hloexec.run(wrong, *inputs, numerics="tf32"), values=trace, runs=60)
    assert found.first_unexplained is not None
    assert found.first_unexplained.opcode == "constant"
    named = {each.opcode: each.best.name for each in found.instructions if each.verdict is Explained.POLICY}
    assert named.keys() == {"dot"}


@pytest.mark.slow
def test_the_same_question_has_the_same_answer(attention: tuple[hloexec.Module, list[Any]]) -> None:
    module, inputs = attention
    expected = hloexec.run(module, *inputs, numerics="reference,dot_general.6=bf16")
    first, second = (hloexec.explain(module, inputs, expected) for _ in range(2))
    assert first.best.name == second.best.name == "reference,main.6/dot_general.6=bf16"
    assert [trial.remaining for trial in first.trials] == [trial.remaining for trial in second.trials]


def test_several_devices_are_explained_together() -> None:
    module = hloexec.load(EXAMPLES / "data_parallel_step.hlo")
    rows = [hloexec.random_inputs(module, seed=seed) for seed in range(4)]
    expected = tuple(hloexec.run_devices(module, rows, numerics="tf32"))
    found = hloexec.explain(module, rows, expected)
    assert found.verdict is Explained.POLICY
    assert "tf32" in [trial.name for trial in (found.best, *found.alike)]


def test_the_record_of_the_command_says_what_its_tables_do(empty_folder: Path, cli: CommandLine) -> None:
    file = "layer.hlo"
    Path(file).write_text(_LAYER)
    cli("run", file, "--numerics", "bf16x3", "--save", "other.npz")
    assert cli("explain", file, "--expected", "other.npz").startswith("bf16x3 explains it: ")
    record = json.loads(cli("explain", file, "--expected", "other.npz", "--json"))
    assert (record["schema"], record["verdict"]) == ("hloexec.explain", "explained")
    assert record["best"]["policy"] == "bf16x3"
    assert record["best"]["bits"] == "inf"


def test_nan_is_proposed_only_where_results_have_nan_or_infinities(empty_folder: Path, cli: CommandLine) -> None:
    (empty_folder / "m.hlo").write_text("HloModule m\nENTRY e { x = f32[8] parameter(0)\n ROOT r = f32[8] log(x) }")
    for low, is_proposed in ((1, False), (-1, True)):
        np.savez("x.npz", np.linspace(low, 3, 8, dtype=np.float32))
        np.savez("other.npz", np.full(8, 7, np.float32))
        assert ("hloexec nan" in cli("explain m.hlo --expected other.npz --inputs x.npz", code=1)) == is_proposed


_SYSTEM = """HloModule m
ENTRY main {
  a = f32[6,6] parameter(0)
  b = f32[6,2] parameter(1)
  s = f32[6,6] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  l = f32[6,6] cholesky(s), lower=true
  x = f32[6,2] triangular-solve(l, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE
  ROOT r = f32[6,2] dot(l, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.mark.parametrize("policy", ["bf16", "tf32"])
def test_products_are_explained_beside_decompositions_which_have_no_precision(policy: str) -> None:
    module = hloexec.parse(_SYSTEM)
    random = np.random.default_rng(0)
    inputs = [random.normal(size=size).astype(np.float32) for size in ((6, 6), (6, 2))]
    inputs[0] += 3 * np.eye(6, dtype=np.float32)
    found = hloexec.explain(module, inputs, hloexec.run(module, *inputs, numerics=policy))
    assert found.is_explained
    assert policy in {trial.name for trial in (found.best, *found.alike)}


def test_what_the_order_of_a_scatter_decides_is_not_decided_by_a_policy() -> None:
    second = "second {\n a = f32[] parameter(0)\n ROOT b = f32[] parameter(1)\n}\n"
    dims = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
    text = op(f"f32[6] scatter(x, i, u), {dims}, to_apply=second", second, x="f32[6]", i="s32[6,1]", u="f32[6]")
    inputs = [np.zeros(6, "f4"), np.array([[1], [3], [1], [4], [3], [1]], "i4"), np.arange(1, 7, dtype="f4")]
    found = hloexec.explain(hloexec.parse(text), inputs, np.array([0, 1, 0, 2, 4, 0], "f4"))
    assert found.verdict is Explained.NOT_DECIDED and not found.is_explained
    assert found.left_open[0].startswith("value: not decided: 2 of 6 elements ([1], [3]), since %root writes to places")
    found = hloexec.explain(hloexec.parse(text), inputs, np.array([0, 1, 9, 2, 4, 0], "f4"))
    assert found.verdict is Explained.NONE and found.best.mismatches == 1
