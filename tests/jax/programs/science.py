"""Linear algebra, random numbers, Fourier transforms, and what SciPy has: special functions, statistics, signals, images,
optimization and differential equations."""

from typing import Any

import numpy as np
import pytest

from tests.jax.programs.program import Call, call, normal, positive, program

jax: Any = pytest.importorskip("jax")
for (
    _part
) in "scipy.linalg scipy.special scipy.stats scipy.signal scipy.ndimage scipy.optimize experimental.ode".split():
    pytest.importorskip(f"jax.{_part}")
jnp, lax, random = jax.numpy, jax.lax, jax.random
linalg, scipy = jnp.linalg, jax.scipy


def _definite(seed: int, size: int) -> Any:
    """A positive definite matrix with a condition of some hundreds at most."""
    factor = normal(seed, size, size)
    return factor @ factor.T + np.eye(size, dtype=np.float32) / 2


@program
def gaussian_process(_: Any) -> Call:
    """Posterior mean, variance and evidence through a Cholesky factor, with the evidence's gradient."""

    def evidence(scale: Any, x: Any, y: Any) -> Any:
        kernel = jnp.exp(-(((x[:, None] - x) / scale) ** 2)) + 0.5 * jnp.eye(x.size)
        factor = linalg.cholesky(kernel)
        weights = scipy.linalg.cho_solve((factor, True), y)
        return -(y @ weights) / 2 - jnp.log(jnp.diagonal(factor)).sum(), weights

    return call(jax.value_and_grad(evidence, has_aux=True), 0.5, normal(1, 6), normal(2, 6))


@program
def least_squares_by_qr(_: Any) -> Call:
    def solve(a: Any, b: Any) -> Any:
        q, r = linalg.qr(a)
        return scipy.linalg.solve_triangular(r, q.T @ b), linalg.lstsq(a, b)[0], q @ r

    return call(solve, normal(1, 8, 3), normal(2, 8))


@program
def low_rank_by_svd(_: Any) -> Call:
    """Singular values, the best matrix of rank 2, the pseudo-inverse and the norms."""

    def approximate(a: Any) -> Any:
        u, s, v = linalg.svd(a, full_matrices=False)
        return s, (u[:, :2] * s[:2]) @ v[:2], linalg.pinv(a), linalg.norm(a, "nuc"), linalg.norm(a, 2)

    return call(approximate, np.diag(np.float32([3, 2, 1, 0.5])) + normal(1, 4, 4) / 4)


@program
def matrix_functions_by_eigh(_: Any) -> Call:
    def functions(a: Any) -> Any:
        values, vectors = linalg.eigh(a)
        return values, (vectors * jnp.sqrt(values)) @ vectors.T, jax.grad(lambda a: linalg.eigvalsh(a)[-1])(a)

    return call(functions, _definite(1, 5))


@program
def solve_invert_and_determinant(_: Any) -> Call:
    def all_of(a: Any, b: Any) -> Any:
        factors = scipy.linalg.lu_factor(a)
        return scipy.linalg.lu_solve(factors, b), linalg.solve(a, b), linalg.inv(a), linalg.slogdet(a), linalg.det(a)

    return call(jax.vmap(all_of), np.stack([_definite(1, 4), _definite(2, 4)]), normal(3, 2, 4, 2))


@program
def matrix_exponential(_: Any) -> Call:
    def both(a: Any, direction: Any) -> Any:
        return scipy.linalg.expm(a), jax.jvp(scipy.linalg.expm, (a,), (direction,))[1]

    return call(both, normal(1, 4, 4), normal(2, 4, 4))


@program
def primitives_of_lax_linalg(_: Any) -> Call:
    def all_of(a: Any, b: Any) -> Any:
        lower = lax.linalg.cholesky(a)
        d = jnp.diagonal(a)
        tridiagonal = lax.linalg.tridiagonal_solve(d / 16, d, d / 16, b)
        return lower, lax.linalg.triangular_solve(lower, b, left_side=True, lower=True, transpose_a=True), tridiagonal

    return call(all_of, _definite(1, 5), normal(2, 5, 2))


