"""The recorder, on the CPU: what it writes, what it does about programs that fail, and what it refuses."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance import gpu_recording, record_gpu
from conformance.reconstructions import RECONSTRUCTIONS
from conformance.recorded import disagreements, load_recordings
from hloexec.language import literals

jax: Any = pytest.importorskip("jax")

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = ("matmul_bias_relu.bf16", "cholesky.f32", "threefry_bits.u32")
PARTS = {"before.hlo.gz", "optimized.hlo.gz", "inputs.npz", "outputs.npz"}


def dying_serve(connection: Any, log: str) -> None:
    """A process that dies of one program."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if request == "gather_rows.f32":
            os._exit(3)
        machine = {"platform": "cpu", "device_kind": "cpu", "compute_capability": None, "nvidia_tf32_override": None}
        text = {"before": "HloModule b", "optimized": "HloModule o", "inputs": b"i", "outputs": b"o"}
        details = {"options_refused": [], "custom_calls": [], "seconds": 0.0}
        connection.send((True, machine if request == "machine" else text | details))


@pytest.fixture(scope="module", autouse=True)
def _on_cpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three programs, and one that the CPU has not."""
    pytest.importorskip("scipy", reason="scipy is not installed: jaxlib needs it to call LAPACK")
    target = tmp_path_factory.mktemp("recording") / "new" / "folder"
    patterns = [f"--only={name}" for name in (*CHOSEN, "attention_cudnn.f16")]
    assert record_gpu.main(["-o", str(target), *patterns]) == 0
    return target


def index_of(folder: Path) -> Any:
    return json.loads((folder / "recording.json").read_text())


@pytest.mark.slow
def test_recording_has_four_files_a_program_and_says_their_size(folder: Path) -> None:
    programs = index_of(folder)["programs"]
    assert set(programs) == set(CHOSEN)
    assert {path.name for path in folder.iterdir()} == {*CHOSEN, "recording.json"}
    for name, entry in programs.items():
        sizes = {path.name: path.stat().st_size for path in (folder / name).iterdir()}
        assert set(sizes) == PARTS
        assert sum(sizes.values()) == entry["bytes"] < 40_000


@pytest.mark.slow
def test_recording_says_what_it_was_made_with(folder: Path) -> None:
    index = index_of(folder)
    machine = index["machine"]
    assert machine["platform"] == "cpu"
    assert machine["packages"]["jax"] == jax.__version__
    assert machine["packages"]["numpy"] == np.__version__
    entry = index["programs"]["cholesky.f32"]
    assert (entry["precision"], entry["policy"], entry["rule"]) == ("highest", "reference", "cholesky")
    assert entry["custom_calls"] == ["lapack_spotrf_ffi"]
    assert index["programs"]["matmul_bias_relu.bf16"]["compiler_options"]["xla_gpu_enable_triton_gemm"] is False


@pytest.mark.slow
def test_nothing_recorded_names_the_machine(folder: Path) -> None:
    import gzip

    texts = [(folder / "recording.json").read_text()]
    texts += [gzip.decompress(path.read_bytes()).decode() for path in folder.rglob("*.hlo.gz")]
    for text in texts:
        assert str(ROOT) not in text and "source_file" not in text and sys.prefix not in text


def test_program_that_fails_is_listed_with_its_reason(folder: Path) -> None:
    failed = index_of(folder)["failed"]
    assert set(failed) == {"attention_cudnn.f16"}
    assert "cuDNN" in failed["attention_cudnn.f16"]["error"]
    assert not (folder / "attention_cudnn.f16").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["optimized", "before"])
@pytest.mark.parametrize("name", CHOSEN)
def test_hloexec_gives_what_was_recorded(folder: Path, name: str, stage: str) -> None:
    (found,) = (recording for recording in load_recordings(folder) if recording.name == name)
    assert disagreements(found, stage) == []


def test_values_are_read_back_as_they_were(folder: Path) -> None:
    from conformance.gpu_programs import PROGRAMS

    stored = literals.load_arrays(folder / "matmul_bias_relu.bf16" / "inputs.npz")
    arguments = PROGRAMS["matmul_bias_relu.bf16"].arguments()
    for number, argument in enumerate(arguments):
        assert stored[str(number)].dtype == ml_dtypes.bfloat16
        assert stored[str(number)].tobytes() == argument.tobytes()


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, np.float16, np.complex64, *(
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu)])  # fmt: skip
def test_stored_values_are_literals(tmp_path: Path, dtype: Any) -> None:
    values = [np.array(3).astype(dtype), np.arange(6).reshape(2, 3).T.astype(np.float32).astype(dtype)]
    (tmp_path / "v.npz").write_bytes(gpu_recording.stored_values(values))
    stored = literals.load_arrays(tmp_path / "v.npz")
    for number, value in enumerate(values):
        found = stored[str(number)]
        assert (found.dtype, found.shape, found.tobytes()) == (value.dtype, value.shape, value.tobytes())


@pytest.mark.slow
def test_recording_again_gives_the_same_files_and_keeps_the_others(folder: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*.*z")}

    before = contents()
    assert record_gpu.main(["-o", str(folder), "--only", "threefry_bits.*"]) == 0
    assert contents() == before
    assert set(index_of(folder)["programs"]) == set(CHOSEN)


@pytest.mark.slow
def test_missing_programs_alone_are_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record_gpu.main(["-o", str(folder), "--missing", *(f"--only={name}" for name in CHOSEN)]) == 0
    assert not any(f" {name} " in capsys.readouterr().out for name in CHOSEN)


@pytest.mark.slow
def test_process_that_dies_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_gpu, "serve", dying_serve)
    patterns = ["--only=top_k.f32", "--only=gather_rows.f32", "--only=scatter_add.f32"]
    assert record_gpu.main(["-o", str(tmp_path), *patterns]) == 0
    index = index_of(tmp_path)
    assert set(index["programs"]) == {"top_k.f32", "scatter_add.f32"}
    assert "died (3)" in index["failed"]["gather_rows.f32"]["error"]


@pytest.mark.slow
def test_limit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_gpu, "serve", dying_serve)
    patterns = ["--only=top_k.f32", "--only=scatter_add.f32"]
    assert record_gpu.main(["-o", str(tmp_path), "--limit", "100", *patterns]) == 0
    index = index_of(tmp_path)
    assert set(index["programs"]) == {"top_k.f32"}
    assert "would exceed the limit of 100" in index["failed"]["scatter_add.f32"]["error"]
    assert sum(path.stat().st_size for path in (tmp_path / "top_k.f32").iterdir()) <= 100


@pytest.mark.slow
def test_nothing_recorded_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_gpu, "serve", dying_serve)
    assert record_gpu.main(["-o", str(tmp_path), "--only", "gather_rows.f32"]) == 1


@pytest.mark.slow
def test_recording_of_another_machine_is_not_mixed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_gpu, "serve", dying_serve)
    arguments = ["-o", str(tmp_path), "--only", "top_k.f32"]
    assert record_gpu.main(arguments) == 0
    index = index_of(tmp_path)
    index["machine"]["device_kind"] = "another"
    (tmp_path / "recording.json").write_text(json.dumps(index))
    assert record_gpu.main(arguments) == 2
    assert "another machine" in capsys.readouterr().err


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert record_gpu.main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/recording"):
        assert f"cannot write to {folder}" in _refused(capsys, "-o", folder, "--only", "lu.f32")


def test_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert "no recording.json" in _refused(capsys, "-o", tmp_path)


@pytest.mark.parametrize(("text", "message"), [("{", "no JSON"), ("{}", "not of format 1"), ("[]", "not of format 1")])
def test_damaged_index_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    (tmp_path / "recording.json").write_text(text)
    assert message in _refused(capsys, "-o", tmp_path)


def test_unknown_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = _refused(capsys, "-o", tmp_path / "new", "--only", "matmul.*", "--only", "matmull*")
    assert "no program is called matmull*;" in message
    assert not (tmp_path / "new").exists()


def test_output_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        record_gpu.main([])
    assert ended.value.code == 2
    assert "-o FOLDER is needed" in capsys.readouterr().err


def _run(folder: Path, missing: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where some packages are not installed."""
    blocked = "\n".join(f"sys.modules[{name!r}] = None" for name in missing.split())
    (folder / "sitecustomize.py").write_text(f"import sys\n{blocked}\n")
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "conformance.record_gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


