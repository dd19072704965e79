"""Twenty-two modules that are small and use much, in f32, bf16 and f64.

The examples, training steps of networks, and long products and sums of functions, which BLAS and NumPy compute
differently from processor to processor.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import hloexec
from hloexec.core.ir import Module
from tests.golden.sums import SUMS
from tests.models.programs import PROGRAMS, jax

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "attention attention.optimized data_parallel_step mlp_train_step rnn_scan".split()
NETWORKS = {
    "f32": "decoder_training flax_residual layer_norm_mlp mixture_of_experts recurrent_step residual_net u_net".split(),
    "bf16": "layer_norm_mlp recurrent_step residual_net".split(),
    "f64": "layer_norm_mlp mixture_of_experts recurrent_step residual_net".split(),
}
_TYPES: dict[str, Any] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f64": np.float64}


def modules() -> Iterator[tuple[str, Module, list[Any] | None]]:
    """Names, modules, and inputs where random ones would not do."""
    for name in EXAMPLES:
        yield name, hloexec.load(ROOT / "examples" / f"{name}.hlo"), None
    for type_name, names in NETWORKS.items():
        yield f"sums_{type_name}", hloexec.parse(SUMS.replace("T[", f"{type_name}[")), None
        for name in names:
            yield f"{name}_{type_name}", *_network(name, _TYPES[type_name])


def _network(name: str, dtype: Any) -> tuple[Module, list[Any]]:
    function, arguments = PROGRAMS[name]()
    with jax.enable_x64(dtype is np.float64):
        cast = jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf, arguments)
        lowered = jax.jit(function, keep_unused=True).lower(*cast)
        return hloexec.from_jax(lowered), [np.asarray(leaf) for leaf in jax.tree.leaves(cast)]
