"""The cases of a triage, what holds for all of them, and the folder in which it keeps what it knows.

Finding the cases in a folder: modules, pairs of modules, and modules at several stages of their compilation.

What belongs together is told by the names of files: NAME.hlo with NAME.inputs.npz and NAME.expected.npz beside it,
NAME.before.hlo with NAME.after.hlo, and files as XLA names them in its dumps; a golden is a module with inputs and
result. What lacks a partner is refused before anything runs.

The folder in which a triage keeps what it knows, so that a later call goes on where one was stopped.

`triage.json` has the settings, `modules/` a file for each module, and `minified/` the small modules. The name of a
module's file is a digest of all that its result depends on: the bytes of its files, and the settings. Files are
written whole or not at all, so it is in order at any time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

import hloexec
from hloexec.core.files import irregularity, opened, require_new_folder
from hloexec.core.structs import define, frozen
from hloexec.core.wording import listing
from hloexec.engine.options import Options
from hloexec.errors import InputError, os_errors_named, warn
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, numerics_policy
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.own import PolicyRun
from hloexec.tools.counterparts.specs import counterpart_of
from hloexec.tools.diffing.folders import DumpedModule, dumped_modules, paired_stages
from hloexec.tools.executing.codec import coded, decoded
from hloexec.tools.executing.tasks import write_json
from hloexec.tools.golden.recording import EXPECTED, INPUTS, MODULE, RECORD, SUFFIX, read_golden
from hloexec.tools.triaging.findings import MinifiedModule, TriagedModule

_SEARCH_SHARE = 1 / 3
"""A search for what is to blame, or for a policy, takes so much of the time at most."""


@frozen
class Settings:
    """The options that results depend on."""

    against: str | None
    """The SPEC of a counterpart; None where each module has something else to be compared with."""
    numerics: str
    seed: int
    elided: str
    unknown: str
    timeout: float
    """Seconds that a module may take."""
    memory: int
    """Bytes that a module may take."""
    distribution: str = "normal"
    """What random inputs are like."""

    @property
    def counterpart(self) -> Counterpart | None:
        """What modules are compared with."""
        return None if self.against is None else counterpart_of(self.against)

    @property
    def policy(self) -> NumericsPolicy | None:
        """The policy that modules are compared with; None where they run elsewhere, too."""
        return other.policy if isinstance(other := self.counterpart, PolicyRun) else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether modules are compared with what something else than hloexec gives."""
        return self.against is not None and self.policy is None

    @property
    def search_seconds(self) -> float:
        """What one of the searches may take."""
        return self.timeout * _SEARCH_SHARE

    @property
    def options(self) -> Options:
        """How modules run."""
        policy = numerics_policy(self.numerics)
        return Options(
            numerics=policy, seed=self.seed, elided=self.elided, unknown=self.unknown, memory_limit=self.memory
        )

    @property
    def trial_options(self) -> Options:
        """The same, but for the policy, for what tries policies."""
        return attrs.evolve(self.options, numerics=REFERENCE)

    @property
    def identity(self) -> dict[str, Any]:
        """All but the limits, which decide how far a search gets, but not what is right."""
        return {name: value for name, value in attrs.asdict(self).items() if name not in ("timeout", "memory")}

    def differing(self, record: Mapping[str, Any]) -> list[str]:
        """What is otherwise in the record of other settings, in words."""
        return [
            f"{name} was {record.get(name)!r}" for name, value in self.identity.items() if record.get(name) != value
        ]


_SUFFIX = re.compile(r"\.(?:hlo\.pb|hlo|txt|pb|mlir|mlirbc)(?:\.gz)?$", re.IGNORECASE)
_SIDE = re.compile(r"\.(before|after)$")
_BESIDE = re.compile(r"\.(?:(inputs)(?:\.(\d+))?|(expected))\.np[zy]$")
_START_BYTES = 4096


@frozen
class Case:
    """What is judged by itself: a module, a pair of modules, or the stages of one."""

    name: str
    kind: str
    """`module`, `pair` or `stages`."""
    files: tuple[Path, ...]
    """The module; before and after; or all stages in their order."""
    inputs: tuple[Path, ...] = ()
    """One file for all devices, or one for each."""
    expected: Path | None = None
    dump: Path | None = None
    """The dump folder of stages."""

    @property
    def all_files(self) -> tuple[Path, ...]:
        """Everything that its result depends on."""
        return (*self.files, *self.inputs, *(() if self.expected is None else (self.expected,)))


