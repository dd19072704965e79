"""jax.scipy, jax.nn and jax.image."""

from typing import Any

import numpy as np
import pytest

from tests.jax_functions.cases import (
    CANCELLING,
    LONG,
    POSITIONS,
    complex_normal,
    indices,
    integers,
    normal,
    positive,
    row,
    uniform,
)

jax: Any = pytest.importorskip("jax")
for _part in "ndimage signal special stats integrate cluster.vq".split():
    pytest.importorskip(f"jax.scipy.{_part}")
jnp, lax, nn, image = jax.numpy, jax.lax, jax.nn, jax.image
special, stats, signal, ndimage = jax.scipy.special, jax.scipy.stats, jax.scipy.signal, jax.scipy.ndimage

_ACTIVATIONS = (
    "relu relu6 sigmoid softplus soft_sign silu log_sigmoid leaky_relu hard_sigmoid hard_silu hard_tanh elu celu selu gelu "
    "squareplus mish sparse_plus sparse_sigmoid tanh"
).split()

_SPECIAL = [
    *((name, normal(12)) for name in "erf erfc expit ndtr log_ndtr i0 i0e i1 i1e".split()),
    *((name, positive(12)) for name in "entr gammaln digamma loggamma gamma exp1 expi".split()),
    *((name, uniform(0.1, 0.9, 12)) for name in "logit ndtri erfinv spence".split()),
]
_NOT_DIFFERENTIABLE = set("exp1 spence i0 i1 gamma".split())


def _attention(q: Any, k: Any, v: Any) -> Any:
    return nn.dot_product_attention(q, k, v, is_causal=True)


def _batch_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-2) * scale + bias


def _resize(method: str) -> Any:
    return lambda x: image.resize(x, (7, 5, 2), method)


def _density(distribution: Any) -> Any:
    return lambda x: (distribution.logpdf(x), distribution.pdf(x), distribution.cdf(x))


