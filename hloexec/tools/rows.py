"""The tools: a row for each, in the order of the help, and above the rows the names that `hloexec` has of them.

Type checkers read the imports by way of `hloexec/__init__.pyi`, and `hloexec/__init__.py` reads their lines; nobody
runs them. Other names begin with an underscore, since all that do not are handed on.
"""

import typing as _typing

from hloexec.tools import Tool as _Tool

if _typing.TYPE_CHECKING:
    from hloexec.tools import bisecting as bisecting
    from hloexec.tools import diffing as diffing
    from hloexec.tools import explaining as explaining
    from hloexec.tools import extraction as extraction
    from hloexec.tools import golden as golden
    from hloexec.tools import graphing as graphing
    from hloexec.tools import isolating as isolating
    from hloexec.tools import minifying as minifying
    from hloexec.tools import nan_search as nan_search
    from hloexec.tools import narrowing as narrowing
    from hloexec.tools import shadowing as shadowing
    from hloexec.tools import shrinking as shrinking
    from hloexec.tools import stepping as stepping
    from hloexec.tools import tracing as tracing
    from hloexec.tools import triaging as triaging
    from hloexec.tools.bisecting import PassBisection as PassBisection
    from hloexec.tools.bisecting import VersionBisection as VersionBisection
    from hloexec.tools.bisecting import VersionChange as VersionChange
    from hloexec.tools.bisecting import VersionTrial as VersionTrial
    from hloexec.tools.bisecting import bisect_passes as bisect_passes
    from hloexec.tools.bisecting import bisect_versions as bisect_versions
    from hloexec.tools.diffing import Diff as Diff
    from hloexec.tools.diffing import diff as diff
    from hloexec.tools.diffing.folders import FolderDiff as FolderDiff
    from hloexec.tools.diffing.folders import diff_folders as diff_folders
    from hloexec.tools.explaining import Explained as Explained
    from hloexec.tools.explaining import Explanation as Explanation
    from hloexec.tools.explaining import InstructionExplanation as InstructionExplanation
    from hloexec.tools.explaining import Trial as Trial
    from hloexec.tools.explaining import Untold as Untold
    from hloexec.tools.explaining import explain as explain
    from hloexec.tools.extraction import Extraction as Extraction
    from hloexec.tools.extraction import ValueOutputs as ValueOutputs
    from hloexec.tools.extraction import add_outputs as add_outputs
    from hloexec.tools.extraction import extract as extract
    from hloexec.tools.golden import Golden as Golden
    from hloexec.tools.golden import GoldenCheck as GoldenCheck
    from hloexec.tools.golden import check_golden as check_golden
    from hloexec.tools.golden import record_golden as record_golden
    from hloexec.tools.golden.many import check_goldens as check_goldens
    from hloexec.tools.graphing import Graph as Graph
    from hloexec.tools.graphing import graph as graph
    from hloexec.tools.isolating import IsolatedUnit as IsolatedUnit
    from hloexec.tools.isolating import Isolation as Isolation
    from hloexec.tools.isolating import isolate as isolate
    from hloexec.tools.minifying import Minified as Minified
    from hloexec.tools.minifying import minify as minify
    from hloexec.tools.nan_search import NanSearch as NanSearch
    from hloexec.tools.nan_search import find_nan as find_nan
    from hloexec.tools.narrowing import Narrowing as Narrowing
    from hloexec.tools.narrowing import narrow as narrow
    from hloexec.tools.shadowing import ShadowRun as ShadowRun
    from hloexec.tools.shadowing import shadow as shadow
    from hloexec.tools.shrinking import Shrinkage as Shrinkage
    from hloexec.tools.shrinking import shrink as shrink
    from hloexec.tools.stepping import Breakpoint as Breakpoint
    from hloexec.tools.stepping import Stepper as Stepper
    from hloexec.tools.stepping import Stop as Stop
    from hloexec.tools.stepping import step as step
    from hloexec.tools.tracing import Trace as Trace
    from hloexec.tools.tracing import TraceEvent as TraceEvent
    from hloexec.tools.tracing import read_trace as read_trace
    from hloexec.tools.tracing import trace as trace
    from hloexec.tools.triaging import Triage as Triage
    from hloexec.tools.triaging import TriagedModule as TriagedModule
    from hloexec.tools.triaging import merge_triages as merge_triages
    from hloexec.tools.triaging import triage as triage

_PRINTED = "hloexec.report.json.printed"
_RUN = f"{_PRINTED}.Run"

