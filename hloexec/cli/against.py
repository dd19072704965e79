"""Counterparts on the command line: comparison of a result with one of theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from hloexec.errors import InputError

if TYPE_CHECKING:
    from hloexec.analysis.numerics.comparison import Comparison
    from hloexec.cli.inputs.loading import Prepared
    from hloexec.cli.run_options import Given
    from hloexec.core.ir import Module
    from hloexec.core.values import Array, Value
    from hloexec.engine.options import Options
    from hloexec.tools.counterparts.answers import Counterpart


def with_inputs_of(counterpart: Counterpart, given: Given) -> Given:
    """The options of a run on a golden's inputs and policy, where that is what it is compared with."""
    from hloexec.ops.policies.policy import REFERENCE
    from hloexec.tools.golden.recording import INPUTS

    golden = getattr(counterpart, "golden", None)
    if golden is None:
        return given
    if golden.inputs_per_device != 1:
        raise InputError(
            f"{counterpart.name} has inputs for each of {golden.devices} devices; `hloexec golden check --module` "
            "compares them"
        )
    options = given.options
    if options.numerics == REFERENCE:
        options = attrs.evolve(options, numerics=golden.numerics)
    return attrs.evolve(given, inputs=given.inputs or (os.path.join(counterpart.name, INPUTS),), options=options)


def compared(
    counterpart: Counterpart,
    module: Module,
    values: list[list[Value]],
    results: Sequence[Value],
    options: Options,
    divided: Callable[[Mapping[str, Array]], Mapping[str, Array]] | None = None,
) -> Comparison:
    """The results of a run, compared with those of a counterpart.

    `options` are those of the run that gave them. `divided` makes of the arrays of a
    whole result those of each device. What rounding explains is measured on the module that was run, under its policy.
    """
    import hloexec
    from hloexec.core.ir import leaf_shapes
    from hloexec.core.values import label_of, labelled_arrays
    from hloexec.engine.plan.synthesis import fill_constants

    module, others = as_run(module, options), attrs.evolve(options, computation=None)
    answer = counterpart.run(module, values, **others)
    expected, comparing = answer.value(), {"elided": options.elided, **answer.comparing}
    if comparing["elided"] is None:
        # Both have computed with these constants, and so do the runs that show what rounding does.
        module = fill_constants(module, options.elided)
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
        **comparing,
    )


def expected_result(spec: str, name: str, run: Prepared) -> Any:
    """What the counterpart gives that an option names, for a module and inputs that are prepared."""
    from hloexec.tools.counterparts.specs import counterpart_of

    options = attrs.evolve(run.options, computation=None)
    other = counterpart_of(spec, name, file=run.arguments[0], is_result=True)
    return other.run(as_run(run.module, run.options), run.inputs, **options).value()


def as_run(module: Module, options: Options) -> Module:
    """The module, which itself says which computation is run, and on how many devices."""
    entry = options.computation
    if entry is not None:
        from hloexec.core.ir.editing import change_entry

        module = change_entry(module, entry.removeprefix("%"))
    counts: Any = {"replica_count": options.replicas, "num_partitions": options.partitions}
    return attrs.evolve(module, **counts)
