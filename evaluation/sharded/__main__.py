"""`python -m evaluation.sharded`: how often `hx.compare_sharded` names what is wrong on many devices, and whether it says
that right steps are."""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from evaluation.checking.__main__ import DEVICES

_KINDS = ("groups", "order", "dropped", "pairs", "table", "reducer")
_FAULTS_EACH = 4


def _arguments(shapes: Any) -> Any:
    import jax
    import numpy as np

    source = np.random.default_rng(0)

    def is_shape(entry: Any) -> bool:
        return isinstance(entry, tuple) and all(isinstance(size, int) for size in entry)

    def made(shape: tuple[int, ...]) -> Any:
        return (source.standard_normal(shape) * 0.7).astype(np.float32)

    return jax.tree.map(made, shapes, is_leaf=is_shape)


def _meshes(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """The mesh of a step, and one of the same axes with one device."""
    import jax

    names, auto = ("d", "m")[: len(sizes)], (jax.sharding.AxisType.Auto,) * len(sizes)
    one = jax.make_mesh((1,) * len(sizes), names, devices=jax.devices()[:1], axis_types=auto)
    return jax.make_mesh(sizes, names, axis_types=auto), one


def _text(step: Any) -> str:
    return Path(__file__).with_name(f"{step.file}.py").read_text(encoding="utf-8")


def _place(step: Any, text: str) -> int:
    """Where text of a step begins in its file."""
    source = _text(step)
    start = source.index(f"\ndef {step.name}(")
    return source.index(text, start if text in source[start:] else 0)


def _imported(text: str, folder: str) -> Any:
    path = Path(folder) / "steps.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("steps", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compared(step: Any, module: Any, reference: Any = None) -> Any:
    """A step of a module, which may have a fault, by `hx.compare_sharded`."""
    import jax

    import hloexec.jax as hx

    many, _ = _meshes(step.mesh)
    mapped = jax.shard_map(
        getattr(module, step.name), mesh=many, in_specs=step.ins, out_specs=step.outs, check_vma=step.is_checked
    )
    reference = reference or getattr(module, f"{step.name}_reference", None)
    return hx.compare_sharded(mapped, many, *_arguments(step.shapes), reference=reference)


def _of_fault(fault: Any) -> str:
    """What is wrong with the answer; empty if nothing is."""
    import jax

    from evaluation.sharded.cases import STEPS

    step = STEPS[fault.step]
    source, start = _text(step), _place(step, fault.old)
    lines = {source[: _place(step, text)].count("\n") + 1 for text in fault.lines}
    first = source[:start].count("\n") + 1
    lines |= {*range(first, first + fault.old.count("\n") + 1)}
    reference = None
    if fault.has_reference:
        right, (_, one) = importlib.import_module(f"evaluation.sharded.{step.file}"), _meshes(step.mesh)
        reference = getattr(right, f"{step.name}_reference", None) or jax.shard_map(
            getattr(right, step.name), mesh=one, in_specs=step.ins, out_specs=step.outs, check_vma=step.is_checked
        )
    with tempfile.TemporaryDirectory() as folder:
        module = _imported(source[:start] + fault.new + source[start + len(fault.old) :], folder)
        answer = _compared(step, module, reference)
    named = [f"{line} " for line in answer.source]
    is_right = answer.cause == "program" and any(f"steps.py:{line} " in one for line in lines for one in named)
    return "" if is_right else f"line {sorted(lines)} expected: {answer}"


def _of_clean(step: Any) -> str:
    answer = _compared(step, importlib.import_module(f"evaluation.sharded.{step.file}"))
    return "" if answer.agrees else str(answer)


def _partitioned(step: Any) -> tuple[Any, list[Any]]:
    """The modules and inputs of a step that is divided by shardings."""
    import jax
    from jax.sharding import NamedSharding

    from evaluation.sharded import partitioned
    from hloexec.jax.sharded import lower_sharded

    many, _ = _meshes(step.mesh)

    def placed(spec: Any, part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(many, spec)), part)

    def is_spec(entry: Any) -> bool:
        return isinstance(entry, jax.sharding.PartitionSpec)

    arguments = jax.tree.map(placed, step.ins, _arguments(step.shapes), is_leaf=is_spec)
    modules, inputs = lower_sharded(getattr(partitioned, step.name), many, arguments, {})
    return modules, list(inputs)


def _of_partitioned(step: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """The faults that change what a step gives, a few of each kind of exchange, and what judges each."""
    import attrs

    from evaluation.partitioned.faults import faults, is_near
    from hloexec.tools.diffing.sharded import compare_on_devices

    modules, inputs = _partitioned(step)
    planted: dict[str, int] = {}
    for fault in faults(modules.after):
        if fault.kind not in _KINDS or planted.get(fault.kind, 0) >= 1 or sum(planted.values()) >= _FAULTS_EACH:
            continue
        answer = compare_on_devices(attrs.evolve(modules, after=fault.module), inputs)
        if answer.verdict != "differ":
            continue
        planted[fault.kind] = planted.get(fault.kind, 0) + 1
        found = answer.diff.findings[0].after
        right = is_near(fault, found) or any(is_near(fault, run) for run in answer.diff.findings[0].region)
        yield str(fault), partial(str, "" if right else f"{fault} expected: {answer}")


def _clean_partitioned(step: Any) -> str:
    from hloexec.tools.diffing.sharded import compare_on_devices

    answer = compare_on_devices(*_partitioned(step))
    return "" if answer.agrees else str(answer)


def _cases(group: str | None, only: str) -> Iterator[tuple[str, str, Callable[[], str]]]:
    from evaluation.sharded.cases import FAULTS, STEPS
    from evaluation.sharded.partitioned import STEPS as PARTITIONED

    steps = [step for step in STEPS.values() if group in (None, step.group)]
    divided = [step for step in PARTITIONED if group in (None, step.group)]
    for step in steps:
        yield "clean", step.name, partial(_of_clean, step)
    for step in divided:
        yield "clean", f"partitioned {step.name}", partial(_clean_partitioned, step)
    for fault in FAULTS:
        if STEPS[fault.step] in steps:
            yield "faults", str(fault), partial(_of_fault, fault)
    for step in divided:
        if only in f"partitioned {step.name}":
            for name, judge in _of_partitioned(step):
                yield "faults", f"partitioned {step.name}: {name}", judge


@click.command()
@click.option("--group", type=click.Choice(["seen", "reserve", "later"]), help="Only these; by default all.")
@click.option("--only", default="", help="Only cases whose name contains this.")
def main(group: str | None, only: str) -> None:
    """How often `hx.compare_sharded` is right.

    Of a fault, right is: the verdict is `differ`, and one of the source lines, through calls, is that of the fault or, where a
    collective is left out, of what it would take; of one in a partitioned module: what is named is the instruction, or
    one of its operands or users, as `python -m evaluation partitioned` has it. Of a right step: it agrees.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = DEVICES
    warnings.simplefilter("ignore")
    counts = {"clean": [0, 0], "faults": [0, 0]}
    for title, name, judge in _cases(group, only):
        if only not in name:
            continue
        try:
            answer = judge()
        except Exception as error:  # a case that fails is one that is wrong, whatever it raises
            answer = f"{type(error).__name__}: {error}"
        counts[title][0] += not answer
        counts[title][1] += 1
        click.echo(f"{title}/{name}: {answer or 'right'}")
    for title, (right, count) in counts.items():
        click.echo(f"{title}: {right} of {count} right")


if __name__ == "__main__":
    main()
