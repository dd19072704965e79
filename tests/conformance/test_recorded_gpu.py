"""What a GPU computed, as it was recorded, beside hloexec; and the rule of comparison, on modules whose errors are known.

The recorder itself is tested in `test_record_gpu.py`.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.gpu_recording import policy_of, stored_values
from conformance.reconstructions import RECONSTRUCTIONS, allowed
from conformance.recorded import Recording, RecordingError, disagreements, load_recordings

RECORDED = Path(__file__).resolve().parents[2] / "conformance" / "gpu"
NOTHING = pytest.param(
    None, marks=pytest.mark.skip(reason="conformance/gpu holds no recording: no GPU could be had yet")
)
RECORDINGS = [pytest.param(found, id=found.name) for found in load_recordings(RECORDED)] or [NOTHING]


@pytest.mark.parametrize("recording", RECORDINGS)
def test_optimized_module_gives_what_the_gpu_computed(recording: Recording) -> None:
    assert disagreements(recording) == []


@pytest.mark.parametrize("recording", RECORDINGS)
def test_module_before_optimization_gives_what_the_gpu_computed(recording: Recording) -> None:
    assert disagreements(recording, "before") == []


DOT = """HloModule dot
ENTRY e {
  x = f32[32,64] parameter(0)
  w = f32[64,24] parameter(1)
  ROOT y = f32[32,24] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def recording(
    folder: Path, text: str, inputs: list[Any], outputs: list[Any], policy: str = "reference", **fields: Any
) -> Recording:
    """A recording of one program made by hand."""
    for name in ("before.hlo.gz", "optimized.hlo.gz"):
        (folder / name).write_bytes(gzip.compress(text.encode()))
    (folder / "inputs.npz").write_bytes(stored_values(inputs))
    (folder / "outputs.npz").write_bytes(stored_values(outputs))
    return Recording("p", folder, **({"rule": "rounded", "policy": policy} | fields))


def _cut(values: Any, bits: int) -> Any:
    """f32 values whose significands keep `bits` bits; the others are cut off, as tensor cores do."""
    return (values.view(np.uint32) & np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)).view(np.float32)


def _operands() -> list[Any]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape).astype(np.float32) for shape in ((32, 64), (64, 24))]


def test_product_in_f32_in_any_order_agrees_under_reference(tmp_path: Path) -> None:
    x, w = _operands()
    blocks = sum(x[:, i : i + 8] @ w[i : i + 8] for i in range(0, 64, 8))
    assert disagreements(recording(tmp_path, DOT, [x, w], [blocks])) == []


@pytest.mark.parametrize("policy", ["tf32", "reference"])
def test_product_in_tf32_agrees_under_tf32_only(tmp_path: Path, policy: str) -> None:
    x, w = _operands()
    found = disagreements(recording(tmp_path, DOT, [x, w], [_cut(x, 10) @ _cut(w, 10)], policy))
    assert (found == []) == (policy == "tf32")


def test_product_of_fewer_bits_than_tf32_does_not_agree(tmp_path: Path) -> None:
    x, w = _operands()
    assert disagreements(recording(tmp_path, DOT, [x, w], [_cut(x, 5) @ _cut(w, 5)], "tf32"))


@pytest.mark.parametrize(("wrong", "policy"), [(0.125, "tf32"), (np.nan, ""), (np.inf, "")])
def test_one_wrong_element_is_found(tmp_path: Path, wrong: float, policy: str) -> None:
    x, w = _operands()
    result = x @ w
    result[3, 5] += wrong
    (fault,) = disagreements(recording(tmp_path, DOT, [x, w], [result], *policy.split()))
    assert "1 of 768 elements beyond tolerance, the worst at [3, 5]" in fault


def test_result_of_another_shape_or_type_does_not_agree(tmp_path: Path) -> None:
    x, w = _operands()
    for result in ((x @ w).T, (x @ w).astype(np.float16)):
        assert "recorded are" in disagreements(recording(tmp_path, DOT, [x, w], [result]))[0]


def test_bits_are_compared_as_bits(tmp_path: Path) -> None:
    text = "HloModule n\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] negate(x)\n}\n"
    x = np.array([0.0, 1.0, -2.0, np.nan], np.float32)
    assert disagreements(recording(tmp_path, text, [x], [-x], rule="bits")) == []
    unlike = -x
    unlike[0] = 0.0
    (fault,) = disagreements(recording(tmp_path, text, [x], [unlike], rule="bits"))
    assert "1 of 4" in fault


