"""Small programs of JAX in every form in which people bring them: each is read and run, and compared with JAX's result."""

import gzip
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.engine.devices.topology import device_counts
from hloexec.language.interop import load_bytes
from tests.test_interop_jax import file_of

xla = pytest.importorskip("conformance.xla")
jax = pytest.importorskip("jax")
export = pytest.importorskip("jax.export")
jnp, lax = jax.numpy, jax.lax

_GENERATOR = np.random.default_rng(3)
X = _GENERATOR.normal(size=(6, 6)).astype(np.float32)
IMAGE = _GENERATOR.normal(size=(2, 8, 8, 3)).astype(np.float32)
KERNEL = _GENERATOR.normal(size=(3, 3, 3, 4)).astype(np.float32)
SPECIAL = np.array([-0.0, np.inf, -np.inf, np.nan, 1e-30], np.float32)


def scanned(x: Any) -> Any:
    return lax.scan(lambda carry, row: (jnp.tanh(carry + row), carry.sum()), jnp.zeros(6), x)


def branched(flag: Any, x: Any) -> Any:
    return lax.cond(flag > 0, lambda y: y @ y, lambda y: y.T, x), lax.switch(flag, [jnp.sin, jnp.cos, jnp.exp], x)


def looped(n: Any, x: Any) -> Any:
    return lax.while_loop(lambda state: state[0] < n, lambda state: (state[0] + 1, state[1] * 0.5 + 1), (0, x))


