"""Recording a golden: the folder `NAME.golden`, with plain files that hold all that a check needs.

The folder of a golden: `NAME.golden`, with four self-contained plain files.

- `module.hlo`: the text of the module.
- `inputs.npz`: the values of its parameters, keyed as `hloexec run --inputs` reads them; if devices have different
  inputs, one tuple per device.
- `expected.npz`: the result, keyed as `hloexec run --save` writes it; one per device if there are several, or one that
  all of them give.
- `golden.json`: how to run the module (numerics policy, devices, elided constants), how to compare results (tolerances,
  if given), where inputs and result come from, the SHA-256 of `module.hlo`, and the versions that recorded it.

`spread.npz`: the rounding error of each element of a golden's result, measured when it was recorded.

For each leaf of floats, in order, it has the scales of its elements, and the numbers of samples, degrees of freedom and
allowed scales from `numerics.sampling.spread`. Without this file, the tolerance of a golden is derived from its
module.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import leaves_of, relabelled
from hloexec.analysis.numerics.sampling.runs import sampled
from hloexec.analysis.numerics.sampling.spread import Spread, Spreads
from hloexec.analysis.numerics.tolerances import given_tolerance
from hloexec.core.arguments import (
    require_choice,
    require_flags,
    require_module,
    require_path,
    require_text,
    wrong,
)
from hloexec.core.arrays import as_value, is_branch
from hloexec.core.files import open_atomically, opened, require_new_folder, whole_folder
from hloexec.core.ir import ArrayShape, Module
from hloexec.core.structs import frozen
from hloexec.core.tree import rebuilt
from hloexec.core.values import Array, Described, Inputs, Value, index_of, join_values, labelled_arrays
from hloexec.core.version import __version__
from hloexec.core.wording import argument, listing
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.running import plan_of, run_with
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.errors import InputError, UnsupportedError, os_errors_named, warn
from hloexec.language import literals
from hloexec.language.text.printer import text_of
from hloexec.ops.common import is_inexact, wide
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.tools.results import result_shapes

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
    results_per_device: int = attrs.field(default=attrs.Factory(lambda golden: golden.devices, takes_self=True))
    """1 where all devices give the same result, or as many as there are devices."""
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
    return without_windows_marks(text_of(module).encode())


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
    folders = sorted(folder for folder in root.rglob(f"*{SUFFIX}") if folder.is_dir())
    if not folders:
        raise InputError(f"there is no {SUFFIX} folder in {str(root)!r}; `hloexec golden record` makes one")
    yield from folders


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
        if field.name == "results_per_device" and field.name not in record:
            continue  # Older versions had one for each device.
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
        case "replicas" | "partitions" | "inputs_per_device" | "results_per_device":
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


SPREAD = "spread.npz"
RECORDED_SAMPLES = 16
"""Runs that recording takes, so that a check takes one."""


def shapes_by_label(module: Module, devices: int) -> dict[str, ArrayShape]:
    """The leaves of a module's result; of several devices those of each, behind its number."""
    own = result_shapes(module)
    if devices == 1:
        return own
    return {f"{device}.{label}".removesuffix(".value"): own[label] for device in range(devices) for label in own}


def write_spreads(folder: Path, spreads: Mapping[str, Spread]) -> None:
    """Write the file, where there is anything to write."""
    if spreads:
        entries = [
            (_narrow(spread.scales), np.array([spread.samples, spread.degrees, spread.factor]))
            for spread in spreads.values()
        ]
        literals.save(folder / SPREAD, tuple(entries))


def _narrow(scales: Array) -> Array:
    """Scales as f32, rounded up."""
    with np.errstate(over="ignore"):
        narrow = scales.astype(np.float32)
    return np.where(narrow < scales, np.nextafter(narrow, np.float32(np.inf)), narrow)


