"""`hloexec compare`: compare two results, and decide whether rounding explains the difference."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from hloexec.cli.help import examples
from hloexec.cli.options import KeyValue, html_option, json_option, named_policy, top_option
from hloexec.cli.reports import exit_code, show_report, write_command_page
from hloexec.core.structs import frozen

if TYPE_CHECKING:
    from hloexec.analysis.numerics.comparison import Comparison
    from hloexec.core.ir import ArrayShape, Module
    from hloexec.core.values import Array, Value


@click.command(
    "compare",
    epilog=examples("hloexec compare a.npz b.npz", "hloexec compare a.npz b.npz \\\n  --module module.hlo"),
)
@click.argument("actual", type=click.Path())
@click.argument("expected", type=click.Path())
@click.option("--atol", type=float, help="Absolute tolerance.")
@click.option("--rtol", type=float, help="Tolerance relative to the expected value.")
@click.option("--ulp", type=float, help="Tolerance in units in the last place.")
@click.option(
    "--check-error",
    type=click.Choice(("max", "p99", "median", "mean")),
    default="max",
    show_default=True,
    help="Which statistic of the errors has to be within --atol, --rtol or --ulp: that of every element, of 99 % or of "
    "half of them, or the mean. The verdict says which.",
)
@click.option(
    "--module",
    "module_file",
    metavar="FILE",
    help="The module that computed the results; the tolerance is derived from its roundings.",
)
@click.option(
    "--inputs",
    metavar="FILE.npz",
    help="The module's inputs, to measure the rounding error of each element, and to compare indices by the values "
    "that they select.",
)
@click.option(
    "--numerics", metavar="POLICY", default="reference", show_default=True, help="Numerics policy of the results."
)
@click.option(
    "--contraction-length",
    type=click.IntRange(min=1),
    metavar="N",
    help="Without a module: number of terms of the longest contraction.  [default: 1024]",
)
@click.option(
    "--selects",
    type=KeyValue("LEAF", "FILE.npy"),
    multiple=True,
    help="Leaf LEAF holds indices along the last dimension of the array in FILE.npy; they are compared by the values "
    "that they select. May be repeated.",
)
@top_option(10)
@html_option
@json_option
def command(
    actual: str,
    expected: str,
    numerics: str,
    top: int,
    html: str | None,
    as_json: bool,
    **more: Any,
) -> int:
    """Compare the result ACTUAL with EXPECTED: .npz or .npy files, or snapshots.

    EXPECTED may also be the SPEC of a counterpart, as --against of hloexec run takes it, with --module and --inputs.

    Prints one of `equal`, `rounding only`, `within tolerance`, `not decided` and `different`, and shows the
    differences. If no tolerance is given, it is derived from the element types and the module. Exits with 0 if both
    agree, 1 if they differ, 2 if they cannot be compared, 3 if they differ only where the module leaves open what they
    are.
    """
    from hloexec.report.json.printed import Compared
    from hloexec.report.judging.comparison import comparison_view

    own = _Options(numerics, **more)
    module, comparison, pairs = _compared(actual, expected, own)
    name = None if module is None else module.name
    is_whole = _are_whole(pairs, module)
    hints = _hints(comparison, actual, expected, own, is_whole=is_whole)
    devices = 1 if module is None or is_whole else module.replica_count * module.num_partitions
    view = partial(comparison_view, comparison, hints=hints, devices=devices)
    show_report("compare", as_json, lambda: [Compared(expected, actual, name, numerics), comparison], lambda: view(top))
    if html is not None:
        facts = (("actual", actual), ("expected", expected), ("policy", numerics))
        write_command_page(html, comparison, module, view, facts, pairs)
    return exit_code(comparison.verdict)


@frozen
class _Options:
    """What two results are compared by."""

    numerics: str
    atol: float | None
    rtol: float | None
    ulp: float | None
    check_error: str
    module_file: str | None
    inputs: str | None
    contraction_length: int | None
    selects: Sequence[tuple[str, str]]


def _compared(
    actual: str, expected: str, own: _Options
) -> tuple[Module | None, Comparison, dict[str, tuple[Array, Array]]]:
    """The module, if there is one, the comparison, and the arrays that both results have."""
    import hloexec
    from hloexec.core.values import labelled_arrays
    from hloexec.errors import LiteralError
    from hloexec.language import literals
    from hloexec.tools.counterparts.specs import counterpart_of, names_file
    from hloexec.tools.results import read_result, result_shapes

    if own.check_error != "max" and own.atol is own.rtol is own.ulp is None:
        raise click.UsageError("--check-error needs a tolerance to hold the errors to: --atol, --rtol or --ulp")
    named_policy(own.numerics)
    if own.inputs is not None and own.module_file is None:
        raise click.UsageError("--inputs needs --module")
    if own.contraction_length is not None and own.module_file is not None:
        raise click.UsageError("--contraction-length and --module cannot be combined")
    module = None if own.module_file is None else hloexec.load(own.module_file)
    shapes = {} if module is None else result_shapes(module)
    try:
        ours = read_result(actual, shapes)
    except LiteralError as error:
        # Where it holds raw bytes, the other result may say of which type.
        typed = _shapes(read_result(expected, shapes))
        try:
            ours = read_result(actual, shapes | typed)
        except LiteralError:
            raise error from None
    values: list[Value] | None = None
    if module is not None and own.inputs is not None:
        inputs = literals.load_inputs(own.inputs, module.entry.parameters)
        values = [inputs[number] for number in range(len(inputs))]
    comparing: Mapping[str, Any] = {}
    if os.path.exists(expected) or names_file(expected):
        theirs = read_result(expected, shapes | _shapes(ours))
    elif module is None or values is None:
        raise click.UsageError(f"{expected} runs a module; give --module and --inputs")
    else:
        answer = counterpart_of(expected, "EXPECTED").run(module, values, numerics=own.numerics)
        theirs, comparing = labelled_arrays(answer.value()), answer.comparing
    selected = {label: _one_array(path) for label, path in own.selects}
    comparison = hloexec.compare(
        ours,
        theirs,
        atol=own.atol,
        rtol=own.rtol,
        ulp=own.ulp,
        check_error=own.check_error,
        module=module,
        inputs=values,
        numerics=own.numerics,
        contraction_length=own.contraction_length,
        selects=selected,
        **comparing,
    )
    return module, comparison, {label: (ours[label], theirs[label]) for label in ours.keys() & theirs.keys()}


def _one_array(path: str) -> Array:
    from hloexec.errors import InputError
    from hloexec.language import literals

    arrays = literals.load_arrays(path)
    if len(arrays) != 1:
        raise InputError(f"{path!r} must hold one array, that from which indices select, but holds {len(arrays)}")
    return next(iter(arrays.values()))


def _shapes(arrays: Mapping[str, Array]) -> dict[str, ArrayShape]:
    from hloexec.core.dtypes import element_type_of
    from hloexec.core.ir import ArrayShape

    return {label: ArrayShape(element_type_of(array.dtype), array.shape) for label, array in arrays.items()}


def _are_whole(pairs: Mapping[str, tuple[Array, Array]], module: Module | None) -> bool:
    """Whether there are leaves that the module divides among devices."""
    from hloexec.tools.results import result_shapes, shape_of_leaf

    declared = {} if module is None else result_shapes(module)
    shapes = ((shape_of_leaf(label, declared), array.shape) for label, (_, array) in pairs.items())
    return any(shape is not None and shape.dimensions != sizes for shape, sizes in shapes)


def _hints(comparison: Comparison, actual: str, expected: str, own: _Options, *, is_whole: bool) -> list[str]:
    """Commands for the next step; `is_whole` says that the results are not those of one device."""
    import shlex

    if comparison.agrees:
        return []
    command = f"hloexec compare {shlex.quote(actual)} {shlex.quote(expected)}"
    if any(leaf.measured is None for leaf in comparison.leaves):
        return []
    if own.module_file is None:
        return ["with the module, the tolerance follows from its roundings:", f"  {command} --module MODULE"]
    module = shlex.quote(own.module_file)
    if own.inputs is None and (comparison.not_decided or any(leaf.note for leaf in comparison.different)):
        if is_whole:
            return [
                "a run on the whole inputs measures the rounding error of each element (where the module lacks "
                "shardings, with --before BEFORE):",
                f"  hloexec run {module} --global-inputs FILE --against {shlex.quote(expected)}",
            ]
        return [
            "with the inputs, the rounding error of each element is measured, and which elements are left open:"
            if comparison.not_decided
            else "with the inputs, the rounding error of each element is measured:",
            f"  {command} --module {module} --inputs FILE",
        ]
    return []
