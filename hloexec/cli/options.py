"""Shared by several commands: the file argument, common options and option types."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
import click

from hloexec.core.tree import flat, of_sequence
from hloexec.core.wording import quoted

if TYPE_CHECKING:
    from hloexec.ops.policies.policy import NumericsPolicy

    _IntType = click.ParamType[int]
    _PairType = click.ParamType[tuple[str, str]]
else:
    # click has made this class generic only lately.
    _IntType = _PairType = click.ParamType

_Function = TypeVar("_Function", bound=Callable[..., Any])


def file_argument(function: _Function) -> _Function:
    return click.argument("file", type=click.Path(allow_dash=True))(function)


def strict_option(function: _Function) -> _Function:
    return click.option("--strict", is_flag=True, help="Reject what XLA would reject, instead of warning.")(function)


def against_option(text: str, *, may_be_file: bool = True) -> Callable[[_Function], _Function]:
    """Add --against, whose help has the forms of a counterpart in place of `{}`."""
    from hloexec.tools.counterparts.forms import forms

    return click.option("--against", metavar="SPEC", help=text.format(forms(may_be_file=may_be_file)))


def json_option(function: _Function) -> _Function:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(function)


def top_option(default: int) -> Callable[[_Function], _Function]:
    """Add --top: how many rows each table has, where 0 stands for all."""
    text = "Rows of each table, 0 for all."
    return click.option("--top", type=click.IntRange(0), default=default, show_default=True, help=text)


def html_option(function: _Function) -> _Function:
    """Add --html, whose value the command receives as `html`: a file that can be written and is none of the others."""

    @functools.wraps(function)
    def command(html: str | None, **values: Any) -> Any:
        if html is not None:
            from hloexec.report.html import require_page

            _require_own_path(html, values.values())
            require_page(html)
        return function(html=html, **values)

    text = "Also write the report as a page of HTML, with plots (pip install 'hloexec[report]')."
    return cast(_Function, click.option("--html", metavar="FILE.html", help=text)(command))


def _require_own_path(path: str, values: Iterable[object]) -> None:
    """Raise click.UsageError where a file to write is one that another argument names, or standard output."""
    if path == "-":
        raise click.UsageError("--html takes the name of a file, such as report.html; it is not written to the output")

    def parts(value: Any) -> Sequence[Any] | None:
        has_fields = attrs.has(type(value))
        return [*attrs.asdict(value, recurse=False).values()] if has_fields else of_sequence(value)

    for value in flat([*values], parts):
        if isinstance(value, str) and value and os.path.realpath(value) == os.path.realpath(path):
            raise click.UsageError(f"--html would overwrite {value!r}, which the command line names as well")


def executor_options(units: str, *, is_always: bool = True, may_share: bool = True) -> Callable[[_Function], _Function]:
    """Add --executor, --jobs and, where tasks name files, --shared: what carries out the work on each of so many units.

    Unless that is always done by processes of their own, it is where one of the first two is given.
    """
    shared = "Workers see the same files by the same absolute paths; else tasks carry the files that they need."
    executor = (
        "What runs them: processes:N of this machine, dask:ADDRESS, mpi (the ranks of mpiexec), or MODULE:FUNCTION, "
        f"which returns a concurrent.futures.Executor.  [default: {'processes:1' if is_always else 'this process'}]"
    )
    options = [
        click.option("--executor", metavar="SPEC", help=executor),
        click.option(
            "--jobs",
            type=click.IntRange(1, 256),
            default=1 if is_always else None,
            show_default=is_always,
            help=f"So many {units} at once on this machine: --executor processes:N.",
        ),
        *([click.option("--shared", is_flag=True, help=shared)] if may_share else []),
    ]

    def with_options(function: _Function) -> _Function:
        return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), function)

    return with_options


def bound_options(unit: str, *, timeout: str = "--timeout", seconds: int = 120) -> Callable[[_Function], _Function]:
    """Add --timeout, or what it is called, and --memory: what a unit may take in a process of its own."""
    kind = click.FloatRange(0, min_open=True)
    time_help = f"What {unit} may take, with --executor or --jobs.  [default: {seconds}]"
    memory_help = f"Memory that {unit} may take, with --executor or --jobs.  [default: 4G]"

    def with_options(function: _Function) -> _Function:
        function = click.option("--memory", type=ByteCount(), help=memory_help)(function)
        return click.option(timeout, metavar="SECONDS", type=kind, help=time_help)(function)

    return with_options


def output_option(text: str) -> Callable[[_Function], _Function]:
    """-o, a file of HLO text, with the help that is given."""

    def checked(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
        from hloexec.core.files import require_ending

        if path is not None:
            require_ending(path, "HLO text", ("hlo", "txt"))
        return path

    return click.option("-o", "--output", type=click.Path(dir_okay=False), callback=checked, help=text)


def named_policy(name: str, option: str = "--numerics", hint: str = "") -> NumericsPolicy:
    """The numerics policy that an option names; click.BadParameter, with a hint, where there is none."""
    from hloexec.errors import UnsupportedError
    from hloexec.ops.policies.policy import numerics_policy

    try:
        return numerics_policy(name)
    except UnsupportedError as error:
        raise click.BadParameter(f"{error.message}{hint}", param_hint=f"'{option}'") from error


def echo_json(name: str, *results: object, warnings: Sequence[str] | None = None) -> None:
    """Print the record of what was found, with `warnings`, or with what the running command has warned of."""
    from hloexec.report.json.deriving import json_text
    from hloexec.report.json.schemas import printed_record

    said = click.get_current_context().obj if warnings is None else warnings
    click.echo(json_text(printed_record(name, results, said)))


def write_text(path: str, text: str) -> None:
    """Write the file of an option, all of it or nothing; InputError where it cannot be written."""
    from hloexec.core.files import open_atomically
    from hloexec.errors import os_errors_named

    with os_errors_named(f"write {path!r}"), open_atomically(path) as file:
        file.write(text.encode())


@contextmanager
def printed_if_unwritable(text: str, as_json: bool) -> Iterator[None]:
    """Where what a long search has found cannot be written within, it is printed, and not lost; but for --json, whose
    output is one record."""
    from hloexec.errors import InputError

    try:
        yield
    except InputError:
        if not as_json:
            click.echo(text, nl=False)
        raise


class ByteCount(_IntType):
    """A number of bytes: `1500000`, `500M`, `8GiB`."""

    name = "BYTES"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from hloexec.core.arguments import byte_count
        from hloexec.errors import InputError

        try:
            return byte_count("it", value)
        except InputError:
            self.fail(f"{quoted(value)} is not a number of bytes, such as 500M or 8G", param, ctx)


class KeyValue(_PairType):
    """Two texts joined by `=`."""

    def __init__(self, key: str, value: str) -> None:
        self.name = f"{key}={value}"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, separator, rest = str(value).partition("=")
        if not (key and separator and rest):
            self.fail(f"{quoted(value)} is not of the form {self.name}", param, ctx)
        return key, rest