def read_spreads(folder: Path, module: Module, devices: int) -> dict[str, Spread]:
    """The spreads by label, of all devices; empty where the file is not there.

    InputError where it is damaged, or of another module.
    """
    if not (folder / SPREAD).is_file():
        return {}
    entries = literals.load(folder / SPREAD)
    leaves = shapes_by_label(module, devices)
    shapes = {label: shape for label, shape in leaves.items() if shape.element_type.is_inexact}
    if not isinstance(entries, tuple) or len(entries) != len(shapes):
        raise InputError(f"{folder.name}: {SPREAD} is damaged: it is not of {len(shapes)} leaves; record it again")
    spreads = {}
    for (label, shape), entry in zip(shapes.items(), entries, strict=True):
        match entry:
            case (np.ndarray() as scales, np.ndarray() as facts) if facts.shape == (3,) and (facts > 0).all():
                fits = scales.shape == shape.dimensions or shape.is_dynamic
                if scales.dtype == np.float32 and fits and (scales >= 0).all():
                    spreads[label] = Spread(scales, int(facts[0]), float(facts[1]), float(facts[2]))
        if label not in spreads:
            raise InputError(f"{folder.name}: {SPREAD} is damaged: leaf {label}; record it again")
    return spreads


def record_golden(
    module: Module,
    inputs: Inputs | None,
    folder: str | os.PathLike[str],
    *,
    expected: Mapping[str, Array] | Value | None = None,
    replicas: int | None = None,
    partitions: int | None = None,
    numerics: str | NumericsPolicy = "reference",
    seed: int = 0,
    elided: str = "zeros",
    unknown: str = "error",
    atol: float | None = None,
    rtol: float | None = None,
    ulp: float | None = None,
    inputs_source: str | None = None,
    expected_source: str = "elsewhere",
    replace: bool = False,
    memory_limit: int | str | None = None,
    max_iterations: int | None = None,
    timeout: float | None = None,
) -> Golden:
    """Write the golden of a module to `folder`, whose name must end in `.golden`.

    `inputs` are as for `run_devices` (see `hloexec.Inputs`); None generates them from `seed`, which also seeds the
    random numbers that the module itself generates. `expected` is the result, one per device if there are several, or a
    mapping from labels of leaves to arrays; without it, the module is run. `numerics`, `elided` and `unknown` are as
    for `run`; `atol`, `rtol` and `ulp` are tolerances for `check_golden`, as for `compare`. `inputs_source` and
    `expected_source` describe where the values come from, for readers. `replace` allows an existing golden to be
    overwritten. `memory_limit`, `max_iterations` and `timeout` limit the runs, as for `run_devices`; they are not
    stored. A warning names leaves of which a check finds hardly any change: NaN throughout, or numbers that rounding
    alone may change by their own size.

    Raises what `run_devices` raises, and InputError if the folder cannot be written or the shape of `expected` is not
    that of the module's result.
    """
    require_module(module)
    require_path("folder", folder)
    require_flags(replace=replace)
    require_choice("elided", elided, ("zeros", "random", "error"))
    options = Options(None, numerics, seed, elided, unknown, memory_limit, max_iterations, timeout)
    given_tolerance(atol, rtol, ulp)
    require_text("inputs_source", "given" if inputs_source is None else inputs_source)
    require_text("expected_source", expected_source)
    target = _target(folder, replace)
    topology = topology_of(module, replicas, partitions)
    options = options.on(topology)
    given = inputs_by_device(module.entry, inputs) if inputs is not None else [random_inputs(module, options.seed)]
    computation = plan_of(module, options).computation
    device_arguments(computation, given, topology.count)
    golden = Golden(
        folder=target,
        module_name=module.name,
        module_hash=text_hash(text := module_text(module)),
        numerics=options.numerics.name,
        replicas=topology.replicas,
        partitions=topology.partitions,
        inputs_per_device=len(given),
        inputs_source=inputs_source or (f"random, seed {seed}" if inputs is None else "given"),
        expected_source=OURS if expected is None else expected_source,
        seed=options.seed,
        elided=elided,
        unknown=unknown,
        atol=atol,
        rtol=rtol,
        ulp=ulp,
        versions=versions(),
    )
    result = _result(golden, module, given, expected, options)
    spreads = _spreads(golden, module, given, options)
    _warn_of_untested(golden, result, spreads)
    _write(golden, text, given, result, spreads, replace=replace)
    return golden


