"""The StableHLO reference interpreter, through jaxlib, on StableHLO text.

JAX's own dialect (chlo) is lowered first, which the interpreter does not know. What it cannot do aborts the process.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.contestants.serving import Stages, serve

_ELEMENT_TYPES = {
    "bool": "i1",
    "int32": "i32",
    "uint32": "ui32",
    "float32": "f32",
    "bfloat16": "bf16",
    "complex64": "complex<f32>",
}


def main(module_path: str, inputs_path: str) -> None:
    stages = Stages()
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, stablehlo
    from jaxlib.mlir.passmanager import PassManager

    from benchmarks.arrays import read_arrays

    stages.done("import")
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_stablehlo_passes()
    with context:
        stablehlo.register_dialect(context)
        chlo.register_dialect(context)
        module = ir.Module.parse(Path(module_path).read_text(encoding="utf-8"))
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
        stages.done("parse")
        arguments = [ir.Attribute.parse(_attribute(array)) for array in read_arrays(inputs_path)]
        stages.done("inputs")

        def run() -> dict[str, Any]:
            start = time.perf_counter()
            stablehlo.eval_module(module, arguments)
            return {"seconds": time.perf_counter() - start}

        serve({"stages": stages.seconds}, {"run": run})


def _attribute(array: Any) -> str:
    """The array as an MLIR attribute, its bytes in hexadecimal."""
    dimensions = "".join(f"{size}x" for size in array.shape)
    return f'dense<"0x{array.tobytes().hex()}"> : tensor<{dimensions}{_ELEMENT_TYPES[array.dtype.name]}>'


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
