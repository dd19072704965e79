"""Programs that XLA partitions over a mesh of two rows (`d`) and four columns (`m`).

`write_programs` writes for each its module as JAX lowers it, before and after the partitioner and after optimization, and
its arguments; `module_of` and `arguments_of` read them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hloexec
from evaluation.partitioned.dividing import DIVIDING
from evaluation.partitioned.exchanging import ONCE_HELD, SMALL
from evaluation.partitioned.passing import PASSING
from evaluation.partitioned.program import Axes, Program
from hloexec.core.ir import Module

_ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
"""What must be set before JAX is imported."""
STAGES = ("lowered", "before", "after", "optimized")


def _mlp(jax: Any, constrain: Any) -> Any:
    """A step of a network with two layers: sums over both axes."""
    jnp = jax.numpy

    def mlp(x: Any, w1: Any, b1: Any, w2: Any, y: Any) -> Any:
        def loss(w1: Any, b1: Any, w2: Any) -> Any:
            logits = jax.nn.gelu(x @ w1 + b1) @ w2
            return ((logits - logits.mean(-1, keepdims=True) - y) ** 2).mean()

        value, gradients = jax.value_and_grad(loss, (0, 1, 2))(w1, b1, w2)
        norm = jnp.sqrt(sum((each**2).sum() for each in gradients))
        return value, *(w - 0.1 * g / (1 + norm) for w, g in zip((w1, b1, w2), gradients, strict=True))

    return mlp


def _attention(jax: Any, constrain: Any) -> Any:
    """Heads are sharded, and their outputs are added up."""
    jnp = jax.numpy

    def attention(x: Any, qkv: Any, out: Any, scale: Any) -> Any:
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
        q, k, v = jnp.einsum("bte,eshd->sbhtd", normed, qkv)
        scores = jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1])
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
        return x + jnp.einsum("bthd,hde->bte", jnp.einsum("bhts,bhsd->bthd", weights, v), out)

    return attention


def _reshard(jax: Any, constrain: Any) -> Any:
    """Other shardings all the time: all-to-all, all-gather, collective-permute, and slices by the partition's number."""
    jnp = jax.numpy

    def reshard(x: Any, y: Any) -> Any:
        a = constrain(jnp.sin(x) @ y, "d", "m")
        b = constrain(a.T.reshape(4, 4, -1) * 2.0, "m", None, "d")
        c = constrain(jnp.cumsum(b, axis=1), None, "m", "d")
        d = constrain(c + 1.0, "d", None, "m")
        return d.sum(-1), jnp.roll(d, 1, axis=0) * d, jnp.exp(-d.max(0))

    return reshard


def _recurrence(jax: Any, constrain: Any) -> Any:
    """A loop that gathers its state in each iteration."""
    jnp = jax.numpy

    def recurrence(x: Any, w: Any, u: Any) -> Any:
        def body(state: Any, row: Any) -> Any:
            state = jnp.tanh(row @ w + state @ u)
            return state, state.mean(-1)

        state, means = jax.lax.scan(body, jnp.zeros((x.shape[1], w.shape[1])), x)
        return state, means, (state * state).sum(0)

    return recurrence


