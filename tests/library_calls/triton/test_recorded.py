"""Kernels that JAX has recorded with what a GPU computed, for its own tests of old versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from tests.library_calls.triton.lowering import require_pallas

RECORDED = "jax._src.internal_test_util.export_back_compat_test_data.pallas.triton_add_one"


def test_a_recorded_kernel_has_the_bits_of_a_gpu(tmp_path: Path) -> None:
    require_pallas()
    module: Any = pytest.importorskip(RECORDED)
    records = [value for value in vars(module).values() if isinstance(value, dict) and "inputs" in value]
    assert records
    for record in records:
        file = tmp_path / "module.mlirbc"
        file.write_bytes(record["mlir_module_serialized"])
        (expected,) = record["expected_outputs"]
        result = hloexec.run(hloexec.load(file), *map(np.asarray, record["inputs"]))
        assert result.tobytes() == np.asarray(expected).tobytes()
