"""Numerical methods, geometry and formulas of the fresh half, in f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.explaining.operations.arithmetic import Arithmetic
from evaluation.explaining.operations.program import Program, registering
from evaluation.programs.program import normal, positive

METHODS: dict[str, Program] = {}
_program = registering(METHODS)
_f32 = np.float32


@_program(
    (normal(1, 10, 12) * 4, normal(2, 12, 12), normal(3, 12, 12)), "gain_transposed one_late sign", is_covered=True
)
def smoother(w: Arithmetic, filtered: Any, transition: Any, gain: Any) -> Any:
    """The backward pass of a Rauch–Tung–Striebel smoother with a steady gain, in a scan."""
    lax = w.jax.lax
    gain = gain if w.wrong("gain_transposed") else gain.T

    def step(later: Any, mean: Any) -> Any:
        off = later - w.dot(mean[None], transition)
        new = mean[None] - w.dot(off, gain) if w.wrong("sign") else mean[None] + w.dot(off, gain)
        return new, later if w.wrong("one_late") else new

    _, smoothed = lax.scan(step, filtered[-1:], filtered[:-1], reverse=True)
    return smoothed[:, 0]


@_program((positive(1, 40) * 8, normal(2, 12, 3) * 3), "knot_off coefficient")
def spline_curve(w: Arithmetic, places: Any, control: Any) -> Any:
    """Points and speeds of a uniform cubic B-spline."""
    jnp = w.jax.numpy
    whole = jnp.floor(places)
    t = (places - whole)[:, None]
    four = _f32(4.02 if w.wrong("coefficient") else 4)
    basis = jnp.concatenate(
        [(1 - t) ** 3, 3 * t**3 - 6 * t * t + four, -3 * t**3 + 3 * t * t + 3 * t + 1, t**3], 1
    ) * _f32(1 / 6)
    knots = whole.astype(jnp.int32)[:, None] + np.arange(4) + w.wrong("knot_off")
    rows = jnp.where(knots[..., None] == np.arange(12), basis[..., None], 0).sum(1)
    speeds = jnp.concatenate([-((1 - t) ** 2), 3 * t * t - 4 * t, -3 * t * t + 2 * t + 1, t * t], 1) * _f32(0.5)
    slopes = jnp.where(knots[..., None] == np.arange(12), speeds[..., None], 0).sum(1)
    return w.dot(rows, control), w.dot(slopes, control)


@_program((normal(1, 1, 8, 8, 3) * 4, normal(2, 1, 8, 8, 3) * 4, normal(3, 3, 3, 3, 10) * 2), "axes_swapped no_scale")
def correlation_flow(w: Arithmetic, first: Any, second: Any, kernel: Any) -> Any:
    """Features of two images, their correlations, and the expected place of each pixel."""
    layout = ("NHWC", "HWIO", "NHWC")
    u, v = (w.convolution(x, kernel, "SAME", layout)[0].reshape(64, 10) for x in (first, second))
    scores = w.product("nc,mc->nm", u, v) * _f32(1 if w.wrong("no_scale") else 0.1)
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8), indexing="ij"), -1).reshape(64, 2).astype(_f32)
    grid = grid[:, ::-1].copy() if w.wrong("axes_swapped") else grid
    return w.dot(w.softmax(scores), w.jax.numpy.asarray(grid))


@_program((normal(1, 14, 20) * 3,), "coefficient iteration_less")
def orthogonalised(w: Arithmetic, matrix: Any) -> Any:
    """Newton–Schulz iterations towards the nearest orthogonal matrix, in a loop."""
    first = _f32(3.45 if w.wrong("coefficient") else 3.4445)
    x = matrix * w.jax.lax.rsqrt((matrix * matrix).sum())

    def body(_: Any, x: Any) -> Any:
        a = w.product("nd,md->nm", x, x)
        b = _f32(-4.775) * a + _f32(2.0315) * w.dot(a, a)
        return first * x + w.dot(b, x)

    return w.jax.lax.fori_loop(0, 3 if w.wrong("iteration_less") else 4, body, x)


@_program(
    (normal(1, 6, 5) * 3, normal(2, 5, 6, 5) * 2, normal(3, 5, 6) * 2),
    "cores_reversed middle_transposed",
    is_covered=True,
)
def tensor_train(w: Arithmetic, first: Any, middle: Any, last: Any) -> Any:
    """A tensor of three dimensions from its train of cores, and its slices' norms."""
    core = middle.transpose(2, 1, 0) if w.wrong("middle_transposed") else middle
    start = first[::-1] if w.wrong("cores_reversed") else first
    whole = w.dot(w.dot(start, core.reshape(5, 30)).reshape(36, 5), last)
    return whole.reshape(6, 6, 6)