def _convolution(jax: Any, constrain: Any) -> Any:
    """Images are cut into strips, whose borders are exchanged."""
    jnp = jax.numpy

    def convolution(x: Any, kernel: Any, gain: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean = y.mean((0, 1, 2))
        variance = ((y - mean) ** 2).mean((0, 1, 2))
        y = jax.nn.relu((y - mean) * jax.lax.rsqrt(variance + 1e-5) * gain)
        pooled = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return pooled.reshape(pooled.shape[0], -1) @ w, mean

    return convolution


def _embedding(jax: Any, constrain: Any) -> Any:
    """A table of which each column of devices has some rows, and a loss over all of them."""
    jnp = jax.numpy

    def embedding(table: Any, w: Any, tokens: Any, labels: Any) -> Any:
        hidden = jnp.einsum("bte,ef->btf", table[tokens], w)
        hidden = hidden / (1 + jnp.abs(hidden))
        logs = jax.nn.log_softmax(jnp.einsum("btf,vf->btv", hidden, table))
        picked = jax.nn.one_hot(labels, table.shape[0]) * logs
        return -picked.sum(-1).mean(), hidden, logs.argmax(-1)

    return embedding


PROGRAMS = {
    "mlp": Program(_mlp, ((16, 8), (8, 16), (16,), (16, 8), (16, 8)), (("d",), (None, "m"), ("m",), ("m",), ("d",))),
    "attention": Program(
        _attention, ((4, 8, 16), (16, 3, 4, 8), (4, 8, 16), (16,)), (("d",), (None, None, "m"), ("m",), ()), ("d",)
    ),
    "reshard": Program(_reshard, ((16, 12), (12, 16)), (("d", "m"), ("m",)), (("d",), ("d", None, "m"), (None, "m"))),
    "recurrence": Program(
        _recurrence,
        ((4, 8, 6), (6, 16), (16, 16)),
        ((None, "d"), (None, "m"), (None, "m")),
        (("d", "m"), (None, "d"), ("m",)),
    ),
    "convolution": Program(
        _convolution, ((4, 8, 8, 3), (3, 3, 3, 8), (8,), (128, 16)), (("d", "m"), (), (), ("m",)), (("d",), ())
    ),
    "embedding": Program(
        _embedding, ((32, 16), (16, 16), (8, 6), (8, 6)), (("m",), (None, "m"), ("d",), ("d",)), labels=2
    ),
}
"""From a name to the program."""


def _arguments(program: Program) -> list[Any]:
    random = np.random.default_rng(0)
    numbers = len(program.shapes) - program.labels
    floats = [random.standard_normal(shape).astype(np.float32) for shape in program.shapes[:numbers]]
    return floats + [
        random.integers(0, program.shapes[0][0], shape).astype(np.int32) for shape in program.shapes[numbers:]
    ]


def _write(name: str, folder: Path) -> None:
    import jax

    import hloexec

    program = {**PROGRAMS, **SMALL, **ONCE_HELD, **PASSING, **DIVIDING}[name]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("d", "m"))

    def sharding(axes: Axes) -> Any:
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

    function = program.make(jax, lambda value, *axes: jax.lax.with_sharding_constraint(value, sharding(axes)))
    options: dict[str, Any] = {"in_shardings": tuple(map(sharding, program.axes)), "keep_unused": True}
    if program.results is not None:
        is_one = all(not isinstance(entry, tuple) for entry in program.results)
        options["out_shardings"] = sharding(program.results) if is_one else tuple(map(sharding, program.results))
    arguments = _arguments(program)
    lowered = jax.jit(function, **options).lower(*arguments)
    flags = {
        "xla_backend_optimization_level": 0,  # what LLVM makes of it is not run
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_pass_re": "spmd-partitioning",
        "xla_dump_large_constants": True,
    }
    with tempfile.TemporaryDirectory() as dump:
        compiled = lowered.compile(compiler_options={"xla_dump_to": dump, **flags})
        for stage in ("before", "after"):
            (path,) = Path(dump).glob(f"*{stage}_spmd-partitioning*.txt")
            (folder / f"{name}.{stage}.hlo").write_text(path.read_text())
    (folder / f"{name}.lowered.hlo").write_text(hloexec.format(hloexec.from_jax(lowered)))
    (folder / f"{name}.optimized.hlo").write_text(hloexec.format(hloexec.from_jax(compiled)))
    np.savez(folder / f"{name}.npz", *arguments)


def write_programs(folder: Path, names: Sequence[str] = tuple(PROGRAMS)) -> None:
    """Write programs to a folder, by a process that has eight devices."""
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "evaluation.partitioned.programs", str(folder), *names]
    subprocess.run(command, env=environment, check=True, timeout=600)


def module_of(folder: Path, name: str, stage: str) -> Module:
    """A program at one of the `STAGES`."""
    return hloexec.load(folder / f"{name}.{stage}.hlo")


def arguments_of(folder: Path, name: str) -> list[Any]:
    """The whole arguments of a program."""
    with np.load(folder / f"{name}.npz") as arrays:
        return list(arrays.values())


if __name__ == "__main__":
    for program in sys.argv[2:]:
        _write(program, Path(sys.argv[1]))
