"""Programs sharded over eight devices with JAX, the ways people shard them: small, forward and mostly backward.

A program is a function, its arguments in f32 and how they are sharded. Some say what each device does (`shard_map`:
tensor, pipeline, expert and sequence parallelism, ring attention, FSDP), others only how arrays are laid out and leave
the rest to XLA's partitioner.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

# Sets the number of XLA's host devices, so it comes before JAX makes its client.
pytest.importorskip("conformance.xla")
jax: Any = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn
Mesh, NamedSharding, P = jax.sharding.Mesh, jax.sharding.NamedSharding, jax.sharding.PartitionSpec

Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]
"""The function, its arguments, and the sharding of each (one for all leaves of an argument)."""

_WIDTH, _HIDDEN, _BATCH = 8, 16, 16


def mesh(**axes: int) -> Any:
    return Mesh(np.array(jax.devices()[:8]).reshape(tuple(axes.values())), tuple(axes))


def numbers(seed: int, *shape: int) -> Any:
    """Normal numbers that keep the size of what they are multiplied with."""
    scale = np.sqrt(shape[-2]) if len(shape) > 1 else 1
    return (np.random.default_rng(seed).normal(size=shape) / scale).astype(np.float32)


def integers(seed: int, below: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)


def on(mesh: Any, *specs: Any) -> tuple[Any, ...]:
    return tuple(NamedSharding(mesh, spec) for spec in specs)


def step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """One step of gradient descent: the loss, and the parameters after it."""

    def run(parameters: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        return value, jax.tree.map(lambda p, g: p - 0.125 * g, parameters, gradients)

    return run


# What each device does is written down


def tensor_parallel() -> Program:
    """A feed-forward layer: columns of the first matrix, rows of the second, one sum over devices."""
    m = mesh(model=8)

    @partial(jax.shard_map, mesh=m, in_specs=(P(), P(None, "model"), P("model", None)), out_specs=P())
    def layer(x: Any, up: Any, down: Any) -> Any:
        return lax.psum(nn.gelu(x @ up) @ down, "model")

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((layer(x, w["up"], w["down"]) - y) ** 2).mean()

    weights = {"up": numbers(1, _WIDTH, _HIDDEN), "down": numbers(2, _HIDDEN, _WIDTH)}
    return step(loss), (weights, numbers(3, _BATCH, _WIDTH), numbers(4, _BATCH, _WIDTH)), on(m, P(), P(), P())


def sequence_parallel() -> Program:
    """Rows gathered before the layer, summed and scattered after it; the norm works on a device's own rows."""
    m = mesh(model=8)

    @partial(jax.shard_map, mesh=m, in_specs=(P("model"), P(None, "model"), P("model")), out_specs=P("model"))
    def layer(x: Any, up: Any, down: Any) -> Any:
        normed = x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-3)
        rows = lax.all_gather(normed, "model", tiled=True)
        return x + lax.psum_scatter(nn.relu(rows @ up) @ down, "model", scatter_dimension=0, tiled=True)

    def loss(w: Any, x: Any) -> Any:
        return (layer(layer(x, *w), *w) ** 2).mean()

    weights = (numbers(1, _WIDTH, _HIDDEN), numbers(2, _HIDDEN, _WIDTH))
    return step(loss), (weights, numbers(3, _BATCH, _WIDTH)), on(m, P(), P("model"))


def fsdp() -> Program:
    """Every layer's weights are gathered where they are used; their gradients are summed and scattered back."""
    m = mesh(data=8)

    @partial(jax.shard_map, mesh=m, in_specs=(P(None, "data"), P("data"), P("data")), out_specs=P())
    def loss(w: Any, x: Any, y: Any) -> Any:
        @jax.checkpoint
        def layer(x: Any, shard: Any) -> tuple[Any, None]:
            return x + jnp.tanh(x @ lax.all_gather(shard, "data", tiled=True)), None

        x, _ = lax.scan(layer, x, w)
        return lax.pmean(((x - y) ** 2).mean(), "data")

    arguments = (numbers(1, 3, _WIDTH, _WIDTH), numbers(2, _BATCH, _WIDTH), numbers(3, _BATCH, _WIDTH))
    return step(loss), arguments, on(m, P(None, "data"), P("data"), P("data"))