def convolved(image: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(image, kernel, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def sorted_both_ways(x: Any) -> Any:
    return jnp.sort(x, axis=0), jnp.argsort(-x), lax.top_k(x, 2)


def drawn(key: Any) -> Any:
    key = jax.random.wrap_key_data(key)
    return jax.random.normal(key, (4, 3)), jax.random.bits(key, (5,)), jax.random.permutation(key, 7)


def factorized(x: Any) -> Any:
    return jnp.linalg.cholesky(x @ x.T + 6 * jnp.eye(6)), jnp.linalg.solve(x + 6 * jnp.eye(6), x)


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, gradient: (jnp.clip(gradient * jnp.cos(x), -0.1, 0.1),))


def attention(x: Any, mask: Any) -> Any:
    scores = jnp.where(mask, x @ x.T / np.sqrt(6), -1e9)
    return jax.nn.softmax(scores, axis=-1) @ x


def updated(x: Any, index: Any) -> Any:
    return x.at[index].add(1.0), x[index], jnp.take(x, index, axis=1), lax.dynamic_slice(x, (index[0], 1), (2, 3))


def sharded(x: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("rows", "columns"))
    spec = jax.sharding.PartitionSpec("rows", "columns")

    def local(part: Any) -> Any:
        return lax.psum(part, "columns") * 2 - lax.all_gather(part, "columns", axis=1, tiled=True)[:, :4]

    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scan": (scanned, (X,)),
    "cond": (branched, (np.int32(1), X)),
    "while": (looped, (np.int32(5), X)),
    "convolution": (convolved, (IMAGE, KERNEL)),
    "gradient of a convolution": (jax.grad(lambda *args: convolved(*args).sum(), argnums=(0, 1)), (IMAGE, KERNEL)),
    "sort": (sorted_both_ways, (X,)),
    "fft": (lambda x: (jnp.fft.rfft(x), jnp.fft.ifft2(x)), (X,)),
    "random": (drawn, (np.array([1, 2], np.uint32),)),
    "linalg": (factorized, (X,)),
    "custom_vjp": (jax.grad(lambda x: clipped(x).sum()), (X,)),
    "attention": (attention, (X, X > 0)),
    "indexing": (updated, (X, np.array([2, 0, 5], np.int32))),
    "bf16": (lambda x: (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16), x.astype(jnp.float8_e4m3fn)), (X,)),
    "integers": (lambda n: (n // 3, n % 5, n << 2, n.astype(jnp.int4), n > 4), (np.arange(-5, 9, dtype=np.int32),)),
    "special": (lambda x: (x + 0, jnp.maximum(x, 0), jnp.sign(x), x.astype(jnp.int32)), (SPECIAL,)),
    "windows": (lambda x: (lax.cumsum(x), lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME")), (X,)),
    "pytree": (lambda tree: {"sum": tree["a"] + tree["b"][0], "b": tree["b"]}, ({"a": X, "b": [X.T, X]},)),
    "sharded": (sharded, (_GENERATOR.normal(size=(16, 8)).astype(np.float32),)),
}


@cache
def lowered(name: str) -> Any:
    function, arguments = PROGRAMS[name]
    return jax.jit(function, keep_unused=True).lower(*arguments)


@cache
def compiled(name: str) -> Any:
    return lowered(name).compile()


@cache
def exported(name: str) -> Any:
    function, arguments = PROGRAMS[name]
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in ("lapack_spotrf_ffi", "lapack_sgetrf_ffi")]
    return export.export(jax.jit(function, keep_unused=True), disabled_checks=checks)(*arguments)


def bytecode(name: str) -> bytes:
    file = io.BytesIO()
    lowered(name).compiler_ir().operation.write_bytecode(file)
    return file.getvalue()


def dumped(name: str, stage: str, folder: Path) -> hloexec.Module:
    """What XLA dumps of the module at one end of its optimization."""
    lowered(name).compile({"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True})
    (path,) = folder.glob(f"*{stage}_optimizations.txt")
    return hloexec.load(path)


FORMS: dict[str, Callable[[str, Path], hloexec.Module]] = {
    "HLO text": lambda name, _: hloexec.parse(lowered(name).as_text("hlo")),
    "protocol buffer": lambda name, _: load_bytes(lowered(name).compiler_ir("hlo").as_serialized_hlo_module_proto()),
    "StableHLO": lambda name, _: load_bytes(lowered(name).as_text().encode()),
    "bytecode": lambda name, _: load_bytes(bytecode(name)),
    "gzip": lambda name, _: load_bytes(gzip.compress(lowered(name).as_text("hlo").encode(), mtime=0)),
    "dump before": lambda name, folder: dumped(name, "before", folder),
    "dump after": lambda name, folder: dumped(name, "after", folder),
    "file of an export": lambda name, _: load_bytes(file_of(exported(name))),
    "lowered": lambda name, _: hloexec.from_jax(lowered(name)),
    "compiled": lambda name, _: hloexec.from_jax(compiled(name)),
    "exported": lambda name, _: hloexec.from_jax(exported(name)),
    "traced": lambda name, _: hloexec.from_jax(jax.jit(PROGRAMS[name][0]).trace(*PROGRAMS[name][1])),
    "function": lambda name, _: hloexec.from_jax(*(PROGRAMS[name][0], *PROGRAMS[name][1])),
}


OUTPUT_SHARDING = "{devices=[4,2]<=[8]}"
"""Of the only program for several devices, which XLA's text of the partitioned module leaves out."""


def run(module: hloexec.Module, before: hloexec.Module, inputs: list[Any]) -> Any:
    """The whole result, of as many devices as the module is for."""
    if device_counts(before) == (1, 1):
        return hloexec.run(module, *inputs)
    outputs = hloexec.run_devices(module, hloexec.shard_inputs(module, inputs, before=before))
    is_split = module.entry.result_shape != before.entry.result_shape
    return hloexec.unshard_outputs(module, outputs, before=before, sharding=OUTPUT_SHARDING if is_split else None)


def assert_form_runs(name: str, form: str, folder: Path) -> None:
    function, arguments = PROGRAMS[name]
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arguments))]
    expected = leaves[0] if len(leaves) == 1 else tuple(leaves)
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    before = hloexec.from_jax(lowered(name))
    actual = run(FORMS[form](name, folder), before, inputs)
    alone = before if device_counts(before) == (1, 1) else None
    comparison = hloexec.compare(actual, expected, module=alone, inputs=inputs if alone else None)
    assert comparison.verdict in (hloexec.Verdict.EQUAL, hloexec.Verdict.ROUNDING), comparison


@pytest.mark.parametrize("form", FORMS)
def test_one_program_runs_in_every_form(form: str, tmp_path: Path) -> None:
    assert_form_runs("pytree", form, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_runs_in_every_form(name: str, form: str, tmp_path: Path) -> None:
    assert_form_runs(name, form, tmp_path)
