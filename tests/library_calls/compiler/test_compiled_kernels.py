"""Kernels of other compilers are refused by name, and run where a function stands for them."""

import importlib
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import UnsupportedError
from hloexec.ops.registry import CUSTOM_CALLS
from tests.text.building import op

RECORDED = "jax._src.internal_test_util.export_back_compat_test_data.pallas"
TARGETS = (
    "mosaic_gpu mosaic_gpu_v2 triton_kernel_call triton_kernel_call_ffi __gpu$xla.gpu.ptx CuteDSLRT_NvJaxCutlassCall"
).split()


def text_of(target: str) -> str:
    return f"""HloModule m

ENTRY e {{
  x = f32[3] parameter(0)
  ROOT r = f32[3] custom-call(x), custom_call_target="{target}", backend_config="code"
}}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_is_refused_with_what_to_do_instead(target):
    x = np.arange(3, dtype=np.float32)
    module = hloexec.parse(text_of(target))
    assert hloexec.format(module)
    with pytest.raises(UnsupportedError, match=r"(?s)only that compiler understands.*register_custom_call"):
        hloexec.run(module, x)
    hloexec.register_custom_call(target, lambda x: x + 1)
    try:
        assert_array_equal(hloexec.run(module, x), x + 1)
    finally:
        from hloexec.ops.library_calls.user_calls import unregister_custom_call

        unregister_custom_call(target)


@pytest.mark.parametrize("target", ["mosaic_gpu", "mosaic_gpu_v2"])
def test_the_refusal_of_a_pallas_kernel_says_how_it_is_lowered_to_hlo(target):
    with pytest.raises(UnsupportedError, match=r"%r in computation e\), where .*interpret=True"):
        hloexec.run(hloexec.parse(text_of(target)), np.zeros(3, np.float32))


@pytest.mark.slow
def test_what_is_lowered_with_interpret_runs():
    jax = pytest.importorskip("jax")
    from jax.experimental import pallas

    def kernel(x: Any, w: Any, out: Any) -> None:
        out[...] = x[...] @ w[...]

    def product(x: Any, w: Any) -> Any:
        rows = pallas.BlockSpec((4, 8), lambda i: (i, 0))
        whole = pallas.BlockSpec((8, 3), lambda i: (0, 0))
        written = pallas.BlockSpec((4, 3), lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct((12, 3), np.float32)
        return pallas.pallas_call(kernel, shape, grid=(3,), in_specs=[rows, whole], out_specs=written, interpret=True)(
            x, w
        )

    x, w = np.arange(96, dtype=np.float32).reshape(12, 8), np.eye(8, 3, dtype=np.float32)
    text = jax.jit(product).lower(x, w).compiler_ir("hlo").as_hlo_text(True)
    assert_array_equal(hloexec.run(hloexec.parse(text), x, w), x[:, :3])


def test_partitioning_by_python_functions_is_refused_before_running():
    with pytest.raises(UnsupportedError, match="SPMD partitioner"):
        hloexec.run(hloexec.parse(text_of("CustomSPMDPartitioning")), np.zeros(3, np.float32))


@pytest.mark.slow
def test_modules_with_pallas_kernels_are_read_and_their_kernels_named(tmp_path):
    pytest.importorskip("jax")
    module: Any = importlib.import_module(f"{RECORDED}.mosaic_gpu_add_one")
    records = [value for value in vars(module).values() if isinstance(value, dict) and "inputs" in value]
    assert records
    for record in records:
        file = tmp_path / "module.mlirbc"
        file.write_bytes(record["mlir_module_serialized"])
        loaded = hloexec.load(file)
        (target,) = set(record["custom_call_targets"]) & set(TARGETS)
        with pytest.raises(UnsupportedError, match=target.replace("$", r"\$")):
            hloexec.run(loaded, *map(np.asarray, record["inputs"]))


def test_every_target_that_jax_keeps_stable_has_an_entry():
    """But for StableHLO's own, which are no calls any more once a module is HLO."""
    pytest.importorskip("jax")
    from jax._src.export import _export

    stable = _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE
    assert len(stable) > 50
    assert {target for target in stable if not target.startswith("stablehlo.")} <= CUSTOM_CALLS.keys()


@pytest.mark.parametrize(
    "target",
    [
        "stablehlo.dynamic_reduce_window",
        "stablehlo.dynamic_rng_bit_generator",
        "stablehlo.dynamic_top_k",
        "stablehlo.dynamic_approx_top_k",
        "dynamic_ducc_fft",
    ],
)
def test_operations_whose_sizes_are_values_are_refused(target: str) -> None:
    module = hloexec.parse(op(f'f32[4] custom-call(x, n), custom_call_target="{target}"', x="f32[4]", n="s32[1]"))
    with pytest.raises(hloexec.UnsupportedError, match="refine the shapes of the module"):
        hloexec.run(module, np.zeros(4, np.float32), np.zeros(1, np.int32))


def test_what_refinement_marks_is_handed_on() -> None:
    """StableHLO's refinement itself replaces the call by its first operand."""
    text = 'f32[4] custom-call(x, n), custom_call_target="stablehlo.shape_refinement_operand_wrapper"'
    x = np.arange(4, dtype=np.float32)
    assert (hloexec.run(hloexec.parse(op(text, x="f32[4]", n="s64[1]")), x, np.array([4])) == x).all()


def test_packed_nibbles_are_refused_in_a_sentence() -> None:
    text = (
        "s32[2,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        "operand_precision={packed_nibble,packed_nibble}"
    )
    module = hloexec.parse(op(text, x="s8[2,4]", y="s8[4,3]"))
    with pytest.raises(hloexec.HloError, match="each of its elements holds two numbers of four bits"):
        hloexec.run(module, np.ones((2, 4), np.int8), np.ones((4, 3), np.int8))
