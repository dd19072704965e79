"""Checking a golden: run its module again, and compare the result with the one that was recorded."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.analysis.dataflow.dependences import elides_constants
from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import Comparison, Verdict
from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.sampling.spread import Spread
from hloexec.core.arguments import require_module, require_path
from hloexec.core.files import opened
from hloexec.core.ir import Module, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import Described, Inputs, Value, labelled_arrays
from hloexec.engine.exec.arguments import argument_leaves, inputs_by_device
from hloexec.engine.options import Options
from hloexec.engine.sharding import shard_inputs, shards_of_result
from hloexec.errors import HloError, InputError, os_errors_named
from hloexec.language import literals
from hloexec.language.loading import load
from hloexec.tools.golden.recording import (
    INPUTS,
    MODULE,
    OURS,
    Golden,
    read_expected,
    read_golden,
    read_spreads,
    run_golden,
    text_hash,
    without_windows_marks,
    write_expected,
)

if TYPE_CHECKING:
    from hloexec.tools.diffing import Diff

_MOST_READINGS = 20
_RUNS_OF_A_FAILURE = 20_000
"""The work of a search, as `diff` counts it, for what is to blame where a golden fails."""


class Outcome(enum.Enum):
    """What became of a check, from the best to the worst."""

    PASSED = "ok"
    NOT_DECIDED = "not decided"
    """The result is another one only where the module leaves open what it is."""
    FAILED = "FAILED"
    """The result is another one."""
    BROKEN = "BROKEN"
    """It could not be run: files are missing, damaged, or do not fit."""

    @property
    def word(self) -> str:
        """What records say."""
        return self.name.lower()


@frozen(eq=False)
class GoldenCheck(Described):
    """The result of running a golden's module again: an outcome, and the reason."""

    folder: Path
    outcome: Outcome
    """What came of it; `broken`: it could not be checked."""
    message: str
    """The verdict, or why there is none, in a line or more."""
    golden: Golden | None = None
    """What its golden.json says."""
    comparison: Comparison | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.folder.name}: {self.outcome.value}, {self.message}"

    def __bool__(self) -> bool:
        """`passed`, so that an assertion fails where the check does."""
        return self.passed

    @property
    def passed(self) -> bool:
        """Whether the result agrees with the recorded one."""
        return self.outcome is Outcome.PASSED


def check_golden(
    folder: str | os.PathLike[str], *, module: Module | None = None, actual: Mapping[str, Any] | Value | None = None
) -> GoldenCheck:
    """Run a golden's module on its inputs, and compare the result with the recorded one.

    Results that hloexec recorded under the policy `exact` must have the same bits. All other results may differ within
    the golden's tolerances or, if it has none, by as much as rounding explains (`hloexec.compare`). `module` runs
    instead of the golden's own module, for example the same module after a compiler pass; rounding differences are then
    always allowed. If XLA has partitioned it for the golden's devices, these are given their shards of the inputs, and
    compared with their shards of the result. `actual` is a result that was computed elsewhere, as `compare` takes it:
    then nothing is run but what measures rounding, which is always allowed.

    Raises InputError for arguments of wrong types, and no other HloError: if a golden cannot be checked, the outcome
    says so.
    """
    require_path("folder", folder)
    if module is not None:
        require_module(module)
        if actual is not None:
            raise InputError("module says what to run, and actual is a result; give one of them")
    if actual is not None:
        actual = dict(leaves_of(actual, "actual"))
    return _timed(Path(folder), module, actual)[0]


def diff_with_recorded(golden: Golden, module: Module) -> Diff | None:
    """What a short search says of a golden's own module and another one; None where they cannot be compared."""
    from hloexec.tools.diffing import diff

    try:
        recorded = load(golden.folder / MODULE)
        inputs = _inputs(golden, recorded, recorded)
        return diff(recorded, module, inputs, numerics=golden.numerics, runs=_RUNS_OF_A_FAILURE, **golden.run_options)
    except HloError:
        return None