@program
def continuous_distributions(_: Any) -> Call:
    """Inversions of a uniform number, and those that reject until one fits."""

    def draw(key: Any) -> Any:
        keys = iter(random.split(key, 16))
        names = "normal uniform exponential laplace cauchy gumbel logistic rayleigh".split()
        drawn = {name: getattr(random, name)(next(keys), shape=(6,)) for name in names[:-1]}
        drawn["truncated"] = random.truncated_normal(next(keys), -1.0, 2.0, (6,))
        drawn["beta"] = random.beta(next(keys), 2.0, 3.0, (4,))
        drawn["gamma"] = random.gamma(next(keys), 2.5, (4,))
        drawn["dirichlet"] = random.dirichlet(next(keys), jnp.array([1.0, 2.0, 3.0]))
        drawn["t"] = random.t(next(keys), 4.0, (4,))
        mean, covariance = jnp.arange(3.0), jnp.eye(3) + 0.25
        drawn["multivariate"] = random.multivariate_normal(next(keys), mean, covariance, (2,))
        return drawn

    return call(draw, random.key(1))


@program
def discrete_distributions(_: Any) -> Call:
    def draw(key: Any) -> Any:
        keys = iter(random.split(key, 16))
        logits = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))
        return {
            "bits": random.bits(next(keys), (3,), np.uint16),
            "randint": random.randint(next(keys), (5,), -10, 10),
            "bernoulli": random.bernoulli(next(keys), 0.25, (8,)),
            "categorical": random.categorical(next(keys), logits, shape=(6,)),
            "choice": random.choice(next(keys), 10, (5,), replace=False),
            "permutation": random.permutation(next(keys), 9),
            "poisson": random.poisson(next(keys), 3.5, (5,)),
            "binomial": random.binomial(next(keys), 10, 0.25, (5,)),
            "geometric": random.geometric(next(keys), 0.25, (5,)),
            "rademacher": random.rademacher(next(keys), (5,)),
        }

    return call(draw, random.key(2))


@program
def keys_of_all_kinds(_: Any) -> Call:
    """Keys are arguments and results: split, folded, stacked, chosen by an index, of three generators."""

    def derive(key: Any, other: Any, index: Any) -> Any:
        many = random.split(key, (2, 3))
        folded = jax.vmap(random.fold_in, (None, 0))(key, jnp.arange(4))
        bits = random.bits(random.wrap_key_data(random.key_data(other), impl="rbg"), (3,))
        return many, folded[index], random.split(other), bits, random.key_data(random.clone(key))

    return call(derive, random.key(7), random.key(8, impl="rbg"), 2)


@program
def metropolis_sampler(_: Any) -> Call:
    """Eight chains for a density of two hills; what is accepted has to be the same."""

    def density(x: Any) -> Any:
        return jnp.logaddexp(-((x - 1) ** 2), -((x + 1) ** 2))

    def step(x: Any, key: Any) -> Any:
        move, accept = random.split(key)
        proposed = x + random.normal(move, x.shape)
        accepted = jnp.log(random.uniform(accept, x.shape)) < density(proposed) - density(x)
        return jnp.where(accepted, proposed, x), accepted

    return call(lambda key: lax.scan(step, jnp.zeros(8), random.split(key, 10)), random.key(3))


@program
def special_functions(_: Any) -> Call:
    special = scipy.special

    def all_of(x: Any) -> Any:
        one = [
            getattr(special, name)(x) for name in "gammaln digamma erf erfc erfinv i0e i1e expit logit ndtri".split()
        ]
        two = [getattr(special, name)(x + 1, x) for name in "betaln gammainc gammaincc zeta xlogy rel_entr".split()]
        return one, two, special.polygamma(1, x), special.betainc(x, x + 1, x), special.logsumexp(x), special.entr(x)

    return call(all_of, positive(1, 8) * np.float32(0.9))


