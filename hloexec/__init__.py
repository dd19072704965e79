"""hloexec: XLA HLO, run on NumPy.

    module = hloexec.load("module.txt")
    inputs = hloexec.random_inputs(module)
    output = hloexec.run(module, *inputs)

Everything here is imported when it is first used, so that `import hloexec` and the command line start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hloexec.errors import (
    DeadlockError,
    EvaluationError,
    HloError,
    HloWarning,
    InputError,
    LiteralError,
    OptimizationWarning,
    ParseError,
    ResourceError,
    ShapeError,
    UnsupportedError,
    VerificationError,
)

if TYPE_CHECKING:
    from hloexec.buffers import compare_memory, load_buffer_assignment, memory_usage
    from hloexec.custom_calls.registry import register_custom_call
    from hloexec.diffing import Diff, diff
    from hloexec.diffing.folders import diff_folders
    from hloexec.exec import run, run_devices
    from hloexec.extraction import extract
    from hloexec.golden import check_golden, record_golden
    from hloexec.inputs import random_inputs
    from hloexec.interop import from_jax
    from hloexec.loading import load
    from hloexec.nan_search import find_nan
    from hloexec.numerics.comparing import compare
    from hloexec.numerics.comparison import Comparison, LeafComparison, Verdict
    from hloexec.sharding import shard_inputs, unshard_outputs
    from hloexec.text import format, parse
    from hloexec.text.buffer_assignment import parse_buffer_assignment
    from hloexec.tracing import read_trace, trace
    from hloexec.verifier import verify

__all__ = [
    "Comparison",
    "DeadlockError",
    "Diff",
    "EvaluationError",
    "HloError",
    "HloWarning",
    "InputError",
    "LeafComparison",
    "LiteralError",
    "OptimizationWarning",
    "ParseError",
    "ResourceError",
    "ShapeError",
    "UnsupportedError",
    "Verdict",
    "VerificationError",
    "check_golden",
    "compare",
    "compare_memory",
    "diff",
    "diff_folders",
    "extract",
    "find_nan",
    "format",
    "from_jax",
    "load",
    "load_buffer_assignment",
    "memory_usage",
    "parse",
    "parse_buffer_assignment",
    "random_inputs",
    "read_trace",
    "record_golden",
    "register_custom_call",
    "run",
    "run_devices",
    "shard_inputs",
    "trace",
    "unshard_outputs",
    "verify",
]

_HOMES = {
    "Comparison": "hloexec.numerics.comparison",
    "Diff": "hloexec.diffing",
    "LeafComparison": "hloexec.numerics.comparison",
    "Verdict": "hloexec.numerics.comparison",
    "check_golden": "hloexec.golden",
    "compare": "hloexec.numerics.comparing",
    "compare_memory": "hloexec.buffers",
    "diff": "hloexec.diffing",
    "diff_folders": "hloexec.diffing.folders",
    "extract": "hloexec.extraction",
    "find_nan": "hloexec.nan_search",
    "format": "hloexec.text",
    "from_jax": "hloexec.interop",
    "load": "hloexec.loading",
    "load_buffer_assignment": "hloexec.buffers",
    "memory_usage": "hloexec.buffers",
    "parse": "hloexec.text",
    "parse_buffer_assignment": "hloexec.text.buffer_assignment",
    "random_inputs": "hloexec.inputs",
    "read_trace": "hloexec.tracing",
    "record_golden": "hloexec.golden",
    "register_custom_call": "hloexec.custom_calls.registry",
    "run": "hloexec.exec",
    "run_devices": "hloexec.exec",
    "shard_inputs": "hloexec.sharding",
    "trace": "hloexec.tracing",
    "unshard_outputs": "hloexec.sharding",
    "verify": "hloexec.verifier",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hloexec' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
