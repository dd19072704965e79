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
    from hloexec.numerics.comparison import Comparison, LeafComparison, Undecided, Verdict
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
    "Undecided",
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

_NAMES = {
    "buffers": "BufferAssignment MemoryComparison MemoryUsage compare_memory load_buffer_assignment memory_usage",
    "custom_calls.user_calls": "register_custom_call unregister_custom_call",
    "diffing": "Diff FolderDiff diff diff_folders",
    "exec": "Controller Event Failure InstructionObserver Observer PathEntry Progress ProgressObserver run run_devices",
    "exec.host": "Sink Source",
    "exec.options": "RunOptions",
    "exec.statistics": "Statistics",
    "explaining": "Explained Explanation InstructionExplanation Trial Untold explain",
    "extraction": "Extraction extract",
    "golden": "Golden GoldenCheck check_golden record_golden",
    "graphing": "Graph graph",
    "inputs": "random_inputs",
    "interop.lowering": "from_jax",
    "ir": "ArrayShape BufferShape Computation ElementType Instruction Layout Literal Module Shape Sharding TupleShape",
    "loading": "load",
    "minifying": "Minified minify",
    "nan_search": "NanSearch find_nan",
    "narrowing": "Narrowing narrow",
    "numerics.comparing": "compare",
    "numerics.comparison": "Comparison LeafComparison Undecided Verdict",
    "numerics.error_maps": "ErrorMap",
    "numerics.measuring": "ElementDifference Measured",
    "numerics.sampling.spread": "Spread",
    "numerics.statistics": "LeafStatistics",
    "numerics.tolerances": "Tolerance",
    "ops.arena": "release_memory",
    "ops.policies.policy": "NumericsPolicy",
    "origins": "SourceLine",
    "report.html": "write_html",
    "shadowing": "ShadowRun shadow",
    "sharding": "shard_inputs unshard_outputs",
    "shrinking": "Shrinkage shrink",
    "stepping": "Breakpoint Stepper Stop step",
    "text": "format parse",
    "text.dumps.buffer_assignment": "parse_buffer_assignment",
    "tracing": "Trace TraceEvent read_trace trace",
    "triaging": "Triage TriagedModule triage",
    "values": "Array Inputs Token Value",
    "verifier": "Note verify",
}
"""Public names, by the module that has them. The others in `__all__` are packages, with the types of parts of arguments
and results such as `hloexec.ir.Window`."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hloexec' has no attribute {name!r}")
    home = importlib.import_module(f"hloexec.{_HOMES.get(name, name)}")
    value = globals()[name] = getattr(home, name) if name in _HOMES else home
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
