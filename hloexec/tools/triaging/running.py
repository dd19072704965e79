"""`triage`: judge many modules in processes of their own, and group what has the same cause.

Modules whose difference a policy explains are in one group per policy: the rounding is the cause, whichever instruction
shows it first. Others are together if the same opcode is to blame, for the same element types and class of shapes, and
differs in the same way: it uses another operand, it is right as another operation. What could not be judged is
grouped by what kept it from it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import attrs

from hloexec.core.arguments import (
    listed,
    require_choice,
    require_flags,
    require_path,
    require_seed,
    shard_of,
    texts,
)
from hloexec.core.wording import argument, first_line
from hloexec.engine.exec.observers import Attached, Observer, Stages
from hloexec.engine.inputs import DISTRIBUTIONS
from hloexec.errors import InputError, ResourceError
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.specs import counterpart_of
from hloexec.tools.executing.codec import decoded
from hloexec.tools.executing.engines import Engine, checked_bounds, opened_engine
from hloexec.tools.executing.running import run_tasks
from hloexec.tools.executing.tasks import Task, warn_of_unlimited_memory
from hloexec.tools.triaging.blaming import policy_words, without_names
from hloexec.tools.triaging.collecting import Case, Settings, Store, Whole, cases_of, merged_record
from hloexec.tools.triaging.findings import OUTCOMES, CauseGroup, Triage, TriagedModule
from hloexec.tools.triaging.judging import judged_module, judging_task, minified_module, minifying_task

_Key: TypeAlias = tuple[str, str, tuple[str, ...], str, str, str]
_NAMES = re.compile(r"[%'\"][^\s'\"]+['\"]?|-?\b\d[\d.]*(?:e[-+]?\d+)?|-?\binf\b|\S*/\S*")
"""What messages have that is of one module only: names, numbers and paths."""
_MOST_REASON = 160
_USUAL = "array"
"""A class of shapes that goes without saying."""


def groups_of(modules: Iterable[TriagedModule]) -> list[CauseGroup]:
    """The groups of those that differ or could not be judged, the worst outcome and the largest group first.

    Those that a policy explains come after others that differ.
    """
    members_by_key: dict[_Key, list[TriagedModule]] = {}
    for module in modules:
        if not module.agrees:
            members_by_key.setdefault(_key(module), []).append(module)
    ranked = sorted(members_by_key.items(), key=lambda pair: (*_rank(pair[1][0]), -len(pair[1]), pair[0]))
    return [_group(number, members) for number, (_, members) in enumerate(ranked, 1)]


def _rank(module: TriagedModule) -> tuple[int, bool]:
    """What a policy explains is no fault of a compiler, so it comes after what none does."""
    return OUTCOMES.index(module.outcome), module.explained is not None


def representative_of(members: Sequence[TriagedModule]) -> TriagedModule:
    """The smallest one, if possible of those whose results differ; others have only come to them in another way."""
    return min(members, key=lambda module: (not module.difference, module.instruction_count, module.name))


def _difference(module: TriagedModule) -> str:
    """How results differ, or would on other inputs."""
    return module.difference or "numbers"


def _key(module: TriagedModule) -> _Key:
    if module.outcome != "differ":
        return module.outcome, _without_names(module.reason), (), "", "", ""
    if module.explained is not None:
        return module.outcome, "", (), "", "", _policy(module)
    if module.blamed is None:
        types = () if module.difference == "shapes" else _types(module)
        return module.outcome, "", types, "", _difference(module), ""
    blamed = module.blamed
    how = _without_names(blamed.reason)
    return module.outcome, blamed.opcode, blamed.element_types, blamed.shape_class, _difference(module), how


def _policy(module: TriagedModule) -> str:
    assert module.explained is not None
    return without_names(numerics_policy(module.explained.policy))


def _types(module: TriagedModule) -> tuple[str, ...]:
    """Element types of the outputs that differ."""
    return tuple(dict.fromkeys(output.actual_shape.partition("[")[0] for output in module.outputs))


def _without_names(reason: str) -> str:
    """A reason without what is of one module only."""
    return " ".join(_NAMES.sub("…", first_line(reason)).split())[:_MOST_REASON]


def _group(number: int, members: Sequence[TriagedModule]) -> CauseGroup:
    first = members[0]
    is_blamed = first.outcome == "differ" and first.explained is None and first.blamed is not None
    blamed = first.blamed if is_blamed else None
    types = dict.fromkeys(
        element_type for module in members if module.blamed for element_type in module.blamed.element_types
    )
    return CauseGroup(
        number=number,
        outcome=first.outcome,
        cause=_cause(members),
        opcode=None if blamed is None else blamed.opcode,
        element_types=tuple(types) or _types(first),
        shape_class=None if blamed is None else blamed.shape_class,
        difference=_difference(first) if first.outcome == "differ" else first.difference,
        policy=_policy(first) if first.explained is not None else None,
        members=tuple(members),
        representative=representative_of(members).name,
    )


def _cause(members: Sequence[TriagedModule]) -> str:
    module = members[0]
    if module.outcome != "differ":
        return _common([member.reason for member in members])
    if module.explained is not None:
        return policy_words(_policy(module))
    if module.difference == "shapes" and module.blamed is None:
        return "results of other shapes than expected"
    how = "" if _difference(module) == "numbers" else f", {module.difference}"
    if module.blamed is None:
        return f"results of {', '.join(_types(module))}{how}"
    shapes = "" if module.blamed.shape_class == _USUAL else f" ({module.blamed.shape_class})"
    reason = _common([member.blamed.reason for member in members if member.blamed is not None])
    why = f": {reason}" if reason else ""
    return f"{module.blamed.opcode} of {', '.join(module.blamed.element_types)}{shapes}{how}{why}"


def _common(reasons: Sequence[str]) -> str:
    """What reasons have in common that are the same but for names."""
    lines = {first_line(reason) for reason in reasons}
    return lines.pop() if len(lines) == 1 else _without_names(reasons[0])


_SNAPSHOTS = (".pb", ".pb.gz")


def triage(
    folder: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    against: str | NumericsPolicy | Counterpart | None = None,
    select: Sequence[str] = (),
    minify: bool = True,
    jobs: int = 1,
    executor: str | Executor | None = None,
    shared: bool = False,
    shard: str | None = None,
    timeout: float = 120.0,
    memory: int | str = "4G",
    numerics: str | NumericsPolicy = "reference",
    seed: int = 0,
    distribution: str = "normal",
    elided: str = "zeros",
    unknown: str = "error",
    observers: Sequence[Observer] = (),
) -> Triage:
    """Run and compare all modules in a folder and below, and group those that differ for the same cause.

    What is compared with what:

    - `NAME.before.hlo` with `NAME.after.hlo`; with two folders, modules of the same path in both;
    - the stages of a module that XLA dumped, one with the other (as `diff_folders` does);
    - any other module with `NAME.expected.npz` beside it or the result in a snapshot; else with `against`: `"xla-cpu"`,
      another numerics policy, or another counterpart that runs modules (`hloexec.counterpart`).

    Files end in `.hlo`, `.txt`, `.pb` or `.mlir`, and may be gzipped. Inputs are those in `NAME.inputs.npz` (or
    `NAME.inputs.0.npz`, … for each device) or in a snapshot, else random: `seed` and `distribution` are those of
    `random_inputs`. `select` are patterns of names.

    Each module is judged in a process of its own, `jobs` of them at once, in at most `timeout` seconds and `memory`
    bytes. Crashes and what takes too long or too much are outcomes like others. For what differs, `diff` or `find_nan`
    finds the instruction to blame, and `explain` the policy that explains it, if there is one. The smallest module of
    each group is minified, unless `minify` is False.

    `executor` has the workers that start these processes: a `concurrent.futures.Executor`, or a text: `processes:N`
    (this machine; the same as `jobs`), `dask:ADDRESS` (the workers of a Dask scheduler), `mpi` (the ranks of `mpiexec`
    but the first) or `MODULE:FUNCTION` (what a function without parameters returns). Tasks carry the files that they
    need, up to 256 MiB, or with `shared` their absolute paths. `shard`, such as `"3/8"`, judges the third of eight
    parts of the modules, and minifies nothing; `merge_triages` makes one triage of what all parts have left in their
    folders `output`.

    All results are kept in the folder `output`, by what is in the modules' files. A later call with the same folder and
    options goes on where one was stopped, by Ctrl-C, too: that gives what is known, and `is_complete` is False. Without
    it, nothing is kept. The result is the same for any executor and number of workers, as far as no search ends for
    want of time.

    Raises UnsupportedError where a worker has other versions, or a machine that rounds otherwise; ResourceError where
    all workers are lost; InputError where there is no module, or nothing to compare one with; where a partner is
    missing; where a `distribution` is given, but each module has its inputs; and where `output` lies in a folder of
    modules, or has something else or results of other options.
    """
    start = time.perf_counter()
    with opened_engine(executor, jobs, shared=shared) as engine:
        settings = _settings(against, numerics, seed, distribution, elided, unknown, timeout, memory)
        require_flags(minify=minify)
        part = _part(shard, output)
        patterns = texts("select", select)
        stages = _stages(observers)
        folders = _folders(folder, other)
        if output is not None:
            _require_outside(output, folders)
        cases = cases_of(folders[0], folders[1] if len(folders) > 1 else None, patterns)
        _require_comparable(cases, settings)
        if distribution != "normal" and all(case.inputs for case in cases):
            raise InputError(f"distribution is {distribution}, but each module has its inputs beside it; leave it out")
        with _store(output, settings) as store:
            keys = {case.name: store.key(case) for case in cases}
            whole = Whole(os.fspath(folder), None if other is None else os.fspath(other), cases, keys)
            store.describe(whole.record)
            search = _Triaging(store, whole, engine, part)
            return search.run(start, stages, is_minified=minify)


def merge_triages(
    folders: Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] | None = None,
    minify: bool = True,
    jobs: int = 1,
    executor: str | Executor | None = None,
    shared: bool = False,
    observers: Sequence[Observer] = (),
) -> Triage:
    """Make one triage of what `triage` has left in the folders of its shards, and minify a module of each group.

    What no shard has judged, because one was stopped, say, is judged now. `output`, `jobs`, `executor` and `shared` are
    those of `triage`; paths of modules are as the shards were given them. The result is that of one `triage` of all
    modules.

    Raises InputError where a folder is none of a triage, and where two are of other modules, options or versions.
    """
    start = time.perf_counter()
    with opened_engine(executor, jobs, shared=shared) as engine:
        require_flags(minify=minify)
        stages = _stages(observers)
        if not isinstance(folders, (list, tuple)) or not folders:
            raise InputError("folders must be a list with the folder of each shard")
        for folder in folders:
            require_path("folder", folder)
        if output is not None:
            require_path("output", output)
        settings, record = merged_record(list(map(Path, folders)))
        with _store(output, settings) as store:
            whole = decoded(record, Whole)
            store.describe(record)
            for folder in folders:
                store.copy(Path(folder), whole.keys.values())
            return _Triaging(store, whole, engine, None).run(start, stages, is_minified=minify)


def _stages(observers: Sequence[Observer]) -> Stages:
    watchers = listed("observers", observers, "observers")
    Attached(watchers)
    return Stages(watchers)


def _part(shard: str | None, output: object) -> tuple[int, int] | None:
    """The number of a shard, from 0 on, and how many there are."""
    if shard is None:
        return None
    part = shard_of(shard)
    if output is None:
        raise InputError(f"{argument('shard')} needs {argument('output')}, the folder that merging reads")
    return part


def _settings(
    against: str | NumericsPolicy | Counterpart | None,
    numerics: str | NumericsPolicy,
    seed: int,
    distribution: str,
    elided: str,
    unknown: str,
    timeout: float,
    memory: int | str,
) -> Settings:
    """The options of `triage`, checked."""
    instead = "NAME.expected.npz beside a module has its result"
    other = None if against is None else counterpart_of(against, instead=instead).name
    require_seed(seed)
    require_choice("distribution", distribution, DISTRIBUTIONS)
    require_choice("elided", elided, ("zeros", "random", "error"))
    require_choice("unknown", unknown, ("error", "zeros", "random"))
    seconds, size = checked_bounds(timeout, memory)
    policy = numerics_policy(numerics)
    if other == f"policy:{policy.name}":
        raise InputError(f"against is {policy.name}, the policy that modules run under: nothing could differ")
    return Settings(other, policy.name, int(seed), elided, unknown, seconds, size, distribution)


def _folders(folder: str | os.PathLike[str], other: str | os.PathLike[str] | None) -> list[Path]:
    require_path("folder", folder)
    if other is not None:
        require_path("other", other)
    folders = [Path(path) for path in (folder, other) if path is not None]
    if len(folders) == 2 and folders[0].resolve() == folders[1].resolve():
        raise InputError("folder and other are the same folder: nothing could differ")
    return folders


def _require_outside(output: str | os.PathLike[str], folders: Sequence[Path]) -> None:
    require_path("output", output)
    if not os.fspath(output):
        raise InputError("output, the name of the folder to write, is empty")
    place = Path(output).resolve()
    for folder in folders:
        if place.is_relative_to(folder.resolve()):
            raise InputError(
                f"output, {os.fspath(output)!r}, lies in {os.fspath(folder)!r}, where modules are searched; name "
                "another folder"
            )


def _require_comparable(cases: Sequence[Case], settings: Settings) -> None:
    """InputError where modules have nothing to be compared with; whether a snapshot has shows only when it is read."""
    if settings.against is not None:
        if not any(case.kind == "module" and case.expected is None for case in cases):
            raise InputError(
                f"against is {settings.against}, but each module has something else to be compared with; leave it out"
            )
        return
    lacking = [
        case
        for case in cases
        if case.kind == "module" and case.expected is None and not case.files[0].name.lower().endswith(_SNAPSHOTS)
    ]
    if lacking:
        more = f", nor have {len(lacking) - 1} others" if len(lacking) > 1 else ""
        raise InputError(
            f"{lacking[0].name} has nothing to be compared with{more}: no {lacking[0].name}.expected.npz, and it is no "
            f"pair; give {argument('against')} to compare with XLA:CPU ('xla-cpu') or a numerics policy"
        )


@contextmanager
def _store(output: str | os.PathLike[str] | None, settings: Settings) -> Iterator[Store]:
    """What is kept in a folder, or in one that is gone in the end."""
    if output is None:
        with tempfile.TemporaryDirectory(prefix="hloexec-triage-") as folder:
            yield attrs.evolve(Store.opened(Path(folder), settings), is_temporary=True)
        return
    yield Store.opened(Path(output), settings)


def _without_folder(group: CauseGroup) -> CauseGroup:
    if group.minified is None:
        return group
    return attrs.evolve(group, minified=attrs.evolve(group.minified, folder=None))


class _Triaging:
    """The judging of cases, and what is known so far."""

    def __init__(self, store: Store, whole: Whole, engine: Engine, part: tuple[int, int] | None) -> None:
        self._store = store
        self._whole = whole
        self._engine = engine
        self._part = part
        """Which of how many parts of the cases is judged; all of them where it is None."""
        warn_of_unlimited_memory(store.settings.memory)
        modules = {key: store.known(key) for key in whole.keys.values()}
        self._known = {key: module for key, module in modules.items() if module is not None}

    @property
    def _cases(self) -> Sequence[Case]:
        number, count = self._part or (0, 1)
        return self._whole.cases[number::count]

    @property
    def _modules(self) -> list[TriagedModule]:
        """What came of the cases so far, in their order; equal ones share what came of one of them."""
        modules = []
        for case in self._cases:
            module = self._known.get(self._whole.keys[case.name])
            if module is not None:
                files = tuple(map(os.fspath, case.files))
                modules.append(attrs.evolve(module, name=case.name, files=files))
        return modules

    def run(self, start: float, stages: Stages, *, is_minified: bool) -> Triage:
        """Judge what is not known yet, then minify a module of each group; `start` is when the call began."""
        is_complete = True
        try:
            self._judge(stages)
            groups = groups_of(self._modules)
            if is_minified and self._part is None:
                groups = self._minified(groups, stages)
        except KeyboardInterrupt:
            groups, is_complete = groups_of(self._modules), False
        except ResourceError as error:
            count, total = len(self._modules), len(self._cases)
            kept = f"what came of {count} of {total} modules is kept, and the same call goes on with the others"
            lost = f"what came of {count} of {total} modules is lost, as {argument('output')} was not given"
            raise ResourceError(f"{error}; {lost if self._store.is_temporary else kept}") from error
        if self._store.is_temporary:
            groups = [_without_folder(group) for group in groups]
        return Triage(
            folder=self._whole.folder,
            other=self._whole.other,
            output=None if self._store.is_temporary else os.fspath(self._store.folder),
            modules=tuple(self._modules),
            groups=tuple(groups),
            case_count=len(self._cases),
            seconds=time.perf_counter() - start,
            is_complete=is_complete,
            distribution=self._store.settings.distribution,
        )

    def _judge(self, stages: Stages) -> None:
        settings, keys = self._store.settings, self._whole.keys
        left = {key: case for case in self._cases if (key := keys[case.name]) not in self._known}
        stages.begin("modules", len(left))
        for case, reply in run_tasks(left.values(), lambda case: judging_task(case, settings), self._engine):
            module = judged_module(case, settings, reply)
            self._store.keep(keys[case.name], module)
            self._known[keys[case.name]] = module
            stages.tick()

    def _minified(self, groups: Sequence[CauseGroup], stages: Stages) -> list[CauseGroup]:
        cases = {case.name: case for case in self._cases}
        settings = self._store.settings
        named = [(group, _folder_name(group, self._whole.keys[group.representative])) for group in groups]
        minified_by_name = {name: self._store.known_minified(name) for _, name in named}
        left = [(group, name) for group, name in named if group.outcome == "differ" and minified_by_name[name] is None]
        stages.begin("minifying", len(left))

        def task_of(item: tuple[CauseGroup, str]) -> Task:
            group, _ = item
            module = next(member for member in group.members if member.name == group.representative)
            return minifying_task(cases[module.name], module, settings)

        for (group, name), reply in run_tasks(left, task_of, self._engine):
            folder = self._store.minified / name
            shutil.rmtree(folder, ignore_errors=True)
            minified_by_name[name] = minified = minified_module(cases[group.representative], settings, reply, folder)
            self._store.keep_minified(name, minified)
            stages.tick()
        return [attrs.evolve(group, minified=minified_by_name[name]) for group, name in named]


def _folder_name(group: CauseGroup, key: str) -> str:
    """A name that says what is in a folder, and that belongs to the module that it is made of."""
    words = re.sub(r"[^\w.-]+", "-", group.cause).strip("-.")[:60]
    return f"{words or 'results'}-{key[:8]}"