@define
class _Found:
    """What a folder has: files of modules by their names, what lies beside them, and dumps."""

    modules: dict[str, Path] = attrs.Factory(dict)
    inputs: dict[str, dict[int, Path]] = attrs.Factory(dict)
    expected: dict[str, Path] = attrs.Factory(dict)
    dumps: dict[str, tuple[DumpedModule, ...]] = attrs.Factory(dict)

    def inputs_of(self, name: str) -> tuple[Path, ...]:
        """The files of inputs of a module, in the order of devices."""
        return tuple(path for _, path in sorted(self.inputs.get(name, {}).items()))


def cases_of(folder: Path, other: Path | None, select: Sequence[str]) -> list[Case]:
    """The cases of a folder, or of two with modules of the same names, in the order of their names.

    `select` are patterns of names; none stand for all. Raises InputError where there are none, and where something
    lacks a partner.
    """
    files = _searched(folder)
    cases = list(_in_one(files) if other is None else _in_both(files, _searched(other), (folder, other)))
    if not cases:
        where = repr(os.fspath(folder)) + ("" if other is None else f" and {os.fspath(other)!r}")
        raise InputError(
            f"there is no module in {where}: no file NAME.hlo, NAME.mlir or NAME.pb, no pair NAME.before.hlo and "
            "NAME.after.hlo, and no dump of XLA's"
        )
    chosen = [case for case in cases if not select or any(fnmatchcase(case.name, pattern) for pattern in select)]
    if not chosen:
        names = listing((case.name for case in cases), 6)
        raise InputError(f"select has no pattern that fits a module; there are {names}")
    return sorted(chosen, key=lambda case: case.name)


def _searched(folder: Path) -> _Found:
    with os_errors_named(f"read {os.fspath(folder)!r}"):
        if not folder.is_dir():
            problem = "it is a file, not a folder" if folder.exists() else "there is no such folder"
            raise InputError(f"cannot read {os.fspath(folder)!r}: {problem}")
    collection = _Found()

    def complain(error: OSError) -> None:
        raise InputError(f"cannot read {error.filename!r}: {error.strerror}") from error

    for root, folders, files in os.walk(folder, onerror=complain):
        folders[:] = sorted(name_in_folder for name_in_folder in folders if not name_in_folder.startswith("."))
        place, taken = Path(root), set[Path]()
        relative = place.relative_to(folder).as_posix()
        with suppress(InputError):
            dumped = dumped_modules(place)
            collection.dumps[relative] = dumped
            taken = {stage.path for module in dumped for stage in module.stages}
            # jaxlib puts what a module was compiled from into a folder of its name.
            folders[:] = [
                name_in_folder for name_in_folder in folders if name_in_folder not in {str(module) for module in dumped}
            ]
        for name in [name_in_folder for name_in_folder in folders if name_in_folder.endswith(SUFFIX)]:
            if (place / name / RECORD).is_file():
                folders.remove(name)
                _add_golden(collection, place / name, name if relative == "." else f"{relative}/{name}")
        for name in sorted(name_in_folder for name_in_folder in files if not name_in_folder.startswith(".")):
            path = place / name
            if path not in taken and (_BESIDE.search(name) or _SUFFIX.search(name)):
                if (reason := irregularity(path)) is None:
                    _add(collection, path, name if relative == "." else f"{relative}/{name}")
                else:
                    warn(f"{os.fspath(path)!r} is passed over: {reason}")
    _require_modules(collection)
    return collection


def _add_golden(collection: _Found, folder: Path, name: str) -> None:
    if read_golden(folder).inputs_per_device > 1:
        warn(
            f"{os.fspath(folder)!r} is passed over: its devices have different inputs, with which golden check runs it"
        )
        return
    owner = name.removesuffix(SUFFIX)
    collection.modules[owner], collection.expected[owner] = folder / MODULE, folder / EXPECTED
    collection.inputs[owner] = {0: folder / INPUTS}


def _add(collection: _Found, path: Path, name: str) -> None:
    if match := _BESIDE.search(name):
        owner, number = name[: match.start()], int(match[2] or 0)
        if match[1]:
            collection.inputs.setdefault(owner, {})[number] = path
        else:
            collection.expected[owner] = path
    elif match := _SUFFIX.search(name):
        if ".txt" in match[0].lower() and b"HloModule" not in _start(path):
            return
        owner = name[: match.start()]
        if owner in collection.modules:
            raise InputError(
                f"{os.fspath(path)!r} and {os.fspath(collection.modules[owner])!r} have the same name, "
                f"{owner}; rename one"
            )
        collection.modules[owner] = path