CASES = [
    *(row(f"nn.{name}", getattr(nn, name), normal(20), gradient=True, roundings=LONG) for name in _ACTIVATIONS),
    *(
        row(f"special.{name}", getattr(special, name), argument, types=("f32",), gradient=name not in _NOT_DIFFERENTIABLE, roundings=CANCELLING)
        for name, argument in _SPECIAL
    ),
    row("nn.softmax", lambda x: (nn.softmax(x), nn.log_softmax(x, 0), nn.logsumexp(x, 1)), normal(4, 7), gradient=True),
    row("nn.softmax_where", lambda x: nn.softmax(x, where=np.arange(7) % 3 > 0), normal(4, 7), gradient=True),
    row("nn.standardize", nn.standardize, normal(4, 8), gradient=True, roundings=LONG),
    row("nn.glu", nn.glu, normal(4, 8), gradient=True),
    row("nn.one_hot", lambda i: nn.one_hot(i, 5), integers(-1, 6, 7)),
    row("nn.gelu_exact", lambda x: nn.gelu(x, approximate=False), normal(20), gradient=True),
    row("nn.dot_product_attention", _attention, normal(2, 5, 2, 4), normal(2, 5, 2, 4), normal(2, 5, 2, 4), gradient=True),
    row("nn.batch_norm", _batch_norm, normal(2, 4, 4, 3), positive(3), normal(3), gradient=True, roundings=LONG),
    # Special functions of several arguments, and integrals
    row("special.xlogy", lambda x, y: (special.xlogy(x, y), special.xlog1py(x, y), special.rel_entr(x, y), special.kl_div(x, y)), positive(9), positive(9), types=("f32",), gradient=True, roundings=LONG),
    row("special.betaln", special.betaln, positive(9), positive(9), types=("f32",), gradient=True, roundings=CANCELLING),
    row("special.betainc", special.betainc, positive(5), positive(5), uniform(0.1, 0.9, 5), types=("f32",), roundings=CANCELLING),
    row("special.gammainc", special.gammainc, positive(5), positive(5), types=("f32",), roundings=LONG),
    row("special.zeta", special.zeta, uniform(1.5, 4.0, 5), positive(5), types=("f32",)),
    row("special.multigammaln", lambda a: special.multigammaln(a, 3), uniform(2.0, 5.0, 5), types=("f32",), roundings=LONG),
    row("special.logsumexp", lambda a, b: special.logsumexp(a, 1, b), normal(4, 6), positive(6), gradient=True),
    row("special.hyp1f1", special.hyp1f1, positive(4), positive(4), positive(4), types=("f32",)),
    row("special.bernoulli", lambda: special.bernoulli(8), types=("f32",)),
    row("special.factorial", lambda n: (special.factorial(n), special.poch(n, 2.0)), positive(5), types=("f32",), roundings=CANCELLING),
    row("scipy.trapezoid", lambda y: jax.scipy.integrate.trapezoid(y, dx=0.25), normal(9), gradient=True),
    row("scipy.vq", jax.scipy.cluster.vq.vq, normal(9, 3), normal(4, 3), types=("f32",)),
    # Densities
    *(
        row(f"stats.{name}", _density(getattr(stats, name)), argument, types=("f32",), gradient=True, roundings=LONG)
        for name, argument in [
            ("norm", normal(9)),
            ("cauchy", normal(9)),
            ("expon", positive(9)),
            ("laplace", normal(9)),
            ("logistic", normal(9)),
            ("uniform", uniform(0.1, 0.9, 9)),
        ]
    ),
    row("stats.gamma", lambda x, a: stats.gamma.logpdf(x, a), positive(9), positive(9), types=("f32",), roundings=CANCELLING),
    row("stats.beta", lambda x, a, b: stats.beta.logpdf(x, a, b), uniform(0.1, 0.9, 9), positive(9), positive(9), types=("f32",), gradient=True, roundings=CANCELLING),
    row("stats.t", lambda x, d: stats.t.logpdf(x, d), normal(9), positive(9), types=("f32",), gradient=True, roundings=CANCELLING),
    row("stats.dirichlet", lambda x, a: stats.dirichlet.logpdf(x / x.sum(), a), positive(4), positive(4), types=("f32",), roundings=LONG),
    row("stats.poisson", lambda k, mu: (stats.poisson.logpmf(k, mu), stats.poisson.cdf(k, mu)), integers(0, 6, 9), positive(9), types=("f32",), roundings=CANCELLING),
    row("stats.binom", lambda k, p: stats.binom.logpmf(k, 8, p), integers(0, 8, 9), uniform(0.1, 0.9, 9), types=("f32",), roundings=CANCELLING),
    row("stats.rankdata", stats.rankdata, integers(0, 5, 12)),
    row("stats.mode", stats.mode, integers(0, 4, 12)),
    row("stats.sem", stats.sem, normal(9), gradient=True),
    # Signals and images
    row("signal.convolve", lambda x, y: signal.convolve(x, y, mode="same"), normal(9), normal(4), types=("f32",), gradient=True),
    row("signal.convolve2d", signal.convolve2d, normal(5, 6), normal(2, 3), gradient=True),
    row("signal.fftconvolve", signal.fftconvolve, normal(9), normal(4), types=("f32",), gradient=True, roundings=LONG),
    row("signal.stft", lambda x: signal.stft(x, nperseg=8)[2], normal(32), types=("f32",)),
    row("signal.istft", lambda z: signal.istft(z, nperseg=8)[1], complex_normal(5, 9), types=("f32",)),
    row("signal.welch", lambda x: signal.welch(x, nperseg=8)[1], normal(32), types=("f32",)),
    row("signal.detrend", lambda x: signal.detrend(x, type="constant"), normal(12), gradient=True),
    row("ndimage.map_coordinates", lambda x, c: ndimage.map_coordinates(x, [c[0], c[1]], 1, mode="nearest"), normal(5, 6), uniform(0.0, 4.0, 2, 7), types=("f32",), gradient=True),
    *(
        row(f"image.resize_{method}_{name}", _resize(method), normal(4, 6, 2), types=(name,), gradient=True, roundings=roundings)
        for method in "nearest linear cubic lanczos3".split()
        # Positions are worked out in f32 for bf16, too.
        for name, roundings in (("f32", POSITIONS), ("bf16", LONG))
    ),
    row("image.resize_down", lambda x: image.resize(x, (3, 2), "linear", antialias=True), normal(7, 6), gradient=True, roundings=LONG),
    row("image.scale_and_translate", lambda x, s, t: image.scale_and_translate(x, (6, 5), (0, 1), s, t, "linear"), normal(4, 4), positive(2), normal(2), types=("f32",)),
    # Pooling as networks do it
    row("nn.max_pool", lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), normal(2, 6, 6, 3), gradient=True),
    row("nn.average_pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") / 4, normal(2, 5, 5, 3), gradient=True),
    row("nn.embedding", lambda table, i: (table[i] * 2).sum(1), normal(11, 4), indices(11, 3, 5), gradient=True),
    row("nn.cross_entropy", lambda x, i: -jnp.take_along_axis(nn.log_softmax(x), i[:, None], 1).mean(), normal(6, 5), indices(5, 6), gradient=True, roundings=LONG),
    row("jax.ops.segment_sum", lambda x, i: (jax.ops.segment_sum(x, i, 4), jax.ops.segment_max(x, i, 4)), normal(9, 2), integers(0, 4, 9)),
]  # fmt: skip
