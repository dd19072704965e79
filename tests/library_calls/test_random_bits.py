"""Threefry in all spellings against JAX's bits."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import HloError, UnsupportedError
from hloexec.ops.registry import CUSTOM_CALLS
from tests.library_calls.calls import by_jax

TARGETS = sorted(target for target in CUSTOM_CALLS if "threefry" in target)


def words(shape: Any, *, seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 2**32, shape, np.uint32) for _ in range(4)]


def call(target: str, *operands: Any, config: str = "") -> Any:
    def text(array: Any) -> str:
        return f"{'u32' if array.dtype == np.uint32 else 's64'}[{','.join(map(str, array.shape))}]"

    lines = [f"  p{n} = {text(operand)} parameter({n})" for n, operand in enumerate(operands)]
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    suffix = f", backend_config={config}" if config else ""
    shape = text(operands[0])
    lines.append(f'  ROOT r = ({shape}, {shape}) custom-call({names}), custom_call_target="{target}"{suffix}')
    return hloexec.run(hloexec.parse("HloModule m\n\nENTRY e {\n" + "\n".join(lines) + "\n}\n"), *operands)


def older_config(count: int) -> str:
    """Eight bytes, as XLA's printer escapes them."""
    return '"' + "".join(f"\\{byte:03o}" for byte in count.to_bytes(8, "little", signed=True)) + '"'


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(2,), (3,), (11,), (32768,), (2, 3)])
def test_every_spelling_gives_jaxs_bits(target, shape):
    pytest.importorskip("jax")
    from jax.extend.random import threefry2x32_p

    operands = words(shape)
    expected = by_jax(threefry2x32_p.bind, *operands)
    configs = ["", "{}"] if target.endswith("_ffi") else ["", older_config(int(np.prod(shape)))]
    for config in configs:
        for ours, theirs in zip(call(target, *operands, config=config), expected, strict=True):
            assert_array_equal(ours, theirs)
    if not target.endswith("_ffi"):
        found = call(target, *operands, np.array([np.prod(shape)], np.int64), config=older_config(-1))
        assert_array_equal(found[0], expected[0])


@pytest.mark.slow
def test_random_numbers_of_jax_for_a_gpu_are_those_for_a_cpu():
    jax = pytest.importorskip("jax")
    from jax._src import config

    def draw(key: Any) -> Any:
        return jax.random.uniform(jax.random.fold_in(key, 3), (5, 7))

    for platform, target in (("cuda", "cu_threefry2x32_ffi"), ("rocm", "hip_threefry2x32_ffi")):
        with jax.threefry_partitionable(False), config.threefry_gpu_kernel_lowering(True):
            module = hloexec.from_jax(jax.jit(draw).trace(jax.random.key(0)).lower(lowering_platforms=(platform,)))
            expected = np.asarray(draw(jax.random.key(0)))
        assert target in hloexec.format(module)
        assert_array_equal(hloexec.run(module, np.zeros(2, np.uint32)), expected)


def test_configs_of_another_length_or_number_are_refused():
    with pytest.raises(UnsupportedError, match="number of eight bytes, but has 3"):
        call("cu_threefry2x32", *words(3), config='"\\001\\002\\003"')
    with pytest.raises(UnsupportedError, match="attribute depth"):
        call("cu_threefry2x32_ffi", *words(3), config="{depth = 1 : i32}")
    with pytest.raises(HloError, match="says that there are 4 words"):
        call("cuda_threefry2x32", *words(3), config=older_config(4))
    with pytest.raises(HloError, match="says that there are -1 words"):
        call("cuda_threefry2x32", *words(3), config=older_config(-1))
    with pytest.raises(HloError, match="3 operands"):
        call("cuda_threefry2x32", *words(3)[:3])
    with pytest.raises(HloError, match="u32 of the same dimensions"):
        call("cuda_threefry2x32", *words(3)[:3], np.zeros(2, np.uint32))
