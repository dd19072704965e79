"""Reports of what `hloexec diff --extract` has written: two small modules, and the command that compares them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import attrs
from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.core.ir import Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.wording import plural
from hloexec.tools.diffing import Diff, ExtractedPair
from hloexec.tools.diffing.findings import Verdict
from hloexec.tools.summary import ParameterSummary, parameters_of


@frozen(eq=False)
class SavedPair:
    """What shows the first finding of a diff, in a folder."""

    pair: ExtractedPair
    """What was extracted."""
    folder: str
    again: Diff | None = attrs.field(default=None, metadata=UNTOLD)
    """What diff says of the two modules; None where they were not compared."""

    @property
    @told
    def device_count(self) -> int:
        """How many devices they run on."""
        return len(self.pair.inputs)

    @property
    @told
    def instructions_before(self) -> int | None:
        """How many instructions before.hlo has, parameters not counted; None where there is none."""
        return None if self.pair.before is None else _count(self.pair.before)

    @property
    @told
    def instructions_after(self) -> int:
        """How many instructions after.hlo has, parameters not counted."""
        return _count(self.pair.after)

    @property
    @told
    def parameters(self) -> tuple[ParameterSummary, ...]:
        """The parameters of both modules."""
        return parameters_of(self.pair.after)

    @property
    @told
    def verdict(self) -> Verdict | None:
        """Of these modules; None where they were not compared."""
        return None if self.again is None else self.again.verdict

    @property
    @told
    def command(self) -> str:
        """The command that compares them or, if they cannot be compared, runs the one after."""
        files = [os.path.join(self.folder, f"{name}.hlo") for name in ("before", "after")]
        words = ["hloexec", "diff", *files] if self._is_pair else ["hloexec", "run", files[1]]
        for name in self.pair.input_files:
            words += ["--inputs", os.path.join(self.folder, name)]
        return shlex.join([*words, *self._policies()])

    @property
    def _is_pair(self) -> bool:
        return self.pair.before is not None and self.pair.is_comparable

    def _policies(self) -> Iterator[str]:
        before, after = (policy.name for policy in self.pair.numerics)
        if before == after or not self._is_pair:
            named = [("--numerics", after)]
        else:
            named = [("--numerics-before", before), ("--numerics-after", after)]
        for option, policy in named:
            if policy != "reference":
                yield from (option, policy)


def pair_view(saved: SavedPair) -> RenderableType:
    """What was written, and whether it shows the difference."""
    pair = saved.pair
    sides = [
        f"{name}.hlo with {plural(_count(module), 'instruction')}"
        for name, module in (("before", pair.before), ("after", pair.after))
        if module is not None
    ]
    line = Text.assemble(("extracted ", "bold"), " and ".join(sides))
    line.append(f" on {plural(len(pair.after.entry.parameters), 'input')}, in {saved.folder}")
    if saved.again is not None:
        line.append("; ")
        line.append(*_OUTCOMES[saved.again.agrees])
    return Group(line, *(Text(note, style="yellow") for note in pair.notes))


_OUTCOMES = {False: ("their results differ as well", "bold green"), True: ("their results do not differ", "bold red")}
"""Of what was extracted, by whether it agrees."""


def _count(module: Module) -> int:
    return len(module.entry) - len(module.entry.parameters)


@frozen
class Pair:
    """What a diff was asked to write."""

    extraction: SavedPair | None
    """What --extract has written of the first finding."""
