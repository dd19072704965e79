"""The passes of XLA without which its result comes right: faults planted after a pass, and XLA's own."""

from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.tools.bisecting.passes import Search
from tests.bisecting.programs import RICH, write_environment
from tests.command_line import CommandLine

ADD = "sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }"
LOOP = """HloModule m
condition { p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(1)
  ROOT r = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  n = s32[] constant(3)
  j = s32[] add(i, n)
  y = f32[4] add(x, x)
  ROOT r = (s32[], f32[4]) tuple(j, y) }
ENTRY e { x = f32[4] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[4]) tuple(z, x)
  w = (s32[], f32[4]) while(t), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(w), index=1 }
"""
PRODUCT = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  p = pred[4] parameter(1)
  c = f32[4] convert(p)
  ROOT z = f32[4] multiply(x, c) }
"""
WINDOWS = f"""HloModule m
{ADD}
ENTRY e {{ x = f32[64] parameter(0)
  one = f32[] constant(1)
  ROOT r = f32[64] reduce-window(x, one), window={{size=64 pad=63_0}}, to_apply=sum }}
"""
FAULTS = [
    ("call-inliner", " tanh(", " sine("),
    ("float-normalization-bf16", " cosine(", " sine("),
    ("conditional-canonicalizer", " tanh(", " cosine("),
    ("reshape-mover", 'direction=LT, metadata={op_name="c"}', "direction=GT"),
    ("simplify-conditional", " constant(0.5)", " constant(0.75)"),
    ("transpose-folding", " exponential(", " tanh("),
    ("cse", " negate(", " abs("),
    ("while-loop-trip-count-annotator", " s32[] constant(3)", " s32[] constant(2)"),
    ("dot-library-rewriter", "{ {1}, {5} }", "{ {1}, {4} }"),
    ("fusion", " f32[] constant(0)", " f32[] constant(1)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("pass_name", "right", "wrong"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_planted_fault_is_of_the_pass_after_which_it_was_planted(
    pass_name: str, right: str, wrong: str, tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    spec = write_environment(tmp_path / "python", pass_name, right, wrong)
    result = hloexec.bisect_passes(hloexec.parse(RICH), against=spec)
    assert result.passes == (pass_name,) and result.is_confirmed, result
    assert result.diff is not None and result.diff.findings


@pytest.mark.parametrize(
    ("text", "inputs", "pass_name"),
    [
        (PRODUCT, [np.array([np.nan, np.inf, -1, 2], np.float32), np.array([0, 0, 0, 1], bool)], "algsimp"),
        (LOOP, [np.ones(4, np.float32)], "simplify-while-loops"),
        (WINDOWS, [np.arange(64, dtype=np.float32)], "reduce-window-rewriter"),
    ],
)
def test_passes_of_xla_that_change_results_are_named(text: str, inputs: list[np.ndarray], pass_name: str) -> None:
    """Each difference is in docs/differences.md."""
    pytest.importorskip("jax")
    result = hloexec.bisect_passes(hloexec.parse(text), inputs, "xla:cpu")
    if pass_name == "simplify-while-loops" and result.outcome == "equal":
        pytest.skip("this version of XLA has mended it")
    assert result.passes == (pass_name,) and result.is_confirmed, result
    assert result.diff is not None and result.diff.findings


def test_it_works_where_other_passes_are_off_already() -> None:
    pytest.importorskip("jax")
    text = PRODUCT.replace("HloModule m", "HloModule m, num_partitions=2")
    inputs = [np.array([np.nan, np.inf, -1, 2], np.float32), np.array([0, 0, 0, 1], bool)]
    result = hloexec.bisect_passes(hloexec.parse(text), inputs, "xla:cpu:2")
    assert result.passes == ("algsimp",) and result.is_confirmed


NAMES = [f"p{number}" for number in range(20)]


@pytest.mark.parametrize("to_blame", [["p0"], ["p7"], ["p19"], ["p3", "p4"], ["p2", "p17"]])
@pytest.mark.parametrize("needed", [[], ["p1"], ["p6", "p8", "p18"]])
def test_the_search_ends_at_the_smallest_set_and_leaves_what_is_needed(to_blame: list[str], needed: list[str]) -> None:
    def judge(without: list[str]) -> bool | None:
        return None if {*needed} & {*without} else {*to_blame} <= {*without}

    search = Search(judge)  # type: ignore[arg-type]
    assert search.smallest(NAMES) == to_blame
    assert {*search.required} <= {*needed} and len(search.known) < 6 * len(NAMES)


def test_where_no_pass_is_to_blame_none_is_named() -> None:
    search = Search(lambda without: None if "p5" in without else False)
    assert search.smallest(NAMES) == [] and search.required == ("p5",)


def test_a_pass_without_which_others_go_wrong_hides_none() -> None:
    assert Search(lambda without: "p9" in without and "p3" not in without).smallest(NAMES) == ["p9"]


def test_the_command_says_the_pass_and_keeps_the_dump(cli: CommandLine, empty_folder: Path) -> None:
    pytest.importorskip("jax")
    Path("m.hlo").write_text(PRODUCT)
    np.savez("m.npz", x=np.array([np.nan, np.inf, -1, 2], np.float32), p=np.array([0, 0, 0, 1], bool))
    line = "bisect m.hlo --inputs m.npz --passes --against xla:cpu"
    text = cli(f"{line} -o dump", code=1)
    assert text.startswith("algsimp is to blame: without it, the result is right\n")
    assert "the first step after which hloexec gives another result is the same pass" in text
    assert "hloexec diff dump" in text and [*Path("dump").glob("*after_algsimp*")]
    record = cli.record(line, code=1)
    assert (record["passes"], record["is_confirmed"], record["dump"]) == (["algsimp"], True, None)
    np.savez("m.npz", x=np.ones(4, np.float32), p=np.ones(4, bool))
    assert cli(line) == "equal: nothing to search in the passes of xla:cpu\n"
