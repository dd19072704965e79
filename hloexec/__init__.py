"""hloexec: run XLA HLO on NumPy.

    module = hloexec.load("module.txt")
    inputs = hloexec.random_inputs(module)
    output = hloexec.run(module, *inputs)

Names are imported on first use, so that `import hloexec` and the command line start fast.
"""

from __future__ import annotations

import importlib

from hloexec.core.version import __version__
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

    from hloexec.analysis import buffers
    from hloexec.analysis.buffers import (
        BufferAssignment,
        MemoryComparison,
        MemoryUsage,
        compare_memory,
        load_buffer_assignment,
        memory_usage,
    )
    from hloexec.analysis.numerics.comparing import compare
    from hloexec.analysis.numerics.comparison import Comparison, LeafComparison, Undecided, Verdict
    from hloexec.analysis.numerics.error_maps import ErrorMap
    from hloexec.analysis.numerics.measuring import ElementDifference, Measured, Places
    from hloexec.analysis.numerics.sampling.spread import Spread
    from hloexec.analysis.numerics.statistics import LeafStatistics
    from hloexec.analysis.numerics.tolerances import Tolerance
    from hloexec.core import ir
    from hloexec.core.ir import (
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
    from hloexec.core.values import Array, Inputs, Token, Value
    from hloexec.engine.exec import (
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
    from hloexec.engine.exec.host import Sink, Source
    from hloexec.engine.exec.options import RunOptions
    from hloexec.engine.exec.statistics import Statistics
    from hloexec.engine.inputs import random_inputs
    from hloexec.engine.sharding import shard_inputs, unshard_outputs
    from hloexec.language import literals
    from hloexec.language.interop.lowering import from_jax
    from hloexec.language.loading import load
    from hloexec.language.origins import SourceLine
    from hloexec.language.text import format, parse
    from hloexec.language.text.dumps.buffer_assignment import parse_buffer_assignment
    from hloexec.language.verifier import Note, verify
    from hloexec.ops.arena import release_memory
    from hloexec.ops.library_calls.user_calls import register_custom_call, unregister_custom_call
    from hloexec.ops.policies.policy import NumericsPolicy
    from hloexec.report.html import write_html
    from hloexec.tools import (
        diffing,
        explaining,
        extraction,
        golden,
        graphing,
        minifying,
        nan_search,
        narrowing,
        shadowing,
        shrinking,
        stepping,
        tracing,
        triaging,
    )
    from hloexec.tools.diffing import Diff, FolderDiff, diff, diff_folders
    from hloexec.tools.explaining import Explained, Explanation, InstructionExplanation, Trial, Untold, explain
    from hloexec.tools.extraction import Extraction, extract
    from hloexec.tools.golden import Golden, GoldenCheck, check_golden, record_golden
    from hloexec.tools.graphing import Graph, graph
    from hloexec.tools.minifying import Minified, minify
    from hloexec.tools.nan_search import NanSearch, find_nan
    from hloexec.tools.narrowing import Narrowing, narrow
    from hloexec.tools.shadowing import ShadowRun, shadow
    from hloexec.tools.shrinking import Shrinkage, shrink
    from hloexec.tools.stepping import Breakpoint, Stepper, Stop, step
    from hloexec.tools.tracing import Trace, TraceEvent, read_trace, trace
    from hloexec.tools.triaging import Triage, TriagedModule, triage

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
    "Places",
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

_NAMES = {
    "analysis.buffers": (
        "BufferAssignment MemoryComparison MemoryUsage compare_memory load_buffer_assignment memory_usage"
    ),
    "analysis.numerics.comparing": "compare",
    "analysis.numerics.comparison": "Comparison LeafComparison Undecided Verdict",
    "analysis.numerics.error_maps": "ErrorMap",
    "analysis.numerics.measuring": "ElementDifference Measured Places",
    "analysis.numerics.sampling.spread": "Spread",
    "analysis.numerics.statistics": "LeafStatistics",
    "analysis.numerics.tolerances": "Tolerance",
    "core.ir": (
        "ArrayShape BufferShape Computation ElementType Instruction Layout Literal Module Shape Sharding TupleShape"
    ),
    "core.values": "Array Inputs Token Value",
    "engine.exec": (
        "Controller Event Failure InstructionObserver Observer PathEntry Progress ProgressObserver run run_devices"
    ),
    "engine.exec.host": "Sink Source",
    "engine.exec.options": "RunOptions",
    "engine.exec.statistics": "Statistics",
    "engine.inputs": "random_inputs",
    "engine.sharding": "shard_inputs unshard_outputs",
    "language.interop.lowering": "from_jax",
    "language.literals": "",
    "language.loading": "load",
    "language.origins": "SourceLine",
    "language.text": "format parse",
    "language.text.dumps.buffer_assignment": "parse_buffer_assignment",
    "language.verifier": "Note verify",
    "ops.arena": "release_memory",
    "ops.library_calls.user_calls": "register_custom_call unregister_custom_call",
    "ops.policies.policy": "NumericsPolicy",
    "report.html": "write_html",
    "tools.diffing": "Diff FolderDiff diff diff_folders",
    "tools.explaining": "Explained Explanation InstructionExplanation Trial Untold explain",
    "tools.extraction": "Extraction extract",
    "tools.golden": "Golden GoldenCheck check_golden record_golden",
    "tools.graphing": "Graph graph",
    "tools.minifying": "Minified minify",
    "tools.nan_search": "NanSearch find_nan",
    "tools.narrowing": "Narrowing narrow",
    "tools.shadowing": "ShadowRun shadow",
    "tools.shrinking": "Shrinkage shrink",
    "tools.stepping": "Breakpoint Stepper Stop step",
    "tools.tracing": "Trace TraceEvent read_trace trace",
    "tools.triaging": "Triage TriagedModule triage",
}
"""Public names, by the module that has them. The others in `__all__` are packages in the rooms, with the types of parts
of arguments and results such as `hloexec.ir.Window`."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_PACKAGES = {module.rpartition(".")[2]: module for module in _NAMES if module.count(".") == 1}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hloexec' has no attribute {name!r}")
    home = importlib.import_module(f"hloexec.{_HOMES.get(name) or _PACKAGES[name]}")
    value = globals()[name] = getattr(home, name) if name in _HOMES else home
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
