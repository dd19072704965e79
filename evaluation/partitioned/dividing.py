"""Programs for the same mesh that divide layers, samples and transforms among devices as models do."""

from __future__ import annotations

from typing import Any

from evaluation.partitioned.program import Program


def _sequence(jax: Any, constrain: Any) -> Any:
    """A layer cut by its hidden units, between norms cut by positions: gathered before it, scattered after it."""
    jnp = jax.numpy

    def sequence(x: Any, gain: Any, up: Any, down: Any) -> Any:
        def normed(x: Any) -> Any:
            centred = x - x.mean(-1, keepdims=True)
            return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * gain

        whole = constrain(normed(x), "d", None, None)
        hidden = constrain(jax.nn.silu(whole @ up), "d", None, "m")
        return normed(x + constrain(hidden @ down, "d", "m", None))

    return sequence


def _carousel(jax: Any, constrain: Any) -> Any:
    """A product whose right factor goes around in blocks, one step after another."""
    jnp = jax.numpy

    def carousel(x: Any, w: Any) -> Any:
        rows, columns = x.shape[0] // 4, w.shape[0] // 4
        blocks = x.reshape(4, rows, 4, columns)
        total = jnp.zeros((4, rows, w.shape[1]))
        places = jnp.arange(4)
        for step in range(4):
            held = jax.nn.one_hot((places - step) % 4, 4)
            own = jnp.einsum("prcd,pc->prd", blocks, held)
            total = total + jnp.einsum("prd,pde->pre", own, w.reshape(4, columns, -1))
            w = constrain(jnp.roll(w, columns, 0), "m", None)
        return jnp.sin(total.reshape(x.shape[0], -1))

    return carousel


def _tiles(jax: Any, constrain: Any) -> Any:
    """A matrix that both axes cut, gathered along each, and products with both."""

    def tiles(w: Any, x: Any, y: Any) -> Any:
        rows = constrain(constrain(jax.numpy.tanh(w), None, "m"), None, None)
        left = constrain(x @ rows, "d", None)
        right = constrain(y, "m", None) @ rows.T
        return left, constrain(jax.nn.softplus(right), None, "m")

    return tiles


def _capacity(jax: Any, constrain: Any) -> Any:
    """Each sample goes to its two best experts, as long as these have room; back it comes weighted."""
    jnp = jax.numpy

    def capacity(x: Any, gate: Any, w: Any) -> Any:
        shares = jax.nn.softmax(jnp.einsum("gse,ek->gsk", x, gate), -1)
        first = jax.nn.one_hot(shares.argmax(-1), 4)
        second = jax.nn.one_hot((shares - first).argmax(-1), 4)
        chosen = first + second
        place = (jnp.cumsum(chosen, 1) - 1) * chosen
        fits = chosen * (place < 3)
        boxes = jax.nn.one_hot(place.astype(int), 3) * fits[..., None]
        sent = constrain(jnp.einsum("gskc,gse->gkce", boxes, x), "m", None, None, None)
        there = constrain(sent, None, "m", None, None)
        done = constrain(jnp.tanh(jnp.einsum("gkce,kef->gkcf", there, w)), None, "m", None, None)
        back = constrain(done, "m", None, None, None)
        return jnp.einsum("gskc,gkcf->gsf", boxes * shares[..., None], back)

    return capacity


def _spectrum(jax: Any, constrain: Any) -> Any:
    """A Fourier transform along two axes, real and imaginary parts apart, with a turn between; and power by rows."""
    jnp = jax.numpy

    def spectrum(x: Any, cosines: Any, sines: Any) -> Any:
        real, imaginary = constrain(x @ cosines, "m", None), constrain(x @ sines, "m", None)
        real, imaginary = constrain(real, None, "m"), constrain(imaginary, None, "m")
        one = cosines.T @ real - sines.T @ imaginary
        other = sines.T @ real + cosines.T @ imaginary
        power = constrain(one**2 + other**2, None, "m")
        return jnp.log1p(constrain(power, "m", None)), power.sum(0)

    return spectrum


def _wide(jax: Any, constrain: Any) -> Any:
    """A derivative of fourth order on a line, from two neighbours on either side, twice."""
    jnp = jax.numpy

    def wide(u: Any, speed: Any) -> Any:
        for _ in range(2):
            padded = jnp.pad(u, ((2, 2), (0, 0)))
            slope = (padded[:-4] - 8 * padded[1:-3] + 8 * padded[3:-1] - padded[4:]) / 12
            u = constrain(u - 0.5 * jnp.cos(u) * slope * speed, "m", "d")
        return u

    return wide


