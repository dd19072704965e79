"""`hloexec plan`: show how a module would run."""

from __future__ import annotations

import click

from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, json_option, named_policy, strict_option
from hloexec.cli.reports import show_report


@click.command("plan", epilog=examples("hloexec plan module.hlo", "hloexec plan module.hlo --after fma"))
@file_argument
@click.option("--computation", metavar="NAME", help="Plan this computation instead of the entry.")
@click.option("--numerics", metavar="POLICY", default="reference", show_default=True, help="Numerics policy.")
@click.option("--after", metavar="PASS", help="Show the plan after this pass; an unknown name lists all passes.")
@strict_option
@json_option
def command(file: str, computation: str | None, numerics: str, after: str | None, strict: bool, as_json: bool) -> None:
    """Show how a module would be run: its plan, as Python.

    Each step is a line, with the shape of its result. Values are deleted after their last use, and loop-invariant steps
    are hoisted out of loops. Nothing is run.
    """
    import hloexec
    from hloexec.core.wording import byte_text, counted
    from hloexec.engine.exec.code.compiling import code_of, sources
    from hloexec.engine.exec.running import plan_of
    from hloexec.engine.plan.memory import entry_peak_bytes
    from hloexec.engine.plan.planner import PASS_NAMES
    from hloexec.report.json.printed import Planned

    policy = named_policy(numerics)
    if after is not None and after not in PASS_NAMES:
        raise click.BadParameter(f"the passes are {', '.join(PASS_NAMES)}", param_hint="'--after'")
    module = hloexec.load(file, strict=strict)
    plan = plan_of(module, computation=computation, numerics=policy, unknown="zeros", last_pass=after)
    code = code_of(plan)
    functions = [] if code is None else list(sources(code))
    peak = entry_peak_bytes(plan)
    planned = Planned(file, module.name, policy.name, plan.computation.name, peak, tuple(functions))
    head = f"# {plan.computation.name}: {counted(max(1, len(functions)), 'function')}, "
    head += f"at most {byte_text(peak)} beyond its inputs\n\n"
    show_report("plan", as_json, lambda: [planned], lambda: head + "\n\n".join(functions))
