"""Dump folders as JAX writes them: no alarm on what XLA did, and the pass whose output was altered is named."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hloexec import HloWarning, InputError
from hloexec.tools.diffing.folders import DumpedModule, FolderDiff, ModuleDiff, Outcome, diff_folders, dumped_modules
from tests.command_line import CommandLine

pytest.importorskip("jax")

_PROGRAM = """
import jax, jax.numpy as jnp, numpy as np

def attend(x, w, b):
    return jax.nn.softmax(jnp.tanh(x @ w + b) * 2 - 1, axis=-1)

def step(x, w, b):
    gradient = jax.grad(lambda w: attend(x, w, b)[:, 0].sum())(w)
    return w - 0.1 * gradient

arguments = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32), np.ones(4, np.float32)
for function in attend, step:
    jax.jit(function).lower(*arguments).compile()
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xla") / "dump"
    flags = f'--xla_dump_to="{folder}" --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*'
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, check=True, timeout=300)
    return folder


def _copy(dump: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dump, tmp_path / "altered"))


def _module(folder: Path, name: str) -> DumpedModule:
    (module,) = (module for module in dumped_modules(folder) if module.name == name)
    return module


def _named(found: FolderDiff, name: str) -> ModuleDiff:
    (module,) = (module for module in found.modules if module.name.endswith(name))
    return module


def _alter(path: Path, old: str, new: str) -> bool:
    text = path.read_text()
    path.write_text(text.replace(old, new))
    return old in text


@pytest.mark.slow
def test_passes_of_xla_raise_no_alarm(dump: Path) -> None:
    found = diff_folders(dump)
    assert found.outcome in ("agree", "rounding only")
    for module in found.modules:
        assert module.to_blame is None and module.stages > 10
        assert len(module.steps) >= 4, "passes change the text"
        assert all(step.diff is not None and step.diff.matched_share >= 0.8 for step in module.steps)
    assert [module.name.rpartition(".")[2] for module in found.modules] == ["jit_attend", "jit_step"]


@pytest.mark.slow_cases("fusion")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("stage_name", "algsimp dce fusion layout-assignment".split())
def test_a_pass_whose_output_is_altered_is_named(stage_name: str, dump: Path, tmp_path: Path) -> None:
    folder = _copy(dump, tmp_path)
    stage = next(stage for stage in _module(folder, "jit_step").stages if stage.name == stage_name)
    assert _alter(stage.path, " tanh(", " logistic(")
    found = diff_folders(folder)
    step = _named(found, "jit_step").to_blame
    assert step is not None and step.after == stage and str(step) == f"{stage_name} in {stage.pipeline}"
    assert step.diff is not None
    blamed = step.diff.findings[0].after.of(step.diff.after)
    assert blamed.opcode == "logistic"
    assert _named(found, "jit_attend").to_blame is None


def test_a_fault_that_later_passes_keep_is_blamed_on_the_first(dump: Path, tmp_path: Path) -> None:
    folder = _copy(dump, tmp_path)
    stages = _module(folder, "jit_attend").stages
    first = next(number for number, stage in enumerate(stages) if stage.is_pass)
    for stage in stages[first:]:
        assert _alter(stage.path, " tanh(", " logistic(")
    module = _named(diff_folders(folder, select=["jit_attend"]), "jit_attend")
    assert [step.outcome == "differ" for step in module.steps] == [True] + [False] * (len(module.steps) - 1)
    assert module.to_blame is not None and module.to_blame.after == stages[first]


def test_a_stage_that_cannot_be_run_is_stepped_over(dump: Path, tmp_path: Path) -> None:
    folder = _copy(dump, tmp_path)
    passes = [stage for stage in _module(folder, "jit_attend").stages if stage.name in ("algsimp", "fusion")]
    assert _alter(passes[0].path, " tanh(", " sparkle(")
    assert _alter(passes[1].path, "%main", "%broken(")
    with pytest.warns(HloWarning, match="sparkle"):
        module = _named(diff_folders(folder, select=["jit_attend"]), "jit_attend")
    outcomes: list[Outcome] = [step.outcome for step in module.steps]
    assert outcomes.count("not compared") == 2 and "differ" not in outcomes and module.outcome == "not compared"
    reasons = [step.reason for step in module.steps if step.reason]
    assert "sparkle" in reasons[0] and passes[1].path.name in reasons[1]


