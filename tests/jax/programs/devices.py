"""Programs for eight devices: by shardings, and with collectives in shard_map."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.jax.programs.program import Call, call, integers, normal, program

xla: Any = pytest.importorskip("conformance.xla")  # first, as it sets how many devices there are
jax: Any = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
P = jax.sharding.PartitionSpec


def _mesh(*sizes: int) -> Any:
    if jax.device_count() < 8:
        pytest.skip("needs eight devices: XLA_FLAGS=--xla_force_host_platform_device_count=8")
    devices = np.array(jax.devices()[:8]).reshape(sizes or (8,))
    return jax.sharding.Mesh(devices, ("d", "m")[: devices.ndim])


def _on(mesh: Any, *axes: Any) -> Any:
    return jax.sharding.NamedSharding(mesh, P(*axes))


def _mapped(mesh: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
    """`jax.shard_map` as a decorator, which JAX 0.6 has elsewhere, under another name of an option."""
    if hasattr(jax, "shard_map"):
        return partial(jax.shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
    from jax.experimental.shard_map import shard_map

    options = {{"check_vma": "check_rep"}.get(name, name): value for name, value in options.items()}
    return partial(shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


@program
def data_parallel_step(_: Any) -> Call:
    """Weights on every device, a batch split over all; the partitioner adds up the gradients."""
    mesh = _mesh()

    def step(weights: Any, x: Any, y: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(weights)
        return weights - 0.5 * gradient, value

    options = {"in_shardings": (_on(mesh), _on(mesh, "d"), _on(mesh, "d")), "out_shardings": _on(mesh)}
    return call(step, normal(1, 4, 3), normal(2, 16, 4), normal(3, 16, 3), options=options)


@program
def tensor_parallel_layers(_: Any) -> Call:
    """Arguments that are sharded already, and a constraint on what is between the layers."""
    mesh = _mesh(2, 4)

    def layers(x: Any, up: Any, down: Any) -> Any:
        hidden = lax.with_sharding_constraint(jax.nn.gelu(x @ up), _on(mesh, "d", "m"))
        return lax.with_sharding_constraint(hidden @ down, _on(mesh, "d", None))

    shardings = _on(mesh, "d", None), _on(mesh, None, "m"), _on(mesh, "m", None)
    return call(layers, *map(jax.device_put, (normal(1, 4, 6), normal(2, 6, 8), normal(3, 8, 6)), shardings))


@program
def gradients_averaged_by_psum(_: Any) -> Call:
    mesh = _mesh()

    @_mapped(mesh, (P(), P("d"), P("d")), (P(), P("d")))
    def step(weights: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            return lax.pmean(((x @ weights - y) ** 2).mean(), "d")

        return jax.grad(loss)(weights), ((x @ weights - y) ** 2).mean()[None]

    return call(step, normal(1, 4), normal(2, 16, 4), normal(3, 16))


@program
def product_by_gathers_and_scatters(_: Any) -> Call:
    """all_gather before and psum_scatter after a product."""
    mesh = _mesh(2, 4)

    @_mapped(mesh, (P("d", "m"), P("m", None)), (P("d", "m"), P(None, "d")), check_vma=False)
    def product(x: Any, w: Any) -> Any:
        gathered = lax.all_gather(x, "d", axis=0, tiled=True)
        return lax.psum_scatter(x @ w, "m", scatter_dimension=1, tiled=True), lax.psum(gathered.T @ gathered, "m")[:2]

    return call(product, normal(1, 4, 8), normal(2, 8, 8))


@program
def ring_of_neighbours(_: Any) -> Call:
    """Halos from both sides, and a sum that goes round the ring."""
    mesh = _mesh()

    @_mapped(mesh, P("d"), (P("d"), P("d")))
    def smooth(x: Any) -> Any:
        to_right = lax.ppermute(x[-1:], "d", [(i, (i + 1) % 8) for i in range(8)])
        to_left = lax.ppermute(x[:1], "d", [(i + 1, i) for i in range(7)])
        total = x
        for _ in range(7):
            total = x + lax.ppermute(total, "d", [(i, (i + 1) % 8) for i in range(8)])
        padded = jnp.concatenate([to_right, x, to_left])
        return padded[:-2] + 2 * x + padded[2:], total

    return call(smooth, integers(1, 50, 16, 2))


@program
def experts_by_all_to_all(_: Any) -> Call:
    """Tokens go to the device of their expert and back."""
    mesh = _mesh()

    @_mapped(mesh, (P("d"), P("d")), (P("d"), P("d")))
    def exchange(tokens: Any, scale: Any) -> Any:
        there = lax.all_to_all(tokens, "d", split_axis=0, concat_axis=0, tiled=True)
        back = lax.all_to_all(there * scale, "d", 0, 0, tiled=True)
        return back, there

    return call(exchange, normal(1, 64, 3), np.float32(2.0) ** np.arange(8)[:, None], exact=True)


@program
def randomness_of_each_device(_: Any) -> Call:
    """A key folded with the device's place, a loop and a branch by it, and reductions over both axes."""
    mesh = _mesh(2, 4)

    @_mapped(mesh, (P(), P("d", "m")), (P("d", "m"), P(), P("d")), check_vma=False)
    def draw(key: Any, x: Any) -> Any:
        place = lax.axis_index("d") * 4 + lax.axis_index("m")
        bits = jax.random.randint(jax.random.fold_in(key, place), x.shape, 0, 100)
        bits = lax.fori_loop(0, place, lambda i, b: b * 3 % 101 + i, bits)
        bits = lax.cond(place % 2 == 0, lambda b: b, lambda b: -b, bits)
        return bits, lax.pmax(bits, ("d", "m")), lax.pmin(bits, "m")

    return call(draw, jax.random.key(0), np.zeros((4, 8), np.int32))


@program
def custom_partitioning_of_softmax(_: Any) -> Call:
    """A function that says itself how it is partitioned: along rows."""
    pytest.importorskip("jax.experimental.custom_partitioning")
    from jax.experimental.custom_partitioning import custom_partitioning

    mesh = _mesh()

    @custom_partitioning
    def softmax(x: Any) -> Any:
        return jax.nn.softmax(x, axis=-1)

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        return mesh, jax.nn.softmax, result.sharding, (result.sharding,)

    softmax.def_partition(
        partition,
        infer_sharding_from_operands=lambda mesh, arguments, result: arguments[0].sharding,
        sharding_rule="i j -> i j",
    )
    return call(lambda x: softmax(x * 2) + 1, jax.device_put(normal(1, 8, 6), _on(mesh, "d")))
