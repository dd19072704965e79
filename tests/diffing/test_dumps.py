"""Which files of a dump folder are which module, at which stage."""

from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from hloexec import HloWarning, InputError
from hloexec.report.judging.folder_diffs import folder_view
from hloexec.tools.diffing.folders import FolderDiff, ModuleDiff, Stage, StageDiff, diff_folders, dumped_modules


def _folder(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).write_text("")
    return path


def test_stages_stand_in_the_order_of_compilation(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path / "dump",
        "module_0000.jit_f.0010.fusion_pipeline.after_fusion.before_wrapper.txt",
        "module_0000.jit_f.0002.simplification.after_algsimp.before_simplify-sorts.txt",
        "module_0000.jit_f.0001.simplification.after_pipeline-start.before_algsimp.txt",
        "module_0000.jit_f.0011.copy-insertion.after_adding_special-case_copies.txt",
        "module_0000.jit_f.before_optimizations.txt",
        "module_0000.jit_f.cpu_after_optimizations.txt",
    )
    (module,) = dumped_modules(folder)
    assert str(module) == "module_0000.jit_f" and (module.number, module.name) == (0, "jit_f")
    assert [str(stage) for stage in module.stages] == [
        "before_optimizations",
        "start of simplification",
        "algsimp in simplification",
        "fusion in fusion_pipeline",
        "adding_special-case_copies in copy-insertion",
        "cpu_after_optimizations",
    ]
    assert [stage.is_pass for stage in module.stages] == [False, False, True, True, True, False]


@pytest.mark.parametrize(
    ("name", "number", "module", "stage"),
    [
        ("module_0001.jit_f.before_optimizations.txt", 1, "jit_f", "before_optimizations"),
        ("module_0001.jit_f.sm_8.0_gpu_after_optimizations.txt", 1, "jit_f", "sm_8.0_gpu_after_optimizations"),
        ("module_0012.jit_f.gpu_after_optimizations.txt.gz", 12, "jit_f", "gpu_after_optimizations"),
        ("module_12345.f.cl_5743.after_optimizations.txt", 12345, "f", "cl_5743.after_optimizations"),
        ("module_0021.SyncTensorsGraph.21.before_optimizations.txt", 21, "SyncTensorsGraph.21", "before_optimizations"),
        ("1700000000.module_0002.a.b.cpu_after_optimizations.hlo.pb", 2, "a.b", "cpu_after_optimizations"),
        ("module_0003.a.7.0004.p.after_q.before_r.txt", 3, "a.7", "q in p"),
    ],
)
def test_names_say_which_module_and_stage(name: str, number: int, module: str, stage: str, tmp_path: Path) -> None:
    (found,) = dumped_modules(_folder(tmp_path / "dump", name))
    assert (found.number, found.name, [str(entry) for entry in found.stages]) == (number, module, [stage])
    assert found.stages[0].path.name == name


def test_a_changelist_in_names_is_no_part_of_the_module(tmp_path: Path) -> None:
    names = (
        "module_0001.jit_f.cl_123456.before_optimizations.txt",
        "module_0001.jit_f.cl_123456.0000.simplification.after_pipeline-start.before_algsimp.txt",
        "module_0001.jit_f.cl_123456.0001.simplification.after_algsimp.before_dce.txt",
        "module_0001.jit_f.cl_123456.0002.simplification.after_dce.before_pipeline-end.txt",
        "module_0001.jit_f.cl_123456.after_optimizations.txt",
    )
    (module,) = dumped_modules(_folder(tmp_path / "dump", *names))
    assert module.name == "jit_f"
    assert [stage.path.name for stage in module.stages] == [*names]


