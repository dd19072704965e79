"""JAX programs for a mesh of devices with axes `d` and `m`, lowered for meshes of several sizes.

What a device holds has the same sizes on every mesh, so that fewer devices hold smaller arrays together.
`python -m evaluation.shrinking.meshes FOLDER` writes for each program and mesh its module as XLA's partitioner makes
it, and as XLA:CPU runs it. The process must have eight devices: see `evaluation.processes.ENVIRONMENT`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

Mesh = tuple[int, int]


@attrs.frozen
class MeshProgram:
    """From JAX, a mesh and its sizes, a function and the shapes and axes of its arguments."""

    make: Callable[..., Any]
    large: Mesh
    small: tuple[Mesh, ...]


PROGRAMS: dict[str, MeshProgram] = {}


def _program(large: Mesh, *small: Mesh) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(make: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[make.__name__] = MeshProgram(make, large, small)
        return make

    return add


def _mapped(jax: Any, mesh: Any, function: Any, given: Any, results: Any) -> Any:
    spec = jax.sharding.PartitionSpec
    given = tuple(spec(*axes) for axes in given)
    results = tuple(spec(*axes) for axes in results)
    return jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=results, check_vma=False)


@_program((8, 1), (4, 1), (2, 1))
def data_parallel_step(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Each device has rows of a batch; gradients are averaged."""
    jnp, lax = jax.numpy, jax.lax
    axes = (), (), ("d",), ("d",)

    def on_device(w: Any, v: Any, x: Any, y: Any) -> Any:
        def loss(w: Any, v: Any) -> Any:
            return ((jnp.tanh(x @ w) @ v - y) ** 2).mean()

        value, gradients = jax.value_and_grad(loss, (0, 1))(w, v)
        w, v = (old - 0.1 * lax.pmean(new, "d") for old, new in zip((w, v), gradients, strict=True))
        return lax.psum(value, "d"), w, v

    return _mapped(jax, mesh, on_device, axes, ((), (), ())), ((6, 10), (10, 5), (12 * d, 6), (12 * d, 5)), axes


