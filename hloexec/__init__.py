"""hloexec: run XLA HLO on NumPy.

    module = hloexec.load("module.txt")
    inputs = hloexec.random_inputs(module)
    output = hloexec.run(module, *inputs)

Names are imported on first use, so that `import hloexec` and the command line start fast.
"""

from __future__ import annotations

import importlib

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

TYPE_CHECKING = False  # importing it from typing would take most of the time of `import hloexec`
if TYPE_CHECKING:
    from typing import Any

    from hloexec import (
        buffers,
        diffing,
        explaining,
        extraction,
        golden,
        graphing,
        ir,
        literals,
        minifying,
        nan_search,
        narrowing,
        shadowing,
        shrinking,
        stepping,
        tracing,
        triaging,
    )
    from hloexec.buffers import (
        BufferAssignment,
        MemoryComparison,
        MemoryUsage,
        compare_memory,
        load_buffer_assignment,
        memory_usage,
    )
    from hloexec.custom_calls.user_calls import register_custom_call, unregister_custom_call
    from hloexec.diffing import Diff, FolderDiff, diff, diff_folders
    from hloexec.exec import (
        Controller,
        Event,
        Failure,
        InstructionObserver,
        Observer,
        PathEntry,
        Progress,
        ProgressObserver,
        run,
        run_devices,
    )
    from hloexec.exec.host import Sink, Source
    from hloexec.exec.options import RunOptions
    from hloexec.exec.statistics import Statistics
    from hloexec.explaining import Explained, Explanation, InstructionExplanation, Trial, Untold, explain
    from hloexec.extraction import Extraction, extract
    from hloexec.golden import Golden, GoldenCheck, check_golden, record_golden
    from hloexec.graphing import Graph, graph
    from hloexec.inputs import random_inputs
    from hloexec.interop.lowering import from_jax
    from hloexec.ir import (
        ArrayShape,
        BufferShape,
        Computation,
        ElementType,
        Instruction,
        Layout,
        Literal,
        Module,
        Shape,
        Sharding,
        TupleShape,
    )
    from hloexec.loading import load
    from hloexec.minifying import Minified, minify
    from hloexec.nan_search import NanSearch, find_nan
    from hloexec.narrowing import Narrowing, narrow
    from hloexec.numerics.comparing import compare
    from hloexec.numerics.comparison import Comparison, LeafComparison, Verdict
    from hloexec.numerics.error_maps import ErrorMap
    from hloexec.numerics.measuring import ElementDifference, Measured
    from hloexec.numerics.sampling.spread import Spread
    from hloexec.numerics.statistics import LeafStatistics
    from hloexec.numerics.tolerances import Tolerance
    from hloexec.ops.arena import release_memory
    from hloexec.ops.policies.policy import NumericsPolicy
    from hloexec.origins import SourceLine
    from hloexec.report.html import write_html
    from hloexec.shadowing import ShadowRun, shadow
    from hloexec.sharding import shard_inputs, unshard_outputs
    from hloexec.shrinking import Shrinkage, shrink
    from hloexec.stepping import Breakpoint, Stepper, Stop, step
    from hloexec.text import format, parse
    from hloexec.text.dumps.buffer_assignment import parse_buffer_assignment
    from hloexec.tracing import Trace, TraceEvent, read_trace, trace
    from hloexec.triaging import Triage, TriagedModule, triage
    from hloexec.values import Array, Inputs, Token, Value
    from hloexec.verifier import Note, verify

__all__ = [
    "Array",
    "ArrayShape",
    "Breakpoint",
    "BufferAssignment",
    "BufferShape",
    "Comparison",
    "Computation",
    "Controller",
    "DeadlockError",
    "Diff",
    "ElementDifference",
    "ElementType",
    "ErrorMap",
    "EvaluationError",
    "Event",
    "Explained",
    "Explanation",
    "Extraction",
    "Failure",
    "FolderDiff",
    "Golden",
    "GoldenCheck",
    "Graph",
    "HloError",
    "HloWarning",
    "InputError",
    "Inputs",
    "Instruction",
    "InstructionExplanation",
    "InstructionObserver",
    "Layout",
    "LeafComparison",
    "LeafStatistics",
    "Literal",
    "LiteralError",
    "Measured",
    "MemoryComparison",
    "MemoryUsage",
    "Minified",
    "Module",
    "NanSearch",
    "Narrowing",
    "Note",
    "NumericsPolicy",
    "Observer",
    "OptimizationWarning",
    "ParseError",
    "PathEntry",
    "Progress",
    "ProgressObserver",
    "ResourceError",
    "RunOptions",
    "ShadowRun",
    "Shape",
    "ShapeError",
    "Sharding",
    "Shrinkage",
    "Sink",
    "Source",
    "SourceLine",
    "Spread",
    "Statistics",
    "Stepper",
    "Stop",
    "Token",
    "Tolerance",
    "Trace",
    "TraceEvent",
    "Triage",
    "TriagedModule",
    "Trial",
    "TupleShape",
    "UnsupportedError",
    "Untold",
    "Value",
    "Verdict",
    "VerificationError",
    "__version__",
    "buffers",
    "check_golden",
    "compare",
    "compare_memory",
    "diff",
    "diff_folders",
    "diffing",
    "explain",
    "explaining",
    "extract",
    "extraction",
    "find_nan",
    "format",
    "from_jax",
    "golden",
    "graph",
    "graphing",
    "ir",
    "literals",
    "load",
    "load_buffer_assignment",
    "memory_usage",
    "minify",
    "minifying",
    "nan_search",
    "narrow",
    "narrowing",
    "parse",
    "parse_buffer_assignment",
    "random_inputs",
    "read_trace",
    "record_golden",
    "register_custom_call",
    "release_memory",
    "run",
    "run_devices",
    "shadow",
    "shadowing",
    "shard_inputs",
    "shrink",
    "shrinking",
    "step",
    "stepping",
    "trace",
    "tracing",
    "triage",
    "triaging",
    "unregister_custom_call",
    "unshard_outputs",
    "verify",
    "write_html",
]

