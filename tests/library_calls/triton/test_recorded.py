"""A kernel that JAX has recorded for its own tests of old versions, of 2024: no jaxlib of today reads its bytecode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from tests.library_calls.triton.lowering import require_pallas

RECORDED = "jax._src.internal_test_util.export_back_compat_test_data.pallas.triton_add_one"


def test_bytecode_of_an_older_version_is_refused_with_the_name_of_the_kernel(tmp_path: Path) -> None:
    require_pallas()
    module: Any = pytest.importorskip(RECORDED)
    records = [value for value in vars(module).values() if isinstance(value, dict) and "inputs" in value]
    assert records
    for record in records:
        file = tmp_path / "module.mlirbc"
        file.write_bytes(record["mlir_module_serialized"])
        with pytest.raises(hloexec.UnsupportedError, match=r"it runs kernel 'add_one\w*', but .* does not know"):
            hloexec.run(hloexec.load(file), *map(np.asarray, record["inputs"]))