def holds_inputs(golden: Golden, module: Module, inputs: Inputs) -> bool:
    """Whether inputs of `module` are those that a golden was recorded with, bit for bit."""
    recorded = _inputs(golden, module, load(golden.folder / MODULE))
    rows = [
        [argument_leaves(module.entry, values) for values in row_set]
        for row_set in (inputs_by_device(module.entry, inputs), recorded)
    ]
    return len(rows[0]) == len(rows[1]) and all(
        _have_same_bits(one, other) for pair in zip(*rows, strict=True) for one, other in zip(*pair, strict=True)
    )


def _have_same_bits(one: object, other: object) -> bool:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is other
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def update_golden(folder: str | os.PathLike[str]) -> GoldenCheck:
    """`check_golden`; where the result is another one, it becomes the golden's.

    Raises InputError where the golden's result is not hloexec's own, or cannot be written.
    """
    require_path("folder", folder)
    golden_check, result = _timed(Path(folder), None, None)
    if golden_check.outcome is not Outcome.FAILED or golden_check.golden is None:
        return golden_check
    source = golden_check.golden.expected_source
    if source != OURS:
        raise InputError(
            f"{golden_check.folder.name}: its result comes from {source}, and is not replaced by hloexec's own"
        )
    write_expected(golden_check.golden, result)
    return attrs.evolve(golden_check, outcome=Outcome.PASSED, message=f"updated; it was {golden_check.message}")


def _timed(path: Path, other: Module | None, argument: Mapping[str, Any] | Value | None) -> tuple[GoldenCheck, Any]:
    """The check, and the new result."""
    start = time.perf_counter()
    try:
        golden_check, result = _checked(path, other, argument)
    except HloError as error:
        return GoldenCheck(path, Outcome.BROKEN, str(error)), ()
    return attrs.evolve(golden_check, seconds=time.perf_counter() - start), result


@frozen(eq=False)
class _Files:
    """What is in a golden, and the module that is to be run: its own, or one in its place."""

    golden: Golden
    recorded: Module
    """Its own."""
    module: Module
    inputs: list[list[Value]]
    """One list, or one per device."""
    expected: Value
    spreads: dict[str, Spread]

    @property
    def is_divided(self) -> bool:
        """Whether devices are given shards of what was recorded."""
        return len(self.inputs) > self.golden.inputs_per_device


def _files(path: Path, other: Module | None) -> _Files:
    golden = read_golden(path)
    if other is None:
        _require_unchanged(golden)
    recorded = load(path / MODULE)
    module = recorded if other is None else other
    inputs = _inputs(golden, module, recorded)
    spreads = read_spreads(path, recorded, golden.devices)
    return _Files(golden, recorded, module, inputs, read_expected(golden), spreads)


def _files_of_one(path: Path, other: Module | None) -> _Files:
    """`_files`, all of one recording: read again where another process has replaced the folder meanwhile."""
    for _ in range(_MOST_READINGS):
        before = _identity(path)
        try:
            files = _files(path, other)
        except HloError:
            if _identity(path) == before:
                raise
            continue
        if _identity(path) == before:
            return files
    raise InputError(f"{path.name} is replaced by other processes again and again")


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What tells a folder from another of its name; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _checked(path: Path, other: Module | None, argument: Mapping[str, Any] | Value | None) -> tuple[GoldenCheck, Any]:
    files = _files_of_one(path, other)
    golden, module, inputs = files.golden, files.module, files.inputs
    is_own = other is None and argument is None
    result = (
        run_golden(module, inputs, Options(numerics=golden.numerics, **golden.run_options))
        if argument is None
        else argument
    )
    actual, expected = (result, files.expected) if not files.is_divided else _by_device(files, result)
    # What was recorded of whole arrays says nothing of shards.
    spreads = None if files.is_divided else files.spreads
    given_inputs = inputs if files.is_divided else inputs[0] if len(inputs) == 1 else None
    judge = partial(
        compare,
        actual,
        expected,
        atol=golden.atol,
        rtol=golden.rtol,
        ulp=golden.ulp,
        module=module,
        inputs=given_inputs,
        numerics=golden.numerics,
        **known_choices(golden, is_own=is_own),
    )
    comparison = judge(spreads=spreads if spreads or golden.devices > 1 else None)
    is_sampled = other is None and spreads and given_inputs is not None and not elides_constants(module)
    if comparison.different and is_sampled and (again := judge()).verdict is Verdict.NOT_DECIDED:
        comparison = again
    verdict = comparison.verdict
    if golden.is_bit_for_bit and is_own and verdict is not Verdict.EQUAL:
        message = f"{comparison}; under the exact policy every bit must be the same"
        return GoldenCheck(path, Outcome.FAILED, message, golden, comparison), result
    outcome = Outcome.PASSED if verdict.agrees else Outcome.FAILED if comparison.different else Outcome.NOT_DECIDED
    return GoldenCheck(path, outcome, str(comparison), golden, comparison), result