def _result(golden: Golden, module: Module, rows: Sequence[Sequence[Any]], expected: Any, options: Options) -> Value:
    """The expected result, nested as the module's, from a run where none is given; InputError for another shape."""
    if expected is None:
        return run_golden(module, rows, options)
    devices = golden.replicas * golden.partitions
    sizes = {label: shape.dimensions for label, shape in shapes_by_label(module, devices).items()}
    if isinstance(expected, Mapping) and not any(map(is_branch, expected.values())):
        arrays = {label: as_value(value, f"leaf {label} of expected") for label, value in expected.items()}
        expected = nested_value(relabelled(arrays, sizes))
    elif is_branch(expected):
        arrays = dict(leaves_of(expected, "expected"))
        named = relabelled(arrays, sizes)
        expected = expected if named.keys() == arrays.keys() else nested_value(named)
    result: Value = as_value(expected, "the expected result")
    _require_result(module, result, devices)
    return result


def _spreads(golden: Golden, module: Module, rows: Sequence[Sequence[Any]], options: Options) -> dict[str, Spread]:
    """What rounding does to the result's elements; none where checks do not ask for it, or runs do not show it."""
    if golden.has_tolerance or golden.is_bit_for_bit:
        return {}
    return sampled(module, rows, options.numerics, RECORDED_SAMPLES, has_means=False, options=options).spreads


def _warn_of_untested(golden: Golden, result: Value, spreads: Spreads) -> None:
    """Warn of leaves that a check compares, but of which it would find hardly any change."""
    leaves = labelled_arrays(result)
    if not any(leaf.size for leaf in leaves.values()):
        warn(f"{golden.name} has no element in its result: a check of it can hardly fail")
    for label, leaf in leaves.items():
        if not leaf.size or not is_inexact(leaf):
            continue
        values = wide(leaf)
        where = f"{golden.name}: leaf {label} of the result" if len(leaves) > 1 else f"{golden.name}: the result"
        if np.isnan(values).all():
            warn(
                f"{where} is NaN throughout, so that a check finds no change that leaves it NaN; other inputs may give "
                "numbers"
            )
        elif golden.expected_source == OURS and label in spreads and _may_be_any(np.abs(values), spreads[label]).all():
            warn(
                f"{where} may change by its own size through rounding alone, in each of its elements; a check finds "
                "larger changes only"
            )


def _may_be_any(sizes: Array, spread: Spread) -> Array:
    """Of which elements the tolerance is no smaller than they are themselves, NaN included, but zeros that nothing
    moves."""
    with np.errstate(all="ignore"):
        is_within = spread.factor * spread.scales >= sizes
    return np.asarray(np.isnan(sizes) | (is_within & (spread.scales > 0)))


def run_golden(module: Module, inputs_per_device: Sequence[Sequence[Any]], options: Options) -> Value:
    """What a module gives when it is run as a golden says; a tuple of the devices' results where there are several."""
    return join_values(run_with(module, inputs_per_device, options))


