"""`hloexec fmt`: print a module as canonical text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, output_option, strict_option, write_text
from hloexec.errors import InputError

if TYPE_CHECKING:
    from hloexec.core.ir import Module


@click.command("fmt", epilog=examples("hloexec fmt module.hlo --no-metadata"))
@file_argument
@output_option("Write to this file instead of standard output.")
@click.option("--no-metadata", is_flag=True, help="Omit metadata and the tables that it refers to.")
@click.option("--no-layouts", is_flag=True, help="Omit layouts.")
@click.option("--no-backend-config", is_flag=True, help="Omit backend configs.")
@click.option("--kernels", is_flag=True, help="Print the kernels of its library calls instead, as MLIR (needs jaxlib).")
@strict_option
def command(file: str, output: str | None, kernels: bool, strict: bool, **omitted: bool) -> None:
    """Print a module as canonical HLO text.

    The output parses to the same module, except for what the options omit.
    """
    import hloexec

    module = hloexec.load(file, strict=strict)
    if kernels:
        if any(omitted.values()):
            raise click.UsageError(
                "--kernels prints MLIR; --no-metadata, --no-layouts and --no-backend-config are for HLO"
            )
        text = _kernels(module)
    else:
        text = hloexec.format(module, **{name.removeprefix("no_"): not is_left for name, is_left in omitted.items()})
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


def _kernels(module: Module) -> str:
    from hloexec.language.origins import hlo_line
    from hloexec.ops.library_calls.kernels import kernel_texts

    texts = []
    for call, text in kernel_texts(module):
        line = hlo_line(attrs.evolve(call, backend_config=None))
        texts.append(f"// {line}\n{text}")
    if not texts:
        raise InputError(f"{module.name} has no kernels: no calls of tpu_custom_call or __gpu$xla.gpu.triton")
    return "\n".join(texts)
