"""Programs that choose by values which rounding moves: tokens, routes, clusters, levels, medians, beams, bins, exits.

Each is a function of arrays and of a factor, 1 unless something is wrong; what it gives are gradients and choices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import numpy as np

_ROWS, _WIDTH = 24, 16


@attrs.frozen(eq=False)
class Chosen:
    """A program."""

    function: Callable[..., Any]
    """Of a factor and the arguments, which are f32."""
    arguments: tuple[Any, ...]


_Maker: TypeAlias = Callable[[Any, np.random.Generator, Any], Chosen]
CHOICES: dict[str, dict[str, _Maker]] = {"choices": {}, "reserve": {}}


def _of(half: str) -> Callable[[_Maker], _Maker]:
    def keep(make: _Maker) -> _Maker:
        CHOICES[half][make.__name__.strip("_")] = make
        return make

    return keep


def _normal(draw: np.random.Generator, *sizes: int, scale: float = 1.0) -> Any:
    return (scale * draw.standard_normal(sizes) / np.sqrt(sizes[0])).astype(np.float32)


def _examples(draw: np.random.Generator) -> Any:
    return draw.standard_normal((_ROWS, _WIDTH)).astype(np.float32)


@_of("choices")
def _gumbel(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Tokens that are drawn by the largest logit with noise, and fed back."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, noise: Any, factor: float) -> Any:
        p, state, total = jax.tree.map(lambda a: a.astype(dtype), p), x.astype(dtype), 0.0
        for n in range(3):
            token = jnp.argmax(state @ p["words"] + noise[n].astype(dtype), -1)
            state = jnp.tanh(state @ p["next"] * factor + p["table"][token])
            total = total + (state.astype(jnp.float32) ** 2).mean()
        return total

    p = {"words": _normal(draw, _WIDTH, 20, scale=4), "next": _normal(draw, _WIDTH, _WIDTH)}
    p["table"] = draw.standard_normal((20, _WIDTH)).astype(np.float32)
    noise = draw.gumbel(size=(3, _ROWS, 20)).astype(np.float32)
    return Chosen(lambda factor, *arguments: jax.value_and_grad(loss)(*arguments, factor), (p, _examples(draw), noise))


@_of("choices")
def _capacity(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Two of six experts for each row, which take five rows at most."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, factor: float) -> Any:
        p, x = jax.tree.map(lambda a: a.astype(dtype), p), x.astype(dtype)
        weights, chosen = jax.lax.top_k(x @ p["gate"], 2)
        slots = jax.nn.one_hot(chosen, 6, dtype=jnp.int32).reshape(-1, 6)
        place = (jnp.cumsum(slots, 0) * slots).sum(-1).reshape(chosen.shape)
        kept = jnp.where(place <= 5, jax.nn.softmax(weights), 0)
        mixed = (jnp.einsum("nd,nkde->nke", x, p["experts"][chosen]) * kept[..., None]).sum(1)
        return ((mixed * factor + x) @ p["out"]).astype(jnp.float32).var()

    p = {"gate": _normal(draw, _WIDTH, 6), "out": _normal(draw, _WIDTH, 8)}
    p["experts"] = draw.standard_normal((6, _WIDTH, _WIDTH)).astype(np.float32) / 4
    return Chosen(lambda factor, *arguments: jax.value_and_grad(loss)(*arguments, factor), (p, _examples(draw)))


@_of("choices")
def _clusters(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Four steps of k-means."""
    jnp = jax.numpy

    def steps(x: Any, centres: Any, factor: float) -> Any:
        x, centres = x.astype(dtype), centres.astype(dtype)
        for _ in range(4):
            nearest = jnp.argmin(((x[:, None] - centres) ** 2).sum(-1), -1)
            members = jax.nn.one_hot(nearest, len(centres), dtype=dtype)
            centres = members.T @ x * factor / jnp.maximum(members.sum(0), 1)[:, None]
        return nearest, centres

    x = draw.standard_normal((200, 4)).astype(np.float32)
    return Chosen(lambda factor, *arguments: steps(*arguments, factor), (x, x[:6]))


