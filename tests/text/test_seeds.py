"""Real dumps: counts, round trips, and XLA's opinion of what is printed."""

import warnings
from pathlib import Path

import pytest

from hloexec.core import ir
from hloexec.errors import HloWarning
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from tests.text import oracle
from tests.text.seeds import LARGE_SEEDS, SEEDS, seed_path

_parsed: dict[str, tuple[str, ir.Module]] = {}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE_SEEDS)) for name in SEEDS])
def seed(request: pytest.FixtureRequest) -> tuple[str, str, ir.Module]:
    """Name, text and module of a dump, parsed strictly and without a warning."""
    name = request.param
    path = seed_path(name)
    if path is None:
        pytest.skip(f"{name} is not here; HLOEXEC_SEEDS names the folder of dumps")
    return (name, *_load(path))


def _load(path: Path) -> tuple[str, ir.Module]:
    if path.name not in _parsed:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("error", HloWarning)
            _parsed[path.name] = text, parse(text, filename=path.name, strict=True)
    return _parsed[path.name]


def test_every_computation_and_instruction_is_there(seed: tuple[str, str, ir.Module]) -> None:
    name, _, module = seed
    assert (len(module.computations), module.instruction_count) == SEEDS[name]


def test_dump_is_a_well_formed_program(seed: tuple[str, str, ir.Module]) -> None:
    _, _, module = seed
    assert verify(module) == []


def test_dump_survives_printing(seed: tuple[str, str, ir.Module]) -> None:
    _, _, module = seed
    assert parse(format_module(module), strict=True) == module


def test_printed_dump_is_the_same_module_to_xla(seed: tuple[str, str, ir.Module]) -> None:
    _, text, module = seed
    assert oracle.canonical_text(format_module(module)) == oracle.canonical_text(oracle.with_signed_zeros(text))


def test_dump_printed_by_xla_is_the_same_module_to_xla(seed: tuple[str, str, ir.Module]) -> None:
    _, text, _ = seed
    printed = oracle.with_signed_zeros(oracle.canonical_text(text))
    assert oracle.canonical_text(format_module(parse(printed))) == oracle.canonical_text(printed)


def test_spans_cover_the_instructions_in_order(seed: tuple[str, str, ir.Module]) -> None:
    _, text, module = seed
    for computation in module:
        for instruction in computation:
            assert instruction.span is not None
            written = text[instruction.span.start : instruction.span.end].rstrip()
            assert instruction.name in written
            assert instruction.opcode in written
            assert "\n" not in written


@pytest.mark.slow_cases(*LARGE_SEEDS[1:])
@pytest.mark.parametrize("name", LARGE_SEEDS)
def test_large_dumps_parse_and_verify(name: str) -> None:
    path = seed_path(name)
    if path is None:
        pytest.skip(f"{name} is not here; HLOEXEC_SEEDS names the folder of dumps")
    text = path.read_text(encoding="utf-8")
    module = parse(text)
    assert verify(module) == []
    assert (len(module.computations), module.instruction_count) == SEEDS[name]