def _start(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else opened(path) as file:
            return file.read(_START_BYTES).replace(b"\0", b"")  # what UTF-16 has more
    except (OSError, EOFError) as error:
        raise InputError(f"cannot read {os.fspath(path)!r}: {error}") from error


def _require_modules(collection: _Found) -> None:
    """InputError where inputs or expected results lie beside no module."""
    owners = {_SIDE.sub("", name) for name in collection.modules} | collection.modules.keys()
    for kind, files in (("inputs", collection.inputs), ("expected", collection.expected)):
        for name in files.keys() - owners:
            raise InputError(f"{name}.{kind}.npz has no module beside it: there is no {name}.hlo")


def _in_one(collection: _Found) -> Iterator[Case]:
    pairs: dict[str, dict[str, Path]] = {}
    for name, path in collection.modules.items():
        if match := _SIDE.search(name):
            pairs.setdefault(name[: match.start()], {})[match[1]] = path
        else:
            yield Case(name, "module", (path,), collection.inputs_of(name), collection.expected.get(name))
    for name, sides in pairs.items():
        if len(sides) < 2:
            (side,) = sides
            lacking = "after" if side == "before" else "before"
            raise InputError(
                f"{os.fspath(sides[side])!r} lacks its partner: there is no {name}.{lacking}.hlo; rename it where it "
                "is a module by itself"
            )
        if name in collection.modules:
            raise InputError(f"there are both a pair and a module of the name {name}; rename one")
        yield Case(name, "pair", (sides["before"], sides["after"]), collection.inputs_of(name))
    for relative, modules in collection.dumps.items():
        for module in modules:
            files = tuple(stage.path for stage in module.stages)
            kind, dump = ("module", None) if len(files) == 1 else ("stages", files[0].parent)
            yield Case(_joined(relative, str(module)), kind, files, dump=dump)


def _in_both(before: _Found, after: _Found, folders: tuple[Path, Path]) -> Iterator[Case]:
    _require_partners(before.modules, after.modules, folders)
    for name, path in before.modules.items():
        yield Case(name, "pair", (path, after.modules[name]), before.inputs_of(name))
    _require_partners(before.dumps, after.dumps, folders)
    for relative, modules in before.dumps.items():
        notes: list[str] = []
        names = (os.fspath(folders[0] / relative), os.fspath(folders[1] / relative))
        for label, stages in paired_stages(modules, after.dumps[relative], names, notes):
            yield Case(_joined(relative, label), "pair", tuple(stage.path for stage in stages))
        if notes:
            raise InputError(f"{notes[0]}: one of them lacks its partner")


def _require_partners(before: Mapping[str, object], after: Mapping[str, object], folders: tuple[Path, Path]) -> None:
    for ours, theirs, (has, lacks) in ((before, after, folders), (after, before, folders[::-1])):
        if missing := sorted(ours.keys() - theirs.keys()):
            lack = "lacks its partner" if len(missing) == 1 else "lack their partners"
            verb = "is" if len(missing) == 1 else "are"
            raise InputError(f"{listing(missing, 8)} {verb} in {os.fspath(has)!r}, but {lack} in {os.fspath(lacks)!r}")


def _joined(relative: str, name: str) -> str:
    return name if relative == "." else f"{relative}/{name}"


_SETTINGS = "triage.json"
_KIND = "hloexec.triage-folder"


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a triage holds; InputError where it is damaged."""
    try:
        with os_errors_named(f"read {os.fspath(path)!r}"), opened(path) as file:
            contents = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{os.fspath(path)!r} is damaged: {error}; remove it to have it made again") from error
    if not isinstance(contents, dict):
        raise InputError(f"{os.fspath(path)!r} is no file of a triage; remove it to have it made again")
    return contents


@frozen
class Store:
    """What is known of modules under these settings."""

    folder: Path
    settings: Settings
    is_temporary: bool = False
    """Whether the folder goes in the end."""

    @classmethod
    def opened(cls, folder: Path, settings: Settings) -> Store:
        """A folder that is new, or goes on; InputError where it has something else, or was made with other settings."""
        path = folder / _SETTINGS
        if not path.exists():
            require_new_folder(folder)
        else:
            _require_same(path, settings)
        store = cls(folder, settings)
        with os_errors_named(f"write {os.fspath(folder)!r}"):
            for subfolder in (store.modules, store.minified):
                subfolder.mkdir(parents=True, exist_ok=True)
        store.describe({})
        return store

    def describe(self, whole: Mapping[str, Any]) -> None:
        """Write what the folder is, and of which cases."""
        record = {"schema": _KIND, "hloexec": hloexec.__version__, "settings": coded(self.settings, Settings)}
        write_json(self.folder / _SETTINGS, record | {"whole": whole})

    def copy(self, other: Path, keys: Iterable[str]) -> None:
        """Take over what another folder of these settings knows of cases."""
        theirs = attrs.evolve(self, folder=other)
        for key in keys:
            path = self.modules / f"{key}.json"
            if not path.exists() and theirs.known(key) is not None:
                write_json(path, read_json(theirs.modules / path.name))

    @property
    def modules(self) -> Path:
        return self.folder / "modules"

    @property
    def minified(self) -> Path:
        return self.folder / "minified"

    def key(self, case: Case) -> str:
        """A digest of what the result of a case depends on; InputError where a file of it cannot be read."""
        digest = hashlib.sha256(f"{hloexec.__version__} {case.kind} {len(case.inputs)}".encode())
        digest.update(repr(sorted(self.settings.identity.items())).encode())
        for path in case.all_files:
            with os_errors_named(f"read {os.fspath(path)!r}"), opened(path) as file:
                digest.update(hashlib.sha256(file.read()).digest())
        return digest.hexdigest()[:20]

    def known(self, key: str) -> TriagedModule | None:
        """What came of a case; None where it is not known, or where it may come to more within the limits of now."""
        path = self.modules / f"{key}.json"
        if not path.exists():
            return None
        record = read_json(path)
        try:
            module = decoded(record["module"], TriagedModule)
            limits = float(record["timeout"]), int(record["memory"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{os.fspath(path)!r} is no result of a triage ({error}); remove it to have it made again"
            ) from error
        has_more = self.settings.timeout > limits[0] or self.settings.memory > limits[1]
        return None if module.is_cut and has_more else attrs.evolve(module, is_reused=True)

    def keep(self, key: str, module: TriagedModule) -> None:
        """Write what came of a case."""
        record = {
            "module": coded(module, TriagedModule),
            "timeout": self.settings.timeout,
            "memory": self.settings.memory,
        }
        write_json(self.modules / f"{key}.json", record)

    def known_minified(self, name: str) -> MinifiedModule | None:
        """What was minified under a name; None where nothing was, or not to the end."""
        path = self.minified / f"{name}.json"
        if not path.exists():
            return None
        record = read_json(path)
        try:
            return decoded(record, MinifiedModule)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{os.fspath(path)!r} is no result of a triage; remove it to have it made again"
            ) from error

    def keep_minified(self, name: str, minified: MinifiedModule) -> None:
        """Write what was minified."""
        write_json(self.minified / f"{name}.json", coded(minified, MinifiedModule))


@frozen
class Whole:
    """All cases of a triage, whichever part of them is judged."""

    folder: str
    """As it was given."""
    other: str | None
    cases: Sequence[Case]
    keys: Mapping[str, str]
    """By the names of cases: `Store.key` of each."""

    @property
    def record(self) -> dict[str, Any]:
        """What JSON holds of it."""
        return coded(self, Whole)  # type: ignore[no-any-return]


def merged_record(folders: Sequence[Path]) -> tuple[Settings, dict[str, Any]]:
    """The settings of triages of the same cases, and the record of all their cases.

    Raises InputError where a folder is none of a triage, and where they are not of the same cases under the same
    settings.
    """
    first: tuple[Settings, dict[str, Any]] | None = None
    for folder in folders:
        path = folder / _SETTINGS
        if not path.exists():
            raise InputError(f"{os.fspath(folder)!r} is no folder of a triage: it has no {_SETTINGS}")
        try:
            record = read_json(path)
            settings, whole = decoded(record["settings"], Settings), record["whole"]
            decoded(whole, Whole)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{os.fspath(path)!r} is no file of a triage; name another folder") from error
        if first is None:
            first = settings, whole
        _require_same(path, first[0], "merge shards of one triage")
        if whole["keys"] != first[1]["keys"]:
            raise InputError(
                f"{os.fspath(folder)!r} is of other modules than {os.fspath(folders[0])!r}; merge shards of one folder"
            )
    assert first is not None
    return first


def _require_same(path: Path, settings: Settings, advice: str = "name a new folder, or remove what is in it") -> None:
    record = read_json(path)
    before, version = record.get("settings"), record.get("hloexec")
    if record.get("schema") != _KIND or not isinstance(before, dict):
        raise InputError(f"{os.fspath(path)!r} is no file of a triage; name another folder")
    if version != hloexec.__version__:
        raise InputError(f"{os.fspath(path.parent)!r} is of hloexec {version}, not {hloexec.__version__}; {advice}")
    if others := settings.differing(before):
        raise InputError(f"{os.fspath(path.parent)!r} has results of other options: {', '.join(others)}; {advice}")