def versions() -> dict[str, str]:
    """Of hloexec, Python and the libraries that results may depend on."""
    import platform
    from importlib import metadata

    versions_by_name = {"python": platform.python_version(), "hloexec": __version__}
    for package in ("numpy", "ml_dtypes"):
        try:
            versions_by_name[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions_by_name[package] = "(not installed)"
    return versions_by_name


def nested_value(leaves: Mapping[str, Array]) -> Value:
    """The value whose leaves have these labels; InputError where the labels make up none."""
    if leaves.keys() == {"value"}:
        return leaves["value"]
    root: dict[int, Any] = {}
    for label, leaf in leaves.items():
        if not isinstance(label, str):
            raise wrong("each key of expected", "the label of a leaf", label)
        index = index_of(label)
        if not index:
            raise InputError(
                f"{label!r} is not a leaf of the result; keys are 0, 1.0, …, or value if it is not a tuple"
            )
        level = root
        for number in index[:-1]:
            level = level.setdefault(number, {})
            if not isinstance(level, dict):
                raise InputError(f"{label!r} is part of what is an array already")
        level[index[-1]] = leaf
    value: Value = rebuilt(("", root), _parts, lambda node: node[1])
    return value


def _parts(node: tuple[str, Any]) -> list[tuple[str, Any]] | None:
    label, level = node
    if not isinstance(level, dict):
        return None
    absent = next((number for number in range(len(level)) if number not in level), None)
    if absent is not None:
        raise InputError(f"the result lacks leaf {label}{absent}, but has later ones")
    return [(f"{label}{number}.", level[number]) for number in range(len(level))]


def _require_result(module: Module, result: Value, devices: int) -> None:
    """InputError where a result has not the leaves of a module's, or other dimensions; element types may differ."""
    expected = shapes_by_label(module, devices)
    arrays = labelled_arrays(result)
    if arrays.keys() == {"0"} and expected.keys() == {"value"}:
        arrays = {"value": arrays["0"]}
    for label, shape in expected.items():
        if label not in arrays:
            raise InputError(f"the expected result lacks leaf {label}, {shape}; it has {listing(arrays, 8) or 'none'}")
        if arrays[label].shape != shape.dimensions and not shape.is_dynamic:
            raise InputError(
                f"leaf {label} of the expected result has dimensions {list(arrays[label].shape)}, but the module gives "
                f"{shape}"
            )
    for label in arrays.keys() - expected.keys():
        raise InputError(f"the expected result has leaf {label}, which {module.name} has not: {', '.join(expected)}")


def _target(folder: str | os.PathLike[str], replace: bool) -> Path:
    target = Path(folder)
    if not target.name.endswith(SUFFIX) or target.name == SUFFIX:
        raise InputError(f"a golden's folder is called NAME{SUFFIX}, but this is {str(target)!r}")
    if target.parent.exists() and not target.parent.is_dir():
        raise InputError(f"cannot write {str(target)!r}: {str(target.parent)!r} is not a folder")
    if target.exists():
        if not replace:
            raise InputError(f"{str(target)!r} is there already; {argument('replace', True)} records it again")
        if not (target / RECORD).is_file():
            raise InputError(f"{str(target)!r} exists already, and is not a golden: it has no {RECORD}")
    else:
        require_new_folder(target)
    return target


def _write(
    golden: Golden, text: bytes, rows: Sequence[Sequence[Value]], expected: Value, spreads: Spreads, *, replace: bool
) -> None:
    with new_golden(golden, rows, expected, replace=replace) as folder:
        (folder / MODULE).write_bytes(text)
        write_spreads(folder, spreads)


@contextmanager
def new_golden(
    golden: Golden, inputs: Sequence[Sequence[Value]], expected: Value, *, replace: bool = False
) -> Iterator[Path]:
    """A golden's folder with all files but the module's text, which is to be added to it, as other files may be: it
    takes its name only when the block ends well. Without spreads, checks derive tolerances from the module."""
    with whole_folder(golden.folder, replace=replace) as folder:
        literals.save(folder / INPUTS, tuple(map(tuple, inputs)) if len(inputs) > 1 else tuple(inputs[0]))
        literals.save(folder / EXPECTED, expected)
        (folder / RECORD).write_text(golden.text(), encoding="utf-8")
        yield folder


def read_expected(golden: Golden) -> Value:
    """The result of a golden: a tuple of the devices' where there are several. InputError where it is damaged."""
    expected = literals.load(golden.folder / EXPECTED)
    return (expected,) * golden.devices if golden.results_per_device < golden.devices else expected


def write_expected(golden: Golden, expected: Value) -> None:
    """Replace the result of a golden that is there, and the versions it was recorded by."""
    with os_errors_named(f"write {str(golden.folder)!r}"):
        literals.save(golden.folder / EXPECTED, expected)
        with open_atomically(golden.folder / RECORD) as file:
            file.write(attrs.evolve(golden, versions=versions()).text().encode())
