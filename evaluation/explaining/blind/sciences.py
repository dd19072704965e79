"""Physics, chemistry, statistics and other formulas of the blind half, in f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.explaining.operations.arithmetic import Arithmetic
from evaluation.explaining.operations.program import Program, registering
from evaluation.programs.program import normal, positive

SCIENCES: dict[str, Program] = {}
_program = registering(SCIENCES)
_f32 = np.float32


def _laplacian(size: int, strength: float) -> Any:
    """The inverse of an implicit step of diffusion along a line."""
    step = np.eye(size) * (1 + 2 * strength) - strength * (np.eye(size, k=1) + np.eye(size, k=-1))
    return np.linalg.inv(step).astype(_f32)


@_program(
    (positive(1, 40, 12), positive(2, 40, 1) * 4, normal(3, 12, 18) * 2, positive(4, 18) * 3, normal(5, 18, 12) * 2),
    "gas_constant exponent products_swapped",
    is_covered=True,
)
def reaction_rates(w: Arithmetic, amounts: Any, heat: Any, orders: Any, barriers: Any, yields: Any) -> Any:
    """Arrhenius's rates of eighteen reactions, and how fast they change twelve substances."""
    gas = _f32(1.003 if w.wrong("gas_constant") else 1)
    powers = w.dot(w.function("log", amounts), orders)
    if not w.wrong("exponent"):
        powers = powers + _f32(0.5) * w.function("log", heat)
    rates = w.function("exp", powers - w.divide(barriers * gas, heat))
    return w.dot(rates, yields[:, ::-1] if w.wrong("products_swapped") else yields)


@_program((normal(1, 60, 14) * 3, normal(2, 36, 14) * 3, normal(3, 36, 9)), "length_scale no_power cross_term")
def kernel_regression(w: Arithmetic, x: Any, points: Any, weights: Any) -> Any:
    """A rational quadratic kernel of squared distances, and what it predicts."""
    cross = w.product("nd,md->nm", x, points)
    squares = w.total(x * x, 1)[:, None] + w.total(points * points, 1)[None]
    distances = w.jax.numpy.maximum(squares - _f32(1.99 if w.wrong("cross_term") else 2) * cross, 0)
    base = _f32(1) + distances * _f32(0.101 if w.wrong("length_scale") else 0.1)
    return w.dot(base if w.wrong("no_power") else w.function("pow", base, _f32(-1.5)), weights)


@_program(
    (normal(1, 20, 30) * 4, normal(2, 12, 20), normal(3, 12, 30) * 4, normal(4, 12, 12) * 0.4),
    "ensemble_count innovation_sign mean_kept",
)
def ensemble_update(w: Arithmetic, states: Any, observe: Any, measured: Any, solver: Any) -> Any:
    """An ensemble of states corrected by measurements, with the inverse by three terms of its series."""
    count = 30 if w.wrong("ensemble_count") else 29
    mean = w.total(states, 1)[:, None] * _f32(1 / 30)
    off = states if w.wrong("mean_kept") else states - mean
    seen = w.dot(observe, off)
    covariance = w.product("im,jm->ij", seen, seen) * _f32(0.05 / count)
    inverse = np.eye(12, dtype=_f32) - covariance + w.dot(covariance, covariance) + w.dot(solver, solver)
    innovation = measured - w.dot(observe, states)
    innovation = -innovation if w.wrong("innovation_sign") else innovation
    gain = w.dot(w.product("im,jm->ij", off, seen) * _f32(1 / count), inverse)
    return states + w.dot(gain, innovation)


@_program((normal(1, 48, 6) * 3, normal(2, 6, 6) * 1.4, normal(3, 6, 6) * 1.4), "kick drift_less matrices_swapped")
def beam_line(w: Arithmetic, particles: Any, focus: Any, drift: Any) -> Any:
    """Particles through five cells of an accelerator: a matrix, a nonlinear kick, and another matrix."""
    strength = _f32(0.102 if w.wrong("kick") else 0.1)
    if w.wrong("matrices_swapped"):
        focus, drift = drift, focus

    def body(_: Any, x: Any) -> Any:
        x = w.dot(x, focus)
        bend = strength * (x[:, :1] * x[:, :1] - x[:, 2:3] * x[:, 2:3])
        x = w.jax.numpy.concatenate([x[:, :1], x[:, 1:2] - bend, x[:, 2:]], 1)
        x = x if w.wrong("drift_less") else w.dot(x, drift)
        return w.function("tanh", x)

    return w.jax.lax.fori_loop(0, 5, body, particles)