@_of("choices")
def _levels(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Two layers whose activations are rounded to levels, with gradients that go straight through."""
    jnp = jax.numpy

    def quantized(x: Any) -> Any:
        return x + jax.lax.stop_gradient(jnp.round(x * 4) / 4 - x)

    def loss(p: Any, x: Any, factor: float) -> Any:
        p, x = jax.tree.map(lambda a: a.astype(dtype), p), x.astype(dtype)
        hidden = quantized(jnp.tanh(x @ p["first"]))
        return (quantized(hidden @ p["second"] * factor) ** 2).astype(jnp.float32).mean()

    p = {"first": _normal(draw, _WIDTH, 32), "second": _normal(draw, 32, 8)}
    return Chosen(lambda factor, *arguments: jax.value_and_grad(loss)(*arguments, factor), (p, _examples(draw)))


@_of("choices")
def _median(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """A loss about the median and a quantile of what a layer gives."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, factor: float) -> Any:
        found = (jnp.tanh(x.astype(dtype) @ p["first"].astype(dtype)) @ p["second"].astype(dtype)).astype(jnp.float32)
        middle, high = jnp.median(found, 0), jnp.quantile(found, 0.9, axis=0)
        return (jnp.abs(found - middle).mean(0) * factor + high).sum()

    p = {"first": _normal(draw, _WIDTH, 32), "second": _normal(draw, 32, 8)}
    return Chosen(lambda factor, *arguments: jax.value_and_grad(loss)(*arguments, factor), (p, _examples(draw)))


@_of("reserve")
def _beams(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Four steps of a search that keeps the three best beams."""
    jnp = jax.numpy

    def score(p: Any, x: Any, factor: float) -> Any:
        p = jax.tree.map(lambda a: a.astype(dtype), p)
        state = jnp.repeat(x.astype(dtype)[:, None], 3, 1)
        scores = jnp.asarray([0.0, -1e4, -1e4], jnp.float32) * jnp.ones((len(x), 1), jnp.float32)
        for _ in range(4):
            steps = jax.nn.log_softmax((state @ p["words"]).astype(jnp.float32))
            scores, flat = jax.lax.top_k((scores[..., None] + steps).reshape(len(x), -1), 3)
            state = jnp.take_along_axis(state, (flat // 20)[..., None], 1)
            state = jnp.tanh(state @ p["next"] * factor + p["table"][flat % 20])
        return scores[:, 0].sum(), (flat, scores)

    p = {"words": _normal(draw, _WIDTH, 20, scale=4), "next": _normal(draw, _WIDTH, _WIDTH)}
    p["table"] = draw.standard_normal((20, _WIDTH)).astype(np.float32)
    return Chosen(
        lambda factor, *arguments: jax.value_and_grad(score, has_aux=True)(*arguments, factor), (p, _examples(draw))
    )


@_of("reserve")
def _bins(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """A loss whose weights are how many others are in the same bin."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, factor: float) -> Any:
        found = (jnp.tanh(x.astype(dtype) @ p["first"].astype(dtype)) @ p["second"].astype(dtype)).astype(jnp.float32)
        bins = jnp.clip(jnp.floor((found + 2) * 4), 0, 15).astype(jnp.int32)
        counts = jnp.zeros(16, jnp.float32).at[bins].add(1)
        return (found**2 * factor / counts[bins]).sum(), counts

    p = {"first": _normal(draw, _WIDTH, 32), "second": _normal(draw, 32, 8)}
    return Chosen(
        lambda factor, *arguments: jax.value_and_grad(loss, has_aux=True)(*arguments, factor), (p, _examples(draw))
    )


@_of("reserve")
def _exits(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Iterations towards a fixed point, until a step is small."""
    jnp = jax.numpy

    def solved(w: Any, x: Any, factor: float) -> Any:
        w, x = w.astype(dtype), x.astype(dtype)

        def step(carry: Any) -> Any:
            state, _, count = carry
            new = jnp.tanh(state @ w * 0.5 * factor + x)
            return new, jnp.abs(new - state).astype(jnp.float32).sum(), count + 1

        def goes_on(carry: Any) -> Any:
            return (carry[1] > 2.0) & (carry[2] < 30)

        return jax.lax.while_loop(goes_on, step, (jnp.zeros_like(x), jnp.float32(np.inf), 0))

    return Chosen(lambda factor, *arguments: solved(*arguments, factor), (_normal(draw, 16, 16), _examples(draw)))


@_of("reserve")
def _resilient(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Two steps of Rprop: rates grow where signs of gradients agree, and weights move by these signs."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, factor: float) -> Any:
        p, x = jax.tree.map(lambda a: a.astype(dtype), p), x.astype(dtype)
        return ((jax.nn.gelu(x @ p["first"]) @ p["second"] * factor) ** 2).astype(jnp.float32).mean()

    def steps(p: Any, x: Any, factor: float) -> Any:
        rates = jax.tree.map(lambda a: jnp.full_like(a, 0.01), p)
        before = jax.grad(loss)(p, x, factor)
        for _ in range(2):
            p = jax.tree.map(lambda a, g, r: a - r * jnp.sign(g), p, before, rates)
            after = jax.grad(loss)(p, x, factor)
            rates = jax.tree.map(lambda r, g, h: r * jnp.where(g * h > 0, 1.2, 0.5), rates, before, after)
            before = after
        return p, rates, before

    p = {"first": _normal(draw, _WIDTH, 32), "second": _normal(draw, 32, 8)}
    return Chosen(lambda factor, *arguments: steps(*arguments, factor), (p, _examples(draw)))


@_of("reserve")
def _kinks(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """A deep network of ReLUs whose gradient is clipped where it is large."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, factor: float) -> Any:
        x = x.astype(dtype)
        for n in range(4):
            x = jax.nn.relu(x @ p[n].astype(dtype))
        return (x * factor).astype(jnp.float32).max(-1).mean()

    def step(p: Any, x: Any, factor: float) -> Any:
        gradients = jax.grad(loss)(p, x, factor)
        return jax.tree.map(lambda a, g: a - 0.1 * jnp.where(jnp.abs(g) > 0.05, jnp.sign(g) * 0.05, g), p, gradients)

    p = [_normal(draw, _WIDTH, _WIDTH, scale=1.4) for _ in range(4)]
    return Chosen(lambda factor, *arguments: step(*arguments, factor), (p, _examples(draw)))


@_of("reserve")
def _gates(jax: Any, draw: np.random.Generator, dtype: Any) -> Chosen:
    """Rows that go on only if a gate is open, and attend to one another."""
    jnp = jax.numpy

    def loss(p: Any, x: Any, factor: float) -> Any:
        p, x = jax.tree.map(lambda a: a.astype(dtype), p), x.astype(dtype)
        for n in range(3):
            is_open = jax.nn.sigmoid(x @ p["gate"][:, n]) > 0.5
            scores = jnp.where(is_open, x @ x.T / 4, -1e4)
            x = jnp.tanh(x + jax.nn.softmax(scores) @ x @ p["mix"] * factor)
        return (x.astype(jnp.float32) ** 2).mean()

    p = {"gate": _normal(draw, _WIDTH, 3), "mix": _normal(draw, _WIDTH, _WIDTH)}
    return Chosen(lambda factor, *arguments: jax.value_and_grad(loss)(*arguments, factor), (p, _examples(draw)))
