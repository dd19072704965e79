"""XLA's own decompositions against what TPUs and XLA:CPU gave, and against what factors multiply to."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.custom_calls.registry import CUSTOM_CALLS
from hloexec.dtypes import element_type_of
from hloexec.errors import HloError, UnsupportedError

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def matrices(dtype: Any, *shape: int, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.normal(size=shape)
    return values.astype(dtype)


def adjoint(a: Any) -> Any:
    return np.swapaxes(a, -1, -2).conj()


def text(array: Any) -> str:
    return f"{element_type_of(array.dtype).name}[{','.join(map(str, array.shape))}]"


def call(target: str, *operands: Any, results: str, config: str | None = None) -> Any:
    """The results of one call, by way of the text."""
    parameters = "\n".join(f"  p{n} = {text(operand)} parameter({n})" for n, operand in enumerate(operands))
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    suffix = "" if config is None else f', backend_config="{config}"'
    root = f'ROOT r = {results} custom-call({names}), custom_call_target="{target}"{suffix}'
    return hloexec.run(hloexec.parse(f"HloModule m\n\nENTRY e {{\n{parameters}\n  {root}\n}}\n"), *operands)


def close(actual: Any, expected: Any, *, size: int = 12, unit: float | None = None) -> None:
    """Within 20 n² u of the larger side: backward stable algorithms' errors are a small multiple of n·u·|a|."""
    unit = unit or np.finfo(np.asarray(actual).dtype).eps / 2
    assert np.abs(actual - expected).max() <= 20 * size**2 * unit * max(np.abs(expected).max(), 1)


def real(array: Any) -> str:
    return {"c64": "f32", "c128": "f64"}.get(element_type_of(array.dtype).name, element_type_of(array.dtype).name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [0, 1])
def test_eigh_diagonalizes_the_matrix_of_the_triangle_it_reads(dtype, lower):
    a = matrices(dtype, 2, 12, 12)
    a[..., np.arange(12), np.arange(12)] = a[..., np.arange(12), np.arange(12)].real
    v, w = call("Eigh", a, results=f"({text(a)}, {real(a)}[2,12])", config=f"{lower},1,15,0.000010")
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
    taus = f"{text(a).split('[')[0]}[{','.join(map(str, (*shape[:-2], min(shape[-2:]))))}]"
    qr, tau = call("Qr", a, results=f"({text(a)}, {taus})")
    q = call("ProductOfElementaryHouseholderReflectors", qr, tau, results=text(a))
    if a.size:
        close(q @ np.triu(qr[..., : shape[-1], :]), a)
        close(adjoint(q) @ q, np.broadcast_to(np.eye(shape[-1]), (*shape[:-2], shape[-1], shape[-1])))


def test_qr_has_the_signs_that_a_tpu_gives_it():
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    qr, tau = call("Qr", a, results="(f32[3,3], f32[3])")
    q = call("ProductOfElementaryHouseholderReflectors", qr, tau, results="f32[3,3]")
    # The third column of Q and the last element of R are rounding errors' directions: a has rank 2.
    np.testing.assert_allclose(
        q[:, :2], [[0, 5**0.5 * 0.4082483], [-(0.2**0.5), 0.3651484], [-(0.8**0.5), -0.1825742]], atol=1e-6
    )
    np.testing.assert_allclose(
        np.triu(qr)[:2], [[-(45**0.5), -8.0498447, -9.3914855], [0, 1.2**0.5, 2.1908902]], rtol=1e-6
    )


def test_lu_is_what_a_tpu_gave():
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    lu, pivots, permutation = call("LuDecomposition", a, results="(f32[3,3], s32[3], s32[3])")
    np.testing.assert_array_equal(lu, [[6, 7, 8], [0, 1, 2], [0.5, 0.5, 0]])  # every step is exact in f32
    assert pivots.tolist() == [2, 2, 2]
    assert permutation.tolist() == [2, 0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 12, 7), (7, 12)])
def test_lu_multiplies_back_and_pivots_as_lapack(dtype, shape):
    a = matrices(dtype, *shape)
    least, batch = min(shape[-2:]), ",".join(map(str, shape[:-2])) + "," * (len(shape) > 2)
    results = f"({text(a)}, s32[{batch}{least}], s32[{batch}{shape[-2]}])"
    lu, pivots, permutation = call("LuDecomposition", a, results=results)
    lower = np.tril(lu[..., :least], -1) + np.eye(shape[-2], least, dtype=dtype)
    close(lower @ np.triu(lu[..., :least, :]), np.take_along_axis(a, permutation[..., None], -2))
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        expected = jax.lax.linalg.lu(a)
    np.testing.assert_array_equal(pivots, expected[1])
    np.testing.assert_array_equal(permutation, expected[2])
    close(lu, np.asarray(expected[0]))


@pytest.mark.parametrize("target", ["cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation"])
def test_pivots_become_the_permutation_that_jax_computes(target):
    jax = pytest.importorskip("jax")
    pivots = np.sort(np.random.default_rng(0).integers(0, 8, (2, 3, 4)).astype(np.int32), -1) % 8
    pivots = np.maximum(pivots, np.arange(4, dtype=np.int32))
    expected = jax.lax.linalg.lu_pivots_to_permutation(pivots, 8)
    np.testing.assert_array_equal(call(target, pivots, results="s32[2,3,8]"), expected)


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


def test_threefry_gives_the_bits_of_every_spelling():
    jax = pytest.importorskip("jax")
    from jax.extend.random import threefry2x32_p

    generator = np.random.default_rng(0)
    words = [generator.integers(0, 2**32, 300, np.uint32) for _ in range(4)]
    expected = jax.jit(threefry2x32_p.bind)(*words)
    for target in CUSTOM_CALLS:
        if "threefry" in target:
            found = call(target, *words, results="(u32[300], u32[300])", config="\\\\054\\\\001\\\\000")
            for mine, its in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize(
    ("target", "operands", "results"),
    [
        ("Qr", [np.zeros(3, np.float32)], "(f32[3], f32[3])"),
        ("Eigh", [np.zeros((2, 3), np.float32)], "(f32[2,3], f32[2])"),
        ("LuDecomposition", [np.zeros(3, np.float32)], "(f32[3], s32[3], s32[3])"),
        ("ProductOfElementaryHouseholderReflectors", [np.zeros((3, 3), np.float32)], "f32[3,3]"),
        ("cu_lu_pivots_to_permutation", [np.zeros((), np.int32)], "s32[3]"),
        ("cu_threefry2x32", [np.zeros(3, np.uint32)] * 3, "(u32[3], u32[3])"),
    ],
)
def test_wrong_operands_are_errors_of_hloexec(target, operands, results):
    with pytest.raises(HloError):
        call(target, *operands, results=results, config="1,1,15,0.1" if target == "Eigh" else None)
