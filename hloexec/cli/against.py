"""`hloexec run --against`: comparison of a result with another one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from hloexec.errors import InputError

if TYPE_CHECKING:
    from hloexec.analysis.numerics.comparison import Comparison
    from hloexec.cli.run_options import Given
    from hloexec.core.ir import Module
    from hloexec.core.values import Array, Value
    from hloexec.engine.options import Options
    from hloexec.ops.policies.policy import NumericsPolicy

    Expectation: TypeAlias = Callable[[list[list[Value]]], tuple[Value | dict[str, Array], dict[str, Any]]]

XLA = "xla-cpu"
"""XLA:CPU through jaxlib; the policy of that name is called `policy:xla-cpu` here."""
_POLICY = "policy:"


def with_inputs_of(against: str, given: Given) -> Given:
    """The options of a run on a golden's inputs and policy, where that is what it is compared with.

    Raises what keeps any `against` from being compared with, as far as that shows before anything runs.
    """
    from hloexec.ops.policies.policy import REFERENCE
    from hloexec.tools.golden.recording import INPUTS, SUFFIX, read_golden

    if _policy_of(against) is not None or against == XLA:
        return given
    if not os.path.exists(against):
        raise InputError(f"--against: there is no file {against!r}, and no numerics policy of that name")
    if not against.rstrip(f"/{os.sep}").endswith(SUFFIX):
        return given
    golden = read_golden(against)
    if golden.inputs_per_device != 1:
        raise InputError(
            f"{against} has inputs for each of {golden.devices} devices; `hloexec golden check --module` compares them"
        )
    options = given.options
    if options.numerics == REFERENCE:
        options = attrs.evolve(options, numerics=golden.numerics)
    return attrs.evolve(given, inputs=given.inputs or (os.path.join(against, INPUTS),), options=options)


def expectation(against: str, module: Module, options: Options, *, file: str, is_divided: bool) -> Expectation:
    """What gives the expected result, and its tolerances, for the inputs of each device.

    `against` is XLA:CPU, a policy, a module, a golden, or a file; files are read at once, before anything runs.
    `options` are those of the run that gives the result, `file` holds the module, and
    `is_divided` says whether its inputs are whole arrays. Raises what keeps the result from being compared, as far as
    that shows before anything runs.
    """
    import hloexec
    from hloexec.analysis.dataflow.dependences import elides_constants
    from hloexec.language import literals
    from hloexec.language.literals.files import holds_values
    from hloexec.tools.golden.checking import known_choices
    from hloexec.tools.golden.recording import EXPECTED, SUFFIX, read_golden
    from hloexec.tools.results import read_result, result_shapes

    module, options = _as_run(module, options), attrs.evolve(options, computation=None)
    if against == XLA:
        from hloexec.language.interop.xla_cpu import require_runnable
        from hloexec.tools.minifying.oracles import on_xla_cpu

        require_runnable(module)
        return lambda values: (on_xla_cpu(module, values[0]), {})
    policy = _policy_of(against)
    if policy is not None:
        same = {"same_choices": True}
        return lambda values: (_run(module, values, attrs.evolve(options, numerics=policy)), same)
    if against.rstrip(f"/{os.sep}").endswith(SUFFIX):
        golden = read_golden(against)
        tolerances = {
            "atol": golden.atol,
            "rtol": golden.rtol,
            "ulp": golden.ulp,
            **known_choices(golden, is_own=False),
        }
        recorded = literals.load(os.path.join(against, EXPECTED))
        if golden.devices == 1:
            _require_one_device(against, module, is_divided=is_divided)
        return lambda _: (recorded, tolerances)
    if holds_values(against):
        shapes = result_shapes(module)
        result = read_result(against, shapes)
        if result.keys() == shapes.keys() or len(result) == 1:
            _require_one_device(against, module, is_divided=is_divided)
        return lambda _: (result, {})
    constants = options.elided if isinstance(options.elided, str) else "zeros"
    other = hloexec.load(against)
    # Constants that both texts elide are the same for both.
    known = {"elided": None} if elides_constants(other) and constants == options.elided else {}
    # The whole comes before its parts.
    files = [against, file] if other.num_partitions < module.num_partitions else [file, against]
    diff = shlex.join(["hloexec", "diff", *files])

    def result_of_other(values: list[list[Value]]) -> tuple[Value, dict[str, Any]]:
        try:
            return _run(other, values, attrs.evolve(options, elided=constants)), known
        except InputError as error:
            if other.entry.parameter_shapes == module.entry.parameter_shapes:
                raise
            raise InputError(
                f"{against!r} does not take the same inputs: {error.message}; if one of the modules is a part of the "
                f"other for each device, {diff} compares them"
            ) from error

    return result_of_other


def _require_one_device(against: str, module: Module, *, is_divided: bool) -> None:
    """InputError where one result would be compared with those of several devices."""
    count = module.replica_count * module.num_partitions
    if count > 1 and not is_divided:
        raise InputError(
            f"{against!r} has one result, but the module gives one on each of {count} devices; --global-inputs puts "
            "those together"
        )


def compared(
    expected_for: Expectation,
    module: Module,
    values: list[list[Value]],
    results: Sequence[Value],
    options: Options,
    divided: Callable[[Mapping[str, Array]], Mapping[str, Array]] | None = None,
) -> Comparison:
    """The results of a run, compared with what is expected for its inputs.

    `options` are those of the run that gave them. `divided` makes of the arrays of a
    whole result those of each device. What rounding explains is measured on the module that was run, under its policy.
    """
    import hloexec
    from hloexec.core.ir import leaf_shapes
    from hloexec.core.values import label_of, labelled_arrays

    module = _as_run(module, options)
    expected, tolerances = expected_for(values)
    if divided is not None and isinstance(expected, dict) and len(results) > 1:
        whole = [label_of(index) for index, _ in leaf_shapes(module.entry.result_shape)]
        if len(whole) == len(expected) == 1:
            expected = dict(zip(whole, expected.values(), strict=True))
        if expected.keys() == set(whole):
            expected = dict(divided(expected))
    actual: Value = tuple(results) if len(results) > 1 else results[0]
    return hloexec.compare(
        labelled_arrays(actual) if isinstance(expected, dict) else actual,
        expected,
        module=module,
        inputs=values if len(values) in (1, len(results)) else None,
        numerics=options.numerics,
        **{"elided": options.elided, **tolerances},
    )


def _as_run(module: Module, options: Options) -> Module:
    """The module, which itself says which computation is run, and on how many devices."""
    entry = options.computation
    if entry is not None:
        from hloexec.core.ir.editing import change_entry

        module = change_entry(module, entry.removeprefix("%"))
    counts: Any = {"replica_count": options.replicas, "num_partitions": options.partitions}
    return attrs.evolve(module, **counts)


def _policy_of(against: str) -> NumericsPolicy | None:
    """The policy that `against` names, if it names one; UnsupportedError for an unknown `policy:NAME`."""
    from hloexec.ops.policies.policy import POLICIES, numerics_policy

    name = against.removeprefix(_POLICY)
    return numerics_policy(name) if name != against or (name in POLICIES and name != XLA) else None


def _run(module: Module, values: list[list[Value]], options: Options) -> Value:
    from hloexec.engine.exec.running import run_with

    results = run_with(module, values, options)
    return tuple(results) if len(results) > 1 else results[0]
