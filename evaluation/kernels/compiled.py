"""`python -m evaluation.kernels.compiled FOLDER`: steps with Pallas kernels, compiled for TPUs without one, by libtpu.

Writes the optimized module of each, without metadata, which is what `tests/library_calls/mosaic/compiled` has. It needs
libtpu, of the version that goes with jaxlib.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_TOPOLOGY = "v5e:2x2"
_DEVICES = 4


def serving(w: Any, scale: Any, hidden: Any, keys: Any, values: Any, lengths: Any, pages: Any) -> Any:
    """A step of serving: a product of int8, by a kernel of our own, then attention to pages, by one that JAX ships."""
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    size = jnp.abs(hidden).max(-1, keepdims=True) / 127
    product = _int8(jnp.round(hidden / size).astype(jnp.int8), w)
    queries = (product.astype(jnp.float32) * size * scale).reshape(len(hidden), len(keys), -1)
    attended = paged_attention(queries * 0.09, keys, values, lengths, pages, pages_per_compute_block=2)
    return jnp.tanh(attended.reshape(len(hidden), -1)), lengths + 1


def _int8(x: Any, w: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, w: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _start() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], w[...], preferred_element_type=jnp.int32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _end() -> None:
            out[...] = total[...]

    rows, columns, inner = x.shape[0], w.shape[1], x.shape[1]
    return pl.pallas_call(
        kernel,
        grid=(rows // 32, columns // 128, inner // 128),
        in_specs=[pl.BlockSpec((32, 128), lambda i, j, k: (i, k)), pl.BlockSpec((128, 128), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((32, 128), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((rows, columns), jnp.int32),
        scratch_shapes=[pltpu.VMEM((32, 128), jnp.int32)],
    )(x, w)


def gathering(x: Any, w: Any) -> Any:
    """A layer over four devices: a ring gathers the rows by remote DMAs, and each multiplies them by its columns."""
    import jax
    import jax.numpy as jnp

    part = jnp.tanh(_gathered(x) @ w)
    return part, jax.lax.psum((part**2).sum(), "x")


def _gathered(x: Any) -> Any:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    rows, mesh = x.shape[0], pltpu.DeviceIdType.MESH

    def kernel(x: Any, out: Any, buffer: Any, sent: Any, received: Any) -> None:
        own = jax.lax.axis_index("x")
        right, left = (own + 1) % _DEVICES, (own + _DEVICES - 1) % _DEVICES
        barrier = pltpu.get_barrier_semaphore()
        for neighbour in (left, right):
            pl.semaphore_signal(barrier, 1, device_id=(neighbour,), device_id_type=mesh)
        pl.semaphore_wait(barrier, 2)
        buffer[0] = x[...]
        out[pl.ds(own * rows, rows)] = x[...]
        for step in range(_DEVICES - 1):
            copy = pltpu.make_async_remote_copy(
                buffer.at[step], buffer.at[step + 1], sent.at[step], received.at[step], (right,), mesh
            )
            copy.start()
            copy.wait()
            source = (own - step - 1) % _DEVICES
            out[pl.ds(source * rows, rows)] = buffer[step + 1]

    semaphores = pltpu.SemaphoreType.DMA((_DEVICES - 1,))
    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        out_shape=jax.ShapeDtypeStruct((_DEVICES * rows, x.shape[1]), x.dtype),
        scratch_shapes=[pltpu.VMEM((_DEVICES, *x.shape), x.dtype), semaphores, semaphores],
        compiler_params=pltpu.CompilerParams(collective_id=0, has_side_effects=True),
    )(x)


def training(w: Any, x: Any, y: Any) -> Any:
    """A step of training of an attention layer: flash attention and its gradient, by kernels that JAX ships."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    def loss(w: Any) -> Any:
        heads = [(x @ w[name]).reshape(1, len(x), -1, 128).transpose(0, 2, 1, 3) for name in "qkv"]
        attended = flash_attention(*heads, causal=True, sm_scale=0.09).transpose(0, 2, 1, 3).reshape(len(x), -1)
        return ((x + jnp.tanh(attended @ w["o"]) - y) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda w, g: w - 100 * g, w, gradient), value


def of_serving() -> tuple[Any, ...]:
    """The arguments of `serving`."""
    source = np.random.default_rng(1)
    pages = [source.standard_normal((8, 64, 16, 128)).astype(np.float32) for _ in range(2)]
    return (
        source.integers(-127, 128, (256, 1024)).astype(np.int8),
        np.float32(1 / 127 / 16),
        source.standard_normal((32, 256)).astype(np.float32),
        *pages,
        source.integers(1, 64, 32).astype(np.int32),
        source.integers(0, 64, (32, 4)).astype(np.int32),
    )


def of_gathering() -> tuple[Any, ...]:
    """The arguments of `gathering`, whole."""
    source = np.random.default_rng(2)
    return (
        source.standard_normal((64, 128)).astype(np.float32),
        (source.standard_normal((128, 512)) * 0.1).astype(np.float32),
    )


def of_training() -> tuple[Any, ...]:
    """The arguments of `training`."""
    source = np.random.default_rng(3)
    w = {name: (source.standard_normal((256, 256)) * 0.06).astype(np.float32) for name in "qkvo"}
    return w, *(source.standard_normal((256, 256)).astype(np.float32) for _ in range(2))


def main(folder: str) -> None:
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    import jax
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
    from jax.sharding import PartitionSpec as P

    devices = topologies.get_topology_desc(platform="tpu", topology_name=_TOPOLOGY).devices
    mesh, alone = Mesh(np.array(devices), ("x",)), SingleDeviceSharding(devices[0])
    specs = (P("x"), P(None, "x"))
    mapped = jax.shard_map(gathering, mesh=mesh, in_specs=specs, out_specs=(P(None, "x"), P()), check_vma=False)
    steps: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        "serving": (serving, of_serving(), (alone,) * 7),
        "gathering": (mapped, of_gathering(), tuple(NamedSharding(mesh, spec) for spec in specs)),
        "training": (training, of_training(), (dict.fromkeys("qkvo", alone), alone, alone)),
    }
    for name, (step, arguments, shardings) in steps.items():
        shapes = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype, sharding=sharding),
            arguments,
            shardings,
        )
        compiled = jax.jit(step).lower(*shapes).compile()
        (Path(folder) / f"{name}.hlo").write_text(compiled.as_text(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
