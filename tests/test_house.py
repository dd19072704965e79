"""What holds of the source: short functions, small rooms, and a short way through it for a small run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import hloexec.ops  # noqa: F401 - fills the registry
from hloexec.collection import collection_paused
from hloexec.ops.registry import OPCODES
from hloexec.structs import frozen

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 60
"""Of a function, its docstring not counted."""
MOST_NAMES = 60
"""Opcodes that modules outside of the entries name, at most: `OPCODE_NAMES` has one each time."""
MOST_MODULES = 15
"""Files of a package, beside its `__init__.py`."""
LARGE_ROOMS = {"hloexec": 23, "hloexec/plan": 16}
"""Packages with more: the front of the house, and one whose modules hold one another up."""
MOST_FILES = 34
"""Files of hloexec's that the first run of one instruction may enter."""

COLD_RUN = """
import sys
import numpy as np
import hloexec
module = hloexec.parse("HloModule m\\nENTRY e { x = f32[4] parameter(0)\\n ROOT y = f32[4] add(x, x) }\\n")
x = np.ones(4, np.float32)
entered = set()

def note(frame, event, _):
    if event == "call":
        entered.add(frame.f_code.co_filename)

hloexec.run  # is imported when it is first asked for
sys.setprofile(note)
hloexec.run(module, x)
sys.setprofile(None)
print("\\n".join(sorted(entered)))
"""


OPCODE_NAMES = {
    "buffers/dataflow.py": "copy",
    "buffers/live_ranges.py": "copy domain",
    "cli/inputs/host_values.py": "infeed outfeed",
    "devices/transfers.py": "infeed outfeed recv recv-done send send-done",
    "diffing/control.py": "clamp",
    "exec/code/writer.py": "constant select",
    "exec/host.py": "infeed outfeed",
    "exec/placement.py": "pad",
    "exec/running.py": "infeed outfeed",
    "extraction/slicing.py": "after-all parameter",
    "nan_search/observer.py": "select",
    "ir/instruction.py": "parameter",
    "numerics/selections.py": "bitcast broadcast iota reduce slice sort topk transpose",
    "numerics/trip_counts.py": "add compare",
    "plan/lowering/exchange.py": "send",
    "plan/passes/accumulate.py": "transpose",
    "plan/passes/buffers.py": "dot",
    "plan/passes/fma.py": "add multiply negate subtract",
    "plan/passes/fuse.py": "broadcast fusion iota",
    "plan/passes/hoist.py": "broadcast",
    "plan/passes/induction.py": "add compare",
    "plan/program.py": "custom-call",
    "plan/regions/row_forms.py": "imag real stochastic-convert",
    "text/asynchronous.py": "async-done async-start async-update",
    "text/instructions.py": "async-start",
    "text/operands.py": "get-tuple-element",
    "text/state.py": "parameter",
    "verifier/shapes.py": "async-start async-update",
}
"""Which files outside of the entries name opcodes. What is known of an opcode belongs into its entry: take from these,
do not add."""
NO_OPCODES = {
    "__init__.py": "compare",
    "cli/__init__.py": "compare",
    "cli/commands/numerics/compare.py": "compare",
    "cli/commands/numerics/diff.py": "select",
    "cli/run_options.py": "iota",
    "diffing/correspondence.py": "parameter",
    "diffing/digests.py": "complex",
    "diffing/folders.py": "select",
    "diffing/replaying/replay.py": "complex",
    "diffing/matching.py": "complex",
    "dtypes.py": "complex",
    "graphing/dot.py": "dot",
    "graphing/svg.py": "dot",
    "inputs/distributions.py": "iota",
    "ir/buffer_assignment.py": "constant parameter",
    "literals/npz.py": "tuple",
    "numerics/comparing.py": "compare",
    "numerics/selections.py": "reshape",
    "plan/lowering/flow.py": "conditional",
    "report/html/plots.py": "log",
    "report/inspecting/graphs.py": "dot",
    "report/numerics/comparison.py": "cosine",
    "report/numerics/nan_search.py": "maximum minimum",
    "report/json/keys/inspecting.py": "dot",
    "report/json/keys/numerics.py": "compare cosine",
    "report/json/keys/running.py": "select",
    "report/json/keys/shared.py": "maximum minimum",
    "report/json/records.py": "compare dot",
    "report/running/traces.py": "select slice",
    "sharding.py": "tuple",
    "stepping/conditions.py": "not",
    "text/dumps/buffer_assignment.py": "constant parameter",
    "text/dumps/buffer_assignment_printer.py": "constant parameter",
    "text/attributes/geometry.py": "pad",
    "text/attributes/shardings.py": "iota",
    "tracing/reading.py": "maximum minimum",
    "tracing/running.py": "select",
    "triaging/blaming.py": "tuple",
    "triaging/running.py": "select",
}
"""Words that mean something else where they stand: commands, names of arrays' statistics, XLA's buffer assignment,
the program and the language of Graphviz."""
PROSE = {"and", "or", "parameter"}
"""Words that sentences are put together of."""


