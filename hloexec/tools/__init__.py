"""The tools: one package each, and a row for each (`rows`), from which all that shows them follows."""

from __future__ import annotations


class Tool:
    """What is known of a tool before it is imported.

    Its row names its command, the classes of its results, the module that says how these are shown (`report.registry`),
    and what its records are made of. Commands, `--json`, `hloexec schema`, `--html`, notebooks, README.md and the pages
    about commands, JSON and Python read it. Nothing that a row names is imported before it is asked for.
    """

    def __init__(
        self,
        name: str,
        group: str,
        results: str = "",
        report: str = "",
        records: dict[str, str] | None = None,
        *,
        package: str = "",
        names: str = "",
        command: str = "",
        guide: str = "",
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
        self.package = package
        """The package that it is, whose names `hloexec` has by the imports above the rows."""
        self.names = names.split()
        """What `hloexec` has of a tool that is registered from elsewhere."""
        self.command = command or f"hloexec.cli.commands.{group}.{name}"
        """The module of its command."""
        self.guide = guide
        """The page of `docs` about it."""
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
