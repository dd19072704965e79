"""Wrong uses of `explain`: each is refused with a message that says what to do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from tests.command_line import CommandLine

TEXT = """HloModule two

ENTRY main {
  x = f32[4,8] parameter(0)
  w = f32[8,4] parameter(1)
  d = f32[4,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[4,4] add(d, d)
  n = s32[4,4] convert(s)
  ROOT t = (f32[4,4], s32[4,4]) tuple(s, n)
}
"""


@pytest.fixture(scope="module")
def module() -> hloexec.Module:
    return hloexec.parse(TEXT)


@pytest.fixture(scope="module")
def inputs(module: hloexec.Module) -> list[Any]:
    return hloexec.random_inputs(module, seed=0)


def _leaves(module: hloexec.Module, inputs: list[Any]) -> list[Any]:
    result = hloexec.run(module, *inputs)
    assert isinstance(result, tuple)
    return list(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, n: (s,), "lacks 1"),
        (lambda s, n: (s, n, s), "has 2 besides"),
        (lambda s, n: {"first": s[:2], "second": n}, "lacks 0, 1"),
        (lambda s, n: (s[:2], n), "leaf 0 of the expected values has dimensions"),
        (lambda s, n: (s.astype(np.int32), n), "leaf 0 of the expected values is of s32"),
        (lambda s, n: (s, "n"), "leaf 1 is not an array of an HLO element type"),
    ],
)
def test_expected_values_that_do_not_fit_are_refused(
    module: hloexec.Module, inputs: list[Any], change: Any, message: str
) -> None:
    with pytest.raises(hloexec.InputError, match=message):
        hloexec.explain(module, inputs, change(*_leaves(module, inputs)))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"policies": []}, hloexec.InputError, "at least one policy"),
        ({"policies": "tf32"}, hloexec.InputError, "a list of numerics policies"),
        ({"policies": ["tf33"]}, hloexec.UnsupportedError, "unknown numerics policy 'tf33'"),
        ({"policies": ["random-rounding:1"]}, hloexec.InputError, "rounds at random"),
        ({"policies": ["tf32+bf16"]}, hloexec.UnsupportedError, "contradict one another"),
        ({"policies": ["reference,nowhere=tf32"]}, hloexec.InputError, "no such instruction"),
        ({"policies": [3]}, hloexec.InputError, "a list of numerics policies"),
        ({"budget": -1.0}, hloexec.InputError, "budget"),
        ({"runs": 0}, hloexec.InputError, "runs must be at least 1"),
        ({"runs": 2.5}, hloexec.InputError, "an integer"),
        ({"numerics": "tf32"}, hloexec.InputError, "give those that it shall try as policies"),
        ({"nmerics": "tf32"}, TypeError, "did you mean numerics"),
        ({"values": {"nothing": np.zeros(3, np.float32)}}, hloexec.InputError, "no such instruction"),
        ({"values": {"d": np.zeros(3, np.float32)}}, hloexec.InputError, "has dimensions"),
        ({"values": {"d": np.zeros((4, 4), np.int8)}}, hloexec.InputError, "is s8"),
        ({"values": [1]}, hloexec.InputError, "a mapping from names of instructions"),
        ({"values": {"d": (1, 2)}}, hloexec.InputError, "is a tuple"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    module: hloexec.Module, inputs: list[Any], given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hloexec.explain(module, inputs, tuple(_leaves(module, inputs)), **given)


def test_a_module_that_is_none_is_refused() -> None:
    with pytest.raises(hloexec.InputError):
        hloexec.explain(TEXT, None, np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "policy",
    "reference,d reference,=tf32 reference,d=tf33 tf32+ bf16+bf16x3 reference,d=random-rounding:1".split(),
)
def test_policies_of_instructions_that_cannot_be_read_are_refused(
    module: hloexec.Module, inputs: list[Any], policy: str
) -> None:
    with pytest.raises(hloexec.HloError):
        hloexec.run(module, *inputs, numerics=policy)


@pytest.mark.parametrize(
    ("policy", "hint"),
    [
        ("reference,main/dd=tf32", ""),
        ("reference,quotient=tf32", ""),
        ("reference,main/prodcut.1=tf32", "; did you mean 'main/product.1'?"),
        ("reference,other/product.1=tf32", "; did you mean 'main/product.1'?"),
        ("reference,product.2=tf32", "; did you mean 'product.1'?"),
    ],
)
def test_only_near_names_are_suggested(policy: str, hint: str) -> None:
    module = hloexec.parse(TEXT.replace("d = ", "product.1 = ").replace("(d, d)", "(product.1, product.1)"))
    with pytest.raises(hloexec.InputError) as caught:
        hloexec.run(module, *hloexec.random_inputs(module, seed=0), numerics=policy)
    assert caught.value.message.endswith(f"has no such instruction{hint}")


BAD_COMMANDS = (
    (["explain"], "Missing argument 'FILE'"),
    (["explain", "two.hlo"], "--expected is missing"),
    ("explain two.hlo --expected nowhere.npz".split(), "there is no file 'nowhere.npz'"),
    ("explain two.hlo --expected one.npz".split(), "lacks 1"),
    ("explain two.hlo --expected both.npz --policy tf33".split(), "unknown numerics policy 'tf33'"),
    ("explain two.hlo --expected both.npz --policy reference,nowhere=tf32".split(), "no such instruction"),
    ("explain two.hlo --expected both.npz --numerics tf32".split(), "with --policy"),
    ("explain two.hlo --expected both.npz --budget 0".split(), "--budget"),
    ("explain two.hlo --expected both.npz --runs 0".split(), "--runs"),
    ("explain two.hlo --expected both.npz --top -1".split(), "--top"),
    ("explain two.hlo --expected both.npz --values nowhere".split(), "nowhere"),
    ("explain two.hlo --expected both.npz --values .".split(), "is not a trace"),
    ("explain two.hlo --expected both.npz --values both.npz".split(), "no such instruction"),
    ("run two.hlo --numerics reference,d".split(), "should be INSTRUCTION=POLICY"),
)


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMANDS, ids=lambda entry: str(entry)[:70])
def test_the_command_says_what_is_wrong_and_exits_with_2(
    module: hloexec.Module,
    inputs: list[Any],
    arguments: list[str],
    message: str,
    empty_folder: Path,
    cli: CommandLine,
) -> None:
    (empty_folder / "two.hlo").write_text(TEXT)
    leaves = _leaves(module, inputs)
    np.savez("both.npz", *leaves)
    np.savez("one.npz", leaves[0])
    said = cli.complaint(*arguments)
    assert "Traceback" not in said
    assert message in " ".join(said.split())