@_program((1, 8), (1, 4), (1, 2))
def tensor_parallel_product(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Columns, then rows of the weights are divided; activations are gathered and scattered."""
    jnp, lax = jax.numpy, jax.lax
    axes = ("m",), (None, "m"), ("m",)

    def on_device(x: Any, w: Any, v: Any) -> Any:
        whole = lax.all_gather(x, "m", axis=0, tiled=True)
        hidden = jnp.maximum(whole @ w, 0)
        return (lax.psum_scatter(hidden @ v, "m", scatter_dimension=0, tiled=True),)

    return _mapped(jax, mesh, on_device, axes, (("m",),)), ((3 * m, 6), (6, 10 * m), (10 * m, 6)), axes


@_program((8, 1), (4, 1), (2, 1))
def expert_parallel_layer(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Each device holds two experts; tokens go to them and come back."""
    jnp, lax = jax.numpy, jax.lax
    axes = ("d",), ("d",), ("d",)

    def on_device(x: Any, up: Any, down: Any) -> Any:
        sent = lax.all_to_all(x, "d", 0, 1, tiled=True)
        hidden = jnp.tanh(jnp.einsum("etd,edf->etf", sent, up))
        back = lax.all_to_all(jnp.einsum("etf,efd->etd", hidden, down), "d", 1, 0, tiled=True)
        return (x[:, :, :] + back,)

    # A device's own x is [2 d, 5, 6]: for each expert, five tokens.
    shapes = ((2 * d * d, 5, 6), (2 * d, 6, 7), (2 * d, 7, 6))
    return _mapped(jax, mesh, on_device, axes, (("d",),)), shapes, axes


@_program((8, 1), (4, 1), (2, 1))
def ring_of_blocks(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Blocks travel around a ring; each device multiplies them with its rows' columns for them."""
    jnp, lax = jax.numpy, jax.lax
    axes = ("d",), ("d",)
    ring = [(each, (each + 1) % d) for each in range(d)]

    def on_device(a: Any, b: Any) -> Any:
        def body(number: Any, state: Any) -> Any:
            block, total = state
            source = (lax.axis_index("d") - number) % d
            columns = lax.dynamic_slice_in_dim(a, source * 4, 4, 1)
            return lax.ppermute(block, "d", ring), total + columns @ block

        _, total = lax.fori_loop(0, d, body, (b, jnp.zeros((3, 5))))
        return (total,)

    return _mapped(jax, mesh, on_device, axes, (("d",),)), ((3 * d, 4 * d), (4 * d, 5)), axes


@_program((2, 4), (2, 2), (1, 4), (1, 2), (2, 1))
def data_and_tensor_parallel_step(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """XLA partitions a step of a network with two layers over both axes."""
    jnp = jax.numpy
    axes = ("d",), (None, "m"), ("m",), ("m",), ("d",)

    def step(x: Any, w1: Any, b1: Any, w2: Any, y: Any) -> Any:
        def loss(w1: Any, b1: Any, w2: Any) -> Any:
            logits = jax.nn.gelu(x @ w1 + b1) @ w2
            return ((logits - logits.mean(-1, keepdims=True) - y) ** 2).mean()

        value, gradients = jax.value_and_grad(loss, (0, 1, 2))(w1, b1, w2)
        norm = jnp.sqrt(sum((each**2).sum() for each in gradients))
        return value, *(w - 0.1 * g / (1 + norm) for w, g in zip((w1, b1, w2), gradients, strict=True))

    return step, ((6 * d, 7), (7, 9 * m), (9 * m,), (9 * m, 5), (6 * d, 5)), axes


@_program((2, 4), (2, 2), (1, 4), (1, 2), (2, 1))
def gathers_over_both_axes(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Collectives along one axis, along both, and in the other order; indices along both."""
    jnp, lax = jax.numpy, jax.lax
    axes = (("d", "m"),), ("m", "d")

    def on_device(x: Any, y: Any) -> Any:
        both = lax.all_gather(x, ("d", "m"), axis=0, tiled=True)
        turned = lax.all_gather(x, ("m", "d"), axis=0, tiled=True)
        row = lax.axis_index(("d", "m"))
        mine = lax.dynamic_slice_in_dim(both * 2 + turned, row * 3, 3, 0)
        summed = lax.psum_scatter(jnp.outer(lax.psum(y.sum(0), "m"), both.sum(1)), "d", scatter_dimension=1, tiled=True)
        last = jnp.where(lax.axis_index("m") == m - 1, 1.0, 3.0)
        return mine * last, summed

    results = (("d", "m"),), (None, ("d", "m"))
    shapes = ((3 * d * m, 4), (5 * m, 7 * d))
    return _mapped(jax, mesh, on_device, axes, results), shapes, axes


@_program((2, 4), (2, 2), (1, 4), (1, 2), (2, 1))
def vocabulary_parallel_loss(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Rows of a table are divided; looking them up and picking logits depends on which rows a device has."""
    jnp = jax.numpy
    axes = ("m",), (None, "m"), ("d",), ("d",)

    def loss(table: Any, w: Any, numbers: Any, labels: Any) -> Any:
        tokens, targets = (jnp.abs(each * 3).astype(jnp.int32) % (12 * m) for each in (numbers, labels))
        hidden = jnp.tanh(jnp.einsum("bte,ef->btf", table[tokens], w))
        logs = jax.nn.log_softmax(jnp.einsum("btf,vf->btv", hidden, table))
        picked = jnp.where(jnp.arange(12 * m) == targets[..., None], logs, 0)
        return -picked.sum(), hidden

    return loss, ((12 * m, 10 * m), (10 * m, 10 * m), (6 * d, 7), (6 * d, 7)), axes


@_program((2, 4), (2, 2), (1, 4), (1, 2), (2, 1))
def exchange_of_borders(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """A stencil, with the border rows of neighbours along a line of all devices and around each row of them."""
    jnp, lax = jax.numpy, jax.lax
    every, count = ("d", "m"), d * m
    axes = (every,), ("d", "m")

    def on_device(field: Any, other: Any) -> Any:
        above = lax.ppermute(field[-1:], every, [(n, n + 1) for n in range(count - 1)])
        below = lax.ppermute(field[:1], every, [(n + 1, n) for n in range(count - 1)])
        padded = jnp.concatenate([above, field, below])
        is_first = lax.axis_index(every) == 0
        is_last = lax.axis_index(every) == count - 1
        inner = padded[:-2] + padded[2:] - 2 * field
        turned = lax.ppermute(other, "m", [(n, (n - 1) % m) for n in range(m)])
        return jnp.where(is_first | is_last, field, inner), turned * (1 + lax.axis_index("d"))

    return _mapped(jax, mesh, on_device, axes, axes), ((5 * count, 3), (2 * d, 3 * m)), axes


@_program((6, 1), (3, 1), (2, 1))
def causal_ring(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Keys travel around a ring of six; a mask compares positions of all devices."""
    jnp, lax = jax.numpy, jax.lax
    axes = ("d",), ("d",)

    def on_device(q: Any, k: Any) -> Any:
        own = lax.axis_index("d")

        def body(state: Any, _: Any) -> Any:
            k, total, step = state
            rows, columns = own * 4 + jnp.arange(4), (own + step) % d * 4 + jnp.arange(4)
            scores = jnp.where(rows[:, None] >= columns[None], q @ k.T, 0.0)
            k = lax.ppermute(k, "d", [(n, (n - 1) % d) for n in range(d)])
            return (k, total + scores @ k, step + 1), scores.sum()

        (_, total, _), sums = lax.scan(body, (k, jnp.zeros((4, 3)), 0), None, length=d)
        return total, sums

    return _mapped(jax, mesh, on_device, axes, axes), ((4 * d, 3), (4 * d, 3)), axes


@_program((1, 8), (1, 4), (1, 2))
def heads_by_all_to_all(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Rows of all heads become all rows of some heads, and back."""
    jnp, lax = jax.numpy, jax.lax
    axes = ("m",), ()

    def on_device(x: Any, w: Any) -> Any:
        heads = lax.all_to_all(jnp.einsum("te,ehd->thd", x, w), "m", 1, 0, tiled=True)
        heads = heads / jnp.linalg.norm(heads, axis=0, keepdims=True)
        back = lax.all_to_all(heads, "m", 0, 1, tiled=True)
        return back.sum(-1), lax.pmean(back.mean(), "m")

    return _mapped(jax, mesh, on_device, axes, (("m",), ())), ((5 * m, 6), (6, 3 * m, 4)), axes


@_program((2, 4), (2, 2), (1, 4), (1, 2))
def sharded_parameters(jax: Any, mesh: Any, d: int, m: int) -> Any:
    """Weights are gathered for each step, and their gradients scattered."""
    jnp, lax = jax.numpy, jax.lax
    axes = (None, "m"), (("d", "m"),), (("d", "m"),)

    def on_device(w: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return ((jnp.tanh(x @ lax.all_gather(w, "m", axis=1, tiled=True)) - y) ** 2).sum()

        value, gradient = jax.value_and_grad(loss)(w)
        gradient = lax.psum(gradient, "d")
        norm = jnp.sqrt(lax.psum((gradient * gradient).sum(), "m"))
        return w - 0.03 * gradient / norm, lax.psum(value, ("d", "m"))

    shapes = ((6, 9 * m), (5 * d * m, 6), (5 * d * m, 9 * m))
    return _mapped(jax, mesh, on_device, axes, (axes[0], ())), shapes, axes


def file_name(name: str, mesh: Mesh, stage: str) -> str:
    return f"{name}.{mesh[0]}x{mesh[1]}.{stage}.hlo"


def _write(name: str, program: MeshProgram, sizes: Mesh, folder: Path) -> None:
    import jax

    import hloexec

    mesh = jax.sharding.Mesh(np.array(jax.devices()[: sizes[0] * sizes[1]]).reshape(sizes), ("d", "m"))
    function, shapes, axes = program.make(jax, mesh, *sizes)
    function.__name__ = name
    spec, named = jax.sharding.PartitionSpec, jax.sharding.NamedSharding
    shardings = tuple(named(mesh, spec(*each)) for each in axes)
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    jitted = jax.jit(function, in_shardings=shardings, keep_unused=True).lower(*arguments)
    with tempfile.TemporaryDirectory() as dumps:
        options = {
            "xla_backend_optimization_level": 0,  # what LLVM makes of it is not run
            "xla_dump_to": dumps,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
            "xla_dump_large_constants": True,
        }
        optimized = hloexec.from_jax(jitted.compile(compiler_options=options))
        (path,) = Path(dumps).glob("*after_spmd-partitioning*.txt")
        (folder / file_name(name, sizes, "partitioned")).write_text(hloexec.format(hloexec.load(path)))
    (folder / file_name(name, sizes, "optimized")).write_text(hloexec.format(optimized))


if __name__ == "__main__":
    for each, wanted in PROGRAMS.items():
        for mesh_sizes in (wanted.large, *wanted.small):
            _write(each, wanted, mesh_sizes, Path(sys.argv[1]))