def _running(jax: Any, constrain: Any) -> Any:
    """Sums and maxima of all rows before, along rows on several devices."""

    def running(x: Any, w: Any) -> Any:
        made = constrain(jax.numpy.sin(x @ w), "m", None)
        sums = constrain(jax.numpy.cumsum(made, 0), "m", None)
        largest = constrain(jax.lax.cummax(made * 2, 0), "m", None)
        return constrain(sums / (1 + largest**2), "m", None), sums[-1]

    return running


def _synced(jax: Any, constrain: Any) -> Any:
    """Gradients of samples on all devices, with decay by a running square; the first layer lies in strips."""
    jnp = jax.numpy

    def synced(w: Any, b: Any, out: Any, square: Any, x: Any, y: Any) -> Any:
        def loss(w: Any, b: Any, out: Any) -> Any:
            hidden = jnp.tanh(x @ constrain(w, None, None) + b)
            return jnp.log(jnp.cosh(hidden @ out - y)).mean()

        of_w, of_b, of_out = jax.grad(loss, (0, 1, 2))(w, b, out)
        square = 0.9 * square + 0.1 * of_w**2
        return w - 0.1 * of_w / (jnp.sqrt(square) + 1e-2), b - 0.1 * of_b, out - 0.1 * of_out, square

    return synced


def _best(jax: Any, constrain: Any) -> Any:
    """The best of scores that lie on several devices, and what is mixed by them."""
    jnp = jax.numpy

    def best(x: Any, keys: Any, values: Any) -> Any:
        scores = constrain(x @ keys.T, "d", "m")
        found, _ = jax.lax.top_k(scores, 3)
        weights = jnp.where(scores >= found[:, -1:], jnp.exp(scores - found[:, :1]), 0)
        return (weights @ values) / weights.sum(-1, keepdims=True), found

    return best


def _orthogonal(jax: Any, constrain: Any) -> Any:
    """A matrix that both axes cut, brought near an orthogonal one in three steps."""
    jnp = jax.numpy

    def orthogonal(g: Any, w: Any) -> Any:
        x = g / jnp.sqrt((g * g).sum() + 1e-6)
        for _ in range(3):
            square = constrain(x @ x.T, "d", None)
            x = constrain(1.5 * x - 0.5 * (square @ x), "d", "m")
        return w - 0.2 * x

    return orthogonal


def _context(jax: Any, constrain: Any) -> Any:
    """Attention over positions on several devices, with fewer heads of keys than of queries."""
    jnp = jax.numpy

    def context(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        q = constrain(jnp.einsum("te,eghd->tghd", x, wq), "m", None, None, None)
        k, v = (constrain(jnp.einsum("te,egd->tgd", x, each), None, "d", None) for each in (wk, wv))
        scores = jnp.einsum("tghd,sgd->ghts", q, k) / 2
        later = jnp.arange(x.shape[0])[None] > jnp.arange(x.shape[0])[:, None]
        weights = jax.nn.softmax(jnp.where(later, -1e9, scores), -1)
        return constrain(jnp.einsum("ghts,sgd->tghd", weights, v), "m", None, None, None).reshape(x.shape[0], -1)

    return context


DIVIDING = {
    "sequence": Program(
        _sequence, ((2, 8, 6), (6,), (6, 16), (16, 6)), (("d", "m"), (), (None, "m"), ("m",)), ("d", "m")
    ),
    "carousel": Program(_carousel, ((8, 16), (16, 5)), (("m",), ("m",)), ("m",)),
    "tiles": Program(_tiles, ((8, 16), (6, 8), (8, 16)), (("d", "m"), ("d",), ("m",)), (("d",), (None, "m"))),
    "capacity": Program(_capacity, ((4, 6, 5), (5, 4), (4, 5, 6)), (("m",), (), ("m",)), ("m",)),
    "spectrum": Program(_spectrum, ((16, 16), (16, 16), (16, 16)), (("m",), (), ()), (("m",), ("m",))),
    "wide": Program(_wide, ((16, 6), ()), (("m", "d"), ()), ("m", "d")),
    "running": Program(_running, ((16, 5), (5, 6)), (("m",), ()), (("m",), ())),
    "synced": Program(
        _synced,
        ((8, 6), (6,), (6, 3), (8, 6), (16, 8), (16, 3)),
        (("m",), (), (), ("m",), (("d", "m"),), (("d", "m"),)),
        (("m",), (), (), ("m",)),
    ),
    "best": Program(_best, ((8, 6), (16, 6), (16, 5)), (("d",), ("m",), ("m",)), (("d",), ("d",))),
    "orthogonal": Program(_orthogonal, ((8, 16), (8, 16)), (("d", "m"), ("d", "m")), ("d", "m")),
    "context": Program(
        _context, ((8, 6), (6, 2, 2, 4), (6, 2, 4), (6, 2, 4)), (("m",), (None, "d"), (None, "d"), (None, "d")), ("m",)
    ),
}
"""Held back: written after `PASSING` had been looked at."""