_ROWS = (
    _Tool(
        "run", "running", records={"run": f"{_RUN} hloexec.report.running.runs.RunResult"}, guide="running", runs=True
    ),
    _Tool(
        "golden",
        "running",
        "hloexec.tools.golden.GoldenCheck",
        "hloexec.report.running.golden",
        {
            "golden-record": "hloexec.report.running.golden.Recorded",
            "golden-check": "hloexec.report.running.golden.Checks",
        },
        package="hloexec.tools.golden",
        guide="golden",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "trace",
        "running",
        records={"trace": f"{_RUN} {_PRINTED}.Folder hloexec.tools.tracing.running.Traced"},
        package="hloexec.tools.tracing",
        runs=True,
    ),
    _Tool(
        "step",
        "running",
        records={"stepping": f"{_RUN} hloexec.report.running.stepping.Stepping"},
        package="hloexec.tools.stepping",
        guide="step",
        runs=True,
    ),
    _Tool(
        "compare",
        "judging",
        "hloexec.analysis.numerics.comparison.Comparison",
        "hloexec.report.judging.comparison",
        {"compare": f"{_PRINTED}.Compared hloexec.analysis.numerics.comparison.Comparison"},
        guide="verdicts",
        has_verdict=True,
    ),
    _Tool(
        "diff",
        "judging",
        "hloexec.tools.diffing.Diff hloexec.tools.diffing.folders.FolderDiff hloexec.tools.diffing.sharded.ShardedDiff",
        "hloexec.report.judging.folder_diffs",
        {
            "diff": f"{_PRINTED}.Sides hloexec.tools.diffing.Diff hloexec.report.judging.diffs.Pair",
            "diff-folders": f"{_PRINTED}.Sides hloexec.tools.diffing.folders.FolderDiff",
            "diff-sharded": f"{_PRINTED}.File hloexec.tools.diffing.sharded.ShardedDiff",
        },
        package="hloexec.tools.diffing",
        guide="debugging",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "triage",
        "judging",
        "hloexec.tools.triaging.Triage",
        "hloexec.report.judging.triages",
        {"triage": "hloexec.tools.triaging.Triage"},
        package="hloexec.tools.triaging",
        guide="triage",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "isolate",
        "judging",
        "hloexec.tools.isolating.Isolation",
        "hloexec.report.judging.isolations",
        {"isolate": f"{_RUN} hloexec.tools.isolating.Isolation"},
        package="hloexec.tools.isolating",
        guide="running",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "nan",
        "explaining",
        "hloexec.tools.nan_search.NanSearch",
        "hloexec.report.explaining.nan_search",
        {"nan": f"{_RUN} hloexec.tools.nan_search.NanSearch"},
        package="hloexec.tools.nan_search",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "explain",
        "explaining",
        "hloexec.tools.explaining.Explanation",
        "hloexec.report.explaining.explanations",
        {"explain": f"{_RUN} {_PRINTED}.Expected hloexec.tools.explaining.Explanation"},
        package="hloexec.tools.explaining",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "bisect",
        "explaining",
        "hloexec.tools.bisecting.VersionBisection hloexec.tools.bisecting.PassBisection",
        "hloexec.report.explaining.bisections",
        {
            "bisect-versions": f"{_RUN} hloexec.tools.bisecting.VersionBisection",
            "bisect-passes": f"{_RUN} hloexec.tools.bisecting.PassBisection",
        },
        package="hloexec.tools.bisecting",
        guide="against",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "shadow",
        "explaining",
        "hloexec.tools.shadowing.ShadowRun",
        "hloexec.report.explaining.shadows",
        {"shadow": f"{_RUN} hloexec.tools.shadowing.ShadowRun"},
        package="hloexec.tools.shadowing",
        guide="precision",
        runs=True,
    ),
    _Tool(
        "precision",
        "explaining",
        records={"precision": f"{_RUN} {_PRINTED}.Output hloexec.tools.narrowing.Narrowing"},
        package="hloexec.tools.narrowing",
        runs=True,
    ),
    _Tool(
        "extract",
        "reducing",
        records={
            "extract": f"{_RUN} hloexec.report.reducing.extractions.Extracted hloexec.tools.extraction.Extraction "
            "hloexec.tools.extraction.Rerun",
            "extract-outputs": f"{_RUN} {_PRINTED}.Folder hloexec.tools.extraction.ValueOutputs "
            "hloexec.tools.extraction.Rerun",
        },
        package="hloexec.tools.extraction",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "shrink",
        "reducing",
        records={"shrink": f"{_PRINTED}.File {_PRINTED}.Output hloexec.tools.shrinking.Shrinkage"},
        package="hloexec.tools.shrinking",
        guide="shrinking",
    ),
    _Tool(
        "minify",
        "reducing",
        records={"minify": f"{_RUN} {_PRINTED}.Folder hloexec.tools.minifying.Minified"},
        package="hloexec.tools.minifying",
        guide="minifying",
        runs=True,
        has_verdict=True,
    ),
    _Tool(
        "info",
        "inspecting",
        "hloexec.core.ir.Module",
        "hloexec.report.tables",
        {
            "info": f"{_PRINTED}.File hloexec.tools.summary.Summary hloexec.report.tables.Computations",
            "info-arrays": f"{_PRINTED}.Arrays",
            "info-assignment": "hloexec.report.inspecting.memory.Assignment",
        },
    ),
    _Tool(
        "memory",
        "inspecting",
        "hloexec.analysis.buffers.MemoryUsage hloexec.analysis.buffers.MemoryComparison "
        "hloexec.analysis.ranks.DistributedUsage",
        "hloexec.report.inspecting.memory",
        {"memory": f"{_PRINTED}.File hloexec.analysis.buffers.MemoryUsage hloexec.report.inspecting.memory.Memory"},
        has_verdict=True,
    ),
    _Tool(
        "graph",
        "inspecting",
        records={"graph": f"{_PRINTED}.File hloexec.report.inspecting.graphs.Files hloexec.tools.graphing.Graph"},
        package="hloexec.tools.graphing",
        runs=True,
    ),
    _Tool("plan", "inspecting", records={"plan": f"{_PRINTED}.Planned"}, guide="execution"),
    _Tool("fmt", "inspecting"),
    _Tool("ops", "inspecting", records={"ops": "hloexec.report.inspecting.opcode_types.Opcodes"}),
    _Tool("schema", "inspecting"),
)