def pipeline() -> Program:
    """Eight stages, four microbatches: each tick every stage works and hands on to the next."""
    m = mesh(stage=8)
    stages, batches = 8, 4

    @partial(jax.shard_map, mesh=m, in_specs=(P("stage"), P()), out_specs=P("stage"))
    def forward(w: Any, x: Any) -> Any:
        stage = lax.axis_index("stage")

        def tick(carry: Any, time: Any) -> tuple[Any, Any]:
            fed = jnp.where(stage == 0, x[jnp.minimum(time, batches - 1)], carry)
            result = jnp.tanh(fed @ w[0])
            return lax.ppermute(result, "stage", [(i, (i + 1) % stages) for i in range(stages)]), result

        start = lax.pcast(jnp.zeros_like(x[0]), ("stage",), to="varying")
        _, results = lax.scan(tick, start, jnp.arange(batches + stages - 1))
        return results[None, stages - 1 :]

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((forward(w, x)[-1] - y) ** 2).mean()

    arguments = (numbers(1, stages, _WIDTH, _WIDTH), numbers(2, batches, 2, _WIDTH), numbers(3, batches, 2, _WIDTH))
    return step(loss), arguments, on(m, P("stage"), P(), P())


def expert_parallel() -> Program:
    """A device per expert: tokens go to their experts and come back (all_to_all twice), up to a capacity."""
    m = mesh(expert=8)
    capacity = 3

    @partial(jax.shard_map, mesh=m, in_specs=(P("expert"), P(), P("expert")), out_specs=P("expert"))
    def layer(w: Any, router: Any, x: Any) -> Any:
        gates = nn.softmax(x @ router)
        chosen = nn.one_hot(gates.argmax(-1), 8, dtype=x.dtype)
        place = ((jnp.cumsum(chosen, 0) - 1) * chosen).sum(-1).astype(jnp.int32)
        dispatch = chosen[:, :, None] * nn.one_hot(place, capacity, dtype=x.dtype)[:, None]
        sent = lax.all_to_all(jnp.einsum("tec,td->ecd", dispatch, x), "expert", 0, 0, tiled=True)
        worked = nn.relu(sent @ w[0])
        back = lax.all_to_all(worked, "expert", 0, 0, tiled=True)
        return jnp.einsum("tec,ecd->td", dispatch, back) * gates.max(-1, keepdims=True)

    def loss(w: Any, x: Any) -> Any:
        return (layer(*w, x) ** 2).mean()

    weights = (numbers(1, 8, _WIDTH, _WIDTH), numbers(2, _WIDTH, 8))
    return step(loss), (weights, numbers(3, 32, _WIDTH)), on(m, P(), P("expert"))


def ring_attention() -> Program:
    """Queries stay, keys and values go round the ring; softmax is put together on the way."""
    m = mesh(ring=8)

    @partial(jax.shard_map, mesh=m, in_specs=P(None, "ring"), out_specs=P(None, "ring"))
    def attend(q: Any, k: Any, v: Any) -> Any:
        def turn(carry: Any, _: Any) -> tuple[Any, None]:
            k, v, top, total, out = carry
            scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
            higher = jnp.maximum(top, scores.max(-1))
            weights = jnp.exp(scores - higher[..., None])
            scale = jnp.exp(top - higher)
            total = total * scale + weights.sum(-1)
            out = out * scale[..., None] + jnp.einsum("bqk,bkd->bqd", weights, v)
            k, v = lax.ppermute((k, v), "ring", [(i, (i + 1) % 8) for i in range(8)])
            return (k, v, higher, total, out), None

        first = (k, v, jnp.full_like(q[..., 0], -1e9), jnp.zeros_like(q[..., 0]), jnp.zeros_like(q))
        (_, _, _, total, out), _ = lax.scan(turn, first, None, length=8)
        return out / total[..., None]

    def loss(qkv: Any, y: Any) -> Any:
        return ((attend(*qkv) - y) ** 2).mean()

    qkv = tuple(numbers(seed, 2, 16, _WIDTH) for seed in (1, 2, 3))
    return step(loss), (qkv, numbers(4, 2, 16, _WIDTH)), on(m, P(None, "ring"), P(None, "ring"))