def test_integers_among_rounded_results_are_compared_as_bits(tmp_path: Path) -> None:
    text = """HloModule t
ENTRY e {
  x = f32[3] parameter(0)
  n = s32[3] convert(x)
  ROOT t = (f32[3], s32[3]) tuple(x, n)
}
"""
    x = np.array([1.5, 2.5, 1e6], np.float32)
    assert disagreements(recording(tmp_path, text, [x], [x, np.array([1, 2, 1000000], np.int32)])) == []
    (fault,) = disagreements(recording(tmp_path, text, [x], [x, np.array([1, 3, 1000000], np.int32)]))
    assert "leaf 1" in fault


def _definite() -> Any:
    root = np.random.default_rng(1).normal(size=(12, 12)) / 3
    return root @ root.T + np.eye(12)


def _factors(rule: str) -> tuple[list[Any], list[Any]]:
    """A problem and NumPy's solution of it in f64."""
    a, b = _definite(), np.random.default_rng(2).normal(size=(12, 3))
    match rule:
        case "cholesky":
            return [a], [np.linalg.cholesky(a)]
        case "qr":
            return [a], list(np.linalg.qr(a))
        case "eigh":
            return [a], list(np.linalg.eigh(a))
        case "svd":
            return [a], list(np.linalg.svd(a))
        case "lu":
            factor = np.linalg.cholesky(a)
            scaled = factor / np.diag(factor)
            return [scaled @ factor.T], [np.tril(scaled, -1) + factor.T, np.arange(12)]
        case "triangular_solve":
            return [a, b], [np.linalg.solve(np.tril(a), b)]
        case _:
            return [a, b], [np.linalg.solve(a, b)]


@pytest.mark.parametrize("rule", RECONSTRUCTIONS)
def test_decomposition_is_told_from_a_wrong_one(rule: str) -> None:
    inputs, outputs = _factors(rule)
    bound = allowed(inputs)
    if rule != "lu":
        rounded = [leaf.astype(np.float32).astype(np.float64) for leaf in outputs]
        assert max(RECONSTRUCTIONS[rule](inputs, rounded)) <= bound
    for index, leaf in enumerate(outputs):
        wrong = list(outputs)
        wrong[index] = np.roll(leaf, 1, axis=-1)
        assert max(RECONSTRUCTIONS[rule](inputs, wrong)) > bound


def test_signs_of_eigenvectors_are_free() -> None:
    (a,), (values, vectors) = _factors("eigh")
    vectors[:, 3] *= -1
    assert max(RECONSTRUCTIONS["eigh"]([a], [values, vectors])) <= allowed([a])


def _machine(**fields: Any) -> dict[str, Any]:
    return {"platform": "gpu", "compute_capability": "9.0", "nvidia_tf32_override": None} | fields


@pytest.mark.parametrize(
    ("machine", "precision", "policy"),
    [
        (_machine(), None, "tf32"),
        (_machine(), "tensorfloat32", "tf32"),
        (_machine(), "highest", "reference"),
        (_machine(compute_capability="8.6"), None, "tf32"),
        (_machine(compute_capability="12.0"), None, "tf32"),
        (_machine(compute_capability="7.5"), None, "reference"),
        (_machine(nvidia_tf32_override="0"), None, "reference"),
        (_machine(compute_capability="gfx942"), None, "reference"),
        (_machine(platform="cpu", compute_capability=None), None, "reference"),
    ],
)
def test_policy_is_that_of_the_device_and_the_precision(machine: dict[str, Any], precision: Any, policy: str) -> None:
    assert policy_of(machine, precision) == policy


def test_folder_without_index_holds_nothing(tmp_path: Path) -> None:
    assert load_recordings(tmp_path) == []
    assert load_recordings(tmp_path / "absent") == []


def _index(**programs: Any) -> str:
    return json.dumps({"format": 1, "machine": {}, "programs": programs, "failed": {}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no index"),
        ("[]", "no index"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1}', "no index"),
        (_index(p={"rule": "rounded"}), "no index"),
        (_index(p={"rule": "guess", "policy": "tf32"}), "unknown rule 'guess'"),
        (_index(p={"rule": "bits", "policy": "tf32"}), "lacks before.hlo.gz"),
    ],
)
def test_damaged_recording_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recording.json").write_text(text)
    with pytest.raises(RecordingError, match=message):
        load_recordings(tmp_path)


def test_recording_fits_into_the_repository() -> None:
    size = sum(os.path.getsize(path) for path in RECORDED.rglob("*") if path.is_file())
    assert size <= 15_000_000
