"""The folder of a golden: `NAME.golden`, with four self-contained plain files.

- `module.hlo`: the text of the module.
- `inputs.npz`: the values of its parameters, keyed as `hloexec run --inputs` reads them; if devices have different
  inputs, one tuple per device.
- `expected.npz`: the result, keyed as `hloexec run --save` writes it; one per device if there are several.
- `golden.json`: how to run the module (numerics policy, devices, elided constants), how to compare results (tolerances,
  if given), where inputs and result come from, the SHA-256 of `module.hlo`, and the versions that recorded it.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from hloexec.core.arguments import require_path
from hloexec.core.files import opened
from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Described
from hloexec.errors import InputError, UnsupportedError, os_errors_named
from hloexec.language.text import format as format_module
from hloexec.ops.policies.policy import numerics_policy

SUFFIX = ".golden"
RECORD, MODULE, INPUTS, EXPECTED = "golden.json", "module.hlo", "inputs.npz", "expected.npz"
OURS = "hloexec"
"""The source of a result that hloexec computed."""
_FORMAT = 1
_MOST_BYTES = 1 << 20


@frozen
class Golden(Described):
    """A golden on disk: how its `golden.json` says that the module is run and compared."""

    folder: Path = attrs.field(converter=Path)
    """The folder of the golden."""
    module_name: str
    """The module's name."""
    module_hash: str
    """SHA-256 of the bytes of `module.hlo`, in hexadecimal."""
    numerics: str = "reference"
    replicas: int = 1
    """How many replicas there are."""
    partitions: int = 1
    """How many partitions there are."""
    inputs_per_device: int = 1
    """1, or as many as there are devices."""
    inputs_source: str = ""
    """`random, seed 0`, or the file they were read from."""
    expected_source: str = OURS
    """`hloexec`, or the file it was read from."""
    seed: int = 0
    """The seed of the random numbers that the module generates."""
    elided: str = "zeros"
    """What stands for constants that the text leaves out."""
    unknown: str = "error"
    """What unknown library calls give."""
    atol: float | None = None
    """The absolute error that is tolerated."""
    rtol: float | None = None
    """The error that is tolerated, relative to the expected value."""
    ulp: float | None = None
    """The error that is tolerated, in units in the last place."""
    versions: Mapping[str, str] = attrs.Factory(dict)
    """What it was recorded with."""

    @property
    def name(self) -> str:
        """The name of its folder, without the suffix."""
        return self.folder.name.removesuffix(SUFFIX)

    @property
    def is_bit_for_bit(self) -> bool:
        """Whether the result must have the same bits: hloexec computed it under `exact`."""
        return numerics_policy(self.numerics).is_exact and self.expected_source == OURS and not self.has_tolerance

    @property
    def devices(self) -> int:
        """On how many devices the module runs."""
        return self.replicas * self.partitions

    @property
    def run_options(self) -> dict[str, Any]:
        """The options of `run_devices`, but for the policy of numerics."""
        names = ("replicas", "partitions", "seed", "elided", "unknown")
        return {name: getattr(self, name) for name in names}

    @property
    def has_tolerance(self) -> bool:
        """Whether a tolerance was given when it was recorded."""
        return any(number is not None for number in (self.atol, self.rtol, self.ulp))

    def __str__(self) -> str:
        return f"{self.name}: {self.module_name} under {self.numerics}, in {self.folder}"

    def text(self) -> str:
        """The content of `golden.json`."""
        record = attrs.asdict(self, filter=lambda field, _: field.name != "folder")
        text = json.dumps({"format": _FORMAT, **record}, indent=2, ensure_ascii=False) + "\n"
        # The name of a file may hold bytes that are no UTF-8; as escapes, they are JSON.
        return text.encode(errors="backslashreplace").decode()


def module_text(module: Module) -> bytes:
    """What `module.hlo` holds: the text that the module was read from, or its canonical text."""
    return without_windows_marks((module.source if module.source is not None else format_module(module)).encode())


def without_windows_marks(data: bytes) -> bytes:
    """A text without the byte order mark and the carriage returns that editors and Git may add on Windows."""
    return data.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")


def text_hash(data: bytes) -> str:
    """How a module's text is identified."""
    return hashlib.sha256(data).hexdigest()


def find_goldens(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The golden folders at or under a path, in the order of their names.

    Raises InputError where there is no such folder, or none in it.
    """
    require_path("path", path)
    root = Path(path)
    if root.name.endswith(SUFFIX) or (root / RECORD).is_file():
        yield root
        return
    if not root.is_dir():
        raise InputError(_no_folder(root))
    found = sorted(folder for folder in root.rglob(f"*{SUFFIX}") if folder.is_dir())
    if not found:
        raise InputError(f"there is no {SUFFIX} folder in {str(root)!r}; `hloexec golden record` makes one")
    yield from found


def _no_folder(path: Path) -> str:
    """Why a path is no golden, as a sentence."""
    if path.exists():
        return f"{str(path)!r} is a file; a golden is a folder, which `hloexec golden record` makes"
    return f"there is no folder {str(path)!r}"


def read_golden(folder: str | os.PathLike[str]) -> Golden:
    """Read `golden.json`, and see that the other files are there.

    Raises InputError where files are missing or damaged, or a newer version wrote them.
    """
    require_path("folder", folder)
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(_no_folder(folder))
    for name in (RECORD, MODULE, INPUTS, EXPECTED):
        if not (folder / name).is_file():
            raise InputError(f"{folder.name} is not a complete golden: {name} is missing; record it again")
    with os_errors_named(f"read {str(folder / RECORD)!r}"), opened(folder / RECORD) as file:
        data = file.read(_MOST_BYTES + 1)
    try:
        record = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder.name}: {RECORD} is damaged: {error}; record it again") from error
    return _golden(folder, record)


def _golden(folder: Path, record: object) -> Golden:
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise InputError(f"{folder.name}: {RECORD} is not that of a golden: it names no format")
    if record["format"] != _FORMAT:
        raise InputError(
            f"{folder.name}: {RECORD} has format {record['format']}, unknown to this version of hloexec; it reads "
            f"format {_FORMAT}"
        )
    values: dict[str, Any] = {}
    for field in attrs.fields(Golden)[1:]:
        if field.name not in record:
            raise InputError(f"{folder.name}: {RECORD} does not say {field.name}; record it again")
        value = record[field.name]
        if not _is_of(field.name, value):
            raise InputError(f"{folder.name}: {RECORD} says {field.name} is {str(value)[:60]!r}, which it cannot be")
        values[field.name] = value
    try:
        numerics_policy(values["numerics"])
    except UnsupportedError as error:
        raise InputError(f"{folder.name}: {error.message}") from error
    return Golden(folder, **values)


def _is_of(name: str, value: object) -> bool:
    """Whether a value of `golden.json` is of the kind that its field has."""
    match name:
        case "replicas" | "partitions" | "inputs_per_device":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 1
        case "atol" | "rtol" | "ulp":
            return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0)
        case "versions":
            return isinstance(value, dict) and all(isinstance(version, str) for version in value.values())
        case "seed":
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
        case "elided" | "unknown":
            return value in ("zeros", "random", "error")
    return isinstance(value, str)
