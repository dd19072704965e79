"""What the policies cost: the programs under each, beside `reference`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.timing import side_by_side

POLICIES = ("exact", "xla-cpu", "tf32", "bf16")


def rows(names: Sequence[str] = (), *, scale: float = 0.1, turns: int = 3) -> Iterator[dict[str, object]]:
    """One row per program, all or those named: milliseconds under `reference`, and how many times as long others take.

    Warm runs in turns, within one process. `exact` refuses library calls.
    """
    import hloexec
    from benchmarks.programs import PROGRAMS, hlo_text

    for name in names or PROGRAMS:
        module = hloexec.parse(hlo_text(name, scale))
        inputs = hloexec.random_inputs(module)
        runs = {policy: partial(hloexec.run, module, *inputs, numerics=policy) for policy in ("reference", *POLICIES)}
        for policy in POLICIES:
            try:
                runs[policy]()
            except hloexec.UnsupportedError:
                del runs[policy]
        timings = side_by_side(runs, turns=turns)
        reference = timings["reference"]
        yield {
            "program": name,
            "reference ms": f"{reference.best * 1e3:.2f}",
            **{
                policy: f"{timings[policy].ratio(reference)[0]:.2f}" if policy in timings else "refused"
                for policy in POLICIES
            },
        }
