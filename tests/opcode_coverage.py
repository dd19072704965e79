"""What the quick tests execute: opcodes by element type, library calls, commands, and pages of the documentation.

`pytest -p tests.opcode_coverage --executed FILE` adds to a file what tests that are not slow execute in the process of
pytest, also where they run beside slow ones, by several workers or folder by folder. `python -m tests.opcode_coverage
FILE` says what is missing. An instruction counts where a run that reaches it has finished, not where it is dead code,
and counts in a branch or a loop whether that was entered or not.
"""

from __future__ import annotations

import fcntl
import sys
import weakref
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hloexec
import hloexec.ops  # fills the registry
from conformance.cell import TYPES, module_text
from conformance.cells import GENERATORS
from conformance.matrix import examples_of
from hloexec import cli
from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, leaf_shapes
from hloexec.engine.exec import running
from hloexec.engine.options import Options
from hloexec.language.element_types import accepted_element_types
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import CUSTOM_CALLS, OPCODES, Role
from hloexec.ops.traits import Probe
from tests.docs import PAGES, ROOT, commands_of
from tests.families import Family, family_of
from tests.ops import evaluation

OPCODE, CALL, COMMAND, PAGE = "opcode", "library call", "command", "page"


def _leaves(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
    """The element types of the arrays in the operands and then in the result."""
    shapes = [*(operand.shape for operand in computation.operands_of(instruction)), instruction.shape]
    leaves = [leaf for shape in shapes for _, leaf in leaf_shapes(shape) if isinstance(leaf, ArrayShape)]
    return tuple(leaf.element_type.name for leaf in leaves if leaf.element_type.is_array)


def _probe_leaves(probe: Probe, element_type: ElementType) -> tuple[str, ...]:
    entry = hloexec.parse(probe.text(element_type)).entry
    return _leaves(entry, entry.root)


@cache
def _deciding_leaf(opcode: str) -> int | None:
    """Which leaf has the element type that an opcode's rule accepts or not; None where it has no rule."""
    entry = OPCODES[opcode]
    if accepted_element_types(entry) is None:
        return None
    probe = entry.traits.probe
    if probe is None:
        return 0
    pairs = [(element_type.name, _probe_leaves(probe, element_type)) for element_type in accepted(opcode)]
    shortest = min(len(leaves) for _, leaves in pairs)
    return next((leaf for leaf in range(shortest) if all(leaves[leaf] == name for name, leaves in pairs)), 0)


def own_types(computation: Computation, instruction: Instruction) -> Iterable[str]:
    """The element types for which an instruction counts: the one that the opcode's rule is about, or all."""
    leaves, deciding = _leaves(computation, instruction), _deciding_leaf(instruction.opcode)
    return leaves if deciding is None else leaves[deciding : deciding + 1]


@cache
def accepted(opcode: str) -> tuple[ElementType, ...]:
    """The element types that an opcode's rule takes or, where it has none, those of its valid examples."""
    if OPCODES[opcode].role is Role.CUSTOM_CALL:
        return ()  # each library has rules of its own
    by_rule = accepted_element_types(OPCODES[opcode])
    return tuple(filter(lambda one: _has_example(opcode, one), TYPES)) if by_rule is None else by_rule


def _has_example(opcode: str, element_type: ElementType) -> bool:
    if opcode not in GENERATORS:
        return False
    for example in examples_of(opcode, element_type.name, 1, 0):
        module = hloexec.parse(module_text([example]))
        entry = module.entry
        types = {name for i in entry if i.opcode == opcode for name in _leaves(entry, i)}
        try:
            hloexec.verify(module)
        except hloexec.HloError:
            return False
        return element_type.name in types
    return False


def _live(computation: Computation) -> Iterator[Instruction]:
    """The instructions that the result depends on, and those that do more than compute one."""
    open_ones, known = [], set()
    for instruction in computation:
        entry = OPCODES.get(instruction.opcode)
        has_effects = entry is not None and (entry.role is Role.MACHINE or not entry.is_pure)
        if has_effects or instruction.name == computation.root_name:
            open_ones.append(instruction)
    while open_ones:
        instruction = open_ones.pop()
        if instruction.name not in known:
            known.add(instruction.name)
            open_ones += computation.operands_of(instruction)
            yield instruction


class Recorder:
    """Notes what finishes while it is on."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self.is_on = False
        self._seen: dict[tuple[int, str], weakref.ref[Module]] = {}

    def watch(self) -> None:
        """From now on, see what `run`, `run_devices`, `tests.ops.evaluation` and the command line do."""
        run, execute, evaluate = running._outputs, cli._execute, evaluation._Evaluator.run

        def noted_run(module: Module, *arguments: Any) -> Any:
            outputs = run(module, *arguments)
            if self.is_on:
                options = next(argument for argument in arguments if isinstance(argument, Options))
                self._saw_run(module, options.computation or module.entry_name)
            return outputs

        def noted_command(arguments: Sequence[str], name: str, *more: Any) -> int:
            code = execute(arguments, name, *more)
            if self.is_on and code in (0, 1) and name in cli.TOOLS and "--help" not in arguments:
                self.found.add((COMMAND, name))
            return code

        def noted_evaluation(evaluator: Any, computation: Computation, *arguments: Any) -> Any:
            value = evaluate(evaluator, computation, *arguments)
            if self.is_on and computation.name == evaluator.module.entry_name:
                self._saw_run(evaluator.module, computation.name)
            return value

        running._outputs, cli._execute = noted_run, noted_command
        evaluation._Evaluator.run = noted_evaluation

    def _saw_run(self, module: Module, entry: str) -> None:
        known = self._seen.get((id(module), entry))
        if known is not None and known() is module:
            return
        self._seen[id(module), entry] = weakref.ref(module)
        open_ones, called = [entry], {entry}
        while open_ones:
            computation = module.by_name[open_ones.pop()]
            for instruction in _live(computation):
                self._saw_instruction(computation, instruction)
                names = {*computation_names(instruction.attributes)} - called
                called |= names
                open_ones += names

    def _saw_instruction(self, computation: Computation, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode in OPCODES:
            self.found.add((OPCODE, opcode))
            self.found.update((OPCODE, f"{opcode} {name}") for name in own_types(computation, instruction))
        target = getattr(instruction.attributes, "custom_call_target", None)
        if target in CUSTOM_CALLS:
            self.found.add((CALL, str(target)))


def missing(found: Iterable[tuple[str, str]]) -> list[str]:
    """What has to be executed and is not among what was found: each family that an opcode accepts, commands, pages.

    Library calls are counted only: their targets repeat one kernel for each element type and vendor.
    """
    done, holes = {*found}, []
    for opcode in sorted(OPCODES):
        of_family: dict[Family, list[str]] = defaultdict(list)
        for element_type in accepted(opcode):
            of_family[family_of(element_type)].append(f"{opcode} {element_type.name}")
        families = [
            family.value for family, names in of_family.items() if not any((OPCODE, name) in done for name in names)
        ]
        if families:
            holes.append(f"{OPCODE} {opcode}: {', '.join(families)}")
        elif (OPCODE, opcode) not in done:
            holes.append(f"{OPCODE} {opcode}")
    required = {
        COMMAND: list(cli.TOOLS),
        PAGE: [_page_name(page) for page in PAGES if commands_of(page)],
    }
    return holes + [f"{what} {name}" for what, names in required.items() for name in names if (what, name) not in done]


def summary(found: Iterable[tuple[str, str]]) -> str:
    """How many of the pairs of an opcode and an element type, and how many of an opcode and a family."""
    done = {*found}
    pairs = [(opcode, element_type) for opcode in OPCODES for element_type in accepted(opcode)]
    met = {(opcode, one) for opcode, one in pairs if (OPCODE, f"{opcode} {one.name}") in done}
    families = [{(opcode, family_of(one)) for opcode, one in each} for each in (met, pairs)]
    counted = [f"{sum(each == what for each, _ in done)} {what}s" for what in (CALL, COMMAND, PAGE)]
    return (
        f"{len(families[0])} of {len(families[1])} pairs of opcode and family of element types, {len(met)} of "
        f"{len(pairs)} of opcode and element type; {', '.join(counted)}"
    )


def _page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


_RECORDER = Recorder()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--executed", metavar="FILE", help="add what tests that are not slow execute to a file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--executed"):
        _RECORDER.watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _RECORDER.is_on = item.get_closest_marker("slow") is None
    result = yield
    _RECORDER.is_on = False
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield
    page = item.callspec.params.get("page") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    if _RECORDER.is_on and page in PAGES:
        _RECORDER.found.add((PAGE, _page_name(page)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Workers take turns; what they find is added to the file."""
    name = session.config.getoption("--executed")
    if name:
        with open(name, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            known = read(Path(name))
            file.writelines(f"{what}\t{name}\n" for what, name in sorted(_RECORDER.found - known))


def read(file: Path) -> set[tuple[str, str]]:
    """What has been found so far."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {(what, name) for what, _, name in (line.partition("\t") for line in lines)}


def main(file: str) -> int:
    """Print what is missing in a file; 1 if anything is."""
    found = read(Path(file))
    print(summary(found))
    holes = missing(found)
    for hole in holes:
        print(f"missing: {hole}")
    return int(bool(holes))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("usage: python -m tests.opcode_coverage FILE, a file that pytest --executed FILE has written")
    sys.exit(main(sys.argv[1]))
