"""Recording a golden: run a module, or take a result from elsewhere, and write the folder atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import leaves_of, relabelled
from hloexec.analysis.numerics.sampling.runs import sampled
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.analysis.numerics.tolerances import given_tolerance
from hloexec.core.arguments import (
    require_choice,
    require_flags,
    require_module,
    require_path,
    require_text,
    wrong,
)
from hloexec.core.arrays import as_value
from hloexec.core.files import open_atomically, require_new_folder, whole_folder
from hloexec.core.ir import Module
from hloexec.core.pytrees import is_branch
from hloexec.core.values import Array, Inputs, Value, index_of, join_values, labelled_arrays
from hloexec.core.version import __version__
from hloexec.core.wording import argument, listing
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.plans import plan_of
from hloexec.engine.exec.running import run_with
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.errors import InputError, os_errors_named, warn
from hloexec.language import literals
from hloexec.ops.common import is_inexact, wide
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.golden.folder import EXPECTED, INPUTS, MODULE, OURS, RECORD, SUFFIX, Golden, module_text, text_hash
from hloexec.tools.golden.spreads import RECORDED_SAMPLES, shapes_by_label, write_spreads


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


def _result(golden: Golden, module: Module, given: Sequence[Sequence[Any]], expected: Any, options: Options) -> Value:
    """The expected result, nested as the module's, from a run where none is given; InputError for another shape."""
    if expected is None:
        return run_golden(module, given, options)
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


def _spreads(golden: Golden, module: Module, given: Sequence[Sequence[Any]], options: Options) -> dict[str, Spread]:
    """What rounding does to the result's elements; none where checks do not ask for it, or runs do not show it."""
    if golden.has_tolerance or golden.is_bit_for_bit:
        return {}
    return sampled(module, given, options.numerics, RECORDED_SAMPLES, has_means=False, options=options).spreads


def _warn_of_untested(golden: Golden, result: Value, spreads: Mapping[str, Spread]) -> None:
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

    found = {"python": platform.python_version(), "hloexec": __version__}
    for package in ("numpy", "ml_dtypes"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "(not installed)"
    return found


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
    return _tuple(root, "")


def _tuple(level: Any, label: str) -> Value:
    if not isinstance(level, dict):
        found: Array = level
        return found
    absent = next((number for number in range(len(level)) if number not in level), None)
    if absent is not None:
        raise InputError(f"the result lacks leaf {label}{absent}, but has later ones")
    return tuple(_tuple(level[number], f"{label}{number}.") for number in range(len(level)))


def _require_result(module: Module, result: Value, devices: int) -> None:
    """InputError where a result has not the leaves of a module's, or other dimensions; element types may differ."""
    expected = shapes_by_label(module, devices)
    found = labelled_arrays(result)
    if found.keys() == {"0"} and expected.keys() == {"value"}:
        found = {"value": found["0"]}
    for label, shape in expected.items():
        if label not in found:
            raise InputError(f"the expected result lacks leaf {label}, {shape}; it has {listing(found, 8) or 'none'}")
        if found[label].shape != shape.dimensions and not shape.is_dynamic:
            raise InputError(
                f"leaf {label} of the expected result has dimensions {list(found[label].shape)}, but the module gives "
                f"{shape}"
            )
    for label in found.keys() - expected.keys():
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
    golden: Golden,
    text: bytes,
    inputs: Sequence[Sequence[Value]],
    expected: Value,
    spreads: Mapping[str, Spread],
    *,
    replace: bool,
) -> None:
    """The files of a golden."""
    with whole_folder(golden.folder, replace=replace) as folder:
        (folder / MODULE).write_bytes(text)
        literals.save(folder / INPUTS, tuple(map(tuple, inputs)) if len(inputs) > 1 else tuple(inputs[0]))
        literals.save(folder / EXPECTED, expected)
        write_spreads(folder, spreads)
        (folder / RECORD).write_text(golden.text(), encoding="utf-8")


def write_expected(golden: Golden, expected: Value) -> None:
    """Replace the result of a golden that is there, and the versions it was recorded by."""
    with os_errors_named(f"write {str(golden.folder)!r}"):
        literals.save(golden.folder / EXPECTED, expected)
        with open_atomically(golden.folder / RECORD) as file:
            file.write(attrs.evolve(golden, versions=versions()).text().encode())
