"""Parts of modules in which devices take different ways; a device knows its number through its one input."""

from typing import Any

import numpy as np

import hloexec

HANDLE = "(s32[], u32[], token[])"
"""What send and recv give."""

ADD = """add {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] add(a, b)
}
"""


def run(text: str, devices: int, *, replicas: bool = True, **options: Any) -> list[Any]:
    """The result per device of a module whose one parameter is the device's number, s32[]."""
    header = f"HloModule m, {'replica_count' if replicas else 'num_partitions'}={devices}\n"
    inputs = [[np.int32(device)] for device in range(devices)]
    return hloexec.run_devices(hloexec.parse(header + text), inputs, **options)


def numbers(outputs: list[Any]) -> list[int]:
    return [int(output) for output in outputs]


def summed(groups: str, name: str = "total", operand: str = "x", channel: str = "") -> str:
    return f"{name} = s32[] all-reduce({operand}), {channel}replica_groups={groups}, to_apply=add"


def branch(name: str, root: str, shape: str = "s32[]") -> str:
    return f"{name} {{\n  x = {shape} parameter(0)\n  {root}\n}}\n"


def chosen(limit: int, left: str, right: str) -> str:
    """Entry: devices whose number is below `limit` go left."""
    return f"""ENTRY main {{
  x = s32[] parameter(0)
  limit = s32[] constant({limit})
  left = pred[] compare(x, limit), direction=LT
  ROOT out = s32[] conditional(left, x, x), true_computation={left}, false_computation={right}
}}
"""


def looped(body: str, times: str, after: str = "ROOT out = s32[] get-tuple-element(done, 1)") -> str:
    """A while loop whose state is (iterations left, value); `times` gives the iterations from x, `body` the new value y
    from the value v.
    """
    after = after.replace("(done, 1)", "(done), index=1")
    return f"""body {{
  state = (s32[], s32[]) parameter(0)
  left = s32[] get-tuple-element(state), index=0
  v = s32[] get-tuple-element(state), index=1
  one = s32[] constant(1)
  rest = s32[] subtract(left, one)
  {body}
  ROOT next = (s32[], s32[]) tuple(rest, y)
}}
condition {{
  state = (s32[], s32[]) parameter(0)
  left = s32[] get-tuple-element(state), index=0
  zero = s32[] constant(0)
  ROOT more = pred[] compare(left, zero), direction=GT
}}
ENTRY main {{
  x = s32[] parameter(0)
  {times}
  start = (s32[], s32[]) tuple(times, x)
  done = (s32[], s32[]) while(start), condition=condition, body=body
  {after}
}}
"""
