"""The host's side of a run: sources of infeeds and recvs, and destinations of outfeeds and sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.arguments import wrong
from hloexec.core.ir import Shape, TupleShape
from hloexec.core.structs import define
from hloexec.core.values import TOKEN
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import FromHost, ToHost
from hloexec.engine.devices.varying import of_position, of_positions
from hloexec.engine.exec.arguments import value_leaves
from hloexec.engine.plan.kernels import leaves, unflatten
from hloexec.engine.plan.steps import Plan, Step
from hloexec.errors import EvaluationError, InputError, warn

CONTEXT = np.zeros((), np.uint32)
"""The context of a started transfer, which means nothing here."""
CONTEXT.flags.writeable = False


Source: TypeAlias = Iterable[Any] | Callable[[], Any]
"""The values that a device takes, in the order in which it asks: an iterable, or a function that gives the next one."""

Sink: TypeAlias = list[Any] | Callable[[Any], Any]
"""Where the values that a device sends go: a list to append to, or a function of one value."""


@define(eq=False)
class _Values:
    """A source in use."""

    next_value: Callable[[], Any]
    taken: int = 0


class Host:
    """The host that a run exchanges values with; created by `connect`."""

    def __init__(self, sources: Mapping[FromHost, Callable[[], Any]], sinks: Mapping[ToHost, Callable[[Any], Any]]):
        self._sources = {transfer: _Values(next_value) for transfer, next_value in sources.items()}
        self._sinks = dict(sinks)

    def take(self, transfer: FromHost, shape: Shape) -> list[Any]:
        """The leaves of the next value, which must be of `shape`: arrays without other references, and tokens."""
        values = self._sources[transfer]
        name = _name(transfer)
        try:
            value = values.next_value()
        except StopIteration:
            raise InputError(
                f"{name} has no value left; {values.taken} were given, and another {shape} is expected"
            ) from None
        leaves = value_leaves(value, shape, f"value {values.taken} of {name}")
        values.taken += 1
        # The caller may reuse the same array for the next value.
        return [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]

    def give(self, transfer: ToHost, value: object) -> None:
        """Send a value to the host."""
        self._sinks[transfer](value)


def connect(
    plan: Plan, infeed: Source | None, outfeed: Sink | None, host_transfers: Mapping[int, Source | Sink] | None
) -> Host:
    """The host for a run of `plan`.

    Raises InputError if the plan needs values that are not given, or something is given that it does not use; warns
    HloWarning if it sends values that are not received.
    """
    if host_transfers is not None and not isinstance(host_transfers, Mapping):
        raise wrong("host_transfers", "a mapping from channels to what they carry", host_transfers)
    if outfeed is not None and not isinstance(outfeed, list) and not callable(outfeed):
        raise wrong("outfeed", "a list, to which values are appended, or a function of a value", outfeed)
    parties = dict(host_transfers or {})
    sources: dict[FromHost, Callable[[], Any]] = {}
    sinks: dict[ToHost, Callable[[Any], Any]] = {}
    dropped: list[str] = []
    for transfer, step in plan.host_transfers.items():
        where = f"%{step.instruction.name} in computation {step.scope.computation.name}"
        if isinstance(transfer, FromHost):
            party = infeed if transfer.channel is None else parties.get(transfer.channel)
            if party is None:
                raise InputError(
                    f"{where} takes values of shape {data_shape(step)} from {_name(transfer)}; give them with "
                    f"{_option(transfer, '[…]', ', values or a function that gives the next one')}"
                )
            sources[transfer] = _draw(party, transfer)
        else:
            party = outfeed if transfer.channel is None else parties.get(transfer.channel)
            if party is None:
                dropped.append(f"{_name(transfer)} ({where}; take them with {_option(transfer, '[]')})")
            sinks[transfer] = _put(party, transfer)
    _refuse_surplus(plan, infeed, parties)
    if dropped:
        warn(f"values that the module sends to its host are discarded: {', '.join(dropped)}")
    return Host(sources, sinks)


def data_shape(step: Step) -> Shape:
    """The shape of what a step takes from the host: its value without the token."""
    assert isinstance(step.instruction.shape, TupleShape)
    return step.instruction.shape.elements[0]


def _refuse_surplus(plan: Plan, infeed: Source | None, parties: Mapping[int, Any]) -> None:
    channels = sorted({transfer.channel for transfer in plan.host_transfers if transfer.channel is not None})
    for channel in parties:
        if channel not in channels or isinstance(channel, bool):
            there = f"the channels are {', '.join(map(str, channels))}" if channels else "it has no such transfers"
            raise InputError(
                f"{argument('host_transfers')} names channel {channel!r}, through which {plan.computation.name} "
                f"exchanges nothing with its host; {there}"
            )
    if infeed is not None and FromHost(None) not in plan.host_transfers:
        raise InputError(f"values for the infeed were given, but {plan.computation.name} takes none")


def _draw(party: object, transfer: FromHost) -> Callable[[], Any]:
    if callable(party):
        return party
    if isinstance(party, Iterable) and not isinstance(party, (str, bytes, Mapping)):
        return iter(party).__next__
    raise InputError(
        f"{_name(transfer)} takes its values from an iterable or a function without arguments, but "
        f"{_option(transfer, '…')} is a {_type(party)}"
    )


def _put(party: object, transfer: ToHost) -> Callable[[Any], Any]:
    if party is None:
        return _drop
    if callable(party):
        return party
    append: object = getattr(party, "append", None)
    if callable(append):
        return append
    raise InputError(
        f"{_name(transfer)} puts its values into a list or a function of one argument, but {_option(transfer, '…')} "
        f"is a {_type(party)}"
    )


def _drop(_: object) -> None:
    """Nobody takes the value."""


def _name(transfer: FromHost | ToHost) -> str:
    if transfer.channel is not None:
        return f"channel {transfer.channel}"
    return "the infeed" if isinstance(transfer, FromHost) else "the outfeed"


def _option(transfer: FromHost | ToHost, value: str, more: str = "") -> str:
    is_source, channel = isinstance(transfer, FromHost), transfer.channel
    if channel is not None:
        text = f"host_transfers={{{channel}: {value}}}{more}"
        return argument("recv" if is_source else "send", channel, text)
    name = "infeed" if is_source else "outfeed"
    return argument(name, value, f"{name}={value}{more}")


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def exchanged(hosts: Sequence[Host], devices: Sequence[int], step: Step, slots: Sequence[object]) -> list[Any]:
    """Take a value from each device's host, or hand one over; returns the leaves of the step's value."""
    flow = step.flow
    if not hosts:
        raise EvaluationError("there is no host to exchange values with")
    if isinstance(flow, FromHost):
        taken = [hosts[device].take(flow, data_shape(step)) for device in devices]
        return [*map(of_positions, zip(*taken, strict=True)), TOKEN]
    assert isinstance(flow, ToHost)
    data = step.operand_trees[0]
    for position, device in enumerate(devices):
        values = {slot: _copied(of_position(slots[slot], position)) for slot in leaves(data)}
        hosts[device].give(flow, unflatten(data, values))
    if flow.channel is None:
        return [TOKEN]
    return [*(slots[slot] for slot in leaves(data)), CONTEXT, TOKEN]


def _copied(value: object) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value
