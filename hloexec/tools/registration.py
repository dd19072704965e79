"""The tools: a row for each, from which all that shows them follows.

A row names its command, the classes of its results, the module that says how these are shown (`report.registry`), and
what its records are made of. Commands, `--json`, `hloexec schema`, `--html`, notebooks and the pages about commands and
JSON read it. Nothing that a row names is imported before it is asked for.
"""

from __future__ import annotations

_PRINTED = "hloexec.report.json.printed"
_RUN = f"{_PRINTED}.Run"


class Tool:
    """What is known of a tool before it is imported."""

    def __init__(
        self,
        name: str,
        group: str,
        results: str = "",
        report: str = "",
        records: dict[str, str] | None = None,
        *,
        names: str = "",
        command: str = "",
        runs: bool = False,
        has_verdict: bool = False,
    ) -> None:
        self.name = name
        """Of its command."""
        self.group = group
        """What it is for, one of `GROUPS`."""
        self.results = results.split()
        """The classes of which there are views."""
        self.report = report
        """The module whose `REPORTS` say how these are shown."""
        self.records = records or {}
        """The records that it prints, each with the classes of what it is made of."""
        self.names = names.split()
        """What `hloexec` has of it; those of the tools here are in `hloexec/__init__.pyi`."""
        self.command = command or f"hloexec.cli.commands.{group}.{name}"
        """The module of its command."""
        self.runs = runs
        """Whether it runs modules, for which its process is set up."""
        self.has_verdict = has_verdict
        """Whether its exit code 1 is a verdict."""


GROUPS = {
    "running": "Run modules",
    "judging": "Judge results",
    "explaining": "Explain results",
    "reducing": "Reduce modules",
    "inspecting": "Look at modules",
}
"""What tools are for, and what that is called in the help, in its order."""
TOOLS: dict[str, Tool] = {}
"""The tools by their names, in the order of the help."""


def register(*tools: Tool) -> None:
    """Make tools known, each under its name."""
    TOOLS.update({tool.name: tool for tool in tools})


register(
    Tool("run", "running", records={"run": f"{_RUN} hloexec.report.running.runs.RunResult"}, runs=True),
    Tool(
        "golden",
        "running",
        "hloexec.tools.golden.GoldenCheck",
        "hloexec.report.running.golden",
        {
            "golden-record": "hloexec.report.running.golden.Recorded",
            "golden-check": "hloexec.report.running.golden.Checks",
        },
        runs=True,
        has_verdict=True,
    ),
    Tool(
        "trace",
        "running",
        records={"trace": f"{_RUN} {_PRINTED}.Folder hloexec.tools.tracing.running.Traced"},
        runs=True,
    ),
    Tool("step", "running", records={"stepping": f"{_RUN} hloexec.report.running.stepping.Stepping"}, runs=True),
    Tool(
        "compare",
        "judging",
        "hloexec.analysis.numerics.comparison.Comparison",
        "hloexec.report.judging.comparison",
        {"compare": f"{_PRINTED}.Compared hloexec.analysis.numerics.comparison.Comparison"},
        has_verdict=True,
    ),
    Tool(
        "diff",
        "judging",
        "hloexec.tools.diffing.Diff hloexec.tools.diffing.folders.FolderDiff",
        "hloexec.report.judging.folder_diffs",
        {
            "diff": f"{_PRINTED}.Sides hloexec.tools.diffing.Diff hloexec.report.judging.diffs.Pair",
            "diff-folders": f"{_PRINTED}.Sides hloexec.tools.diffing.folders.FolderDiff",
        },
        runs=True,
        has_verdict=True,
    ),
    Tool(
        "triage",
        "judging",
        "hloexec.tools.triaging.Triage",
        "hloexec.report.judging.triages",
        {"triage": "hloexec.tools.triaging.Triage"},
        runs=True,
        has_verdict=True,
    ),
    Tool(
        "nan",
        "explaining",
        "hloexec.tools.nan_search.NanSearch",
        "hloexec.report.explaining.nan_search",
        {"nan": f"{_RUN} hloexec.tools.nan_search.NanSearch"},
        runs=True,
        has_verdict=True,
    ),
    Tool(
        "explain",
        "explaining",
        "hloexec.tools.explaining.Explanation",
        "hloexec.report.explaining.explanations",
        {"explain": f"{_RUN} {_PRINTED}.Expected hloexec.tools.explaining.Explanation"},
        runs=True,
        has_verdict=True,
    ),
    Tool(
        "shadow",
        "explaining",
        "hloexec.tools.shadowing.ShadowRun",
        "hloexec.report.explaining.shadows",
        {"shadow": f"{_RUN} hloexec.tools.shadowing.ShadowRun"},
        runs=True,
    ),
    Tool(
        "precision",
        "explaining",
        records={"precision": f"{_RUN} {_PRINTED}.Output hloexec.tools.narrowing.Narrowing"},
        runs=True,
    ),
    Tool(
        "extract",
        "reducing",
        records={
            "extract": f"{_RUN} hloexec.report.reducing.extractions.Extracted hloexec.tools.extraction.Extraction "
            "hloexec.tools.extraction.Rerun"
        },
        runs=True,
        has_verdict=True,
    ),
    Tool(
        "shrink", "reducing", records={"shrink": f"{_PRINTED}.File {_PRINTED}.Output hloexec.tools.shrinking.Shrinkage"}
    ),
    Tool(
        "minify",
        "reducing",
        records={"minify": f"{_RUN} {_PRINTED}.Folder hloexec.tools.minifying.Minified"},
        runs=True,
        has_verdict=True,
    ),
    Tool(
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
    Tool(
        "memory",
        "inspecting",
        "hloexec.analysis.buffers.MemoryUsage hloexec.analysis.buffers.MemoryComparison",
        "hloexec.report.inspecting.memory",
        {"memory": f"{_PRINTED}.File hloexec.analysis.buffers.MemoryUsage hloexec.report.inspecting.memory.Memory"},
        has_verdict=True,
    ),
    Tool(
        "graph",
        "inspecting",
        records={"graph": f"{_PRINTED}.File hloexec.report.inspecting.graphs.Files hloexec.tools.graphing.Graph"},
        runs=True,
    ),
    Tool("plan", "inspecting", records={"plan": f"{_PRINTED}.Planned"}),
    Tool("fmt", "inspecting"),
    Tool("ops", "inspecting", records={"ops": "hloexec.report.inspecting.opcode_types.Opcodes"}),
    Tool("schema", "inspecting"),
)
