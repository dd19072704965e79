"""`python -m evaluation shadow`: whether each primitive's share is what its rounding alone does to the output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from evaluation.options import JSON, LIMIT, ONLY, half_option, share, spread, taken
from evaluation.processes import Record
from evaluation.shadowing.programs import Case

_LARGE = 0.3
"""Primitives that do so much of what the first does are looked at, too."""
_NEAR = 2.0


def _programs(half: str) -> dict[str, Case]:
    # Imported late, as --help does not need them.
    from evaluation.shadowing import programs, reserve

    return {"seen": programs.SEEN, "held": programs.HELD, "reserve": reserve.RESERVE}[half]


def measured(name: str, half: str) -> Record:
    """What `shadow` says of a program, and whether that is right."""
    import jax
    import jax.numpy as jnp

    import hloexec
    from evaluation.shadowing.truths import errors_alone

    function, arguments = _programs(half)[name](jax, jnp)
    module = hloexec.from_jax(jax.jit(function).lower(*arguments))
    found = hloexec.shadow(module, list(arguments))
    truth = errors_alone(function, arguments)
    squares: dict[str, float] = defaultdict(float)
    shares: dict[str, float] = defaultdict(float)
    for loss in found.losses:
        primitive = (loss.op_name or loss.opcode).rpartition("/")[2]
        squares[primitive] += (loss.alone or 0.0) ** 2
        shares[primitive] += loss.share
    alone = {primitive: square**0.5 for primitive, square in squares.items()}
    most = max(truth.values())
    large = {primitive: error for primitive, error in truth.items() if error >= _LARGE * most}
    first = max(alone, key=lambda primitive: alone[primitive], default="")
    return {
        "name": name,
        "is_lossy": found.is_more_than_rounding,
        "estimates": found.estimates_reason,
        "kind": found.culprit.kind if found.culprit else "",
        "culprit": found.culprit.instruction if found.culprit else "",
        "runs": found.share_runs,
        "truth": truth,
        "alone": alone,
        "shares": dict(shares),
        "first_is_right": truth.get(first, 0.0) >= most / _NEAR,
        "all_are_near": all(error / _NEAR <= alone.get(each, 0.0) <= _NEAR * error for each, error in large.items()),
    }


def _line(record: Record) -> str:
    if record["estimates"]:
        return f"{record['name']}: estimates ({record['estimates']})"

    def text(errors: dict[str, Any]) -> str:
        largest = sorted(errors.items(), key=lambda entry: -entry[1])[:4]
        return ", ".join(f"{primitive} {error:.1e}" for primitive, error in largest)

    verdict = "right" if record["first_is_right"] and record["all_are_near"] else "WRONG"
    return (
        f"{record['name']}: {verdict}; {record['kind']} in {record['culprit']}; truth {text(record['truth'])}; "
        f"alone {text(record['alone'])}; {record['runs']} runs"
    )


@click.command()
@half_option("seen", "held", "reserve")
@ONLY
@LIMIT
@JSON
def shadow(half: str, only: str, limit: int | None, target: Path | None) -> None:
    """Shares of shadow, beside runs of the program in which one primitive rounds and all others are in f64."""
    names = [name for name in _programs(half) if only in name]

    def records() -> Iterator[Record]:
        for name in spread(names, limit):
            yield measured(name, half)

    found = taken(records(), _line, target)
    lossy = [record for record in found if record["runs"] and not record["estimates"]]
    click.echo(f"measured: {share(len(lossy), len(found))}")
    click.echo(f"the first is right: {share(sum(record['first_is_right'] for record in lossy), len(lossy))}")
    click.echo(f"all large ones within a factor of 2: {share(sum(r['all_are_near'] for r in lossy), len(lossy))}")
