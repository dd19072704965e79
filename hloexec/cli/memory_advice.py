"""Commands to suggest when a module needs more memory than there is."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from hloexec.errors import HloError, ResourceError

if TYPE_CHECKING:
    from hloexec.cli.run_options import Given
    from hloexec.core.ir import Module
    from hloexec.engine.options import Options

_MOST_PLANNED = 30


@contextmanager
def memory_advice(file: str, module: Module, given: Given, options: Options) -> Iterator[None]:
    """Add commands that fit into memory to the error about a module that does not.

    `options` are those that the plan is made with.
    """
    try:
        yield
    except ResourceError as error:
        steps = [["info", file, "--computations"], ["memory", file]]
        words = attrs.evolve(given, inputs=(), overrides=(), different_inputs=False).words()
        name = _fitting_computation(module, options)
        if name is not None:
            limit = [] if options.memory_limit is None else ["--memory-limit", str(options.memory_limit)]
            steps.insert(0, ["run", file, "--computation", name, *words, *limit])
        if options.memory_limit is None and options.computation is None:
            steps.insert(0, ["run", file, "--shrink", _shrunken_size(), *words])
        commands = "\n".join("  " + shlex.join(["hloexec", *step]) for step in steps)
        raise ResourceError(f"{error}\n\nnext:\n{commands}") from error


def _shrunken_size() -> str:
    """What a smaller module may take: half of what there is, and no more than runs in minutes."""
    from hloexec.core.system_memory import memory_limit_bytes

    allowed = memory_limit_bytes(None)
    return "2G" if allowed is None or allowed > 4 << 30 else f"{max(1, allowed >> 21)}M"


def _fitting_computation(module: Module, options: Options) -> str | None:
    """The computation with the most instructions, among those that the entry reaches, that fits into memory alone."""
    from hloexec.core.system_memory import memory_limit_bytes
    from hloexec.engine.exec.plans import plan_of
    from hloexec.engine.plan.memory import require_memory
    from hloexec.tools.summary import run_counts

    allowed = memory_limit_bytes(options.memory_limit)
    computations = [module.by_name[name] for name in run_counts(module)]
    computations.sort(key=lambda computation: -len(computation.instructions))
    planned = 0
    for computation in computations:
        inputs = sum(shape.byte_size for shape in computation.parameter_shapes)
        kept = inputs + computation.result_shape.byte_size
        if computation is module.entry or (allowed is not None and kept > allowed):
            continue
        if planned == _MOST_PLANNED:
            break
        planned += 1
        try:
            with warnings.catch_warnings(action="ignore"):
                plan = plan_of(module, options, computation=computation.name)
            require_memory(plan, None if allowed is None else max(0, allowed - inputs))
        except HloError:
            continue
        return computation.name
    return None
