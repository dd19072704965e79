"""The files in a folder that XLA wrote with `--xla_dump_to`: the module and the stage of each.

XLA numbers the modules of a process and names files after them:

    module_0001.jit_f.before_optimizations.txt
    module_0001.jit_f.0006.simplification.after_algsimp.before_simplify-sorts.txt
    module_0001.jit_f.cpu_after_optimizations.txt

The second is written with `--xla_dump_hlo_pass_re`: the module in the pass pipeline `simplification`, after its pass
`algsimp` has changed it. Passes that change nothing write no file, but the start of a pipeline does. A pass may run a
pipeline of its own, as `spmd-partitioning` runs `spmd-cleanup`. The files of that one stand before the file of the
pass, and what the pass has changed by then is in the first of them.

TPUs add the changelist that their compiler was built at (`jit_f.cl_123456`), and may write what is optimized under a
number of its own. Where names would be too long for a file, XLA leaves the module's name out.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from hloexec.core.structs import UNTOLD, frozen
from hloexec.errors import InputError, os_errors_named

_SUFFIX = r"\.(?:txt|hlo|hlo\.pb|pb)(?:\.gz)?"
_START = r"(?:\d+\.)?module_(\d+)\."
_PASS = re.compile(rf"{_START}(.+\.|)(\d{{4,}})\.([^/]+?)\.after_([^/]+?)(?:\.before_([^/]+?))?{_SUFFIX}")
_WHOLE = re.compile(
    rf"{_START}(.+?\.|)((?:cl_\d+\.)?(?:sm_\d+\.\d+\w*?_|[a-z]\w*?_|)(?:(before|after)_optimizations|after_codegen))"
    rf"(?:_(?:before|after)_buffer_assignment)?{_SUFFIX}"
)
_COPY = re.compile(r"_(?:before|after)_buffer_assignment\.|\.after_codegen\.")
"""In the names of what TPUs dump when nothing is left to do but code."""
_CHANGELIST = re.compile(r"(?:(?<=\.)|^)cl_\d+\.$")
_OUTSIDE = "pipeline-start"
"""What XLA calls the pass before the first one of a pipeline."""
_END = "pipeline-end"
"""And the one after the last."""


@frozen
class Stage:
    """A module as it is at one point of its compilation, in a file."""

    path: Path
    """The file."""
    name: str
    """`before_optimizations`, `cpu_after_optimizations`; or the pass that has just run, such as `algsimp`."""
    pipeline: str | None = None
    """The pipeline of that pass, None where the stage is no pass's."""
    next_pass: str | None = None
    """The pass of that pipeline that is up next, if the file says so."""
    holder: Stage | None = attrs.field(default=None, metadata=UNTOLD)
    """What the pass that runs this pipeline gives in the end, if there is one, and no other can be meant."""
    ran_within: str | None = None
    """The last pipeline that this pass ran, if it ran one."""

    def __str__(self) -> str:
        if self.pipeline is None:
            return self.name
        return f"start of {self.pipeline}" if self.name == _OUTSIDE else f"{self.name} in {self.pipeline}"

    @property
    def is_pass(self) -> bool:
        """Whether it is the output of a pass; otherwise it is the module before or after all passes."""
        return self.pipeline is not None and self.name != _OUTSIDE