@_program((normal(1, 1, 10, 10, 4) * 4, normal(2, 1, 10, 10, 4) * 4, normal(3, 3, 3, 4, 12) * 2), "normaliser absolute")
def style_difference(w: Arithmetic, image: Any, style: Any, kernel: Any) -> Any:
    """The Gram matrices of the features of two images, and how they differ."""
    layout = ("NHWC", "HWIO", "NHWC")
    grams = []
    for x in (image, style):
        y = w.jax.numpy.maximum(w.convolution(x, kernel, "VALID", layout), 0)[0].reshape(64, 12)
        grams.append(w.product("nc,nd->cd", y, y) * _f32(1 / (63.5 if w.wrong("normaliser") else 64)))
    off = grams[0] - grams[1]
    return abs(off) if w.wrong("absolute") else off


@_program((normal(1, 36, 3) * 3, normal(2, 36, 3) * 3, normal(3, 3, 3) * 2), "fundamental_transposed no_square")
def epipolar_distances(w: Arithmetic, first: Any, second: Any, matrix: Any) -> Any:
    """Sampson's distances of pairs of points."""
    matrix = matrix.T if w.wrong("fundamental_transposed") else matrix
    lines, others = w.dot(first, matrix), w.product("nj,ij->ni", second, matrix)
    off = w.total(lines * second, -1)
    size = (lines[:, :2] ** 2).sum(-1) + (others[:, :2] ** 2).sum(-1)
    return w.divide(off if w.wrong("no_square") else off * off, size + _f32(1e-3))


@_program((normal(1, 24, 16) * 4, normal(2, 3, 16, 1) * 4), "factor reflection_less")
def reflections(w: Arithmetic, x: Any, axes: Any) -> Any:
    """Three Householder reflections, one after the other."""
    for number in range(3):
        v = axes[number]
        share = w.divide(_f32(1.99 if w.wrong("factor") else 2), (v * v).sum())
        new = x - w.dot(x, v) * (v[:, 0] * share)[None]
        x = x if w.wrong("reflection_less") and number == 1 else new
    return x


@_program((positive(1, 24, 8) * 4, normal(2, 8, 40) * 3, positive(3, 40) * 6, normal(4, 40, 5)), "amplitude sine")
def random_features(w: Arithmetic, x: Any, frequencies: Any, phases: Any, weights: Any) -> Any:
    """A kernel machine by random Fourier features."""
    jnp = w.jax.numpy
    angles = w.dot(x, frequencies) + phases
    waves = jnp.sin(angles) if w.wrong("sine") else jnp.cos(angles)
    return w.dot(waves * _f32(0.2245 if w.wrong("amplitude") else 0.2236068), weights)


@_program((normal(1, 16, 16) * 0.6, normal(2, 16, 7)), "field iteration_less", is_covered=True)
def mean_field(w: Arithmetic, couplings: Any, fields: Any) -> Any:
    """Magnetisations of spins in several fields by damped mean-field iterations, in a loop."""
    j = (couplings + couplings.T) * _f32(0.5)
    h = fields * _f32(1.005 if w.wrong("field") else 1)

    def body(_: Any, m: Any) -> Any:
        return _f32(0.5) * m + _f32(0.5) * w.function("tanh", w.dot(j, m) + h)

    return w.jax.lax.fori_loop(0, 5 if w.wrong("iteration_less") else 6, body, w.jax.numpy.zeros((16, 7)))