def cannon() -> Program:
    """Blocks of both factors move along the rows and columns of a square of four devices, twice side by side."""
    m = mesh(half=2, i=2, j=2)

    @partial(jax.shard_map, mesh=m, in_specs=(P("half", "i", "j"), P(None, "i", "j")), out_specs=P("half", "i", "j"))
    def product(a: Any, b: Any) -> Any:
        i, j = lax.axis_index("i"), lax.axis_index("j")
        turn = [(0, 1), (1, 0)]
        a = jnp.where(i == 1, lax.ppermute(a, "j", turn), a)
        b = jnp.where(j == 1, lax.ppermute(b, "i", turn), b)
        first = a @ b
        return first + lax.ppermute(a, "j", turn) @ lax.ppermute(b, "i", turn)

    return product, (numbers(1, 2, 8, 6), numbers(2, 1, 6, 4)), on(m, P("half"), P())


def partly_manual() -> Program:
    """One axis is manual, the other is left to the partitioner, which is told something inside."""
    m = mesh(data=2, model=4)

    @partial(jax.shard_map, mesh=m, in_specs=(P(), P("data")), out_specs=P(), axis_names={"data"})
    def loss(w: Any, x: Any) -> Any:
        hidden = lax.with_sharding_constraint(
            jnp.tanh(x @ w["up"]), NamedSharding(jax.sharding.get_abstract_mesh(), P(None, "model"))
        )
        return lax.pmean(((hidden @ w["down"]) ** 2).mean(), "data")

    weights = {"up": numbers(1, _WIDTH, _HIDDEN), "down": numbers(2, _HIDDEN, _WIDTH)}
    return step(loss), (weights, numbers(3, _BATCH, _WIDTH)), on(m, P(), P("data"))