def test_what_a_tpu_optimized_may_have_a_later_number(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path / "dump",
        "module_0020.jit_init.before_optimizations.txt",
        "module_0021.jit_step.before_optimizations.txt",
        "module_0023.jit_step.after_optimizations_before_buffer_assignment.txt",
        "module_0023.jit_step.after_optimizations.txt",
        "module_0025.jit_step.before_optimizations.txt",
        "module_0027.jit_step.0003.p.after_q.txt",
        "module_0027.jit_step.after_optimizations_after_buffer_assignment.txt",
        "module_0029.jit_step.after_codegen.txt",
        "module_0029.jit_step.after_optimizations.txt",
        "module_0031.jit_last.cl_914450892.after_codegen.txt.gz",
    )
    found = {str(module): [stage.path.name for stage in module.stages] for module in dumped_modules(folder)}
    assert found == {
        "module_0020.jit_init": ["module_0020.jit_init.before_optimizations.txt"],
        "module_0021.jit_step": [
            "module_0021.jit_step.before_optimizations.txt",
            "module_0023.jit_step.after_optimizations.txt",
        ],
        "module_0025.jit_step": [
            "module_0025.jit_step.before_optimizations.txt",
            "module_0027.jit_step.0003.p.after_q.txt",
            "module_0027.jit_step.after_optimizations_after_buffer_assignment.txt",
        ],
        "module_0029.jit_step": ["module_0029.jit_step.after_optimizations.txt"],
        "module_0031.jit_last": ["module_0031.jit_last.cl_914450892.after_codegen.txt.gz"],
    }


@pytest.mark.parametrize("name", ["", "f."])
def test_files_without_the_name_of_their_module_go_by_its_number(name: str, tmp_path: Path) -> None:
    folder = _folder(
        tmp_path / "dump",
        f"module_0007.{name}before_optimizations.txt",
        "module_0007.0001.a_long_pipeline.after_q.before_r.txt",
        "module_0007.cpu_after_optimizations.txt",
    )
    (module,) = dumped_modules(folder)
    assert (module.number, module.name, len(module.stages)) == (7, name.removesuffix("."), 3)


def test_text_is_taken_where_there_is_a_protocol_buffer_too(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path / "dump", "module_0000.f.before_optimizations.hlo.pb", "module_0000.f.before_optimizations.txt"
    )
    (module,) = dumped_modules(folder)
    assert [stage.path.suffix for stage in module.stages] == [".txt"]


def test_other_files_of_a_dump_are_passed_over(tmp_path: Path) -> None:
    others = (
        "module_0000.jit_f.cpu_after_optimizations-buffer-assignment.txt",
        "module_0000.jit_f.cpu_after_optimizations-live-range.txt",
        "module_0000.jit_f.add_reduce_fusion_kernel_module.ir-no-opt.ll",
        "module_0000.jit_f.debug_options",
        "notes.txt",
    )
    folder = _folder(tmp_path / "dump", *others, "module_0001.jit_g.before_optimizations.txt")
    (folder / "module_0000.jit_f").mkdir()
    assert [module.name for module in dumped_modules(folder)] == ["jit_g"]
    with pytest.raises(InputError, match="holds no module as XLA dumps them"):
        dumped_modules(_folder(tmp_path / "empty", *others))


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, reason in (("nowhere", "No such file"), ("file", "Not a directory")):
        with pytest.raises(InputError, match=f"cannot read .*{name}.*{reason}"):
            dumped_modules(tmp_path / name)


_PARTITIONED = (
    # As XLA names them: spmd-partitioning runs spmd-cleanup before it ends.
    "0002.spmd-partitioner.after_pipeline-start.before_flatten-call-graph",
    "0003.spmd-partitioner.after_shardy-xla.before_spmd-partitioning",
    "0004.spmd-cleanup.after_pipeline-start.before_dce",
    "0005.spmd-cleanup.after_dce.before_tuple-simplifier",
    "0006.spmd-partitioner.after_spmd-partitioning.before_control-dep-rewriter",
    "0007.last.after_pipeline-start.before_algsimp",
    "0008.last.after_algsimp.before_pipeline-end",
)
_TEXT = """HloModule f

ENTRY main {{
  x = f32[4] parameter(0)
  unused.{number} = f32[4] negate(x)
  ROOT y = f32[4] {opcode}(x, x)
}}
"""


def _diffed(tmp_path: Path, names: tuple[str, ...], wrong_from: int, unknown: int | None = None) -> ModuleDiff:
    """The stages of these names, each with a text of its own, which is wrong from one of them on, and not runnable in
    another."""
    for number, name in enumerate(names):
        opcode = "sparkle" if number == unknown else "multiply" if number >= wrong_from else "add"
        text = _TEXT.format(number=number, opcode=opcode)
        (tmp_path / f"module_0001.f.{name}.txt").write_text(text)
    (module,) = diff_folders(tmp_path).modules
    return module