FLOORS = (
    "structs",
    "collection dtypes errors openblas system_memory values wording",
    "arrays files ir precision",
    "arguments pytrees",
    "ops",
    "custom_calls",
    "operations text verifier",
    "costs dataflow devices element_types interop origins",
    "inputs literals loading plan",
    "exec summary testing",
    "buffers numerics sharding",
    "extraction results shrinking tracing",
    "diffing explaining nan_search narrowing shadowing stepping",
    "golden graphing minifying",
    "triaging",
    "report",
    "cli pytest_plugin",
)
"""Packages and modules, from the ground up; docs/architecture.md says what lives there."""


@frozen
class _Source:
    """What the tests look at in a file of hloexec."""

    place: Path
    docstring: str | None
    imports: list[ast.ImportFrom]
    functions: list[ast.FunctionDef]
    strings: list[str]


@cache
def _sources() -> list[_Source]:
    with collection_paused():
        return [_source(path) for path in (ROOT / "hloexec").rglob("*.py")]


def _source(path: Path) -> _Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = _Source(path.relative_to(ROOT / "hloexec"), ast.get_docstring(tree), [], [], [])
    nodes: list[ast.AST] = [tree]
    # As ast.walk does, in half the time.
    while nodes:
        node = nodes.pop()
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif type(value) is list:
                nodes += [each for each in value if isinstance(each, ast.AST)]
        if isinstance(node, ast.ImportFrom):
            found.imports.append(node)
        elif isinstance(node, ast.FunctionDef):
            found.functions.append(node)
        elif isinstance(node, ast.Constant) and type(node.value) is str:
            found.strings.append(node.value)
    return found


def test_imports_point_downwards() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names.split()}
    upwards = []
    for source in _sources():
        place = source.place.parts[0].removesuffix(".py")
        if place.startswith("__"):
            continue
        for node in source.imports:
            if (node.module or "").startswith("hloexec."):
                other = str(node.module).split(".")[1]
                if other != place and floor[other] >= floor[place]:
                    upwards.append(f"{source.place}:{node.lineno} {node.module}")
    assert upwards == []


def test_attrs_classes_are_those_of_structs() -> None:
    """attrs' own decorators would compile a `__repr__` for each class when it is imported."""
    own = ROOT / "hloexec" / "structs.py"
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "hloexec").rglob("*.py") if path != own}
    assert [
        path for path, text in texts.items() if re.search(r"attrs\.(define|frozen|mutable)\b|from attrs", text)
    ] == []
    assert sum("@frozen" in text for text in texts.values()) > 100


def test_opcodes_are_named_by_their_entries_alone() -> None:
    found, opcodes = {}, {*OPCODES}
    for source in _sources():
        place = source.place
        if place.parts[0] in ("ops", "custom_calls"):
            continue
        named = {word for words in map(str.split, source.strings) if opcodes.issuperset(words) for word in words}
        other = {word for table in (OPCODE_NAMES, NO_OPCODES) for word in table.get(place.as_posix(), "").split()}
        if named - other - PROSE:
            found[place.as_posix()] = sorted(named - other - PROSE)
    assert found == {}
    assert sum(len(names.split()) for names in OPCODE_NAMES.values()) < MOST_NAMES


def test_rooms_are_small_and_say_what_lives_there() -> None:
    modules = Counter(source.place.parent for source in _sources() if source.place.name != "__init__.py")
    for folder, count in modules.items():
        assert count <= LARGE_ROOMS.get(str("hloexec" / folder), MOST_MODULES), folder
    documented = {
        source.place.parent for source in _sources() if source.place.name == "__init__.py" and source.docstring
    }
    assert documented == {source.place.parent for source in _sources()}


def test_functions_are_short() -> None:
    long = []
    for source in _sources():
        for node in source.functions:
            assert node.end_lineno is not None
            documented = len((ast.get_docstring(node, clean=False) or "").splitlines())
            if node.end_lineno - node.lineno + 1 - documented > MOST_LINES:
                long.append(f"{source.place}:{node.lineno} {node.name}")
    assert long == []


def test_the_first_run_of_one_instruction_enters_few_files() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", COLD_RUN], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = [path for path in printed if "hloexec" in path.split("/") and "site-packages" not in path]
    assert 10 < len(files) <= MOST_FILES, files
