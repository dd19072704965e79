"""Products of small matrices and vectors: the bits of BLAS's general product, by a shorter way."""

import itertools

import numpy as np
import pytest

import hloexec
from hloexec.ops.contraction.fast import dot
from hloexec.ops.contraction.fast.dot import small_product
from hloexec.ops.resources import matmul

SIZES = [((3, 4), (4, 5)), ((4, 4), (4, 4)), ((6,), (6, 3)), ((5, 6), (6,)), ((7,), (7,)), ((31, 33), (33, 17))]


def general(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    matrices = lhs if lhs.ndim > 1 else lhs[None].reshape(1, -1), rhs if rhs.ndim > 1 else rhs.reshape(-1, 1)
    return matmul(*matrices).reshape(lhs.shape[:-1] + rhs.shape[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", SIZES)
def test_products_have_the_bits_of_the_general_product(sizes: tuple[tuple[int, ...], ...], dtype: type) -> None:
    quick = small_product(general, *sizes, np.dtype(dtype))
    assert quick is not None
    random = np.random.default_rng(1)
    lhs, rhs = (random.standard_normal(size).astype(dtype) for size in sizes)
    for one, other in itertools.product((lhs, np.asfortranarray(lhs)), (rhs, np.asfortranarray(rhs))):
        found = quick(one, other)
        assert isinstance(found, np.ndarray)
        assert found.tobytes() == general(one, other).tobytes()
        exact = lhs.astype(np.float64) @ rhs.astype(np.float64)
        terms = sizes[1][0]
        bound = terms * np.finfo(dtype).eps * (np.abs(lhs).astype(np.float64) @ np.abs(rhs).astype(np.float64))
        # Each of the products and of the sums is rounded once: γₙ Σ|aᵢbᵢ|, and the exact value in f64 likewise.
        assert np.all(np.abs(found - exact) <= 2 * bound)


def test_a_matrix_times_its_own_transpose_is_what_a_copy_gives() -> None:
    text = "HloModule m\nENTRY e {{\n  x = f32[16,24] parameter(0)\n{more}}}\n"
    shared = "  ROOT d = f32[16,16] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
    apart = shared.replace("dot(x, x)", "dot(x, y)")
    x = np.random.default_rng(2).standard_normal((16, 24)).astype(np.float32)
    one = hloexec.run(hloexec.parse(text.format(more=shared)), x)
    other = hloexec.run(hloexec.parse(text.format(more="  y = f32[16,24] parameter(1)\n" + apart)), x, x.copy())
    assert one.tobytes() == other.tobytes()


def test_a_kind_of_product_with_other_bits_goes_the_general_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot, "_agrees", lambda *_: False)
    assert small_product(general, (3, 4), (4, 5), np.dtype(np.float32)) is None


def test_large_products_and_single_elements_go_the_general_way() -> None:
    for lhs, rhs in (((64, 64), (64, 64)), ((1, 4), (4, 5)), ((3, 1), (1, 5)), ((1,), (1,))):
        assert small_product(general, lhs, rhs, np.dtype(np.float32)) is None