@program
def densities_of_scipy_stats(_: Any) -> Call:
    stats = scipy.stats

    def all_of(x: Any) -> Any:
        names = "norm.logpdf norm.cdf expon.pdf gamma.logpdf beta.logpdf t.logpdf laplace.cdf cauchy.pdf logistic.sf".split()
        shapes = {"gamma": (2.0,), "beta": (2.0, 3.0), "t": (4.0,)}
        of = {
            n: getattr(getattr(stats, n.split(".")[0]), n.split(".")[1])(x, *shapes.get(n.split(".")[0], ()))
            for n in names
        }
        of["poisson"] = stats.poisson.logpmf(jnp.arange(8), 2.5)
        of["multivariate"] = stats.multivariate_normal.logpdf(x[:3], jnp.zeros(3), jnp.eye(3) + 0.25)
        return of, stats.gaussian_kde(x, 0.5)(jnp.array([0.25, 0.5])), stats.rankdata(x)

    return call(all_of, positive(1, 8) * np.float32(0.9))


@program
def signals(_: Any) -> Call:
    def all_of(x: Any, kernel: Any) -> Any:
        _, _, spectrum = scipy.signal.stft(x, nperseg=8)
        convolved = [scipy.signal.convolve(x, kernel, mode, method="direct") for mode in ("full", "same", "valid")]
        return convolved, jnp.abs(spectrum), scipy.signal.detrend(x), scipy.signal.correlate(x, kernel)

    return call(all_of, normal(1, 32), normal(2, 5))


@program
def images(_: Any) -> Call:
    def all_of(image: Any, positions: Any) -> Any:
        small = jax.image.resize(image, (4, 5), "bilinear", antialias=True)
        large = jax.image.resize(image, (11, 12), "cubic")
        return small, large, scipy.ndimage.map_coordinates(image, positions, order=1, mode="nearest")

    return call(all_of, normal(1, 7, 8), [positive(2, 5) * 5, positive(3, 5) * 6])


@program
def fourier_transforms(_: Any) -> Call:
    """A filter in the frequency domain, of real and complex numbers, and the gradient through it."""

    def filtered(x: Any, weights: Any) -> Any:
        return jnp.fft.irfft2(jnp.fft.rfft2(x) * weights, s=x.shape)

    def all_of(x: Any, weights: Any) -> Any:
        gradient = jax.grad(lambda x: (filtered(x, weights) ** 3).sum())(x)
        shifted = jnp.fft.fftshift(jnp.fft.fftn(x + 1j * x[::-1]))
        return filtered(x, weights), gradient, shifted, jnp.fft.ifft(shifted, axis=0), jnp.fft.fftfreq(6)

    return call(all_of, normal(1, 6, 8), positive(2, 6, 5))


@program
def minimized_by_bfgs(_: Any) -> Call:
    """A bowl, for which five steps lead next to its bottom whatever is rounded."""

    def minimum(start: Any, center: Any) -> Any:
        def bowl(x: Any) -> Any:
            return ((x - center) ** 2).sum() + 0.125 * ((x - center) ** 4).sum()

        result = scipy.optimize.minimize(bowl, start, method="BFGS", options={"maxiter": 3})
        return result.x, result.fun, result.nit

    return call(minimum, jnp.zeros(3), positive(1, 3))


@program
def ordinary_differential_equation(_: Any) -> Call:
    """Adaptive steps, and the gradient by the adjoint equation."""
    from jax.experimental.ode import odeint

    def end(start: Any, rate: Any) -> Any:
        def predators(state: Any, time: Any, rate: Any) -> Any:
            prey, hunters = state
            return jnp.stack([rate * prey - prey * hunters, prey * hunters - hunters])

        return odeint(predators, start, jnp.linspace(0.0, 1.0, 4), rate, rtol=1e-2, atol=1e-2)

    return call(jax.value_and_grad(lambda start, rate: end(start, rate)[-1].sum(), (0, 1)), positive(1, 2), 1.25)
