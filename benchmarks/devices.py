"""How cost grows with the number of devices: not at all where they agree, linearly where each has inputs of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.timing import side_by_side

_COUNTS = (1, 2, 4, 8, 16, 32, 64)

_PROGRAM = """\
HloModule m, replica_count={count}

sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}}

ENTRY e {{
  x = f32[512,512] parameter(0)
  product = f32[512,512] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  bounded = f32[512,512] tanh(product)
  total = f32[512,512] all-reduce(bounded), replica_groups={{}}, to_apply=sum
  ROOT result = f32[512,512] add(total, x)
}}
"""


def rows(turns: int = 7) -> Iterator[dict[str, object]]:
    """One row per number of devices: a dot, a tanh and an all-reduce of 512 × 512, least of the turns."""
    import hloexec

    generator = np.random.default_rng(0)
    values = [generator.normal(size=(512, 512)).astype(np.float32) / 16 for _ in range(max(_COUNTS))]
    for count in _COUNTS:
        module = hloexec.parse(_PROGRAM.format(count=count))
        timings = side_by_side(
            {
                "equal": lambda m=module, n=count: hloexec.run_devices(m, [[values[0]]] * n),
                "different": lambda m=module, n=count: hloexec.run_devices(m, [[value] for value in values[:n]]),
            },
            turns=turns,
        )
        equal, different = timings["equal"].best * 1e3, timings["different"].best * 1e3
        yield {
            "devices": count,
            "all equal ms": f"{equal:.2f}",
            "all different ms": f"{different:.2f}",
            "all different, ms a device": f"{different / count:.2f}",
        }
