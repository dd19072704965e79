"""Hypothesis draws programs of collectives, together with what the model says that they give.

A program is a chain of steps: each applies one collective (synchronous, split in start and done, or wrapped in
async-start/update/done) or one local operation to values that came before. Every value is kept on every device, so
that the machine's bookkeeping of which devices agree is tested along with what moves where.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.devices import collectives_model as model
from tests.devices.program import LARGEST, TYPES, Draw, Options, Program, any_bits, small_values
from tests.devices.steps import REDUCERS, STEPS


@st.composite
def programs(
    draw: Draw,
    *,
    device_counts: Any = None,
    steps: Sequence[str] | None = None,
    forms: Sequence[str] = ("sync", "start", "async", "update"),
    group_texts: Sequence[str] = ("explicit", "iota", "mesh", "empty"),
    elements: Sequence[str] = tuple(TYPES),
    reducers: Sequence[str] | None = None,
    sizes: Sequence[int] = (0, 1, 2, 3, 4, 6, 8, 12, 16),
    largest_rank: int = 4,
    modes: Sequence[str] = (model.CROSS_REPLICA, model.CROSS_PARTITION, model.CROSS_BOTH, model.FLATTENED),
    variadic: bool = True,
    for_xla: bool = False,
    manual: bool = False,
) -> Program:
    """A program of one to four steps on one or two parameters; `for_xla` leaves out what XLA:CPU does not have."""
    if device_counts is None:
        device_counts = st.integers(1, 16).flatmap(lambda r: st.tuples(st.just(r), st.integers(1, 16 // r)))
    replicas, partitions = draw(device_counts)
    program = Program(replicas, partitions, manual=manual)
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for _ in range(draw(st.integers(1, 2))):
        element = draw(st.sampled_from(elements))
        shape = draw(
            st.lists(st.sampled_from(sizes), max_size=largest_rank).filter(lambda dims: prod(dims) <= LARGEST // 8)
        )
        # XLA:CPU gathers 16-bit floats by way of f32, which changes signalling NaNs.
        plain = for_xla and element in ("f16", "bf16")
        fill = small_values if plain else draw(st.sampled_from([small_values, small_values, any_bits]))
        # Some devices hold the same value, so that there are classes of devices and not only single ones.
        distinct = draw(st.integers(1, program.devices))
        arrays = [fill(generator, element, shape) for _ in range(distinct)]
        parameter = program.parameter(element, [arrays[device % distinct] for device in range(program.devices)])
        program.values.append(parameter)
    options = Options(
        draw, generator, forms, group_texts, modes, tuple(reducers or REDUCERS), 2 if variadic else 1, for_xla
    )
    for _ in range(draw(st.integers(1, 4))):
        step = draw(st.sampled_from(tuple(steps or STEPS)))
        STEPS[step](program, options)
    return program
