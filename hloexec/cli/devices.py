"""Modules for several devices: inputs per device, and table rows that name the devices that hold a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.core.wording import on_devices

if TYPE_CHECKING:
    from hloexec.analysis.numerics.leaves import LeafStatistics
    from hloexec.core.values import Value
    from hloexec.engine.devices.topology import Topology


def inputs_per_device(
    topology: Topology,
    files: Sequence[str],
    different: bool,
    seed: int,
    make: Callable[[str | None, int], list[Value]],
) -> list[list[Value]]:
    """One list of inputs for all devices, or one per device: from one file each, or from different seeds.

    `make` returns the inputs of one device for a file (or None) and a seed.
    """
    if len(files) not in (0, 1, topology.count):
        raise click.UsageError(
            f"--inputs must be given once for all devices, or once for each of the {topology.count}; there are "
            f"{len(files)}"
        )
    if len(files) > 1:
        return [make(file, seed) for file in files]
    file = files[0] if files else None
    return [make(file, seed + device) for device in range(topology.count if different else 1)]


def labelled_leaves(
    values: Sequence[Value], labels: Callable[[tuple[int, ...]], str]
) -> list[tuple[str, LeafStatistics]]:
    """One row per leaf and class of devices that hold the same array, given one value per device.

    The label names the devices if there are several classes.
    """
    from hloexec.analysis.numerics.leaves import statistics

    rows = []
    for label, index, value in labelled_values(values, labels):
        (leaf,) = statistics(value)
        rows.append((label, attrs.evolve(leaf, index=index)))
    return rows


def labelled_values(
    values: Sequence[Value], labels: Callable[[tuple[int, ...]], str]
) -> Iterator[tuple[str, tuple[int, ...], Value]]:
    """The label, tuple index and value of each leaf, for each class of devices that hold the same array."""
    from hloexec.core.values import leaves

    leaves_by_device = [dict(leaves(value)) for value in values]
    for index, holders in _classes(leaves_by_device):
        for devices in holders:
            label = labels(index)
            if len(holders) > 1:
                label += on_devices(devices)
            yield label, index, leaves_by_device[devices[0]][index]


def _classes(
    leaves_by_device: Sequence[dict[tuple[int, ...], Any]],
) -> Iterator[tuple[tuple[int, ...], list[list[int]]]]:
    """For each leaf, the devices grouped by the array that they hold."""
    for index in leaves_by_device[0]:
        classes: dict[int, list[int]] = {}
        for device, its_leaves in enumerate(leaves_by_device):
            classes.setdefault(id(its_leaves[index]), []).append(device)
        yield index, list(classes.values())
