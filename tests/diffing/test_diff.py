"""Two modules, of which one is the other with a fault: the fault is found; what only rounds otherwise is none."""

from pathlib import Path
from types import ModuleType

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization import patches, trials
from tests.diffing.texts import diff_texts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _planted(file: str, right: str, wrong: str) -> tuple[hloexec.Diff, str]:
    text = (EXAMPLES / file).read_text()
    assert right in text
    before, after = hloexec.parse(text), hloexec.parse(text.replace(right, wrong, 1))
    found = hloexec.diff(before, after)
    assert found.verdict == "differ"
    return found, found.findings[0].after.instruction


@pytest.mark.slow_cases("attention.hlo-iota.11), direction=GE-iota.11), direction=GT-ge.1")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "right", "wrong", "instruction"),
    [
        ("attention.hlo", "iota.11), direction=GE", "iota.11), direction=GT", "ge.1"),
        ("attention.hlo", "dot(w_qkv.1, mul.61)", "dot(w_qkv.1, mul.57)", "dot_general.4"),
        ("rnn_scan.hlo", "slice={[0:4], [32:48]}", "slice={[0:4], [31:47]}", "split.6"),
        ("rnn_scan.hlo", "tanh(add.16)", "negate(add.16)", "tanh.3"),
        ("rnn_scan.hlo", "{1,0} add(mul.3, mul.4)", "{1,0} subtract(mul.3, mul.4)", "add.16"),
        ("mlp_train_step.hlo", "subtract(sub.12, sub.15)", "add(sub.12, sub.15)", "sub.16"),
    ],
)
def test_diff_names_the_planted_instruction(file: str, right: str, wrong: str, instruction: str) -> None:
    assert _planted(file, right, wrong)[1] == instruction


@pytest.mark.parametrize(
    ("shape", "right", "wrong"),
    [("pred[4]", "{1,0,0,1}", "{0,1,1,0}"), ("s32[6]", "{1,2,2,1,5,5}", "{2,1,1,2,5,5}")],
)
def test_few_numbers_in_another_order_are_others(shape: str, right: str, wrong: str) -> None:
    """Each has the same elements, as often, at places with the same sum."""
    text = f"HloModule m\nENTRY e {{ k = {shape} constant({right})\n ROOT r = {shape} or(k, k) }}\n"
    found = hloexec.diff(hloexec.parse(text), hloexec.parse(text.replace(right, wrong)))
    assert [finding.after.instruction for finding in found.findings] == ["k"]