@_program(
    (normal(1, 28, 36) * 4, _laplacian(28, 0.7), _laplacian(36, 0.4), normal(4, 28, 36)),
    "source step_less one_direction",
)
def alternating_directions(w: Arithmetic, field: Any, across: Any, along: Any, source: Any) -> Any:
    """Diffusion in a plane by implicit steps along one axis and then the other, in a loop."""
    share = _f32(0.102 if w.wrong("source") else 0.1)

    def body(_: Any, u: Any) -> Any:
        u = w.dot(across, u + share * source)
        return u if w.wrong("one_direction") else w.dot(u, along)

    return w.jax.lax.fori_loop(0, 3 if w.wrong("step_less") else 4, body, field)


@_program(
    (normal(1, 32, 10) * 4, normal(2, 10, 24), normal(3, 24, 16) * 3),
    "temperature reserve_price second_price",
    is_covered=True,
)
def soft_auction(w: Arithmetic, bidders: Any, taste: Any, items: Any) -> Any:
    """Sixteen items to 32 bidders by softened maxima of their bids, and what each pays."""
    jnp = w.jax.numpy
    bids = w.function("log1p", w.function("exp", w.dot(w.dot(bidders, taste), items)))
    sharp = _f32(2.02 if w.wrong("temperature") else 2)
    shares = w.softmax(bids * sharp, 0)
    top = bids.max(0, keepdims=True)
    others = jnp.where(bids == top, _f32(0), bids)
    price = bids if w.wrong("second_price") else others.max(0, keepdims=True)
    price = jnp.maximum(price, _f32(2.05 if w.wrong("reserve_price") else 2))
    return shares, shares * price


@_program(
    (positive(1, 300, 3), normal(2, 3, 3) * 0.3 + np.eye(3, dtype=_f32), positive(3, 3)), "white_shifted exponent slope"
)
def colour_appearance(w: Arithmetic, colours: Any, matrix: Any, white: Any) -> Any:
    """Lightness, two opponent colours and the chroma of 300 colours."""
    jnp = w.jax.numpy
    if w.wrong("white_shifted"):
        white = white * _f32(1.01)
    ratio = w.divide(abs(w.dot(colours, matrix)) + _f32(1e-4), white)
    root = w.function("pow", ratio, _f32(0.34 if w.wrong("exponent") else 1 / 3))
    line = ratio * _f32(7.9 if w.wrong("slope") else 7.787) + _f32(16 / 116)
    f = jnp.where(ratio > _f32(0.2 if w.wrong("slope") else 0.008856), root, line)
    a, b = _f32(500) * (f[:, 0] - f[:, 1]), _f32(200) * (f[:, 1] - f[:, 2])
    return _f32(116) * f[:, 1] - _f32(16), a, b, w.function("sqrt", a * a + b * b)


@_program(
    (positive(1, 26) * 9, positive(2, 26) * 0.3, positive(3, 26, 12), positive(4, 60) * 9),
    "width no_square continuum",
    is_covered=True,
)
def absorption_spectrum(w: Arithmetic, centres: Any, widths: Any, strengths: Any, places: Any) -> Any:
    """Lorentz's profiles of 26 lines, and the light that twelve mixtures let through."""
    off = places[:, None] - centres[None]
    width = widths * _f32(1.01 if w.wrong("width") else 1)
    below = (abs(off) if w.wrong("no_square") else off * off) + width * width
    depths = w.dot(w.divide(width * _f32(0.3183099), below), strengths) * _f32(0.2)
    return w.function("exp", -depths - _f32(0.002 * w.wrong("continuum")))


@_program(
    (normal(1, 8, 300, 1) * 6, normal(2, 24, 1, 20) * 2, normal(3, 20, 13) * 3), "floor taps_reversed no_logarithm"
)
def filter_bank(w: Arithmetic, signals: Any, taps: Any, cosines: Any) -> Any:
    """The energies of a signal in twenty bands over time, and their cepstra."""
    taps = taps[::-1] if w.wrong("taps_reversed") else taps
    bands = w.convolution(signals, taps, "VALID", ("NWC", "WIO", "NWC"))[:, :272].reshape(8, 17, 16, 20)
    energies = w.total(bands * bands, 2) * _f32(1 / 16) + _f32(0.02 if w.wrong("floor") else 0.01)
    return w.product("btf,fc->btc", energies if w.wrong("no_logarithm") else w.function("log", energies), cosines)


