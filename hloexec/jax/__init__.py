"""From a JAX program, on the hardware where it runs: `import hloexec.jax as hx`.

    fast = hx.jit(step, numerics="tf32")         # the same function in hloexec, with another machine's rounding
    step = hx.check(step)                        # names the instruction, line, iteration and device of the first NaN
    with hx.capture("captured", every=100): ...  # keeps modules, inputs and results of this hardware
    hx.compare_sharded(step, mesh, *arguments)   # one device against many

Needs JAX: `pip install 'hloexec[jax]'`.
"""

from hloexec.jax.capturing import Captured, capture
from hloexec.jax.checking import Checked, NonFiniteError, check
from hloexec.jax.jitting import Jitted, jit
from hloexec.jax.lowering import Program
from hloexec.jax.reverse import to_jax
from hloexec.jax.sharded import compare_sharded

__all__ = [
    "Captured",
    "Checked",
    "Jitted",
    "NonFiniteError",
    "Program",
    "capture",
    "check",
    "compare_sharded",
    "jit",
    "to_jax",
]