def test_machine_without_jax_is_told_so(tmp_path: Path) -> None:
    done = _run(tmp_path, "jax", "-o", str(tmp_path / "new"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: recording needs JAX")


@pytest.mark.slow
def test_jax_and_its_own_requirements_are_enough(tmp_path: Path) -> None:
    done = _run(tmp_path, "attr attrs click rich pytest hypothesis flax", "-o", "new", "--only", "gather_rows.f32")
    assert done.returncode == 0, done.stderr
    assert load_recordings(tmp_path / "new")


@pytest.mark.slow
def test_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cuda"}
    command = [sys.executable, "-m", "conformance.record_gpu", "-o", str(tmp_path / "new"), "--only", "lu.f32"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 2
    assert done.stderr.startswith("error: JAX finds no device")


def test_programs_are_many_and_documented() -> None:
    from conformance.gpu_programs import PROGRAMS

    functions = {program.function for program in PROGRAMS.values()}
    assert len(functions) >= 36
    assert {program.type_name for program in PROGRAMS.values()} >= {"f32", "bf16", "f16", "f8e4m3fn"}
    for program in PROGRAMS.values():
        assert program.about.endswith("."), program.name
        assert program.rule in ("rounded", "bits", *RECONSTRUCTIONS)


def test_arguments_are_the_same_whenever_they_are_drawn() -> None:
    from conformance.gpu_programs import PROGRAMS

    for program in PROGRAMS.values():
        drawn = [[leaf.tobytes() for leaf in jax.tree.leaves(program.arguments())] for _ in range(2)]
        assert drawn[0] == drawn[1]
