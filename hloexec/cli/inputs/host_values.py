"""Files for the values that a module exchanges with the host: infeeds, outfeeds, and sends and recvs per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import click

from hloexec.core.structs import define
from hloexec.core.values import Value
from hloexec.core.wording import natural_number
from hloexec.errors import InputError
from hloexec.language import literals


@define(eq=False)
class HostValues:
    """The values for a run's infeeds and recvs, and the files for its outfeeds and sends."""

    _infeed: tuple[Value, ...] | None
    _outfeed: str | None
    _received: dict[int, tuple[Value, ...]]
    _sent: dict[int, str]
    _files: dict[str, list[list[Value]]] = attrs.field(factory=dict, init=False)
    """The values that each device sends, by file."""

    def on_devices(self, count: int) -> dict[str, Any]:
        """The options of the run; every device receives the same values."""
        for path in (*self._sent.values(), *([self._outfeed] if self._outfeed else [])):
            self._files[path] = [[] for _ in range(count)]
        transfers = [
            self._received | {channel: self._files[path][device] for channel, path in self._sent.items()}
            for device in range(count)
        ]
        return {
            "infeed": None if self._infeed is None else [self._infeed] * count,
            "outfeed": None if self._outfeed is None else self._files[self._outfeed],
            "host_transfers": transfers if self._received or self._sent else None,
        }

    def save(self) -> None:
        """Write the requested files; with several devices, keys begin with the device number."""
        for path, devices in self._files.items():
            literals.save(path, tuple(map(tuple, devices)) if len(devices) > 1 else tuple(devices[0]))


def host_values(
    infeed: str | None, outfeed: str | None, received: Sequence[tuple[str, str]], sent: Sequence[tuple[str, str]]
) -> HostValues:
    """Read the values for a run; raises InputError or click.BadParameter if they cannot be used."""
    found: dict[int, tuple[Value, ...]] = {}
    files: dict[int, str] = {}
    for key, path in received:
        channel = _channel(key, found, "'--recv'")
        found[channel] = _values(path, f"recvs through channel {key}")
    for key, path in sent:
        channel = _channel(key, found | files, "'--send'")
        files[channel] = _archive(path, "'--send'")
    if outfeed is not None:
        _archive(outfeed, "'--outfeed'")
    return HostValues(None if infeed is None else _values(infeed, "infeeds"), outfeed, found, files)


def _values(path: str, what: str) -> tuple[Value, ...]:
    """The values in a file, in order."""
    values = literals.load(path)
    if not isinstance(values, tuple):
        raise InputError(f"{path!r} must hold the values for {what} under the keys 0, 1, … (0.0, 0.1, … for a tuple)")
    return values


def _channel(key: str, known: Mapping[int, Any], option: str) -> int:
    channel = natural_number(key)
    if channel is None:
        raise click.BadParameter(f"{key!r} is not a channel number", param_hint=option)
    if channel in known:
        raise click.BadParameter(f"channel {channel} is given twice", param_hint=option)
    return channel


def _archive(path: str, option: str) -> str:
    if not path.lower().endswith(".npz"):
        raise click.BadParameter(
            f"{path!r} must be a .npz file, because there may be several values", param_hint=option
        )
    return path