@pytest.mark.slow_cases("hloexec.tools.diffing.localization.trials-tries")
@pytest.mark.parametrize(("module", "limit"), [(trials, "tries"), (patches, "patience")])
def test_results_that_differ_are_said_to_even_where_the_search_is_given_up(
    module: ModuleType, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMITS", attrs.evolve(LIMITS, **{limit: 0}))
    found, _ = _planted("attention.hlo", "dot(w_qkv.1, mul.61)", "dot(w_qkv.1, mul.57)")
    assert found.outputs.leaves[0].mismatches


@pytest.mark.slow_cases("attention", "rnn_scan")
@pytest.mark.parametrize("file", "attention rnn_scan data_parallel_step mlp_train_step".split())
def test_diff_of_a_module_and_itself_agrees_in_every_value(file: str) -> None:
    module = hloexec.load(EXAMPLES / f"{file}.hlo")
    found = hloexec.diff(module, hloexec.load(EXAMPLES / f"{file}.hlo"))
    assert (found.verdict, found.findings, found.matched_share) == ("agree", (), 1.0)


@pytest.mark.slow_cases("names0")
@pytest.mark.parametrize("names", [("attention", "attention.optimized"), ("attention.optimized", "attention")])
def test_diff_finds_only_rounding_between_a_module_and_what_xla_made_of_it(names: tuple[str, str]) -> None:
    before, after = (hloexec.load(EXAMPLES / f"{name}.hlo") for name in names)
    found = hloexec.diff(before, after)
    assert found.verdict == "rounding only"
    assert found.matched_share >= 0.8


def test_of_many_instructions_that_differ_each_is_named_in_the_order_of_data_flow() -> None:
    products = [
        f"  d{n} = f32[8,8] dot(t{n - 1}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n"
        f"  t{n} = f32[8,8] tanh(d{n})"
        for n in range(1, 5)
    ]
    parameters = "  t0 = f32[8,8] parameter(0)\n  w = f32[8,8] parameter(1)"
    text = "\n".join(["HloModule m\nENTRY e {", parameters, *products, "  ROOT r = f32[8,8] negate(t4)\n}"])
    module = hloexec.parse(text)
    found = hloexec.diff(module, module, numerics=("reference", "tf32"))
    assert [finding.after.instruction for finding in found.findings] == "d1 d2 d3 d4".split()
    (leaf,) = found.findings[0].comparison.leaves
    assert 0 < leaf.measured.max_absolute_error < 0.01
    assert leaf.mismatches


def test_a_mistake_made_in_two_fusions_is_found_at_the_first() -> None:
    text = (EXAMPLES / "attention.optimized.hlo").read_text()
    assert text.count("direction=GE") == 2
    found = hloexec.diff(hloexec.load(EXAMPLES / "attention.hlo"), hloexec.parse(text.replace("=GE", "=GT")))
    assert found.findings[0].after.instruction in ("ge.2", "ge.3")
    assert found.findings[0].after.op_name(found.after).endswith("/ge")


def test_values_that_do_not_fit_are_refused_with_the_limit() -> None:
    lines = [f"  v{n} = f32[1000] sine(v{n - 1})" for n in range(1, 40)]
    text = "\n".join(
        ["HloModule m\nENTRY e {\n  v0 = f32[1000] parameter(0)", *lines, "  ROOT r = f32[1000] cosine(v39)\n}"]
    )
    module = hloexec.parse(text)
    assert hloexec.diff(module, module, memory_limit=400_000).verdict == "agree"
    with pytest.raises(hloexec.ResourceError, match=r"more than the 50\.0 kB that may be kept"):
        hloexec.diff(module, module, memory_limit=50_000)


def test_wrong_arguments_are_refused() -> None:
    module = hloexec.load(EXAMPLES / "attention.hlo")
    with pytest.raises(hloexec.InputError, match="top must be at least 1"):
        hloexec.diff(module, module, top=0)
    with pytest.raises(hloexec.InputError, match="one policy or two"):
        hloexec.diff(module, module, numerics=("reference", "tf32", "ftz"))
    with pytest.raises(hloexec.UnsupportedError, match="policy"):
        hloexec.diff(module, module, numerics="f16")
    with pytest.raises(hloexec.InputError, match="takes 4 inputs"):
        hloexec.diff(module, module, [1, 2])


def test_the_caller_may_count_the_devices() -> None:
    text = "ENTRY e { x = f32[4] parameter(0)\n y = f32[4] parameter(1)\n ROOT z = f32[4] add(x, y) }\n"
    before, after = hloexec.parse(text), hloexec.parse(text.replace("add", "subtract"))
    inputs = [np.ones(4, np.float32)] * 2
    assert hloexec.diff(before, before, inputs, replicas=3).verdict == "agree"
    assert hloexec.diff(before, after, inputs, partitions=2).verdict == "differ"


def test_limits_hold_for_either_run() -> None:
    before = hloexec.load(EXAMPLES / "rnn_scan.hlo")
    with pytest.raises(hloexec.ResourceError, match="max_iterations=2 ends the loop"):
        hloexec.diff(before, before, max_iterations=2)


def test_what_a_manual_region_s_end_puts_together_is_not_blamed() -> None:
    before = """HloModule m, num_partitions=4
ENTRY e {
  whole = f32[4] parameter(0), sharding={devices=[4]<=[4]}
  part = f32[1] custom-call(whole), custom_call_target="SPMDFullToShardShape", sharding={manual}
  one = f32[1] tanh(part), sharding={manual}
  all = f32[4] custom-call(one), custom_call_target="SPMDShardToFullShape", sharding={devices=[4]<=[4]}
  ROOT result = f32[4] negate(all)
}"""
    inputs = [np.array([0.5, 1, -1, 2], np.float32)]
    found = hloexec.diff(hloexec.parse(before), hloexec.parse(before.replace("tanh", "sine")), inputs)
    assert [finding.after.instruction for finding in found.findings] == ["one"]


def test_a_value_of_another_type_is_said_to_be_one() -> None:
    text = """HloModule m
ENTRY e { x = s32[8] parameter(0)
  h = s32[8] constant({1, 2, 3, 4, 5, 6, 7, 300})
  y = s32[8] add(x, h)
  m = s32[8] multiply(y, y)
  ROOT r = f32[8] convert(m) }"""
    narrow = text.replace("m = s32[8] multiply(y, y)", "n = s8[8] convert(y)\n  m = s8[8] multiply(n, n)")
    found = diff_texts(text, narrow, [np.arange(8, dtype=np.int32)])
    first = found.findings[0]
    assert (first.after.instruction, first.reason) == ("n", "it is s8[8], where that of the module before is s32[8]")