@frozen
class DumpedModule:
    """The files of one module of a dump."""

    number: int
    name: str
    before: Stage | None
    passes: tuple[Stage, ...]
    after: Stage | None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All of it, in the order of compilation."""
        return tuple(filter(None, (self.before, *self.passes, self.after)))

    def __str__(self) -> str:
        return f"module_{self.number:04}{'.' * bool(self.name)}{self.name}"


def _nested(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Stages in their order, with what is known of pipelines that passes of other pipelines run."""
    found = list(stages)
    last: dict[str | None, int] = {}
    sections = []
    for end, stage in enumerate(stages):
        start = last.get(stage.pipeline)
        if stage.is_pass and start is not None and stages[start].next_pass not in (None, _END) and start + 1 < end:
            sections.append((start, end))
        last[stage.pipeline] = end
    # The innermost last, so that it is what counts.
    for start, end in sorted(sections, key=lambda section: section[0] - section[1]):
        outer = stages[end]
        inner = stages[end - 1].pipeline
        is_one_pass = stages[start].next_pass == outer.name
        ran_within = inner if is_one_pass and inner != outer.name else None
        found[end] = attrs.evolve(found[end], ran_within=ran_within)
        for place in range(start + 1, end):
            is_held = is_one_pass and stages[place].pipeline != outer.name
            found[place] = attrs.evolve(found[place], holder=outer if is_held else None)
    return tuple(found)


def dumped_modules(folder: str | os.PathLike[str]) -> tuple[DumpedModule, ...]:
    """The modules of which a dump folder holds HLO, by their numbers; other files are passed over.

    Of a stage that is there as text and as a protocol buffer the text is taken. Raises InputError where the folder
    cannot be read or holds no such file.
    """
    path = Path(folder)
    with os_errors_named(f"read {os.fspath(path)!r}"):
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
    found = _grouped(path, names)
    if not found:
        raise InputError(
            f"{os.fspath(path)!r} holds no module as XLA dumps them (module_0001.NAME.before_optimizations.txt, …); "
            "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' writes such a folder"
        )
    return found


def _grouped(folder: Path, names: Iterable[str]) -> tuple[DumpedModule, ...]:
    wholes: dict[tuple[int, str], dict[str, Stage]] = {}
    passes: dict[tuple[int, str], dict[int, Stage]] = {}
    # Text sorts after protocol buffers here, and so takes their place, as what is optimized does that of copies of it.
    for name in sorted(names, key=lambda name: (".txt" in name, not _COPY.search(name), name)):
        if match := _PASS.fullmatch(name):
            number, module, place, pipeline, done, following = match.groups()
            stage = Stage(folder / name, done, pipeline, following)
            passes.setdefault((int(number), _named(module)), {})[int(place)] = stage
        elif match := _WHOLE.fullmatch(name):
            number, module, title, side = match.groups()
            wholes.setdefault((int(number), _named(module)), {})[side or "after"] = Stage(folder / name, title)
    by_number: dict[int, set[str]] = defaultdict(set)
    for number, name in wholes.keys() | passes.keys():
        by_number[number].add(name)
    modules = []
    for number in sorted(by_number):
        named = sorted(by_number[number] - {""}) or [""]
        for name in named:
            # Files without a name belong to the one module of their number.
            keys = [(number, name), *([(number, "")] if len(named) == 1 and name else [])]
            whole = {side: stage for key in reversed(keys) for side, stage in wholes.get(key, {}).items()}
            steps = {place: stage for key in reversed(keys) for place, stage in passes.get(key, {}).items()}
            ordered = _nested([stage for _, stage in sorted(steps.items())])
            modules.append(DumpedModule(number, name, whole.get("before"), ordered, whole.get("after")))
    return _with_later_numbers(modules)


def _named(prefix: str) -> str:
    """A module's name, from what stands before the stage: without the changelist of a TPU's compiler."""
    return _CHANGELIST.sub("", prefix).removesuffix(".")


def _with_later_numbers(modules: Sequence[DumpedModule]) -> tuple[DumpedModule, ...]:
    """Modules that are not there after optimization, with what the next one of their name has if that begins later."""
    found: list[DumpedModule] = []
    open_places: dict[str, int] = {}
    for module in modules:
        place = open_places.pop(module.name, None)
        if module.before is None and place is not None:
            first = found[place]
            found[place] = DumpedModule(
                first.number, first.name, first.before, first.passes + module.passes, module.after
            )
            continue
        if module.before is not None and module.after is None:
            open_places[module.name] = len(found)
        found.append(module)
    return tuple(found)