__version__ = "0.1.0"

_HOMES = {
    "Array": "hloexec.values",
    "ArrayShape": "hloexec.ir",
    "Breakpoint": "hloexec.stepping",
    "BufferAssignment": "hloexec.buffers",
    "BufferShape": "hloexec.ir",
    "Comparison": "hloexec.numerics.comparison",
    "Computation": "hloexec.ir",
    "Controller": "hloexec.exec",
    "Diff": "hloexec.diffing",
    "ElementDifference": "hloexec.numerics.measuring",
    "ElementType": "hloexec.ir",
    "ErrorMap": "hloexec.numerics.error_maps",
    "Event": "hloexec.exec",
    "Explained": "hloexec.explaining",
    "Explanation": "hloexec.explaining",
    "Extraction": "hloexec.extraction",
    "Failure": "hloexec.exec",
    "FolderDiff": "hloexec.diffing",
    "Golden": "hloexec.golden",
    "GoldenCheck": "hloexec.golden",
    "Graph": "hloexec.graphing",
    "NanSearch": "hloexec.nan_search",
    "Narrowing": "hloexec.narrowing",
    "Inputs": "hloexec.values",
    "Instruction": "hloexec.ir",
    "InstructionExplanation": "hloexec.explaining",
    "InstructionObserver": "hloexec.exec",
    "Layout": "hloexec.ir",
    "LeafComparison": "hloexec.numerics.comparison",
    "LeafStatistics": "hloexec.numerics.statistics",
    "Literal": "hloexec.ir",
    "Measured": "hloexec.numerics.measuring",
    "MemoryComparison": "hloexec.buffers",
    "MemoryUsage": "hloexec.buffers",
    "Minified": "hloexec.minifying",
    "Module": "hloexec.ir",
    "Note": "hloexec.verifier",
    "NumericsPolicy": "hloexec.ops.policies.policy",
    "Observer": "hloexec.exec",
    "PathEntry": "hloexec.exec",
    "Progress": "hloexec.exec",
    "ProgressObserver": "hloexec.exec",
    "RunOptions": "hloexec.exec.options",
    "ShadowRun": "hloexec.shadowing",
    "Shape": "hloexec.ir",
    "Sharding": "hloexec.ir",
    "Shrinkage": "hloexec.shrinking",
    "Sink": "hloexec.exec.host",
    "Source": "hloexec.exec.host",
    "SourceLine": "hloexec.origins",
    "Spread": "hloexec.numerics.sampling.spread",
    "Statistics": "hloexec.exec.statistics",
    "Stepper": "hloexec.stepping",
    "Stop": "hloexec.stepping",
    "Token": "hloexec.values",
    "Tolerance": "hloexec.numerics.tolerances",
    "Trace": "hloexec.tracing",
    "TraceEvent": "hloexec.tracing",
    "Triage": "hloexec.triaging",
    "TriagedModule": "hloexec.triaging",
    "Trial": "hloexec.explaining",
    "Untold": "hloexec.explaining",
    "TupleShape": "hloexec.ir",
    "Value": "hloexec.values",
    "Verdict": "hloexec.numerics.comparison",
    "check_golden": "hloexec.golden",
    "compare": "hloexec.numerics.comparing",
    "compare_memory": "hloexec.buffers",
    "diff": "hloexec.diffing",
    "diff_folders": "hloexec.diffing",
    "explain": "hloexec.explaining",
    "extract": "hloexec.extraction",
    "find_nan": "hloexec.nan_search",
    "format": "hloexec.text",
    "from_jax": "hloexec.interop.lowering",
    "graph": "hloexec.graphing",
    "load": "hloexec.loading",
    "load_buffer_assignment": "hloexec.buffers",
    "memory_usage": "hloexec.buffers",
    "minify": "hloexec.minifying",
    "narrow": "hloexec.narrowing",
    "parse": "hloexec.text",
    "parse_buffer_assignment": "hloexec.text.dumps.buffer_assignment",
    "random_inputs": "hloexec.inputs",
    "read_trace": "hloexec.tracing",
    "record_golden": "hloexec.golden",
    "register_custom_call": "hloexec.custom_calls.user_calls",
    "run": "hloexec.exec",
    "release_memory": "hloexec.ops.arena",
    "run_devices": "hloexec.exec",
    "shadow": "hloexec.shadowing",
    "shard_inputs": "hloexec.sharding",
    "shrink": "hloexec.shrinking",
    "step": "hloexec.stepping",
    "trace": "hloexec.tracing",
    "triage": "hloexec.triaging",
    "unregister_custom_call": "hloexec.custom_calls.user_calls",
    "unshard_outputs": "hloexec.sharding",
    "verify": "hloexec.verifier",
    "write_html": "hloexec.report.html",
}
_PACKAGES = frozenset(
    {
        "buffers",
        "diffing",
        "explaining",
        "extraction",
        "golden",
        "graphing",
        "ir",
        "literals",
        "minifying",
        "nan_search",
        "narrowing",
        "shadowing",
        "shrinking",
        "stepping",
        "tracing",
        "triaging",
    }
)
"""Packages with the types of parts of arguments and results, such as `hloexec.ir.Window`."""


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"hloexec.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hloexec' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
