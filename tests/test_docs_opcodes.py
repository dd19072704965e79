"""The examples of opcodes in docs/opcodes: each opcode has one, and it gives what it says, on hloexec and on XLA:CPU."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import hloexec
from conformance.xla import COMPILED_SOONEST, XlaError, compile_hlo
from docs.hooks.opcode_examples import FOLDER, Example, read_example, read_examples
from hloexec.ops import LATEST
from hloexec.ops.registry import OPCODES
from hloexec.ops.traits import Rounding

Leaf: TypeAlias = np.ndarray[Any, Any]

EXAMPLES = {example.opcode: example for example in read_examples()}
REFUSED_BY_XLA = {
    *"acos acosh asin asinh atanh cosh sinh".split(),  # XLA:CPU has them in narrow types only
    *"async-start async-update async-done copy-start copy-done send send-done recv recv-done".split(),
    *"bitcast collective-broadcast mulhi ragged-dot scaled-dot".split(),
    *LATEST,  # which StableHLO does not have
}
"""The opcodes whose examples XLA:CPU, which jaxlib takes StableHLO to, does not compile."""
NOT_FOR_XLA = {
    "infeed": "waits for a host that feeds it",
    "outfeed": "waits for a host that takes it",
    "ragged-all-to-all": "ends the process",
    "rng-get-and-update-state": "StableHLO has no control predecessors: XLA draws once",
}
FUNCTION_ULPS = 8
"""How far XLA:CPU's functions of f32 may be off, in units in the last place."""


def _leaves(value: Any) -> list[Leaf]:
    if isinstance(value, tuple):
        return [leaf for element in value for leaf in _leaves(element)]
    return [np.asarray(value)]


def _literal(shape: object, literal: str) -> Any:
    return hloexec.run(hloexec.parse(f"ENTRY main {{\n  ROOT value = {shape} constant({literal})\n}}\n"))


class _Program:
    """A parsed example, with the values that it states."""

    def __init__(self, example: Example) -> None:
        self.example = example
        self.module = hloexec.parse(example.module, strict=True)
        hloexec.verify(self.module, strict=True)
        self.devices = self.module.replica_count * self.module.num_partitions
        entry = self.module.entry
        self.inputs = [
            [self.stated(parameter.name, device, parameter.shape) for parameter in entry.parameters]
            for device in range(self.devices)
        ]
        self.to_host = self.exchanged("outfeed", lambda outfeed: outfeed.attributes.outfeed_shape)
        self.from_host = self.exchanged("infeed", lambda infeed: infeed.shape.elements[0])
        self.results = [self.stated("result", device, entry.root.shape) for device in range(self.devices)]

    def stated(self, name: str, device: int, shape: object) -> Any:
        literals = [v.literal for v in self.example.values if v.name == name and v.device in (None, device)]
        if name == "result" and self.to_host and not literals:
            return None
        assert len(literals) == 1, f"{self.example.path.name} states {name} on device {device} {len(literals)} times"
        return _literal(shape, literals[0])

    def exchanged(self, opcode: str, shape_of: Callable[[Any], object]) -> list[Any]:
        """What infeeds take, or outfeeds hand over."""
        literals = [v.literal for v in self.example.values if v.name == opcode]
        instructions = [i for i in self.module.entry.instructions if i.opcode == opcode]
        return [_literal(shape_of(i), literal) for i, literal in zip(instructions, literals, strict=True)]


@pytest.fixture(params=sorted(EXAMPLES), scope="module")
def program(request: pytest.FixtureRequest) -> _Program:
    return _Program(EXAMPLES[request.param])


def test_each_opcode_has_one_example() -> None:
    files = sorted(path.stem for path in FOLDER.glob("*/*.hlo"))
    assert {*files} ^ {*OPCODES} == set(), "docs/opcodes has a file for each opcode"
    assert files == sorted(OPCODES)


def test_each_example_is_on_a_page_and_shows_its_opcode() -> None:
    for example in EXAMPLES.values():
        assert (FOLDER / f"{example.page}.md").is_file(), example.path
        module = hloexec.parse(example.module)
        assert example.opcode in {i.opcode for c in module.computations for i in c.instructions}, example.path


def test_values_are_those_of_parameters_or_of_the_run(program: _Program) -> None:
    parameters = {parameter.name for parameter in program.module.entry.parameters}
    assert {value.name for value in program.example.values} - parameters <= {"result", "infeed", "outfeed"}


@pytest.mark.parametrize("numerics", ["exact", "reference"])
def test_examples_give_what_they_say(program: _Program, numerics: str) -> None:
    handed_over: list[Any] = []
    outputs = hloexec.run_devices(
        program.module,
        program.inputs,
        numerics=numerics,
        infeed=[program.from_host] if program.from_host else None,
        outfeed=[handed_over] if program.to_host else None,
    )
    ulps = 4 if numerics == "reference" and OPCODES[program.example.opcode].rounding is Rounding.FUNCTION else 0
    for output, result in zip(outputs, program.results, strict=True):
        if result is not None:
            _assert_same(_leaves(output), _leaves(result), ulps)
    _assert_same(handed_over, program.to_host, 0)


def _assert_same(actual: list[Leaf], expected: list[Leaf], ulps: int) -> None:
    """The same types, shapes and bits, but that floats may be some ULPs off, and one NaN is as good as another."""
    assert [(leaf.dtype, leaf.shape) for leaf in actual] == [(leaf.dtype, leaf.shape) for leaf in expected]
    for got, wanted in zip(actual, expected, strict=True):
        same = got == wanted
        if got.dtype == np.float32:
            same = (same & (np.signbit(got) == np.signbit(wanted))) | (np.isnan(got) & np.isnan(wanted))
            with np.errstate(invalid="ignore"):
                same |= (
                    np.isfinite(wanted) & (wanted != 0) & (np.abs(got - wanted) <= ulps * np.spacing(np.abs(wanted)))
                )
        assert same.all(), f"{got} is not {wanted}"


@pytest.mark.sampled(4)
def test_xla_gives_what_examples_say(program: _Program) -> None:
    name = program.example.opcode
    if name in NOT_FOR_XLA:
        pytest.skip(NOT_FOR_XLA[name])
    try:
        # XLA's older emitters, which make code sooner, compute some functions in other ways.
        flags = {"xla_backend_optimization_level": 0} if OPCODES[name].is_elementwise else COMPILED_SOONEST
        compiled = compile_hlo(program.example.module, xla_flags=flags)
        outputs = compiled.run_devices([_leaves(tuple(values)) for values in program.inputs])
    except XlaError as error:
        assert name in REFUSED_BY_XLA, error
        pytest.skip(str(error).partition("\n")[0])
    ulps = FUNCTION_ULPS if OPCODES[name].rounding is Rounding.FUNCTION else 0
    for output, result in zip(outputs, program.results, strict=True):
        _assert_same([np.asarray(leaf) for leaf in output], _leaves(result), ulps)


@pytest.mark.parametrize("comment", ["// says\n// x = 1\n", "// says\n//\n// x: 1\n"])
def test_comments_that_are_wrong_are_refused(comment: str, tmp_path: Any) -> None:
    path = tmp_path / "add.hlo"
    path.write_text(f"{comment}HloModule m\n")
    with pytest.raises(ValueError, match=r"comment lacks|not of the form"):
        read_example(path)
