"""Comparing dump folders: one pass after the other on the same inputs, or modules of the same name in two folders.

With `--xla_dump_to`, XLA numbers the modules of a process and names files after them:

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from hloexec.core.arguments import listed, require_path, require_seed, texts, wrong
from hloexec.core.ir import Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.values import Described, Inputs
from hloexec.core.wording import counted, truncated
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.observers import Attached, Stages
from hloexec.engine.inputs import random_inputs
from hloexec.errors import HloError, InputError, os_errors_named
from hloexec.language.interop.content import unpacked
from hloexec.language.loading import file_contents, load
from hloexec.tools.diffing.findings import Diff
from hloexec.tools.diffing.partitioned.tiles import partitioning_of
from hloexec.tools.diffing.running import diff
from hloexec.tools.executing.engines import Workers, workers_of

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
    nested = list(stages)
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
        nested[end] = attrs.evolve(nested[end], ran_within=ran_within)
        for place in range(start + 1, end):
            is_held = is_one_pass and stages[place].pipeline != outer.name
            nested[place] = attrs.evolve(nested[place], holder=outer if is_held else None)
    return tuple(nested)


def dumped_modules(folder: str | os.PathLike[str]) -> tuple[DumpedModule, ...]:
    """The modules of which a dump folder holds HLO, by their numbers; other files are passed over.

    Of a stage that is there as text and as a protocol buffer the text is taken. Raises InputError where the folder
    cannot be read or holds no such file.
    """
    path = Path(folder)
    with os_errors_named(f"read {os.fspath(path)!r}"):
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
    modules = _grouped(path, names)
    if not modules:
        raise InputError(
            f"{os.fspath(path)!r} holds no module as XLA dumps them (module_0001.NAME.before_optimizations.txt, …); "
            "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' writes such a folder"
        )
    return modules


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
    merged: list[DumpedModule] = []
    open_places: dict[str, int] = {}
    for module in modules:
        place = open_places.pop(module.name, None)
        if module.before is None and place is not None:
            first = merged[place]
            merged[place] = DumpedModule(
                first.number, first.name, first.before, first.passes + module.passes, module.after
            )
            continue
        if module.before is not None and module.after is None:
            open_places[module.name] = len(merged)
        merged.append(module)
    return tuple(merged)


Outcome: TypeAlias = Literal["agree", "rounding only", "not decided", "differ", "not compared"]
_ORDER: tuple[Outcome, ...] = ("differ", "not compared", "not decided", "rounding only", "agree")
"""What one outcome of several counts as that of all: the first of these among them."""


@frozen(eq=False)
class StageDiff:
    """Two stages of a module, compared with each other."""

    before: Stage
    """The stage before."""
    after: Stage
    """The stage after."""
    outcome: Outcome
    """What it comes to."""
    diff: Diff | None = None
    """The two modules on the same inputs; None where a stage could not be run."""
    reason: str = ""
    """Why it could not, as a sentence."""
    has_gap: bool = False
    """Whether stages between the two could not be run, so that their passes are part of the step."""

    @property
    def made_by(self) -> Stage | None:
        """What the pass gives in the end that made `after` of `before`; None where several passes may have."""
        if self.has_gap:
            return None
        return self.after if self.after.is_pass else self.after.holder

    @property
    @told
    def step(self) -> str:
        """What lies between the stages: the pass, or the range of passes."""
        return str(self)

    @property
    @told
    def pass_name(self) -> str | None:
        """The name of the pass; None where several may have made the difference."""
        return None if self.made_by is None else self.made_by.name

    def __str__(self) -> str:
        """The pass that produced `after` from `before`, or the range of passes between them."""
        made_by = self.made_by
        if made_by is None:
            return str(self.after) if str(self.before) == str(self.after) else f"{self.before} → {self.after}"
        if made_by is not self.after:
            return f"{made_by}, before its {self.after.pipeline}"
        if self.after.holder is not None:
            return f"{self.after}, a part of {self.after.holder.name}"
        return str(self.after) + (f", after {self.after.ran_within}" if self.after.ran_within else "")


@frozen(eq=False)
class ModuleDiff:
    """One module of a folder, or one of each of two folders."""

    name: str
    steps: tuple[StageDiff, ...]
    """The stages that differ in their text from the one before, in the order of compilation."""
    stages: int
    """How many stages there are."""

    @property
    @told
    def outcome(self) -> Outcome:
        """What it comes to."""
        return _worst([step.outcome for step in self.steps])

    @property
    @told
    def blamed_step(self) -> str | None:
        """The first step that changed the result."""
        return None if self.to_blame is None else self.to_blame.step

    @property
    def to_blame(self) -> StageDiff | None:
        """The first step that changed the result."""
        return next((step for step in self.steps if step.outcome == "differ"), None)


@frozen(eq=False)
class FolderDiff(Described):
    """All modules of one or two folders."""

    modules: tuple[ModuleDiff, ...]
    """The modules of the folders."""
    notes: tuple[str, ...] = ()
    """Modules that are there only once, and why."""
    unpaired: int = 0
    """How many names of two folders lack a partner: they are not compared."""
    left: int = 0
    """How many modules were left when it was interrupted."""

    def __str__(self) -> str:
        return f"{self.outcome}: {len(self.modules)} modules compared" + ("; interrupted" if self.left else "")

    @property
    @told
    def outcome(self) -> Outcome:
        """What it comes to."""
        missing: list[Outcome] = ["not compared"] if self.unpaired or self.left else []
        return _worst([*(module.outcome for module in self.modules), *missing])


def diff_folders(
    folder: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    inputs: Inputs | Callable[[Module], Inputs] | None = None,
    *,
    select: Sequence[str] = (),
    seed: int = 0,
    on_step: Callable[[str, int, int], None] | None = None,
    executor: str | Executor | None = None,
    jobs: int | None = None,
    shared: bool = False,
    module_timeout: float | None = None,
    memory: int | str | None = None,
    **options: object,
) -> FolderDiff:
    """Compare the modules in a folder that XLA wrote with `--xla_dump_to`, or those of two such folders.

    For one folder, each module runs at every stage that was dumped, on the same inputs: before optimization, after each
    pass that changed its text (`--xla_dump_hlo_pass_re=.*`), and after optimization. `diff` compares each stage with
    the previous one; the first that differs identifies the pass that changed the result. A stage that cannot run is
    skipped, and its entry says why.

    For two folders, modules of the same name are compared with each other, in order, after optimization (or before it,
    if one folder has nothing later).

    `select` are names or patterns of modules. `inputs` are as for `diff`, or a function from a module to its inputs;
    None generates them from `seed`. `options` are those of `diff`. `on_step` is called before each stage with the
    stage, its number and the number of stages.

    With `executor` or `jobs`, the stages of each module are compared in a process of its own, in at most
    `module_timeout` seconds (by default 600) and `memory` bytes (by default 4 GiB). A stage at which one crashes, hangs
    or takes too much is not compared, nor are those after it. `executor` has the workers that start these processes,
    and `jobs` and `shared` are as for `triage`; tasks carry the files of the stages and the inputs. A function that
    gives inputs, or that `register_custom_call` has registered, is imported there by its name. `on_step` is called when
    a module has come; `extract` of a `Diff` refuses, as inputs stay with the workers. Ctrl-C gives the modules that
    have come; `left` says how many have not. The result is the same for any executor and number of workers.

    Raises InputError if a folder cannot be read, contains no dumped module, none that is selected, or nothing to
    compare, and for what cannot travel to workers; UnsupportedError where a worker has other versions, or a machine
    that rounds otherwise; ResourceError where all workers are lost.
    """
    workers = workers_of(executor, jobs, shared, {"module_timeout": module_timeout, "memory": memory}, 600.0)
    require_path("folder", folder)
    if other is not None:
        require_path("other", other)
    if on_step is not None and not callable(on_step):
        raise wrong("on_step", "a function of the stage, its number and how many there are", on_step)
    if inputs is not None and not callable(inputs) and not isinstance(inputs, (list, tuple, Mapping)):
        raise wrong("inputs", "a list of values, a mapping from parameters' names, or a function of a module", inputs)
    select = texts("select", select)
    require_seed(seed)
    found = _selected(folder, select)
    notes: list[str] = []
    if other is None:
        chains = [(str(module), module.stages) for module in found]
    else:
        chains = paired_stages(found, _selected(other, select), (os.fspath(folder), os.fspath(other)), notes)
    unpaired = len(notes)
    notes += [f"{name} is there at one stage only: {stages[0]}" for name, stages in chains if len(stages) == 1]
    chains = [(name, stages) for name, stages in chains if len(stages) > 1]
    if not chains:
        raise InputError("there is nothing to compare: " + "; ".join(notes[:5]))
    steps = _steps_of_chains(chains, inputs, {"seed": seed, **options}, workers, on_step)
    modules = [
        ModuleDiff(name, tuple(own), len(stages))
        for (name, stages), own in zip(chains, steps, strict=True)
        if own is not None
    ]
    return FolderDiff(tuple(modules), tuple(notes), unpaired, len(chains) - len(modules))


def _steps_of_chains(
    chains: Sequence[tuple[str, Sequence[Stage]]],
    inputs: Inputs | Callable[[Module], Inputs] | None,
    options: dict[str, Any],
    workers: Workers | None,
    on_step: Callable[[str, int, int], None] | None,
) -> Sequence[list[StageDiff] | None]:
    """`diff_stages` of each module, here or by workers; None of those that were left when these were interrupted."""
    total = sum(len(stages) - 1 for _, stages in chains)
    done = count(1)

    def tell(name: str, stage: Stage) -> None:
        if on_step is not None:
            on_step(f"{name}: {stage}", next(done), total)

    if workers is None:
        return [list(diff_stages(stages, inputs, partial(tell, name), options)) for name, stages in chains]
    from hloexec.tools.diffing.apart import diff_apart

    def tell_all(number: int) -> None:
        name, stages = chains[number]
        for stage in stages[1:]:
            tell(name, stage)

    watchers = listed("observers", options.pop("observers", ()), "observers")
    Attached(watchers)
    return diff_apart([stages for _, stages in chains], inputs, options, workers, Stages(watchers), tell_all)


def diff_stages(
    stages: Sequence[Stage],
    inputs: Inputs | Callable[[Module], Inputs] | None,
    tell: Callable[[Stage], None],
    options: dict[str, Any],
) -> Iterator[StageDiff]:
    """Each stage compared with the latest one before it that could be run.

    `options` are those of `diff`, the seed among them; `tell` is called before each stage.
    """
    last, last_module, last_text = stages[0], None, _text(stages[0])
    has_gap = False
    values: Inputs | None = None if callable(inputs) else inputs
    for stage in stages[1:]:
        tell(stage)
        text = _text(stage)
        if text == last_text:
            # Blame the later of two equal stages: what comes next has been made of it.
            last, has_gap = stage, False
            continue
        try:
            if last_module is None:
                last_module = load(last.path)
            if values is None:
                values = (
                    inputs(last_module) if callable(inputs) else [random_inputs(last_module, options.get("seed", 0))]
                )
        except HloError as error:
            yield StageDiff(last, stage, "not compared", reason=f"{last}: {error}")
            last, last_module, last_text, has_gap = stage, None, text, False
            continue
        try:
            module = load(stage.path)
            result = diff(last_module, module, values, **options)
            values = _for_stage(module, last_module, values, options)
        except HloError as error:
            yield StageDiff(last, stage, "not compared", reason=f"{stage}: {error}", has_gap=has_gap)
            has_gap = True
            continue
        yield StageDiff(last, stage, result.verdict, result, has_gap=has_gap)
        last, last_module, last_text, has_gap = stage, module, text, False


def _text(stage: Stage) -> bytes:
    return unpacked(*file_contents(stage.path, "hloexec.parse"))


def _for_stage(module: Module, before: Module, values: Inputs, options: Mapping[str, Any]) -> Inputs:
    """The inputs of a module, out of those of the one before it: shards of them if it has been partitioned since."""
    counts = options.get("replicas"), options.get("partitions")
    partitioning = partitioning_of(before, module, [topology_of(entry, *counts) for entry in (before, module)])
    return values if partitioning is None else partitioning.inputs_by_device(inputs_by_device(before.entry, values))


def _selected(folder: str | os.PathLike[str], select: Sequence[str]) -> list[DumpedModule]:
    modules = dumped_modules(folder)
    if not select:
        return list(modules)
    selected_modules = [
        module
        for module in modules
        if any(fnmatchcase(name, pattern) for pattern in select for name in (module.name, str(module)))
    ]
    if not selected_modules:
        names = ", ".join(dict.fromkeys(module.name for module in modules))
        raise InputError(
            f"{os.fspath(folder)!r} has no module {' or '.join(map(repr, select))}; there are {truncated(names, 500)}"
        )
    return selected_modules


def paired_stages(
    before: Sequence[DumpedModule], after: Sequence[DumpedModule], folders: tuple[str, str], notes: list[str]
) -> list[tuple[str, tuple[Stage, ...]]]:
    """The modules of both folders by their names, those of one name in their order, each at a stage that both have.

    What has no partner is said in `notes`.
    """
    sides = []
    for modules in (before, after):
        by_name: dict[str, list[DumpedModule]] = defaultdict(list)
        for module in modules:
            by_name[module.name].append(module)
        sides.append(by_name)
    pairs: list[tuple[str, tuple[Stage, ...]]] = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        ours, theirs = (side[name] for side in sides)
        for number, (one, two) in enumerate(zip(ours, theirs, strict=False)):
            label = name if len(ours) == 1 else f"{name} ({number + 1} of {len(ours)})"
            # The latest stage that both have.
            if one.after is not None and two.after is not None:
                pairs.append((label, (one.after, two.after)))
            elif one.before is not None and two.before is not None:
                pairs.append((label, (one.before, two.before)))
            else:
                notes.append(f"{label} is there before optimization in one folder only")
        for side, modules, others in ((0, ours, theirs), (1, theirs, ours)):
            if len(modules) > len(others):
                notes.append(
                    f"{name} is in {folders[side]!r} {counted(len(modules), 'time')}, in the other {len(others)}"
                )
    return pairs


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    return next((outcome for outcome in _ORDER if outcome in outcomes), "agree")
