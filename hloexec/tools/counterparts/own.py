"""The counterparts that hloexec runs or reads itself: policies, other modules, and files of results."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import attrs

from hloexec.analysis.dataflow.dependences import elides_constants
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Inputs, Value, join_values
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError
from hloexec.language.literals.files import holds_values
from hloexec.language.loading import load, load_with_values
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.tools.counterparts.answers import Answer, Outcome
from hloexec.tools.golden.checking import known_choices
from hloexec.tools.golden.recording import SUFFIX, Golden, read_expected, read_golden
from hloexec.tools.results import read_result, result_shapes


@frozen(eq=False)
class PolicyRun:
    """The module itself, under another policy."""

    policy: NumericsPolicy

    @property
    def name(self) -> str:
        """`policy:NAME`."""
        return f"policy:{self.policy.name}"

    def require(self, module: Module, *, is_divided: bool = False) -> None:
        """Any module is run."""

    def run(self, module: Module, inputs: Inputs, **options: Unpack[RunOptions]) -> Answer:
        """The result under the policy."""
        return _ran(
            module, inputs, attrs.evolve(resolve_options("run", options), numerics=self.policy), {"same_choices": True}
        )


def _ran(module: Module, inputs: Inputs, options: Options, comparing: Mapping[str, Any]) -> Answer:
    try:
        return Answer(Outcome.ANSWERED, join_values(run_with(module, inputs, options)), comparing)
    except HloError as error:
        return Answer.raised(error)


@frozen(eq=False)
class OtherModule:
    """Another module, on the same inputs."""

    name: str
    other: Module
    file: str
    """Where the module is that it is compared with."""

    def require(self, module: Module, *, is_divided: bool = False) -> None:
        """Whether it takes the same inputs shows when it runs."""

    def run(self, module: Module, inputs: Inputs, **options: Unpack[RunOptions]) -> Answer:
        """The result of the other module."""
        resolved = resolve_options("run", options)
        constants = resolved.elided if isinstance(resolved.elided, str) else "zeros"
        # Constants that both texts elide are the same for both.
        comparing = {"elided": None} if elides_constants(self.other) and constants == resolved.elided else {}
        answer = _ran(self.other, inputs, attrs.evolve(resolved, elided=constants), comparing)
        takes_the_same = self.other.entry.parameter_shapes == module.entry.parameter_shapes
        if not isinstance(answer.error, InputError) or takes_the_same:
            return answer
        # The whole comes before its parts.
        is_whole = self.other.num_partitions < module.num_partitions
        diff = shlex.join(["hloexec", "diff", *((self.name, self.file) if is_whole else (self.file, self.name))])
        error = InputError(
            f"{self.name!r} does not take the same inputs: {answer.error.message}; if one of the modules is a part of "
            f"the other for each device, {diff} compares them"
        )
        error.__cause__ = answer.error
        return Answer(Outcome.REFUSED, error=error)


@define(eq=False)
class Recorded:
    """A result that was recorded, whatever the inputs are."""

    name: str
    read: Callable[[Module], Any]
    """Reads it, as the shapes of a module say."""
    golden: Golden | None = None
    """The golden that it is in."""
    _result: Value | dict[str, Array] | None = None

    def require(self, module: Module, *, is_divided: bool = False) -> None:
        """Read it; InputError where one result would be compared with those of several devices."""
        self._result = self.read(module)
        shapes = result_shapes(module)
        is_of_one = not isinstance(self._result, dict) or self._result.keys() == shapes.keys() or len(self._result) == 1
        if self.golden is not None:
            is_of_one = self.golden.devices == 1
        count = module.replica_count * module.num_partitions
        if is_of_one and count > 1 and not is_divided:
            raise InputError(
                f"{self.name!r} has one result, but the module gives one on each of {count} devices; --global-inputs "
                "puts those together"
            )

    def run(self, module: Module, inputs: Inputs, **options: Unpack[RunOptions]) -> Answer:
        """The result, with the tolerances of a golden."""
        try:
            result = self.read(module) if self._result is None else self._result
        except HloError as error:
            return Answer.raised(error)
        golden = self.golden
        if golden is None:
            return Answer(Outcome.ANSWERED, result)
        tolerances = {name: getattr(golden, name) for name in ("atol", "rtol", "ulp")}
        return Answer(Outcome.ANSWERED, result, tolerances | known_choices(golden, is_own=False))


def counterpart_of_file(path: str, file: str, *, is_result: bool) -> OtherModule | Recorded:
    """What a file or folder holds; of a snapshot that is its result where `is_result`, and else its module.

    Raises what reading it raises, as far as that needs no module to compare it with.
    """
    if path.rstrip(f"/{os.sep}").endswith(SUFFIX):
        golden = read_golden(path)
        recorded = read_expected(golden)
        return Recorded(path, lambda _: recorded, golden)
    if holds_values(path):
        return Recorded(path, lambda module: read_result(path, result_shapes(module)))
    if is_result and (load_with_values(path).result is not None or not os.path.isfile(path)):
        return Recorded(path, lambda module: read_result(path, result_shapes(module)))
    return OtherModule(path, load(path), file)
