"""What the machine can do: bytes per second of a triad, and FLOPs per second of a matrix product, on all cores.

Both are measured with NumPy, with the BLAS kernels of hloexec's command line, and with XLA:CPU, and the better one
counts: a bound is of use only if nothing is beyond it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.contestants.serving import serve

_TRIAD_ELEMENTS = 1 << 25
"""Of each of three arrays of f32: beyond any cache."""
_BLOCK = 1 << 15
_PRODUCT_SIDE = 3072
_TURNS = 9


def main() -> None:
    from hloexec.cli.process import restart_with_better_kernels

    restart_with_better_kernels()
    from benchmarks.contestants.xla import import_jax

    import_jax(1)
    rates = {
        "bytes_per_second": max(_best(run) for run in (_numpy_triad(), _jax_triad())) * 12 * _TRIAD_ELEMENTS,
        "flops_per_second": max(_best(run) for run in (_numpy_product(), _jax_product())) * 2 * _PRODUCT_SIDE**3,
    }
    serve(rates, {})


def _best(run: Callable[[], object]) -> float:
    """How often a second it runs, at best."""
    seconds = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return 1 / min(seconds)


def _numpy_triad() -> Callable[[], object]:
    """a = b + 3 c, block by block, so that 3 c stays in the cache; reading a before it is written does not count."""
    import numpy as np

    a, b, c = (np.full(_TRIAD_ELEMENTS, value, np.float32) for value in (0, 1, 2))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ThreadPoolExecutor(cores)

    def part(number: int) -> None:
        product = np.empty(_BLOCK, np.float32)
        for start in range(number * _BLOCK, _TRIAD_ELEMENTS, cores * _BLOCK):
            block = slice(start, start + _BLOCK)
            np.multiply(c[block], np.float32(3), out=product)
            np.add(b[block], product, out=a[block])

    return lambda: list(pool.map(part, range(cores)))


def _jax_triad() -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    triad = jax.jit(lambda a, b, c: b + 3 * c, donate_argnums=0, keep_unused=True)
    held = [jnp.full(_TRIAD_ELEMENTS, value, jnp.float32) for value in (0, 1, 2)]

    def run() -> None:
        held[0] = jax.block_until_ready(triad(*held))

    return run


def _numpy_product() -> Callable[[], object]:
    import numpy as np

    left, right = _factors()
    out = np.empty_like(left)
    return lambda: np.matmul(left, right, out=out)


def _jax_product() -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    product = jax.jit(jnp.matmul)
    left, right = map(jnp.asarray, _factors())
    return lambda: jax.block_until_ready(product(left, right))


def _factors() -> list[Any]:
    import numpy as np

    generator = np.random.default_rng(0)
    return [generator.standard_normal((_PRODUCT_SIDE, _PRODUCT_SIDE), np.float32) for _ in range(2)]


if __name__ == "__main__":
    main()