def nested() -> Program:
    """A manual region over one axis inside a manual region over the other."""
    m = mesh(x=2, y=4)

    @partial(jax.shard_map, mesh=m, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    def outer(a: Any, b: Any) -> Any:
        @partial(jax.shard_map, in_specs=(P(None, "y"), P("y")), out_specs=P(), axis_names={"y"})
        def inner(a: Any, b: Any) -> Any:
            return lax.psum(a @ b, "y")

        return jnp.sin(inner(a, b)) * (1 + lax.axis_index("x"))

    return outer, (numbers(1, 8, 16), numbers(2, 16, 4)), on(m, P("x"), P())


def unlike_copies() -> Program:
    """Outputs said to be the same everywhere that are not: every device keeps its own."""
    m = mesh(x=2, y=4)

    @partial(jax.shard_map, mesh=m, in_specs=P(), out_specs=(P(), P("y")), check_vma=False)
    def each(a: Any) -> Any:
        ours = a * (1 + lax.axis_index("x")) + lax.axis_index("y")
        return ours, ours[:1]

    return each, (numbers(1, 4, 6),), on(m, P())


def convergence() -> Program:
    """Jacobi iterations until the residual of all devices is small: a sum over devices decides when a loop ends."""
    m = mesh(rows=8)

    @partial(jax.shard_map, mesh=m, in_specs=(P("rows"), P("rows")), out_specs=(P("rows"), P()))
    def solve(a: Any, b: Any) -> Any:
        ours = lax.axis_index("rows") * 2 + jnp.arange(2)
        diagonal = a[jnp.arange(2), ours]

        def residual(x: Any) -> Any:
            return b - a @ lax.all_gather(x, "rows", tiled=True)

        def go_on(state: Any) -> Any:
            return (state[1] > 0.05) & (state[2] < 50)

        def once(state: Any) -> Any:
            x = state[0] + residual(state[0]) / diagonal
            return x, lax.psum((residual(x) ** 2).sum(), "rows"), state[2] + 1

        x, _, count = lax.while_loop(go_on, once, (jnp.zeros_like(b), jnp.asarray(1.0, b.dtype), 0))
        return x, count

    matrix = numbers(1, 16, 16) / 4 + np.eye(16, dtype=np.float32)
    return solve, (matrix, numbers(2, 16)), on(m, P("rows"), P("rows"))


def collectives() -> Program:
    """Each of JAX's collectives, in groups and in several layouts."""
    m = mesh(x=8)
    pairs, halves = [[0, 3], [1, 2], [7, 4], [5, 6]], [[0, 2, 4, 6], [7, 5, 3, 1]]

    @partial(jax.shard_map, mesh=m, in_specs=(P("x"), P("x")), out_specs=P("x"), check_vma=False)
    def each(a: Any, n: Any) -> Any:
        return (
            lax.psum(a, "x", axis_index_groups=pairs),
            lax.pmax(n, "x"),
            lax.pmin(a, "x"),
            lax.all_gather(n, "x", axis_index_groups=halves, tiled=True),
            lax.all_gather(a, "x", axis=1),
            lax.psum_scatter(n, "x", scatter_dimension=1, axis_index_groups=halves, tiled=True),
            lax.all_to_all(a, "x", 1, 0, tiled=True),
            lax.all_to_all(n.reshape(1, 4, 2), "x", 1, 2, axis_index_groups=halves),
            lax.ppermute(n, "x", [(0, 5), (5, 1), (2, 2)]),
            lax.pshuffle(a, "x", [3, 1, 4, 0, 5, 2, 7, 6]),
            jnp.full((1,), lax.axis_index("x")),
        )

    return each, (numbers(1, 8, 8), integers(2, 100, 8, 8)), on(m, P("x"), P("x"))


# How arrays are laid out is written down


def data_parallel() -> Program:
    m = mesh(data=8)

    def loss(w: Any, x: Any, labels: Any) -> Any:
        logits = nn.relu(x @ w["up"]) @ w["down"]
        return -jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], 1).mean()

    weights = {"up": numbers(1, _WIDTH, _HIDDEN), "down": numbers(2, _HIDDEN, 5)}
    arguments = (weights, numbers(3, _BATCH, _WIDTH), integers(4, 5, _BATCH))
    return step(loss), arguments, on(m, P(), P("data"), P("data"))


