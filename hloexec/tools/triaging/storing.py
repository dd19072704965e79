"""The folder in which a triage keeps what it knows, so that a later call goes on where one was stopped.

`triage.json` has the settings, `modules/` a file for each module, and `minified/` the small modules. The name of a
module's file is a digest of all that its result depends on: the bytes of its files, and the settings. Files are
written whole or not at all, so it is in order at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

import hloexec
from hloexec.core.files import open_atomically, opened, require_new_folder
from hloexec.core.structs import frozen
from hloexec.errors import InputError, os_errors_named
from hloexec.tools.triaging.collecting import Case
from hloexec.tools.triaging.findings import MinifiedModule, TriagedModule
from hloexec.tools.triaging.settings import Settings

_SETTINGS = "triage.json"
_KIND = "hloexec.triage-folder"


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a file at once."""
    text = json.dumps(_plain(record), indent=1, allow_nan=False, sort_keys=True)
    with os_errors_named(f"write {os.fspath(path)!r}"), open_atomically(path) as file:
        file.write(text.encode() + b"\n")


def _plain(value: Any) -> Any:
    """What JSON has no numbers for is text."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a triage holds; InputError where it is damaged."""
    try:
        with os_errors_named(f"read {os.fspath(path)!r}"), opened(path) as file:
            found = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{os.fspath(path)!r} is damaged: {error}; remove it to have it made again") from error
    if not isinstance(found, dict):
        raise InputError(f"{os.fspath(path)!r} is no file of a triage; remove it to have it made again")
    return found


@frozen
class Store:
    """What is known of modules under these settings."""

    folder: Path
    settings: Settings

    @classmethod
    def opened(cls, folder: Path, settings: Settings) -> Store:
        """A folder that is new, or goes on; InputError where it has something else, or was made with other settings."""
        path = folder / _SETTINGS
        if not path.exists():
            require_new_folder(folder)
        else:
            _require_same(path, settings)
        found = cls(folder, settings)
        with os_errors_named(f"write {os.fspath(folder)!r}"):
            for each in (found.modules, found.minified, found.work):
                each.mkdir(parents=True, exist_ok=True)
        record = {"schema": _KIND, "hloexec": hloexec.__version__, "settings": attrs.asdict(settings)}
        write_json(path, record)
        return found

    @property
    def modules(self) -> Path:
        return self.folder / "modules"

    @property
    def minified(self) -> Path:
        return self.folder / "minified"

    @property
    def work(self) -> Path:
        """What is there only while it works."""
        return self.folder / "work"

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
            found = TriagedModule.of_record(record["module"])
            limits = float(record["timeout"]), int(record["memory"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{os.fspath(path)!r} is no result of a triage ({error}); remove it to have it made again"
            ) from error
        has_more = self.settings.timeout > limits[0] or self.settings.memory > limits[1]
        return None if found.is_cut and has_more else attrs.evolve(found, is_reused=True)

    def keep(self, key: str, module: TriagedModule) -> None:
        """Write what came of a case."""
        record = {"module": attrs.asdict(module), "timeout": self.settings.timeout, "memory": self.settings.memory}
        write_json(self.modules / f"{key}.json", record)

    def known_minified(self, name: str) -> MinifiedModule | None:
        """What was minified under a name; None where nothing was, or not to the end."""
        path = self.minified / f"{name}.json"
        if not path.exists():
            return None
        record = read_json(path)
        try:
            return MinifiedModule(**record)
        except TypeError as error:
            raise InputError(
                f"{os.fspath(path)!r} is no result of a triage; remove it to have it made again"
            ) from error

    def keep_minified(self, name: str, found: MinifiedModule) -> None:
        """Write what was minified."""
        write_json(self.minified / f"{name}.json", attrs.asdict(found))


def _require_same(path: Path, settings: Settings) -> None:
    record = read_json(path)
    before, version = record.get("settings"), record.get("hloexec")
    if record.get("schema") != _KIND or not isinstance(before, dict):
        raise InputError(f"{os.fspath(path)!r} is no file of a triage; name another folder")
    advice = "name a new folder, or remove what is in it"
    if version != hloexec.__version__:
        raise InputError(f"{os.fspath(path.parent)!r} is of hloexec {version}, not {hloexec.__version__}; {advice}")
    if others := settings.differing(before):
        raise InputError(f"{os.fspath(path.parent)!r} has results of other options: {', '.join(others)}; {advice}")