def known_choices(golden: Golden, *, is_own: bool) -> dict[str, Any]:
    """What `compare` is told of the result of a golden's own module, or of another: results of hloexec's own were
    computed with the same constants, and those of the module itself with the same choices in all that is left open."""
    if golden.expected_source != OURS:
        return {"elided": golden.elided}
    return {"same_choices": True} if is_own else {"elided": None}


def _by_device(files: _Files, result: object) -> tuple[Any, Any]:
    """The arrays of each device's result, and its shards of what each device gave before the module was partitioned."""
    module, expected = files.module, files.expected
    if not isinstance(result, tuple) or not isinstance(expected, tuple):
        raise InputError(f"{module.name} is for one device")
    whole = labelled_arrays(expected[0])
    return labelled_arrays(result), shards_of_result(whole, module, result, before=files.recorded)


def _dimensions(module: Module) -> list[tuple[int, ...]]:
    """Those of the arrays that a module takes and gives."""
    shapes = [*module.entry.parameter_shapes, module.entry.result_shape]
    return [leaf.array_shape.dimensions for leaf in flat_shapes(*shapes)]


def _require_unchanged(golden: Golden) -> None:
    """InputError unless a golden's module is the one that was recorded."""
    folder = golden.folder
    with os_errors_named(f"read {str(folder / MODULE)!r}"), opened(folder / MODULE) as file:
        text = file.read()
    found_hash = text_hash(text)
    if golden.module_hash not in (found_hash, text_hash(without_windows_marks(text))):
        raise InputError(
            f"{folder.name}: {MODULE} is not the module that was recorded (its SHA-256 is {found_hash[:12]}…, "
            f"golden.json says {golden.module_hash[:12]}…); record it again, or give the other module with --module"
        )


def _inputs(golden: Golden, module: Module, recorded: Module) -> list[list[Value]]:
    """What a module takes of a golden's inputs: one list, or one per device."""
    folder = golden.folder
    is_partitioned = golden.devices > 1 and _dimensions(module) != _dimensions(recorded)
    parameters = (recorded if is_partitioned else module).entry.parameters
    try:
        if golden.inputs_per_device == 1:
            inputs_by_number = literals.load_inputs(folder / INPUTS, parameters)
            values = [inputs_by_number[number] for number in range(len(parameters))]
            if not is_partitioned:
                return [values]
            devices = {"replicas": golden.replicas, "partitions": golden.partitions}
            return shard_inputs(module, values, before=recorded, **devices)
    except InputError as error:
        if module is recorded:
            raise
        raise InputError(f"{module.name} does not take this golden's inputs: {error}") from error
    per_device = literals.load(folder / INPUTS)
    if not isinstance(per_device, tuple) or len(per_device) != golden.inputs_per_device:
        raise InputError(f"{folder.name}: {INPUTS} does not hold the inputs of {golden.inputs_per_device} devices")
    return [list(values) if isinstance(values, tuple) else [values] for values in per_device]
