"""XLA's own decompositions against what TPUs and XLA:CPU gave, and against what factors multiply to."""

import functools
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from conformance.cell import shape_of
from hloexec.core.dtypes import element_type_of
from hloexec.errors import HloError, UnsupportedError
from tests.library_calls.calls import by_jax
from tests.library_calls.linalg.matrices import DTYPES, adjoint, close, matrices


def call(target: str, *operands: Any, results: str, config: str | None = None) -> Any:
    """The results of one call, by way of the text."""
    parameters = "\n".join(f"  p{n} = {shape_of(operand)} parameter({n})" for n, operand in enumerate(operands))
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    suffix = "" if config is None else f', backend_config="{config}"'
    root = f'ROOT r = {results} custom-call({names}), custom_call_target="{target}"{suffix}'
    return hloexec.run(hloexec.parse(f"HloModule m\n\nENTRY e {{\n{parameters}\n  {root}\n}}\n"), *operands)


def real(array: Any) -> str:
    return {"c64": "f32", "c128": "f64"}.get(element_type_of(array.dtype).name, element_type_of(array.dtype).name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [0, 1])
def test_eigh_diagonalizes_the_matrix_of_the_triangle_it_reads(dtype, lower):
    a = matrices(dtype, 2, 12, 12)
    a[..., np.arange(12), np.arange(12)] = a[..., np.arange(12), np.arange(12)].real
    v, w = call("Eigh", a, results=f"({shape_of(a)}, {real(a)}[2,12])", config=f"{lower},1,15,0.000010")
    triangle = np.tril(a, -1) if lower else np.triu(a, 1)
    whole = triangle + adjoint(triangle) + a * np.eye(12, dtype=dtype)
    close(whole @ v, v * w[:, None])
    close(adjoint(v) @ v, np.broadcast_to(np.eye(12), v.shape))
    assert (np.diff(w) >= 0).all()


def test_eigh_of_bf16_is_rounded_once():
    a = np.array([[2, 1], [1, 2]]).astype(ml_dtypes.bfloat16)
    v, w = call("Eigh", a, results="(bf16[2,2], bf16[2])", config="1,1,15,0.000010")
    assert v.dtype == w.dtype == ml_dtypes.bfloat16
    assert w.tolist() == [1, 3]
    assert (np.abs(v.astype(np.float32)) == np.float32(ml_dtypes.bfloat16(0.5**0.5))).all()


@pytest.mark.parametrize("config", [None, "", "1,1", "2,1,15,0.1", "x,1,15,0.1"])
def test_eigh_without_its_config_is_refused(config):
    with pytest.raises(UnsupportedError, match="lower,sort_eigenvalues,max_iter,tol"):
        call("Eigh", np.eye(2, dtype=np.float32), results="(f32[2,2], f32[2])", config=config)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 12, 7), (9, 9), (3, 0)])
def test_qr_and_the_product_of_its_reflectors_multiply_back(dtype, shape):
    a = matrices(dtype, *shape)
    taus = f"{shape_of(a).split('[')[0]}[{','.join(map(str, (*shape[:-2], min(shape[-2:]))))}]"
    qr, tau = call("Qr", a, results=f"({shape_of(a)}, {taus})")
    q = call("ProductOfElementaryHouseholderReflectors", qr, tau, results=shape_of(a))
    if a.size:
        close(q @ np.triu(qr[..., : shape[-1], :]), a)
        close(adjoint(q) @ q, np.broadcast_to(np.eye(shape[-1]), (*shape[:-2], shape[-1], shape[-1])))


def test_qr_has_the_signs_that_a_tpu_gives_it():
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    qr, tau = call("Qr", a, results="(f32[3,3], f32[3])")
    q = call("ProductOfElementaryHouseholderReflectors", qr, tau, results="f32[3,3]")
    # By hand from a's columns, whose squares add up to 45 and 66: R's diagonal is negative, then positive. The third
    # column of Q and the last element of R are rounding errors' directions: a has rank 2.
    root, rest = 45**0.5, 1.2**0.5
    r = np.array([[-root, -54 / root, -63 / root], [0, rest, 2 * rest]])
    orthogonal = np.array([[0, 1 / rest], [-3 / root, (4 - 3 * 54 / 45) / rest], [-6 / root, (7 - 6 * 54 / 45) / rest]])
    # Householder's R and Q are those of a + E with |E| ≤ γ(m n) |a| (Higham, theorem 19.4), γ(9) ≈ 9 u times the small
    # constant 2 of a reflector; the condition of the first two columns is |a| / σ₂, with σ₂ = rest · root / |a|.
    size = np.linalg.norm(a)
    bound = 2 * 9 * 2.0**-24 * size / (rest * root / size)
    assert np.abs(q[:, :2] - orthogonal).max() <= bound
    assert np.abs(np.triu(qr)[:2] - r).max() <= bound * size


def test_lu_is_what_a_tpu_gave():
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    lu, pivots, permutation = call("LuDecomposition", a, results="(f32[3,3], s32[3], s32[3])")
    assert_array_equal(lu, [[6, 7, 8], [0, 1, 2], [0.5, 0.5, 0]])  # every step is exact in f32
    assert pivots.tolist() == [2, 2, 2]
    assert permutation.tolist() == [2, 0, 1]