def transformer() -> Program:
    """Layers of attention and feed-forward on a mesh of data and model, with a scan and an embedding."""
    m = mesh(data=2, model=4)
    heads, length, words, layers = 4, 6, 12, 2

    def constrain(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(m, P(*spec)))

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        q, k, v = (constrain(x @ w[name], "data", None, "model").reshape(*x.shape[:2], heads, -1) for name in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
        scores = jnp.where(np.tril(np.ones((x.shape[1],) * 2, bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v).reshape(x.shape)
        x = x + mixed @ w["out"]
        hidden = constrain(nn.gelu(x @ w["up"]), "data", None, "model")
        return constrain(x + hidden @ w["down"], "data"), None

    def loss(w: Any, tokens: Any) -> Any:
        x = constrain(w["embedding"][tokens[:, :-1]], "data")
        x, _ = lax.scan(layer, x, w["layers"])
        logits = constrain(x @ w["embedding"].T, "data", None, "model")
        return -jnp.take_along_axis(nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()

    shapes = dict.fromkeys("q k v out".split(), (_WIDTH, _WIDTH))
    shapes |= {"up": (_WIDTH, _HIDDEN), "down": (_HIDDEN, _WIDTH)}
    stacked = {name: numbers(seed, layers, *shape) for seed, (name, shape) in enumerate(shapes.items())}
    weights = {"embedding": numbers(9, words, _WIDTH), "layers": stacked}
    split = {name: P(None, None, "model") for name in shapes} | {name: P(None, "model") for name in ("out", "down")}
    shardings = {
        "embedding": NamedSharding(m, P("model")),
        "layers": {name: NamedSharding(m, spec) for name, spec in split.items()},
    }
    return step(loss), (weights, integers(8, words, 4, length)), (shardings, *on(m, P("data")))


def halo() -> Program:
    """An image in strips of rows: convolutions need the neighbours' borders, and pooling a stride."""
    m = mesh(rows=8)

    def loss(w: Any, x: Any) -> Any:
        for kernel in w:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(m, P(None, "rows")))
        return (lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") ** 2).mean()

    weights = (numbers(1, 3, 3, 2, 3), numbers(2, 5, 3, 3, 2))
    return step(loss), (weights, numbers(3, 2, 16, 6, 2)), on(m, P(), P(None, "rows"))


def uneven() -> Program:
    """Dimensions that do not divide evenly are padded, and the padding is kept out of sums and maxima."""
    m = mesh(x=2, y=4)

    def constrain(x: Any, *spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(m, P(*spec)))

    def function(a: Any, b: Any) -> Any:
        a = constrain(jnp.concatenate([a, a[:3]]), "y", "x")
        c = constrain(jnp.exp(a @ b), "x", "y")
        return c, c.sum(0), c.max(1), jnp.flip(c, 0), lax.reduce(a, np.asarray(1, a.dtype), lax.mul, (0,))

    return function, (numbers(1, 8, 5), numbers(2, 5, 7)), on(m, P("y"), P())


def rearrangements() -> Program:
    """Sorting, scanning, gathering and reshaping along dimensions that are divided."""
    m = mesh(x=2, y=4)

    def function(a: Any, index: Any) -> Any:
        values, places = lax.top_k(a.T, 3)
        updated = a.at[index].add(1.5)
        return (
            jnp.sort(a, 0),
            jnp.cumsum(a, 0),
            a[index],
            values,
            places,
            updated,
            a.reshape(4, -1).T,
            lax.dynamic_slice(a, (index[0], index[1]), (5, 3)),
            jnp.argmax(a, 0),
        )

    return function, (numbers(1, 16, 8), integers(2, 16, 6)), on(m, P(("x", "y")), P())


def random_numbers() -> Program:
    """Every device makes its part of one stream of random numbers."""
    m = mesh(x=8)

    def function(words: Any, a: Any) -> Any:
        key = jax.random.wrap_key_data(words.astype(jnp.uint32))
        drawn = jax.random.bits(key, (16, 4), jnp.uint32)
        drawn = lax.with_sharding_constraint(drawn, NamedSharding(m, P("x")))
        return drawn, jnp.where(drawn % 2 == 0, a * 2, 0), jax.random.permutation(key, 16)

    return function, (integers(1, 1000, 2), numbers(2, 16, 4)), on(m, P(), P("x"))


MANUAL: dict[str, Callable[[], Program]] = {
    make.__name__: make
    for make in (
        tensor_parallel,
        sequence_parallel,
        fsdp,
        pipeline,
        expert_parallel,
        ring_attention,
        cannon,
        partly_manual,
        nested,
        unlike_copies,
        convergence,
        collectives,
    )
}
PROGRAMS: dict[str, Callable[[], Program]] = MANUAL | {
    make.__name__: make for make in (data_parallel, transformer, halo, uneven, rearrangements, random_numbers)
}