def test_two_folders_are_paired_by_the_names_of_modules(dump: Path, tmp_path: Path) -> None:
    other = _copy(dump, tmp_path)
    for path in other.glob("*jit_step*"):
        if path.is_file():
            path.rename(path.with_name(path.name.replace("module_0", "module_7")))
    found = diff_folders(dump, other)
    assert [(module.name, module.outcome, module.stages) for module in found.modules] == [
        ("jit_attend", "agree", 2),
        ("jit_step", "agree", 2),
    ]
    after = _module(other, "jit_step").after
    assert after is not None
    original = after.path.read_text()
    assert _alter(after.path, " exponential(", " negate(")
    for path in other.glob("*jit_attend*"):
        if path.is_file():
            path.unlink()
    found = diff_folders(dump, other)
    assert [(module.name, module.outcome) for module in found.modules] == [("jit_step", "differ")]
    assert found.notes == (f"jit_attend is in {str(dump)!r} 1 time, in the other 0",)
    after.path.write_text(original)
    found = diff_folders(dump, other)
    assert [module.outcome for module in found.modules] == ["agree"]
    assert (found.outcome, found.unpaired) == ("not compared", 1)


def test_inputs_and_modules_may_be_given(dump: Path) -> None:
    told: list[tuple[str, int, int]] = []
    zeros = [np.zeros(size, np.float32) for size in ((8, 16), (16, 4), (4,))]
    found = diff_folders(dump, None, zeros, select=["*attend"], on_step=lambda *entry: told.append(entry))
    (module,) = found.modules
    assert module.steps[0].diff is not None and module.outcome == "agree"
    assert [entry[1] for entry in told] == list(range(1, module.stages)) and {entry[2] for entry in told} == {
        module.stages - 1
    }
    with pytest.raises(InputError, match=r"has no module 'jit_nothing'; there are jit_attend, jit_step"):
        diff_folders(dump, select=["jit_nothing"])


@pytest.mark.slow
def test_the_verdict_names_the_pass_and_the_next_command_works(
    dump: Path, empty_folder: Path, cli: CommandLine
) -> None:
    assert cli("diff", dump).split("  ")[0] in ("agree", "rounding only")
    folder = _copy(dump, empty_folder)
    stage = next(stage for stage in _module(folder, "jit_step").stages if stage.name == "dce")
    assert _alter(stage.path, " tanh(", " logistic(")
    out = cli("diff altered --top 3", code=1)
    assert out.startswith(f"dce in {stage.pipeline} is to blame in ") and "logistic(" in out and "… and " in out
    words = out.splitlines()[-1].split()
    assert words[:2] == ["hloexec", "diff"] and words[3].endswith(stage.path.name)
    cli(*words[1:], code=1)
    (record,) = cli.record("diff altered --module jit_step", code=1)["modules"]
    assert record["blamed_step"] == f"dce in {stage.pipeline}" and record["outcome"] == "differ"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "missing is not a folder; give the module to compare it with, too"),
        (["empty"], "holds no module as XLA dumps them"),
        (["empty", "missing"], "empty is a folder, but missing is not"),
        (["one"], "there is nothing to compare: module_0000.f is there at one stage only: before_optimizations"),
        (["one", "two"], "there is nothing to compare: f is in 'one' 1 time"),
        ("one one --module g".split(), "'one' has no module 'g'; there are f"),
        (["one/module_0000.f.before_optimizations.txt"] * 2 + ["--module", "f"], "these are files"),
        (["one", "--numerics-after", "exact"], "all stages of one folder run under one policy"),
        (["one", "--numerics", "sloppy"], "unknown numerics policy 'sloppy'"),
    ],
)
def test_wrong_uses_say_what_is_wrong(
    arguments: list[str],
    message: str,
    empty_folder: Path,
    cli: CommandLine,
) -> None:
    text = "HloModule {0}\nENTRY e {{\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] negate(x)\n}}\n"
    for folder, name in (("one", "f"), ("two", "g")):
        Path(folder).mkdir()
        Path(folder, f"module_0000.{name}.before_optimizations.txt").write_text(text.format(name))
    Path("empty").mkdir()
    captured = cli.ended("diff", *arguments, code=2)
    assert message in captured.err and "Traceback" not in captured.err and not captured.out


def test_without_a_verdict_on_some_module_the_exit_code_is_2(empty_folder: Path, cli: CommandLine) -> None:
    text = "HloModule f\nENTRY e {{\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] {}(x)\n}}\n"
    for stage, opcode in (("before", "negate"), ("cpu_after", "sparkle")):
        Path(f"module_0000.f.{stage}_optimizations.txt").write_text(text.format(opcode))
    out = cli("diff .", code=2)
    assert out.startswith("not compared  1 of 1 module") and "sparkle" in out
