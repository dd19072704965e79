"""Finding the cases in a folder: modules, pairs of modules, and modules at several stages of their compilation.

What belongs together is told by the names of files: NAME.hlo with NAME.inputs.npz and NAME.expected.npz beside it,
NAME.before.hlo with NAME.after.hlo, and files as XLA names them in its dumps. What lacks a partner is refused before
anything runs.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from hloexec.core.files import irregularity, opened
from hloexec.core.structs import define, frozen
from hloexec.core.wording import listing
from hloexec.errors import InputError, os_errors_named, warn
from hloexec.tools.diffing.dumps import DumpedModule, dumped_modules
from hloexec.tools.diffing.folders import paired_stages

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
    found = _searched(folder)
    cases = list(_in_one(found) if other is None else _in_both(found, _searched(other), (folder, other)))
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
            what = "it is a file, not a folder" if folder.exists() else "there is no such folder"
            raise InputError(f"cannot read {os.fspath(folder)!r}: {what}")
    found = _Found()

    def complain(error: OSError) -> None:
        raise InputError(f"cannot read {error.filename!r}: {error.strerror}") from error

    for root, folders, files in os.walk(folder, onerror=complain):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        place, taken = Path(root), set[Path]()
        relative = place.relative_to(folder).as_posix()
        with suppress(InputError):
            dumped = dumped_modules(place)
            found.dumps[relative] = dumped
            taken = {stage.path for module in dumped for stage in module.stages}
            # jaxlib puts what a module was compiled from into a folder of its name.
            folders[:] = [each for each in folders if each not in {str(module) for module in dumped}]
        for name in sorted(each for each in files if not each.startswith(".")):
            path = place / name
            if path not in taken and (_BESIDE.search(name) or _SUFFIX.search(name)):
                if (reason := irregularity(path)) is None:
                    _add(found, path, name if relative == "." else f"{relative}/{name}")
                else:
                    warn(f"{os.fspath(path)!r} is passed over: {reason}")
    _require_modules(found)
    return found


def _add(found: _Found, path: Path, name: str) -> None:
    if match := _BESIDE.search(name):
        owner, number = name[: match.start()], int(match[2] or 0)
        if match[1]:
            found.inputs.setdefault(owner, {})[number] = path
        else:
            found.expected[owner] = path
    elif match := _SUFFIX.search(name):
        if ".txt" in match[0].lower() and b"HloModule" not in _start(path):
            return
        owner = name[: match.start()]
        if owner in found.modules:
            raise InputError(
                f"{os.fspath(path)!r} and {os.fspath(found.modules[owner])!r} have the same name, {owner}; rename one"
            )
        found.modules[owner] = path


def _start(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else opened(path) as file:
            return file.read(_START_BYTES).replace(b"\0", b"")  # what UTF-16 has more
    except (OSError, EOFError) as error:
        raise InputError(f"cannot read {os.fspath(path)!r}: {error}") from error


def _require_modules(found: _Found) -> None:
    """InputError where inputs or expected results lie beside no module."""
    owners = {_SIDE.sub("", name) for name in found.modules} | found.modules.keys()
    for what, files in (("inputs", found.inputs), ("expected", found.expected)):
        for name in files.keys() - owners:
            raise InputError(f"{name}.{what}.npz has no module beside it: there is no {name}.hlo")


def _in_one(found: _Found) -> Iterator[Case]:
    pairs: dict[str, dict[str, Path]] = {}
    for name, path in found.modules.items():
        if match := _SIDE.search(name):
            pairs.setdefault(name[: match.start()], {})[match[1]] = path
        else:
            yield Case(name, "module", (path,), found.inputs_of(name), found.expected.get(name))
    for name, sides in pairs.items():
        if len(sides) < 2:
            (side,) = sides
            lacking = "after" if side == "before" else "before"
            raise InputError(
                f"{os.fspath(sides[side])!r} lacks its partner: there is no {name}.{lacking}.hlo; rename it where it "
                "is a module by itself"
            )
        if name in found.modules:
            raise InputError(f"there are both a pair and a module of the name {name}; rename one")
        yield Case(name, "pair", (sides["before"], sides["after"]), found.inputs_of(name))
    for relative, modules in found.dumps.items():
        for module in modules:
            files = tuple(stage.path for stage in module.stages)
            kind, dump = ("module", None) if len(files) == 1 else ("stages", files[0].parent)
            yield Case(_joined(relative, str(module)), kind, files, dump=dump)


def _in_both(before: _Found, after: _Found, folders: tuple[Path, Path]) -> Iterator[Case]:
    _require_same(before.modules, after.modules, folders)
    for name, path in before.modules.items():
        yield Case(name, "pair", (path, after.modules[name]), before.inputs_of(name))
    _require_same(before.dumps, after.dumps, folders)
    for relative, modules in before.dumps.items():
        notes: list[str] = []
        names = (os.fspath(folders[0] / relative), os.fspath(folders[1] / relative))
        for label, stages in paired_stages(modules, after.dumps[relative], names, notes):
            yield Case(_joined(relative, label), "pair", tuple(stage.path for stage in stages))
        if notes:
            raise InputError(f"{notes[0]}: one of them lacks its partner")


def _require_same(before: Mapping[str, object], after: Mapping[str, object], folders: tuple[Path, Path]) -> None:
    for ours, theirs, (has, lacks) in ((before, after, folders), (after, before, folders[::-1])):
        if missing := sorted(ours.keys() - theirs.keys()):
            lack = "lacks its partner" if len(missing) == 1 else "lack their partners"
            verb = "is" if len(missing) == 1 else "are"
            raise InputError(f"{listing(missing, 8)} {verb} in {os.fspath(has)!r}, but {lack} in {os.fspath(lacks)!r}")


def _joined(relative: str, name: str) -> str:
    return name if relative == "." else f"{relative}/{name}"
