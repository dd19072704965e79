"""Training steps of whole networks run on hloexec and give what XLA gives."""

from functools import cache
from typing import Any

import pytest

from tests.jax_functions import comparing
from tests.jax_functions.cases import Case
from tests.models.programs import PROGRAMS

# Errors of many roundings mostly cancel on their way through a network: eight that do not are enough for all of these.
ROUNDINGS = 8
TYPES = ("f32", "bf16")


@cache
def _case(name: str) -> Case:
    function, arguments = PROGRAMS[name]()
    return Case(name, function, arguments, roundings=ROUNDINGS)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_training_step_agrees_with_xla_and_survives_printing(name: str, type_name: str) -> None:
    comparing.assert_runs_as_on_xla(_case(name), type_name)
    if type_name == "f32":
        comparing.assert_text_round_trips(_case(name), type_name)


@pytest.mark.slow
def test_programs_have_control_flow_and_indexing() -> None:
    """What the programs are there for: if a new JAX lowers them without, they test less than they say."""
    import hloexec

    opcodes: set[Any] = set()
    for make in PROGRAMS.values():
        function, arguments = make()
        module = hloexec.from_jax(function, *arguments)
        opcodes |= {instruction.opcode for computation in module for instruction in computation}
    assert opcodes >= {
        "while",
        "scatter",
        "gather",
        "sort",
        "convolution",
        "dot",
        "reduce-window",
        "select-and-scatter",
    }
