"""`triage`: what differs is found, told and grouped; limits, crashes and Ctrl-C lose nothing. XLA:CPU has the truth."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from rich.console import Console

import hloexec
from hloexec.engine.exec.observers import Stage
from hloexec.language import literals
from hloexec.report.judging.triages import triage_view
from hloexec.tools.counterparts.elsewhere import Elsewhere
from hloexec.tools.executing import tasks
from hloexec.tools.executing.codec import coded, decoded
from hloexec.tools.triaging import Blamed, MinifiedModule, PolicyFound, TriagedModule
from hloexec.tools.triaging.blaming import blamed_elsewhere
from hloexec.tools.triaging.collecting import Settings, Store, cases_of
from hloexec.tools.triaging.running import groups_of
from tests.command_line import CommandLine
from tests.here import triaging_here

BEFORE = """HloModule m
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}
ENTRY main {
  x = f32[16,24] parameter(0)
  y = f32[24,8] parameter(1)
  nothing = f32[] constant(0)
  turned = f32[16,24] sine(x)
  difference = f32[16,24] subtract(turned, x)
  dot = f32[16,8] dot(difference, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT total = f32[16] reduce(dot, nothing), dimensions={1}, to_apply=sum
}
"""
SWAPPED = BEFORE.replace("subtract(turned, x)", "subtract(x, turned)")


def _pair(folder: Path, name: str, before: str, after: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.before.hlo").write_text(before)
    (folder / f"{name}.after.hlo").write_text(after)


@pytest.fixture
def here() -> Iterator[None]:
    """Cases are judged in this process."""
    with triaging_here():
        yield


def _plain(found: hloexec.Triage) -> list[Any]:
    return [attrs.asdict(attrs.evolve(module, seconds=0.0, is_reused=False)) for module in found.modules]


@pytest.mark.slow
def test_modules_of_three_causes_are_found_and_grouped_by_them(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from evaluation.triaging.building import Mixture, build

    mixture = Mixture("seen", ("TF32", "NaN by overflow"), 3, 2, pairs=0, recorded=2, functions=0)
    truth = build(mixture, tmp_path / "modules")
    for number in range(6):
        before, after = BEFORE.replace("16", str(9 + number)), SWAPPED if number % 3 == 1 else BEFORE
        _pair(tmp_path / "modules", f"pair{number}", before, after.replace("16", str(9 + number)))
        truth[f"pair{number}"] = "exchanged" if number % 3 == 1 else ""
    found = hloexec.triage(tmp_path / "modules", jobs=2, minify=False)
    assert len(truth) == 12
    assert {module.name: module.outcome == "differ" for module in found.modules} == {
        name: bool(cause) for name, cause in truth.items()
    }
    groups = {group.cause.partition(":")[0]: [truth[member.name] for member in group.members] for group in found.groups}
    assert groups == {
        "TF32": ["TF32"] * 2,
        "subtract of f32": ["exchanged"] * 2,
        "exponential of f32, NaN or infinities": ["NaN by overflow"] * 2,
    }


@pytest.mark.slow
def test_denormals_that_xla_flushes_are_said_to_be_flushed(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "tiny.hlo").write_text("""HloModule tiny
ENTRY e { x = f32[64] parameter(0)
  c = f32[] constant(1e-20)
  s = f32[64] broadcast(c), dimensions={}
  k = f32[] constant(1e38)
  t = f32[64] broadcast(k), dimensions={}
  a = f32[64] multiply(x, s)
  p = f32[64] multiply(a, s)
  ROOT r = f32[64] multiply(p, t) }
""")
    found = hloexec.triage(tmp_path, against="xla-cpu", minify=False)
    assert [group.cause for group in found.groups] == ["flushed denormals"]
    (module,) = found.modules
    assert module.explained is not None and module.explained.equal_share == 1.0
    assert module.blamed is not None and module.blamed.opcode == "multiply"


@pytest.mark.usefixtures("here")
def test_a_pair_is_blamed_minified_and_kept(tmp_path: Path, cli: CommandLine) -> None:
    from tests.records import read_record

    _pair(tmp_path / "modules", "deep", BEFORE, SWAPPED)
    words = ["triage", str(tmp_path / "modules"), "-o", str(tmp_path / "found"), "--json"]
    record = read_record(cli(*words, code=1))
    (group,), (module,) = record["groups"], record["modules"]
    assert module["blamed"]["instruction"] == "difference"
    assert module["blamed"]["instead_of"] == "%difference = f32[16,24] subtract(%turned, %x)"
    assert (group["opcode"], group["element_types"], group["policy"]) == ("subtract", ["f32"], None)
    small = group["minified"]
    assert small["instruction_count"] == 1 and small["is_confirmed"]
    assert (Path(small["folder"]) / "module.hlo").read_text() == small["hlo_text"]
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["minified", "modules", "triage.json"]

    again = read_record(cli(*words, code=1))
    assert again["modules"] == [module | {"is_reused": True}]
    assert again["groups"] == record["groups"]
    # Another module of the same name is another one.
    _pair(tmp_path / "modules", "deep", BEFORE, BEFORE)
    assert read_record(cli(*words))["counts"] == {"agree": 1}


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_known_and_the_next_call_goes_on(tmp_path: Path) -> None:
    class Impatient:
        done = 0

        def on_progress(self, progress: object) -> None: ...

        def on_stage(self, stage: Stage) -> None:
            self.done = stage.done
            if stage.done == 1:
                raise KeyboardInterrupt

    for name, after in (("a", SWAPPED), ("b", BEFORE), ("c", BEFORE.replace("sine", "cosine"))):
        _pair(tmp_path / "modules", name, BEFORE, after)
    first = hloexec.triage(tmp_path / "modules", output=tmp_path / "found", minify=False, observers=[Impatient()])
    assert not first.is_complete and not first.agrees and len(first.modules) == 1 and first.case_count == 3
    second = hloexec.triage(tmp_path / "modules", output=tmp_path / "found", minify=False, jobs=3)
    assert second.is_complete and [module.is_reused for module in second.modules].count(True) == 1
    assert [module.outcome for module in second.modules] == ["differ", "agree", "differ"]
    third = hloexec.triage(tmp_path / "modules", minify=False, select=["a"])
    assert _plain(third) == _plain(second)[:1]


def test_of_no_module_there_is_nothing_to_say() -> None:
    found = hloexec.Triage("night", None, None, (), (), 2, 0.1, is_complete=False)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(triage_view(found, 5))
    assert capture.get() == "night  0 modules\n\ninterrupted after 0 of 2 modules\n"


def test_a_folder_on_another_drive_of_windows_is_named_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def relpath(path: str) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(os.path, "relpath", relpath)
    small = MinifiedModule("a", "/d/small", instruction_count=2, command="run it")
    group = attrs.evolve(groups_of([_module("a", outcome="differ")])[0], minified=small)
    found = hloexec.Triage("night", None, "/d", group.members, (group,), 1, 0.1, is_complete=True)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(triage_view(found, 5))
    assert "2 instructions in /d/small" in capture.get() and "cd /d/small && run it" in capture.get()


@pytest.mark.slow
def test_time_is_counted_by_the_process_itself_from_its_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = """HloModule endless
c { i = s32[] parameter(0)
  ROOT l = pred[] constant(true) }
b { i = s32[] parameter(0)
  ROOT a = s32[] add(i, i) }
ENTRY e { z = s32[] parameter(0)
  ROOT w = s32[] while(z), condition=c, body=b }
"""
    _pair(tmp_path, "endless", endless, endless.replace("add(i, i)", "multiply(i, i)"))
    monkeypatch.setattr(tasks, "_STARTING_SECONDS", 200.0)
    (module,) = hloexec.triage(tmp_path, timeout=1, minify=False).modules
    assert (module.outcome, module.reason) == ("timed out", "it took more than 1 s")
    assert 1 < module.seconds < 100


def test_time_memory_crashes_and_faulty_texts_are_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pair(tmp_path / "modules", "broken", "HloModule b\nENTRY {", "")
    large = "HloModule l\nENTRY e { x = f32[30000,30000] parameter(0)\n ROOT y = f32[30000,30000] sine(x) }\n"
    _pair(tmp_path / "modules", "large", large, large)

    def outcomes(timeout: float) -> tuple[list[str], list[bool]]:
        found = hloexec.triage(tmp_path / "modules", output=tmp_path / "found", memory="1G", jobs=2, timeout=timeout)
        assert not found.agrees and not found.differing and not any(group.minified for group in found.groups)
        return [module.outcome for module in found.modules], [module.is_reused for module in found.modules]

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "_STARTING_SECONDS", 0.0)
        patched.setattr(tasks, "_COMMAND", "import time; time.sleep(60)")
        assert outcomes(0.5) == (["timed out"] * 2, [False] * 2)
        assert outcomes(0.5) == (["timed out"] * 2, [True] * 2)
        patched.setattr(tasks, "_COMMAND", "import os; os.kill(os.getpid(), 11)")
        # What was ended by its limits is tried again where these are larger.
        assert outcomes(30) == (["crashed"] * 2, [False] * 2)
    assert outcomes(60) == (["not compared", "out of memory"], [False] * 2)
    # More time does not help a text that is no HLO.
    monkeypatch.setattr(tasks, "_COMMAND", "import os; os.kill(os.getpid(), 11)")
    assert outcomes(90) == (["not compared", "crashed"], [True, False])


def test_what_was_found_before_a_search_took_too_long_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pair(tmp_path / "modules", "a", BEFORE, SWAPPED)
    script = (
        "import os; from hloexec.tools.executing import tasks; from hloexec.tools.triaging import judging;"
        "judging.explained_pair = lambda *given: os.abort(); tasks.work()"
    )
    monkeypatch.setattr(tasks, "_COMMAND", script)
    (module,) = hloexec.triage(tmp_path / "modules", minify=False).modules
    assert module.outcome == "differ" and module.blamed is not None and module.blamed.instruction == "difference"
    assert module.is_cut and "SIGABRT" in module.notes[-1]


@pytest.mark.slow
def test_a_dump_is_judged_by_its_stages_and_two_folders_by_names(tmp_path: Path) -> None:
    dump = tmp_path / "one/run"
    dump.mkdir(parents=True)
    stages = {
        "before_optimizations": BEFORE,
        "0001.simplification.after_algsimp": SWAPPED,
        "cpu_after_optimizations": SWAPPED.replace("turned", "sine"),
    }
    for stage, text in stages.items():
        (dump / f"module_0001.jit_f.{stage}.txt").write_text(text)
    (module,) = hloexec.triage(tmp_path / "one", minify=False).modules
    assert (module.name, module.kind, module.step) == ("run/module_0001.jit_f", "stages", "algsimp in simplification")
    assert module.blamed is not None and module.blamed.opcode == "subtract"

    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two/run/module_0001.jit_f.cpu_after_optimizations.txt").write_text(BEFORE)
    (other,) = hloexec.triage(tmp_path / "one", tmp_path / "two", minify=False).modules
    assert (other.kind, other.outcome) == ("pair", "differ")


def test_what_jaxlib_puts_beside_a_dumped_module_is_no_case(tmp_path: Path) -> None:
    for stage in ("before_optimizations", "cpu_after_optimizations"):
        (tmp_path / f"module_0001.jit_f.{stage}.txt").write_text(BEFORE)
    for name in ("module_0001.jit_f", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.mlir").write_text("module @jit_f {}\n")
    assert [case.name for case in cases_of(tmp_path, None, [])] == ["module_0001.jit_f", "other/module"]


@pytest.mark.usefixtures("here")
def test_recorded_inputs_decide_whether_a_pair_differs(tmp_path: Path) -> None:
    text = "HloModule m\nENTRY e { x = f32[9] parameter(0)\n ROOT r = f32[9] %s }\n"
    _pair(tmp_path, "a", text % "abs(x)", text % "negate(x)")
    literals.save(tmp_path / "a.inputs.npz", (-np.arange(1, 10, dtype=np.float32),))
    assert hloexec.triage(tmp_path).agrees


@pytest.mark.usefixtures("here")
def test_what_differs_on_large_numbers_only_is_found_on_those(tmp_path: Path, cli: CommandLine) -> None:
    """The square of a number above 1.9e19 is infinite in f32."""
    from tests.records import read_record

    text = "HloModule m\nENTRY e { x = f32[99] parameter(0)\n t = f32[99] %s\n ROOT r = f32[99] %s }\n"
    before, after = text % ("multiply(x, x)", "sqrt(t)"), text % ("abs(x)", "copy(t)")
    _pair(tmp_path / "modules", "a", before, after)
    for stage, each in (("before_optimizations", before), ("cpu_after_optimizations", after)):
        (tmp_path / f"modules/module_0001.jit_f.{stage}.txt").write_text(each)
    words = ["triage", str(tmp_path / "modules"), "--no-minify", "--json"]
    record = read_record(cli(*words))
    assert record["distribution"] == "normal" and "differ" not in record["counts"]
    record = read_record(cli(*words, "--distribution", "large", code=1))
    assert (record["distribution"], record["counts"]) == ("large", {"differ": 2})
    found = hloexec.triage(tmp_path / "modules", distribution="large", select=["a"], minify=False)
    assert [module.difference for module in found.modules] == ["NaN or infinities"]
    with pytest.raises(hloexec.InputError, match="distribution must be one of normal"):
        hloexec.triage(tmp_path / "modules", distribution="odd")
    console = Console(width=500)
    with console.capture() as capture:
        console.print(triage_view(found, 5))
    assert "a.after.hlo --distribution large" in capture.get()


@pytest.mark.usefixtures("here")
def test_recorded_results_of_other_shapes_are_one_cause(tmp_path: Path) -> None:
    """A leaf too few, one of another size, and one too many."""
    for name, sizes in {"few": [16], "large": [17], "many": [16, 16]}.items():
        (tmp_path / f"{name}.hlo").write_text(BEFORE)
        np.savez(tmp_path / f"{name}.expected.npz", *[np.zeros(size, np.float32) for size in sizes])
    found = hloexec.triage(tmp_path, minify=False)
    assert [module.difference for module in found.modules] == ["numbers", "shapes", "shapes"]
    cause = "results of other shapes than expected"
    assert [len(group.members) for group in found.groups if group.cause == cause] == [2]


def test_a_folder_may_be_called_as_a_policy_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _pair(Path("reference"), "a", BEFORE, BEFORE)
    with ThreadPoolExecutor(1) as pool:
        (module,) = hloexec.triage("reference", executor=pool, minify=False).modules
    assert (module.outcome, module.files) == ("agree", ("reference/a.before.hlo", "reference/a.after.hlo"))


def test_a_text_in_utf_16_is_a_module(tmp_path: Path) -> None:
    """PowerShell writes what commands print so."""
    (tmp_path / "a.txt").write_text(BEFORE, encoding="utf-16")
    assert [case.name for case in cases_of(tmp_path, None, ())] == ["a"]


def test_results_are_kept_by_what_is_in_files_not_by_their_names(tmp_path: Path) -> None:
    from hloexec.tools.triaging.collecting import Settings

    for name in ("a", "b"):
        _pair(tmp_path / "modules", name, BEFORE, SWAPPED)
    _pair(tmp_path / "modules", "c", BEFORE, BEFORE)
    settings = Settings(None, "reference", 0, "zeros", "error", 9.0, 1 << 30)
    keys = [Store(tmp_path, settings).key(case) for case in cases_of(tmp_path / "modules", None, ())]
    assert keys[0] == keys[1] != keys[2]
    first = cases_of(tmp_path / "modules", None, ())[0]
    assert Store(tmp_path, attrs.evolve(settings, seed=1)).key(first) != keys[0]
    assert Store(tmp_path, attrs.evolve(settings, distribution="large")).key(first) != keys[0]
    assert Store(tmp_path, attrs.evolve(settings, timeout=99.0)).key(first) == keys[0]


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_wrong", [True, False])
def test_the_first_value_that_xla_cpu_has_otherwise_is_to_blame(
    is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    right, wrong = "subtract(%turned, %x)", "subtract(%x, %turned)"

    run = Elsewhere.run

    def run_changed(self: Elsewhere, module: hloexec.Module, inputs: Any, **more: Any) -> Any:
        text = hloexec.format(module)
        assert text.count(right) == 1
        return run(self, hloexec.parse(text.replace(right, wrong) if is_wrong else text), inputs, **more)

    monkeypatch.setattr(Elsewhere, "run", run_changed)
    module = hloexec.parse(BEFORE)
    settings = Settings("xla-cpu", "reference", 0, "zeros", "error", 120.0, 1 << 32)
    found = blamed_elsewhere(module, [hloexec.random_inputs(module)], settings)
    assert (found and found.instruction) == ("difference" if is_wrong else None)


def _module(name: str, opcode: str = "dot", policy: str = "", **changes: Any) -> TriagedModule:
    blamed = Blamed(opcode, ("f32",), "f32[4]", "array", "i", "e", "i", "i")
    explained = PolicyFound(policy, policy) if policy else None
    known = TriagedModule(name, "pair", (), "", "differ", difference="numbers", blamed=blamed, explained=explained)
    return attrs.evolve(known, **changes)


def test_a_policy_is_one_cause_whichever_instructions_have_it() -> None:
    modules = [
        _module("a", "dot", "tf32"),
        _module("b", "convolution", "reference,main/conv.1=tf32"),
        _module("c", "dot"),
        _module("d", "convolution"),
        _module("e", "dot", difference="NaN or infinities"),
        _module("f", outcome="crashed", reason="it was ended by SIGABRT: 12 of 'x' in a/b.hlo"),
        _module("g", outcome="crashed", reason="it was ended by SIGABRT: 7 of 'y' in d/c.hlo"),
        _module("h", outcome="agree"),
    ]
    groups = groups_of(modules)
    assert ["".join(member.name for member in group.members) for group in groups] == "d e c ab fg".split()
    assert groups[3].policy == "tf32" and groups[3].opcode is None
    assert [group.cause for group in groups_of(reversed(modules))] == [group.cause for group in groups]


def test_a_fault_that_results_do_not_show_is_the_same_cause_as_where_they_do() -> None:
    (group,) = groups_of([_module("a", difference="", instruction_count=3), _module("b", instruction_count=9)])
    assert (group.cause, group.difference, group.representative) == ("dot of f32", "numbers", "b")


def test_records_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    from hloexec.tools.triaging.collecting import read_json, write_json

    outputs = (hloexec.triaging.OutputDifference("0", "f32[4]", "f32[4]", "different", 4, max_ulps=float("inf")),)
    module = _module("a", "dot", "tf32", outputs=outputs, notes=("x",))
    write_json(tmp_path / "a.json", {"module": coded(module, TriagedModule)})
    assert decoded(read_json(tmp_path / "a.json")["module"], TriagedModule) == module
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("log", "said"),
    [
        # As XLA simplifies it; then with an infinity of its own; and with NaN, which has nothing to do with the overflow.
        ([1, 89, 3], "overflow of f32; the results that it is seen in are finite on the other side"),
        ([np.inf, 89, 3], "overflow of f32"),
        ([1, np.inf, np.nan], None),
    ],
)
def test_an_overflow_is_blamed_where_this_side_has_it_alone(tmp_path: Path, log: list[float], said: str | None) -> None:
    (tmp_path / "a.hlo").write_text("""HloModule a
ENTRY main {
  x = f32[3] parameter(0)
  e = f32[3] exponential(x)
  ROOT l = f32[3] log(e)
}
""")
    np.savez(tmp_path / "a.inputs.npz", np.array([1, 89, 3], np.float32))
    np.savez(tmp_path / "a.expected.npz", np.array(log, np.float32))
    (module,) = hloexec.triage(tmp_path, minify=False).modules
    assert module.outcome == "differ" and module.difference == "NaN or infinities"
    blamed = module.blamed
    assert (None if blamed is None else blamed.reason) == said
    assert blamed is None or blamed.opcode == "exponential"
