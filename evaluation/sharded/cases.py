"""Which steps are compared on eight devices, and which faults are planted in them."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs
from jax.sharding import PartitionSpec as P

Tree: TypeAlias = Any


@attrs.frozen
class Step:
    """A function of a file of programs, over a mesh with the axes `d` and `m`, or `d` alone."""

    file: str
    name: str
    mesh: tuple[int, ...]
    shapes: tuple[Tree, ...]
    """Of its arguments."""
    ins: tuple[Tree, ...]
    outs: Tree
    group: str = "seen"
    is_checked: bool = False
    """Whether shard_map checks what varies over which axes, and adds sums of gradients."""


@attrs.frozen
class Fault:
    """Text of a step in the place of which there is another."""

    step: str
    what: str
    old: str
    new: str
    lines: tuple[str, ...] = ()
    """Texts that stand in further lines that may be named: those that compute what a lost collective would take."""
    has_reference: bool = False
    """Whether it is compared with the step without the fault, as it cannot be traced on one device."""

    def __str__(self) -> str:
        return f"{self.step}: {self.what}"


_W = {"in": (8, 12), "out": (12, 4)}
_TP = {"up": (8, 16), "bias": (16,), "down": (16, 8), "gain": (8,)}
_TPS = {"up": P(None, "m"), "bias": P("m"), "down": P("m"), "gain": P()}
_MOE = {"router": (6, 16), "up": (16, 6, 8), "down": (16, 8, 6)}
_MOES = {"router": P(), "up": P("d"), "down": P("d")}
_TRAINED = {"up": (8, 16), "down": (16, 8), "bias": (8,)}
_TRAINEDS = {"up": P(None, "m"), "down": P("m"), "bias": P()}
_QKV = {"q": (6, 6), "k": (6, 6), "v": (6, 6)}
_SQ = {"up": (6, 16), "down": (16, 6), "gain": (6,)}
_SQS = {"up": P(None, "m"), "down": P("m"), "gain": P()}
_COLUMNS = P(None, "m")
_SEEN, _HELD, _LATER = "programs", "reserve", "later"

STEPS = {
    step.name: step
    for step in (
        Step(_SEEN, "data", (8,), (_W, (16, 8), (16, 4)), (P(), P("d"), P("d")), (P(), P())),
        Step(_SEEN, "tensor", (2, 4), (_TP, (8, 8)), (_TPS, P("d")), P("d")),
        Step(_SEEN, "trained_tensor", (2, 4), (_TRAINED, (16, 8), (16, 8)), (_TRAINEDS, P("d"), P("d")), P()),
        Step(_SEEN, "pipeline", (8,), ((8, 6, 6), (3, 4, 6)), (P("d"), P()), P()),
        Step(_SEEN, "expert", (8,), (_MOE, (16, 6)), (_MOES, P("d")), P("d")),
        Step(_SEEN, "stencil", (8,), ((32, 4), (3, 4)), (P("d"), P()), P("d")),
        Step(_SEEN, "attention", (8,), (_QKV, (16, 6)), (P(), P("d")), P("d")),
        Step(_SEEN, "norm", (2, 4), ((16, 6), (6,)), (P(("d", "m")), P()), P(("d", "m"))),
        Step(_SEEN, "fully", (8,), ((8, 6), (16, 8), (16, 6)), (P("d"), P("d"), P("d")), (P("d"), P())),
        Step(
            _SEEN,
            "clipped",
            (2, 4),
            ((8, 12), (6, 8), (6, 12)),
            (P(None, "m"), P("d"), P("d", "m")),
            P(None, "m"),
        ),
        Step(
            _HELD,
            "zero",
            (8,),
            ((16, 6), (16, 6), (24, 16), (24, 6)),
            (P(), P("d"), P("d"), P("d")),
            (P(), P("d"), P()),
            "reserve",
        ),
        Step(_HELD, "ring", (8,), ((16, 6), (16, 6), (16, 6)), (P("d"), P("d"), P("d")), P("d"), "reserve"),
        Step(_HELD, "halo", (2, 4), ((8, 16), (3, 3)), (P("d", "m"), P()), P("d", "m"), "reserve"),
        Step(_HELD, "vocabulary", (2, 4), ((6, 32), (8, 6), (8,)), (P(None, "m"), P("d"), P("d")), P(), "reserve"),
        Step(
            _HELD,
            "batched",
            (8,),
            ({"w": (6, 8), "gain": (8,)}, (32, 6), (32, 8)),
            (P(), P("d"), P("d")),
            (P(), P()),
            "reserve",
            True,
        ),
        Step(_HELD, "scanned", (8,), ((8, 5, 5), (4, 3, 5)), (P("d"), P()), P(), "reserve"),
        Step(_LATER, "sequenced", (2, 4), (_SQ, (4, 8, 6)), (_SQS, P("d", "m")), P("d", "m"), "later"),
        Step(_LATER, "embedded", (2, 4), ((32, 6), (6, 4), (8, 5)), (P("m"), P(), P("d")), P("d"), "later"),
        Step(
            _LATER,
            "optimized",
            (2, 4),
            ((6, 16), (6, 16), (6, 16), (8, 6), (8, 16)),
            (_COLUMNS, _COLUMNS, _COLUMNS, P("d"), P("d", "m")),
            (_COLUMNS, _COLUMNS, _COLUMNS, P()),
            "later",
        ),
        Step(_LATER, "transformed", (8,), ((16, 16),), (P("d"),), P("d"), "later"),
        Step(_LATER, "counted", (2, 4), ((16, 12),), (P("d", "m"),), (P(), P(), P()), "later"),
        Step(_LATER, "relaxed", (8,), ((32, 3),), (P("d"),), (P("d"), P()), "later"),
    )
}

_MEAN_G = 'lax.pmean(g, "d")'
_CENTRED = 'lax.pmean((centred**2).mean(0), ("d", "m"))'
_PARTIAL = 'lax.psum(partial, "m")'
_CLIP = "jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)"
_GATHERED = 'lax.all_gather(k, "d", axis=0, tiled=True)'
_SENT = 'lax.all_to_all(boxes, "d", 0, 1, tiled=True)'
_SHIFT = "[(i, (i + 1) % stages) for i in range(stages)]"

FAULTS = [
    Fault("data", "lost sum", _MEAN_G, "g", ("hidden = jnp.tanh", "hidden @ w")),
    Fault("data", "lost loss", 'lax.pmean(value, "d")', "value", ("hidden @ w",)),
    Fault("data", "unscaled mean", _MEAN_G, 'lax.psum(g, "d")'),
    Fault(
        "data",
        "wrong group",
        _MEAN_G,
        'lax.psum(g, "d", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]) / 8',
        has_reference=True,
    ),
    Fault("tensor", "lost sum", _PARTIAL, "partial", ('hidden @ w["down"]',)),
    Fault("tensor", "wrong axis", _PARTIAL, 'lax.psum(partial, "d")'),
    Fault("tensor", "mean", _PARTIAL, 'lax.pmean(partial, "m")'),
    Fault("tensor", "both axes", _PARTIAL, 'lax.psum(partial, ("d", "m"))'),
    Fault(
        "trained_tensor",
        "bias in the sum",
        'lax.psum(hidden @ w["down"], "m") + w["bias"]',
        'lax.psum(hidden @ w["down"] + w["bias"], "m")',
    ),
    Fault("trained_tensor", "wrong axis", '(out - y) ** 2).sum(), "d")', '(out - y) ** 2).sum(), "m")'),
    Fault("pipeline", "wrong group", _SHIFT, "[(i, (i + 2) % stages) for i in range(stages)]"),
    Fault("pipeline", "stale", "stage == stages - 1, state, 0", "stage == stages - 2, state, 0"),
    Fault("pipeline", "lost sum", 'lax.psum(outputs, "d")', "outputs", ("outputs = outputs.at",)),
    Fault(
        "expert",
        "lost exchange",
        _SENT,
        "boxes.reshape(8, 2, *boxes.shape[1:]).swapaxes(0, 1).reshape(2, -1, 6)",
        has_reference=True,
    ),
    Fault("stencil", "wrong way", "(i + 1) % n", "(i - 1) % n"),
    Fault("stencil", "halo one short", "x[-1:]", "x[-2:-1]"),
    Fault("stencil", "stale", 'lax.ppermute(x[:1], "d", [(i, (i - 1) % n) for i in range(n)])', "x[:1]"),
    Fault("attention", "wrong start", 'lax.axis_index("d") * x.shape[0]', 'lax.axis_index("d")'),
    Fault("attention", "stale keys", _GATHERED, "jnp.tile(k, (8, 1))", has_reference=True),
    Fault("norm", "lost axis", 'lax.pmean(x.mean(0), ("d", "m"))', 'lax.pmean(x.mean(0), "m")'),
    Fault("norm", "lost mean", _CENTRED, "(centred**2).mean(0)"),
    Fault("norm", "unscaled", _CENTRED, 'lax.psum((centred**2).mean(0), ("d", "m"))'),
    Fault("fully", "unscaled", ' / lax.axis_size("d")', ""),
    Fault(
        "fully",
        "stale",
        'lax.psum_scatter(gradient, "d", scatter_dimension=0, tiled=True)',
        'gradient[lax.axis_index("d")][None] * 8',
    ),
    Fault("clipped", "lost sum", 'lax.psum((gradient**2).sum(), "m")', "(gradient**2).sum()"),
    Fault("clipped", "wrong axis", 'lax.psum((gradient**2).sum(), "m")', 'lax.psum((gradient**2).sum(), "d")'),
    Fault("clipped", "lost mean", f'lax.pmean({_CLIP}, "d")', _CLIP),
    Fault("zero", "unscaled", ' / lax.axis_size("d")', ""),
    Fault("zero", "stale", 'lax.all_gather(mine - 0.1 * moment, "d"', 'lax.all_gather(mine, "d"', has_reference=True),
    Fault("zero", "wrong shard", 'lax.axis_index("d") * size', 'lax.axis_index("d")'),
    Fault("ring", "counts the other way", "(rank - step) % n", "(rank + step) % n"),
    Fault("ring", "one step short", "for step in range(n)", "for step in range(n - 1)", has_reference=True),
    Fault("ring", "keys stay", 'k = lax.ppermute(k, "d", around)', "k = k"),
    Fault(
        "halo",
        "wraps",
        "(i, i + 1) for i in range(n - 1)",
        "(i, (i + 1) % n) for i in range(n)",
        ("before = lax.ppermute",),
    ),
    Fault("halo", "wrong axis", 'wide = widened(x, "d", 0)', 'wide = widened(x, "m", 0)'),
    Fault("vocabulary", "wrong start", 'lax.axis_index("m") * size', 'lax.axis_index("d") * size'),
    Fault("vocabulary", "local maximum", 'lax.pmax(logits.max(-1), "m")', "logits.max(-1)", ("jnp.exp(logits",)),
    Fault(
        "vocabulary",
        "wrong axis",
        'lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "m")',
        'lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "d")',
    ),
    Fault("batched", "local mean", 'lax.pmean(out.mean(0), "d")', "out.mean(0)"),
    Fault("batched", "unscaled", 'lax.pmean(((out - y) ** 2).mean(), "d")', 'lax.psum(((out - y) ** 2).mean(), "d")'),
    Fault("scanned", "early", "tick - stages + 1", "tick - stages + 2"),
    Fault("scanned", "by two", "(i, (i + 1) % stages)", "(i, (i + 2) % stages)"),
    Fault(
        "sequenced", "mean", "tiled=True)\n    return x + mine", 'tiled=True) / lax.axis_size("m")\n    return x + mine'
    ),
    Fault("sequenced", "stale", 'lax.all_gather(normed, "m"', 'lax.all_gather(x, "m"', has_reference=True),
    Fault(
        "sequenced",
        "lost sum",
        'lax.psum_scatter(partial, "m", scatter_dimension=1, tiled=True)',
        'lax.dynamic_slice_in_dim(partial, lax.axis_index("m") * x.shape[1], x.shape[1], 1)',
        ("partial = jax.nn",),
    ),
    Fault("embedded", "wrong start", 'lax.axis_index("m") * size', 'lax.axis_index("d") * size'),
    Fault("embedded", "lost sum", 'lax.psum(rows, "m")', "rows", ("rows = jnp.where", "jnp.tanh(vectors")),
    Fault("embedded", "wrong axis", 'lax.psum(rows, "m")', 'lax.psum(rows, "d")'),
    Fault("optimized", "local norm", 'lax.psum((gradient**2).sum(), "m")', "(gradient**2).sum()"),
    Fault("optimized", "lost mean", 'lax.pmean(gradient, "d")', "gradient", ("jnp.sin(x @ w)",)),
    Fault("transformed", "other way", 'rows, "d", 1, 0', 'jnp.roll(rows, 2, 1), "d", 1, 0', has_reference=True),
    Fault("counted", "local maximum", 'lax.pmax(x.max(), ("d", "m"))', "x.max()"),
    Fault("counted", "one axis", 'lax.psum(mine, ("d", "m"))', 'lax.psum(mine, "d")'),
    Fault("relaxed", "both from one side", '(x[:1], "d", left)', '(x[:1], "d", right)'),
    Fault("relaxed", "local residual", 'lax.pmax(jnp.abs(new - x).max(), "d")', "jnp.abs(new - x).max()"),
]