@pytest.mark.parametrize(
    ("wrong_from", "step", "pass_name"),
    [
        (1, "shardy-xla in spmd-partitioner", "shardy-xla"),
        (2, "spmd-partitioning in spmd-partitioner, before its spmd-cleanup", "spmd-partitioning"),
        (3, "dce in spmd-cleanup, a part of spmd-partitioning", "dce"),
        (4, "spmd-partitioning in spmd-partitioner, after spmd-cleanup", "spmd-partitioning"),
        (5, "spmd-partitioning in spmd-partitioner → start of last", None),
        (6, "algsimp in last", "algsimp"),
    ],
)
def test_a_pass_is_named_by_what_it_did_before_its_own_pipeline(
    wrong_from: int, step: str, pass_name: str | None, tmp_path: Path
) -> None:
    module = _diffed(tmp_path, _PARTITIONED, wrong_from)
    blamed = module.to_blame
    assert blamed is not None and str(blamed) == step
    assert (None if blamed.made_by is None else blamed.made_by.name) == pass_name
    named = [str(each) for each in module.steps if each.outcome == "agree"]
    assert "spmd-partitioning in spmd-partitioner" not in named, "no part of a pass acquits all of it"


@pytest.mark.parametrize(
    ("names", "wrong_from", "step"),
    [
        # Which pass runs q is not told: b, which is up next, or c, whose output comes next.
        (("0.p.after_pipeline-start.before_a", "1.p.after_a.before_b", "2.q.after_pipeline-start.before_d",
          "3.p.after_c.before_e"), 2, "a in p → start of q"),
        (("0.p.after_pipeline-start.before_a", "1.p.after_a.before_b", "2.q.after_pipeline-start.before_d",
          "3.p.after_c.before_e"), 3, "c in p"),
        # q is a pass of p itself.
        (("0.p.after_pipeline-start.before_q", "1.q.after_pipeline-start.before_d", "2.q.after_d.before_e",
          "3.p.after_q.before_c"), 2, "d in q"),
        # The pipeline p runs twice; what stands between belongs to no pass of it.
        (("0.p.after_pipeline-start.before_a", "1.q.after_pipeline-start.before_d", "2.p.after_pipeline-start.before_a",
          "3.p.after_a.before_b"), 1, "start of p → start of q"),
        # A pipeline in a pipeline in a pipeline.
        (("0.p.after_pipeline-start.before_a", "1.q.after_pipeline-start.before_b", "2.r.after_pipeline-start.before_c",
          "3.r.after_c.before_e", "4.q.after_b.before_e", "5.p.after_a.before_b"), 2, "b in q, before its r"),
        (("0.p.after_pipeline-start.before_a", "1.q.after_pipeline-start.before_b", "2.r.after_pipeline-start.before_c",
          "3.r.after_c.before_e", "4.q.after_b.before_e", "5.p.after_a.before_b"), 1, "a in p, before its q"),
    ],
)  # fmt: skip
def test_where_names_do_not_tell_the_pass_both_stages_are_named(
    names: tuple[str, ...], wrong_from: int, step: str, tmp_path: Path
) -> None:
    names = tuple(f"000{name}" for name in names)
    assert str(_diffed(tmp_path, names, wrong_from).to_blame) == step


@pytest.mark.parametrize("wrong_from", [3, 4])
def test_a_stage_that_cannot_be_run_leaves_open_which_pass_is_to_blame(wrong_from: int, tmp_path: Path) -> None:
    with pytest.warns(HloWarning, match="sparkle"):
        module = _diffed(tmp_path, _PARTITIONED, wrong_from, unknown=3)
    blamed = module.to_blame
    assert blamed is not None and blamed.made_by is None
    assert str(blamed) == "start of spmd-cleanup → spmd-partitioning in spmd-partitioner"


def test_every_step_that_differs_is_a_row() -> None:
    stages = [Stage(Path(f"{number}"), f"pass{number}", "pipeline") for number in range(41)]
    steps = tuple(
        StageDiff(before, after, "differ" if number in (3, 30, 39) else "agree")
        for number, (before, after) in enumerate(pairwise(stages), 1)
    )
    console = Console(width=100)
    with console.capture() as capture:
        console.print(folder_view(FolderDiff((ModuleDiff("m", steps, 41),)), 4, lambda *words: " ".join(words)))
    rows = [line.split()[0] for line in capture.get().splitlines() if line.split()[3:4] == ["differ"]]
    assert rows == ["pass3", "pass30", "pass39"]
    assert "… and 34 more" in capture.get()