@_program((positive(1, 40, 20) * 9, positive(2, 40, 20) * 3), "exponent constant no_minus_one")
def black_body(w: Arithmetic, frequency: Any, temperature: Any) -> Any:
    """Planck's law, elementwise."""
    ratio = w.divide(frequency * _f32(1.002 if w.wrong("constant") else 1), temperature)
    below = w.function("exp" if w.wrong("no_minus_one") else "expm1", ratio)
    return w.divide(frequency * frequency * (1 if w.wrong("exponent") else frequency), below)


@_program((positive(1, 40, 20) * 5, positive(2, 40, 20) * 4, positive(3, 40, 20)), "hill_coefficient basal")
def hill_kinetics(w: Arithmetic, dose: Any, coefficient: Any, half: Any) -> Any:
    """Responses to doses, elementwise."""
    power = w.function("pow", dose, coefficient * _f32(1.002 if w.wrong("hill_coefficient") else 1))
    response = w.divide(power, power + w.function("pow", half, coefficient))
    return response + _f32(0.003) * half if w.wrong("basal") else response


@_program((positive(1, 36, 24) * 2, positive(2, 36, 24) * 2, positive(3, 36, 24)), "drift sign_of_second discount")
def option_prices(w: Arithmetic, spot: Any, strike: Any, volatility: Any) -> Any:
    """Prices of options with a logistic for the normal distribution, elementwise."""
    root = volatility * w.function("sqrt", strike)
    half = _f32(0.51 if w.wrong("drift") else 0.5)
    d1 = w.divide(w.function("log", w.divide(spot, strike)) + half * root * root, root)
    d2 = d1 + root if w.wrong("sign_of_second") else d1 - root
    rate = _f32(-0.0305 if w.wrong("discount") else -0.03)
    discounted = strike * w.function("exp", rate * strike)
    return spot * w.logistic(_f32(1.702) * d1) - discounted * w.logistic(_f32(1.702) * d2)


@_program((normal(1, 30, 24) * 5, normal(2, 30, 24) * 5, positive(3, 30, 24)), "width tail_one_sided", is_tiny=True)
def likelihood_ratios(w: Arithmetic, x: Any, y: Any, width: Any) -> Any:
    """Densities far out in two tails, scaled up again: some are denormal in between."""
    factor = _f32(1.003 if w.wrong("width") else 1)
    far = _f32(-41) - x * x * width * factor
    both = w.function("exp", far) * w.function("exp", _f32(-46) - (abs(y) if w.wrong("tail_one_sided") else y * y))
    return both * _f32(1e38)


@_program((positive(1, 32, 12), positive(2, 9, 12)), "step_less rate", is_tiny=True)
def survival(w: Arithmetic, start: Any, rates: Any) -> Any:
    """Products of many small chances in a scan; some become denormal."""
    scale = _f32(1.0005e-5 if w.wrong("rate") else 1e-5)

    def step(chance: Any, rate: Any) -> Any:
        return chance * (rate * scale), None

    rates = rates[1:] if w.wrong("step_less") else rates
    chance, _ = w.jax.lax.scan(step, start, rates[:7])
    return chance * _f32(1e36)


@_program((normal(1, 40, 18) * 5, normal(2, 40, 18) * 5, normal(3, 40, 18) * 5), "softening component")
def tidal_forces(w: Arithmetic, x: Any, y: Any, z: Any) -> Any:
    """Components of a force, softened, elementwise."""
    softening = _f32(0.0102 if w.wrong("softening") else 0.01)
    squared = x * x + y * y + z * z + softening
    inverse = w.jax.lax.rsqrt(squared)
    strength = w.divide(inverse, squared)
    return x * strength, (x if w.wrong("component") else y) * strength, w.function("tanh", z * strength)
