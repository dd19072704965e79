"""Kernels that JAX has recorded with what TPUs computed, for its own tests of old versions: read, upgraded, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec

RECORDED = "jax._src.internal_test_util.export_back_compat_test_data.pallas"


def recorded(name: str, tmp_path: Path) -> tuple[hloexec.Module, Any, Any]:
    """A module, its inputs, and what the hardware gave."""
    module: Any = pytest.importorskip(f"{RECORDED}.{name}")
    (record,) = [value for value in vars(module).values() if isinstance(value, dict) and "inputs" in value]
    file = tmp_path / "module.mlirbc"
    file.write_bytes(record["mlir_module_serialized"])
    (expected,) = record["expected_outputs"]
    return hloexec.load(file), tuple(map(np.asarray, record["inputs"])), np.asarray(expected)


def test_a_product_has_the_bits_of_a_tpu_but_for_the_order_of_sums(tmp_path: Path) -> None:
    """Of a v5e: products of f32 in default precision round their operands to bf16, as the policy does; what is left is
    the order of 512 additions on each side: γ₅₁₂ of the sums of sizes, which are the sums as no term is negative."""
    module, inputs, expected = recorded("mosaic_matmul", tmp_path)
    assert (expected >= 0).all()
    result = hloexec.run(module, *inputs, numerics="bf16")
    bound = 2 * 512 * 2.0**-24 * np.abs(expected.astype(np.float64))
    assert (np.abs(result.astype(np.float64) - expected) <= bound).all()
    exact = hloexec.run(module, *inputs)
    assert (np.abs(exact.astype(np.float64) - expected) > bound).any()


@pytest.mark.parametrize("name", ["mosaic_boolean_constant", "mosaic_semaphore_dma"])
def test_data_movement_is_what_a_tpu_gave(name: str, tmp_path: Path) -> None:
    module, inputs, expected = recorded(name, tmp_path)
    assert hloexec.run(module, *inputs).tobytes() == expected.tobytes()