@_program(
    (positive(1, 5, 40, 4), positive(2, 4) * 2, np.linalg.qr(normal(3, 4, 4))[0].astype(_f32), positive(4, 5)),
    "branch_twice rate leaf_left_out",
)
def pruned_tree(w: Arithmetic, leaves: Any, rates: Any, vectors: Any, lengths: Any) -> Any:
    """How likely the letters of 40 places are on a tree of five leaves, one joined after the other."""
    total, scale = None, _f32(1.01 if w.wrong("rate") else 1)
    for number in range(4 if w.wrong("leaf_left_out") else 5):
        length = lengths[number] * _f32(2 if w.wrong("branch_twice") and number == 1 else 1)
        decays = w.function("exp", -rates * (length * scale))
        change = w.product("ik,jk->ij", vectors * decays, vectors)
        found = abs(w.dot(leaves[number], change)) + _f32(0.2)
        total = found if total is None else found * (abs(w.dot(total, change)) + _f32(0.2))
    return w.function("log", total)


@_program(
    (positive(1, 3, 16, 30), positive(2, 16, 16) * 0.12, positive(3, 16)),
    "recovery mixing_transposed population",
    is_covered=True,
)
def epidemic(w: Arithmetic, start: Any, contacts: Any, sizes: Any) -> Any:
    """Susceptible, infected and recovered people of sixteen groups that meet, over days in a scan."""
    contacts = contacts + _f32(0.2) * contacts.T if w.wrong("mixing_transposed") else contacts
    recovery = _f32(0.152 if w.wrong("recovery") else 0.15)
    groups = sizes[:, None] * _f32(1.01 if w.wrong("population") else 1) + _f32(1)

    def day(state: Any, _: Any) -> Any:
        s, i, r = state
        new = s * (_f32(1) - w.function("exp", -w.dot(contacts, w.divide(i, groups))))
        healed = recovery * i
        return (s - new, i + new - healed, r + healed), new

    (s, i, _), days = w.jax.lax.scan(day, (start[0], start[1], start[2]), None, length=6)
    return s, i, days


@_program((positive(1, 44, 24) * 5, positive(2, 44, 24) * 3, positive(3, 44, 24)), "shape residual connectivity")
def soil_water(w: Arithmetic, suction: Any, shape: Any, saturated: Any) -> Any:
    """Van Genuchten's water content and conductivity of soils, elementwise."""
    n = _f32(1.2) + shape * _f32(1.004 if w.wrong("shape") else 1)
    m = _f32(1) - w.divide(_f32(1), n)
    filled = w.function("pow", _f32(1) + w.function("pow", suction, n), -m)
    part = _f32(1) - w.function("pow", _f32(1) - w.function("pow", filled, w.divide(_f32(1), m)), m)
    root = filled if w.wrong("connectivity") else w.function("sqrt", filled)
    return filled * saturated + _f32(0.003 * w.wrong("residual")), root * part * part


@_program((positive(1, 40, 25) * 8, positive(2, 40, 25) * 2, positive(3, 40, 25)), "bioavailability rates_swapped lag")
def drug_levels(w: Arithmetic, hours: Any, absorbed: Any, removed: Any) -> Any:
    """The level of a drug that is absorbed and removed, and its total until then, elementwise."""
    absorbed = absorbed + _f32(1.5)
    if w.wrong("rates_swapped"):
        absorbed, removed = removed, absorbed
    hours = hours + _f32(0.004 * w.wrong("lag"))
    late, early = w.function("expm1", -removed * hours), w.function("expm1", -absorbed * hours)
    part = _f32(0.803 if w.wrong("bioavailability") else 0.8)
    level = w.divide(part * absorbed * (late - early), absorbed - removed)
    return level, w.function("log1p", -late)


@_program((positive(1, 30, 20) * 3, positive(2, 30, 20), normal(3, 30, 20)), "layer_less depth", is_tiny=True)
def fading_light(w: Arithmetic, start: Any, depths: Any, noise: Any) -> Any:
    """Light through layers that let little pass, in a loop, measured where it is denormal."""
    rate = _f32(-14.01 if w.wrong("depth") else -14)

    def layer(_: Any, light: Any) -> Any:
        return light * w.function("exp", rate - depths)

    light = w.jax.lax.fori_loop(0, 5 if w.wrong("layer_less") else 6, layer, start)
    return light * _f32(1e38) * (_f32(1) + _f32(0.1) * noise)


@_program((normal(1, 32, 24) * 5, positive(2, 32, 24) * 4), "width rate", is_tiny=True)
def rare_coincidences(w: Arithmetic, off: Any, spread: Any) -> Any:
    """How often two rare events coincide, scaled up: products of two small numbers, elementwise."""
    first = w.function("exp", _f32(-38) - off * off * _f32(1.002 if w.wrong("width") else 1))
    second = (spread + _f32(0.01 * w.wrong("rate"))) * _f32(1e-21)
    return first * second * _f32(3e38)
