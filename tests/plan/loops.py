"""Loops as HLO text, made of the instructions that matter to a test."""

from collections.abc import Mapping

_REDUCERS = "".join(
    f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n  ROOT r = {kind}[] {opcode}(a, b)\n}}\n"
    for name, kind, opcode in (("sum", "f32", "add"), ("largest", "f32", "maximum"))
)


def loop(
    carried: Mapping[str, str],
    body: str,
    following: str,
    *,
    trips: int = 40,
    counter: str = "s32",
    first: int = 0,
    pace: int = 1,
    direction: str = "LT",
    condition: str = "",
    results: str | None = None,
    entry: str = "",
    start: str | None = None,
    computations: str = "",
) -> str:
    """A module whose entry runs a loop on its parameters.

    `carried` has the names and shapes of what the loop carries besides its counter `i`; body and condition know them
    by these names. `body` are further instructions, and `following` names the values of the next iteration. The loop
    goes on while `i` compares with `trips` as `direction` says and, where `condition` gives one, `more` is true.
    `entry` are instructions before the loop, on the parameters, and `start` names the values that it begins with (the
    parameters); `results` names what the entry gives (all of it). `computations` are those that the body calls.
    """
    state = ", ".join([f"{counter}[]", *carried.values()])
    unpack = f"  state = ({state}) parameter(0)\n  i = {counter}[] get-tuple-element(state), index=0\n"
    for number, (name, shape) in enumerate(carried.items(), 1):
        unpack += f"  {name} = {shape} get-tuple-element(state), index={number}\n"
    test = f"  end = {counter}[] constant({trips})\n"
    compare = f"pred[] compare(i, end), direction={direction}"
    test += (
        f"  {condition}\n  goes = {compare}\n  ROOT on = pred[] and(goes, more)"
        if condition
        else f"  ROOT on = {compare}"
    )
    given = "".join(f"  {name} = {shape} parameter({number})\n" for number, (name, shape) in enumerate(carried.items()))
    names = list(carried) if results is None else results.split(", ")
    places = {name: number for number, name in enumerate(carried, 1)}
    out = "".join(f"  out_{name} = {carried[name]} get-tuple-element(end), index={places[name]}\n" for name in names)
    shapes = ", ".join(carried[name] for name in names)
    return (
        f"HloModule loop\n{_REDUCERS}{computations}"
        f"body {{\n{unpack}  pace = {counter}[] constant({pace})\n  next_i = {counter}[] add(i, pace)\n{body}\n"
        f"  ROOT next = ({state}) tuple(next_i, {following})\n}}\n"
        f"condition {{\n{unpack}{test}\n}}\n"
        f"ENTRY main {{\n{given}{entry}\n  first = {counter}[] constant({first})\n"
        f"  start = ({state}) tuple(first, {start or ', '.join(carried)})\n"
        f"  end = ({state}) while(start), condition=condition, body=body\n{out}"
        f"  ROOT result = ({shapes}) tuple({', '.join(f'out_{name}' for name in names)})\n}}\n"
    )
