"""jax.numpy, with jax.numpy.fft; jax.numpy.linalg has a table of its own."""

from typing import Any

import numpy as np
import pytest

from tests.jax_functions.cases import (
    CANCELLING,
    LONG,
    booleans,
    complex_normal,
    indices,
    integers,
    normal,
    positive,
    row,
    uniform,
)

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy
fft = jnp.fft

_ELEMENTWISE = [
    *((name, normal(4, 5)) for name in "sinc deg2rad fabs exp2 cbrt i0 nan_to_num positive square degrees".split()),
    *((name, positive(4, 5)) for name in "log10 log2 reciprocal".split()),
]
_STEPS = [
    *((name, uniform(-9.5, 9.5, 40)) for name in "rint trunc signbit heaviside_0 frexp modf isfinite spacing".split()),
]


def _step(name: str) -> Any:
    return (lambda x: jnp.heaviside(x, x * 0)) if name == "heaviside_0" else getattr(jnp, name)


_BINARY_INTEGER = "floor_divide remainder fmod gcd lcm bitwise_and left_shift maximum".split()


CASES = [
    *(row(f"jnp.{name}", getattr(jnp, name), argument, gradient=name != "i0", roundings=CANCELLING if name == "sinc" else LONG) for name, argument in _ELEMENTWISE),
    *(row(f"jnp.{name}", _step(name), argument, exact=True) for name, argument in _STEPS if name != "spacing"),
    *(
        row(f"jnp.{name}_s32", getattr(jnp, name), integers(0, 99, 40), integers(1, 12, 40))
        for name in _BINARY_INTEGER
    ),
    row("jnp.floor_divide", lambda x, y: (x // y, x % y, jnp.fmod(x, y)), uniform(-9.0, 9.0, 40), uniform(0.5, 3.0, 40), types=("f32",), exact=True),
    row("jnp.logaddexp", jnp.logaddexp, normal(20), normal(20), gradient=True),
    row("jnp.hypot", jnp.hypot, normal(20), normal(20), gradient=True),
    row("jnp.power", jnp.power, positive(20), normal(20), gradient=True),
    row("jnp.float_power_s32", lambda x: x**3, integers(-9, 9, 9)),
    row("jnp.copysign", jnp.copysign, normal(20), normal(20), exact=True),
    row("jnp.ldexp", jnp.ldexp, normal(20), integers(-9, 9, 20), exact=True),
    row("jnp.angle", jnp.angle, complex_normal(20), types=("f32",)),
    row("jnp.where", jnp.where, booleans(4, 5), normal(4, 5), normal(5), gradient=True),
    row("jnp.select", lambda x: jnp.select([x > 1, x > 0], [x * 2, x * 3], x), normal(20), gradient=True),
    row("jnp.piecewise", lambda x: jnp.piecewise(x, [x < 0, x > 1], [lambda y: -y, lambda y: y * 2, 0.5]), normal(20)),
    row("jnp.clip", lambda x: jnp.clip(x, -0.5, 0.75), normal(20), gradient=True),
    # Reductions
    row("jnp.sum", lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdims=True)), normal(3, 4, 5), gradient=True),
    row("jnp.sum_where", lambda x, m: jnp.sum(x, axis=1, where=m, initial=2.0), normal(4, 5), booleans(4, 5), gradient=True),
    row("jnp.prod", lambda x: x.prod(1), uniform(0.5, 1.5, 4, 6), gradient=True),
    row("jnp.mean", lambda x: (x.mean(), x.mean(0)), normal(5, 6), gradient=True),
    row("jnp.var", lambda x: (x.var(0), x.std(1)), normal(5, 6), gradient=True),
    row("jnp.max", lambda x: (x.max(), x.min(1), jnp.ptp(x, 0)), normal(5, 6), gradient=True),
    row("jnp.nansum", lambda x: (jnp.nansum(x / x), jnp.nanmean(x), jnp.nanmax(x)), np.array([0, 1, 2, np.nan], np.float32)),
    row("jnp.median", lambda x: (jnp.median(x, 1), jnp.median(x)), normal(4, 6), gradient=True),
    row("jnp.quantile", lambda x: jnp.quantile(x, np.array([0.1, 0.5, 0.9], np.float32), axis=1), normal(4, 9), types=("f32",), gradient=True),
    row("jnp.percentile_nearest", lambda x: jnp.percentile(x, 30, method="nearest"), normal(9), types=("f32",), exact=True),
    row("jnp.average", lambda x, w: jnp.average(x, 1, w), normal(4, 6), positive(6), gradient=True),
    row("jnp.all", lambda x: (x.all(), x.any(0), jnp.count_nonzero(x, 1)), booleans(3, 4)),
    row("jnp.argmax", lambda x: (x.argmax(), x.argmin(1), jnp.nanargmax(x)), normal(4, 6)),
    row("jnp.cumsum", lambda x: (jnp.cumsum(x), jnp.cumsum(x, 0)), normal(4, 6), gradient=True),
    row("jnp.cumsum_s8", lambda x: jnp.cumsum(x, dtype=jnp.int8), integers(-128, 127, 40, dtype=np.int8)),
    row("jnp.cumprod", lambda x: jnp.cumprod(x, 1), uniform(0.5, 1.5, 4, 6)),
    row("jnp.nancumsum", jnp.nancumsum, np.array([1, np.nan, 2], np.float32)),
    row("jnp.diff", lambda x: jnp.diff(x, n=2), normal(3, 8), gradient=True),
    row("jnp.gradient", lambda x: jnp.gradient(x), normal(4, 5), gradient=True),
    row("jnp.trapezoid", lambda y: jnp.trapezoid(y, dx=0.5), normal(3, 8), gradient=True),
    row("jnp.cov", jnp.cov, normal(3, 9), gradient=True),
    row("jnp.corrcoef", jnp.corrcoef, normal(3, 9), gradient=True, roundings=LONG),
    row("jnp.convolve", jnp.convolve, normal(9), normal(4), gradient=True),
    row("jnp.correlate", lambda x, y: jnp.correlate(x, y, "same"), normal(9), normal(4), gradient=True),
    # Contractions of n terms
    row("jnp.dot", jnp.dot, normal(4, 9), normal(9), gradient=True),
    row("jnp.matmul", jnp.matmul, normal(2, 1, 3, 4), normal(3, 4, 5), gradient=True),
    row("jnp.einsum", lambda a, b, c: jnp.einsum("abc,cbd,de->ae", a, b, c), normal(2, 3, 4), normal(4, 3, 2), normal(2, 3), gradient=True),
    row("jnp.tensordot", lambda a, b: jnp.tensordot(a, b, 2), normal(2, 3, 4), normal(3, 4, 5), gradient=True),
    row("jnp.outer", lambda a, b: (jnp.outer(a, b), jnp.inner(a, b[:4]), jnp.vdot(a, b[:4])), normal(4), normal(5), gradient=True),
    row("jnp.kron", jnp.kron, normal(2, 3), normal(3, 2), gradient=True),
    row("jnp.cross", jnp.cross, normal(4, 3), normal(4, 3), gradient=True),
    row("jnp.trace", jnp.trace, normal(4, 5), gradient=True),
    # Shapes
    row("jnp.stack", lambda x, y: (jnp.stack([x, y], 1), jnp.hstack([x, y]), jnp.vstack([x, y]), jnp.dstack([x, y])), normal(3, 4), normal(3, 4), gradient=True),
    row("jnp.split", lambda x: jnp.array_split(x, 3, 1), normal(3, 7), gradient=True),
    row("jnp.repeat", lambda x: (jnp.repeat(x, 3, 1), jnp.tile(x, (2, 2))), normal(2, 3), gradient=True),
    row("jnp.repeat_counts", lambda x, n: jnp.repeat(x, n, axis=0, total_repeat_length=7), normal(3, 2), np.array([2, 0, 4], np.int32)),
    row("jnp.roll", lambda x: (jnp.roll(x, 3), jnp.roll(x, (1, -2), (0, 1))), normal(4, 5), gradient=True),
    row("jnp.flip", lambda x: (jnp.flip(x), jnp.fliplr(x), jnp.rot90(x)), normal(3, 4), gradient=True),
    row("jnp.moveaxis", lambda x: (jnp.moveaxis(x, 0, 2), jnp.swapaxes(x, 0, 1), x.T), normal(2, 3, 4), gradient=True),
    *(row(f"jnp.pad_{mode}", lambda x, mode=mode: jnp.pad(x, ((2, 1), (1, 3)), mode=mode), normal(4, 5), gradient=True) for mode in "constant edge reflect symmetric wrap linear_ramp mean maximum".split()),
    row("jnp.tril", lambda x: (jnp.tril(x, 1), jnp.triu(x, -1), jnp.diag(x), jnp.diagonal(x, 1)), normal(4, 5), gradient=True),
    row("jnp.diagflat", lambda x: (jnp.diagflat(x, 1), jnp.vander(x, 3)), normal(3), gradient=True),
    row("jnp.meshgrid", jnp.meshgrid, normal(3), normal(4), gradient=True),
    row("jnp.linspace", lambda a, b: (jnp.linspace(a, b, 7), jnp.geomspace(jnp.abs(a) + 1, jnp.abs(b) + 1, 4)), normal(3), normal(3)),
    row("jnp.arange", lambda: (jnp.arange(3, 20, 4), jnp.eye(3, 4, 1), jnp.tri(3), jnp.indices((2, 3)), jnp.hanning(8)), types=("f32",), roundings=LONG),
    row("jnp.broadcast_to", lambda x: jnp.broadcast_to(x, (2, 3, 4)), normal(3, 1), gradient=True),
    row("jnp.delete", lambda x: (jnp.delete(x, 2, 1), jnp.insert(x, 1, 7.0, axis=0), jnp.append(x, x)), normal(3, 4), gradient=True),
    # Indexing
    row("jnp.indexing", lambda x, i: (x[i], x[::-2, 1:7:3], x[..., None, 2], x[i, i[:, None]], x[:, -1]), normal(8, 9), indices(8, 4), gradient=True),
    row("jnp.boolean_where", lambda x: jnp.nonzero(x > 0, size=6, fill_value=-1), normal(3, 4)),
    row("jnp.take", lambda x, i: (jnp.take(x, i, 1), jnp.take(x, i, 0, mode="fill"), jnp.take(x, i, mode="wrap")), normal(5, 6), integers(-9, 9, 4), gradient=True),
    row("jnp.take_along_axis", lambda x, i: jnp.take_along_axis(x, i, 1), normal(4, 6), indices(6, 4, 3), gradient=True),
    row("jnp.put_along_axis", lambda x, i: jnp.put_along_axis(x, i, 7.0, 1, inplace=False), normal(4, 6), indices(6, 4, 2)),
    row("jnp.at_set", lambda x, i: (x.at[i].set(1.0), x.at[1:3, ::2].set(0.0), x.at[:, 2].min(0.0)), normal(8, 5), np.array([3, 1, 6], np.int32), gradient=True),
    row("jnp.at_add", lambda x, i, y: (x.at[i].add(y), x.at[i].mul(2.0), x.at[i, 1].max(y[:, 0])), normal(8, 5), indices(8, 4), normal(4, 5)),
    row("jnp.at_drop", lambda x, i: (x.at[i].set(0.0, mode="drop"), x.at[i].get(mode="fill", fill_value=5.0)), normal(8), integers(-20, 20, 6)),
    row("jnp.choose", lambda i, x, y: jnp.choose(i, [x, y], mode="wrap"), integers(-3, 3, 4, 5), normal(4, 5), normal(4, 5)),
    row("jnp.compress", lambda x: jnp.extract(x > 0, x, size=5), normal(12), exact=True),
    row("jnp.searchsorted", lambda x, v: (jnp.searchsorted(jnp.sort(x), v), jnp.digitize(v, jnp.sort(x))), normal(9), normal(5)),
    # Sorting and sets
    row("jnp.sort", lambda x: (jnp.sort(x, 0), jnp.sort(x)[:, ::-1], jnp.sort(x, axis=None)), normal(5, 6), gradient=True),
    row("jnp.argsort", lambda x: (jnp.argsort(x), jnp.argsort(x, axis=0, descending=True)), integers(0, 5, 6, 7)),
    row("jnp.lexsort", lambda x, y: jnp.lexsort((x, y)), integers(0, 3, 20), integers(0, 3, 20)),
    row("jnp.partition", lambda x: jnp.sort(jnp.partition(x, 3)[:3]), normal(9), exact=True),
    row("jnp.unique", lambda x: jnp.unique(x, size=6, return_counts=True, return_inverse=True), integers(0, 5, 20)),
    row("jnp.isin", jnp.isin, integers(0, 9, 20), integers(0, 9, 4)),
    row("jnp.bincount", lambda x: jnp.bincount(x, length=8), integers(0, 9, 30)),
    row("jnp.histogram", lambda x: jnp.histogram(x, 5, range=(-2, 2)), normal(40), types=("f32",)),
    row("jnp.interp", jnp.interp, uniform(-3.0, 3.0, 9), np.linspace(-2, 2, 5, dtype=np.float32), normal(5), types=("f32",)),
    row("jnp.packbits", lambda x: (jnp.packbits(x), jnp.unpackbits(jnp.packbits(x))), booleans(20)),
    row("jnp.polyval", lambda p, x: (jnp.polyval(p, x), jnp.polyder(p), jnp.polyint(p)), normal(5), normal(6), gradient=True),
    row("jnp.polymul", jnp.polymul, normal(4), normal(3), gradient=True),
    row("jnp.apply_along_axis", lambda x: jnp.apply_along_axis(lambda y: y / y.sum(), 1, x), positive(4, 5), gradient=True),
    row("jnp.vectorize", jnp.vectorize(lambda x, y: x @ y, signature="(n),(n)->()"), normal(3, 4), normal(4), gradient=True),
    row("jnp.allclose", lambda x, y: (jnp.allclose(x, x), jnp.isclose(x, y), jnp.array_equal(x, y)), normal(6), normal(6)),
    # Fourier transforms of n points: log2(n) stages of a few roundings, times the norm, which sums over n points
    row("fft.fft", fft.fft, complex_normal(3, 12), types=("f32",), gradient=True),
    row("fft.ifft", lambda z: fft.ifft(z, axis=0), complex_normal(15, 2), types=("f32",), gradient=True, roundings=LONG),
    row("fft.rfft", fft.rfft, normal(3, 16), types=("f32",), gradient=True),
    row("fft.irfft", lambda z: fft.irfft(z, 9), complex_normal(3, 5), types=("f32",)),
    row("fft.fft2", fft.fft2, complex_normal(4, 6), types=("f32",), gradient=True, roundings=LONG),
    row("fft.rfftn", fft.rfftn, normal(3, 4, 6), types=("f32",), gradient=True, roundings=LONG),
    row("fft.irfft2", lambda x: fft.irfft2(fft.rfft2(x)), normal(4, 6), types=("f32",), gradient=True, roundings=LONG),
    row("fft.hfft", fft.hfft, complex_normal(5), types=("f32",)),
    row("fft.fftshift", lambda x: (fft.fftshift(x), fft.ifftshift(x), fft.fftfreq(5)), normal(4, 5)),
]  # fmt: skip