@pytest.mark.slow_cases("shape0-float32", "shape0-complex128")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 12, 7), (7, 12)])
def test_lu_multiplies_back_and_pivots_as_lapack(dtype, shape):
    a = matrices(dtype, *shape)
    least, batch = min(shape[-2:]), ",".join(map(str, shape[:-2])) + "," * (len(shape) > 2)
    results = f"({shape_of(a)}, s32[{batch}{least}], s32[{batch}{shape[-2]}])"
    lu, pivots, permutation = call("LuDecomposition", a, results=results)
    lower = np.tril(lu[..., :least], -1) + np.eye(shape[-2], least, dtype=dtype)
    close(lower @ np.triu(lu[..., :least, :]), np.take_along_axis(a, permutation[..., None], -2))
    expected = by_jax(pytest.importorskip("jax").lax.linalg.lu, a)
    assert_array_equal(pivots, expected[1])
    assert_array_equal(permutation, expected[2])
    close(lu, expected[0])


@pytest.mark.parametrize("target", ["cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation"])
def test_pivots_become_the_permutation_that_jax_computes(target):
    linalg = pytest.importorskip("jax").lax.linalg
    pivots = np.sort(np.random.default_rng(0).integers(0, 8, (2, 3, 4)).astype(np.int32), -1) % 8
    pivots = np.maximum(pivots, np.arange(4, dtype=np.int32))
    expected = by_jax(functools.partial(linalg.lu_pivots_to_permutation, permutation_size=8), pivots)
    assert_array_equal(call(target, pivots, results="s32[2,3,8]"), expected)


def test_sizes_that_configs_of_pivots_repeat_must_be_those_of_the_shapes():
    pivots = np.array([[1, 1], [0, 1]], np.int32)
    target, results = "cu_lu_pivots_to_permutation", "s32[2,3]"
    expected = call(target, pivots, results=results)
    structure = struct.pack("qii", 2, 2, 3)
    for config in (structure, "{}", "{permutation_size = 3 : i32}"):
        assert_array_equal(pivots_call(pivots, config), expected)
    for config in (struct.pack("qii", 2, 3, 3), "{permutation_size = 4 : i32}"):
        with pytest.raises(HloError, match="_size = "):
            pivots_call(pivots, config)
    for config in (structure[1:], "{depth = 4 : i32}"):
        with pytest.raises(UnsupportedError, match=r"structure of 16 bytes|attribute depth"):
            pivots_call(pivots, config)


def pivots_call(pivots: Any, config: bytes | str) -> Any:
    written = config if isinstance(config, str) else '"' + "".join(f"\\{byte:03o}" for byte in config) + '"'
    text = f"""HloModule m

ENTRY e {{
  p = s32[2,2] parameter(0)
  ROOT r = s32[2,3] custom-call(p), custom_call_target="cu_lu_pivots_to_permutation", backend_config={written}
}}
"""
    return hloexec.run(hloexec.parse(text), pivots)


@pytest.mark.slow_cases("float32", "float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_singular_tridiagonal_systems_have_the_solution_that_xla_gives(dtype):
    """Both take the same steps; sums of products may be fused on one side, so a few ULPs of the largest element."""
    jax = pytest.importorskip("jax")
    from jax._src.lax import linalg

    n = 9
    dl, d, du = (matrices(dtype, 4, n, seed=seed) for seed in (1, 2, 3))
    # A row of zeros, an exactly singular pair of rows, a tiny pivot, and no need to perturb.
    d[0, 4] = dl[0, 4] = du[0, 4] = 0
    d[1, 0] = du[1, 0] = dl[1, 1] = d[1, 1] = 1
    d[2, 8], dl[2, 8], du[2, 7] = np.finfo(d.real.dtype).tiny, 0, 0
    b = matrices(dtype, 4, n, 2, seed=4)
    with jax.enable_x64(True):
        function = jax.jit(lambda *operands: linalg.tridiagonal_solve_p.bind(*operands, perturb_singular=True))
        lowered = function.lower(dl, d, du, b)
        expected = np.asarray(lowered.compile()(dl, d, du, b))
        found = hloexec.run(hloexec.from_jax(lowered), dl, d, du, b)
    scale = np.abs(expected).max((-1, -2), keepdims=True)
    assert np.isfinite(scale).all()
    # A pivot that elimination cancels to rounding errors makes x as large as 1/ε in a direction of its own making.
    assert (np.abs(found - expected) <= 1e4 * np.finfo(dtype).eps * scale).all()


@pytest.mark.parametrize(
    ("target", "operands", "results"),
    [
        ("Qr", [np.zeros(3, np.float32)], "(f32[3], f32[3])"),
        ("Eigh", [np.zeros((2, 3), np.float32)], "(f32[2,3], f32[2])"),
        ("LuDecomposition", [np.zeros(3, np.float32)], "(f32[3], s32[3], s32[3])"),
        ("ProductOfElementaryHouseholderReflectors", [np.zeros((3, 3), np.float32)], "f32[3,3]"),
        ("cu_lu_pivots_to_permutation", [np.zeros((), np.int32)], "s32[3]"),
    ],
)
def test_wrong_operands_are_errors_of_hloexec(target, operands, results):
    with pytest.raises(HloError):
        call(target, *operands, results=results, config="1,1,15,0.1" if target == "Eigh" else None)
