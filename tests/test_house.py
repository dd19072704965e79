"""What holds of the source: short functions, small rooms, and a short way through it for a small run."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hloexec
import hloexec.ops  # fills the registry
from hloexec.core.process import collection_paused
from hloexec.core.structs import frozen
from hloexec.ops.registry import OPCODES

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 60
"""Of a function, its docstring not counted."""
MOST_NAMES = 60
"""Opcodes that modules outside of the entries name, at most: `OPCODE_NAMES` has one each time."""
MOST_MODULES = 15
"""Files of a package, beside its `__init__.py`."""
LARGE_ROOMS = {"hloexec/engine/plan": 16}
"""Packages with more: one whose modules hold one another up."""
MOST_OPTIONS = 5
"""Options of runs that a class or a function may list."""
OPTIONS = {"Options", "RunOptions", "Golden"}
"""Classes that list more: the one of all runs, the types of what callers may give, and a file format."""
MOST_FILES = 28
"""Files of hloexec's that the first run of one instruction may enter."""

VAGUE = {"found", "given", "what", "known", "each"}
"""Names of variables where a noun says more."""
MOST_VAGUE = 320
"""Variables and parameters that have one of them: take from these, do not add."""

CALLS = {"condition", "body", "branches", "to_apply", "calls"}
"""Fields of attributes that name a computation which runs instruction by instruction."""

WHERE = frozenset(
    "computation instruction path scope context callers device devices iteration index element leaf".split()
)
"""What fields of a place are called."""
OTHER_PLACES = {
    "engine/exec/observers.py": "Place",  # what observers are given: its path is made when they ask for it
    "tools/extraction/running.py": "Occurrence",  # which runs are meant
    "tools/diffing/findings.py": "InstructionRun",  # as results tell it, in texts
    "analysis/numerics/selections.py": "ModuleValue",  # goes from operand to operand
    "core/ir/buffer_assignment.py": "Position",  # as XLA's dumps have it
}
TAKES_APART = re.compile(r"""(partition|split|removesuffix)\("/"|["']/["']\.join|(partition|split|count)\("\["\)""")
"""A path of calls: at its slashes, and at the brackets of iterations."""
PLACED = ("core", "ops", "engine", "analysis", "tools", "report", "cli")
"""The rooms that speak of runs: the texts that `language` reads have slashes and brackets of their own."""
NO_CALLS = {
    "core/process.py": 1,  # of files
    "report/html/instructions.py": 1,  # anchors of pages
    "tools/graphing/files.py": 4,  # of namespaces
    "tools/nan_search/running.py": 1,  # a path without the computations
    "tools/shrinking/rewriting.py": 3,  # op_names
    "tools/triaging/running.py": 1,  # shapes
}

TUPLES = {"tuple", "list", "TupleShape"}
"""What a function asks for that goes through nested values or shapes."""
NO_TREES = {
    "engine/devices/manual_regions.py": "sharding_of",  # goes from instruction to operand
    "language/interop/shape_protos.py": "literal_of",  # reads
    "language/text/literals.py": "of_shape",  # reads
    "language/text/operands.py": "with_operand_layout",  # of a tuple, the first element
    "tools/executing/codec.py": "decoded_inputs decoded coded",  # go by annotations, or by the kind of a container
    "tools/extraction/running.py": "_open_tuples",  # goes from instruction to users
}
"""Functions that ask for tuples and go on, but through no tree."""

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

MOST_FILES_OF_SCATTER = 10
"""Files of the entries' that a scatter enters, from its text to its kernel."""
SCATTER_RUN = """
import sys
import ml_dtypes
import numpy as np
import hloexec

SCATTER = '''HloModule m
add { a = bf16[] parameter(0)
 b = bf16[] parameter(1)
 ROOT s = bf16[] add(a, b) }
ENTRY e { x = bf16[8] parameter(0)
 i = s32[4] parameter(1)
 u = bf16[4] parameter(2)
 ROOT y = bf16[8] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
   index_vector_dim=1, to_apply=add }'''
x, i = np.ones(8, ml_dtypes.bfloat16), np.array([1, 2, 1, 7], np.int32)

inputs, entered = (x, i, x[:4]), set()
hloexec.run(hloexec.parse(SCATTER), *inputs)
sys.setprofile(lambda frame, event, _: event == "call" and entered.add(frame.f_code.co_filename))
hloexec.run(hloexec.parse(SCATTER), *inputs)
sys.setprofile(None)
print("\\n".join(sorted(path for path in entered if "hloexec/ops" in path.replace("\\\\", "/"))))
"""

OPCODE_NAMES = {
    "analysis/buffers/dataflow.py": "copy",
    "analysis/buffers/live_ranges.py": "copy domain",
    "analysis/numerics/selections.py": "bitcast broadcast iota reduce slice sort topk transpose",
    "analysis/trip_counts.py": "add compare",
    "cli/inputs/loading.py": "infeed outfeed",
    "core/ir/instruction.py": "parameter",
    "engine/devices/topology.py": "infeed outfeed recv recv-done send send-done",
    "engine/exec/code/writer.py": "constant select",
    "engine/exec/host.py": "infeed outfeed",
    "engine/exec/placement.py": "pad",
    "engine/exec/running.py": "infeed outfeed",
    "engine/plan/lowering/flow.py": "send",
    "engine/plan/passes/products.py": "add multiply negate subtract transpose",
    "engine/plan/passes/loops.py": "broadcast dot",
    "engine/plan/passes/fuse.py": "broadcast fusion iota",
    "engine/plan/passes/induction.py": "add compare",
    "engine/plan/program.py": "custom-call",
    "engine/plan/regions/row_forms.py": "imag real stochastic-convert",
    "language/text/operands.py": "async-done async-start async-update get-tuple-element",
    "language/text/instructions.py": "async-start",
    "language/text/state.py": "parameter",
    "language/verifier/shapes.py": "async-start async-update",
    "tools/diffing/control.py": "clamp",
    "tools/diffing/localization/edits.py": "bitcast",
    "tools/extraction/running.py": "after-all parameter",
    "tools/nan_search/running.py": "select",
}
"""Which files outside of the entries name opcodes. What is known of an opcode belongs into its entry: take from these,
do not add."""
NO_OPCODES = {
    "analysis/numerics/comparing.py": "compare",
    "analysis/numerics/selections.py": "reshape",
    "tools/counterparts/specs.py": "call",
    "tools/diffing/apart.py": "compare",
    "tools/isolating/units.py": "fusion",
    "tools/rows.py": "compare",
    "cli/commands/judging/compare.py": "compare",
    "cli/commands/judging/diff.py": "select",
    "cli/commands/judging/isolate.py": "fusion",
    "cli/problems.py": "infeed outfeed recv send",
    "cli/run_options.py": "iota",
    "core/dtypes.py": "complex",
    "core/ir/buffer_assignment.py": "constant parameter",
    "engine/exec/host.py": "recv send",
    "engine/inputs/distributions.py": "iota",
    "engine/plan/lowering/flow.py": "conditional",
    "engine/sharding.py": "tuple",
    "jax/captures.py": "call",
    "jax/checking.py": "call",
    "language/literals/npz.py": "tuple",
    "language/text/attributes/values.py": "pad",
    "language/text/printer.py": "pad",
    "language/text/attributes/shardings.py": "iota",
    "language/text/dumps/buffer_assignment.py": "constant parameter",
    "report/html/plots.py": "log",
    "report/inspecting/graphs.py": "dot",
    "report/json/deriving.py": "maximum minimum",
    "report/judging/comparison.py": "cosine",
    "report/explaining/nan_search.py": "maximum minimum",
    "report/running/traces.py": "select slice",
    "tools/diffing/correspondence.py": "parameter",
    "tools/diffing/recording/arrays.py": "complex",
    "tools/diffing/folders.py": "select",
    "tools/diffing/matching.py": "complex",
    "tools/diffing/replaying/replay.py": "complex",
    "tools/graphing/files.py": "dot",
    "tools/stepping/conditions.py": "not",
    "tools/tracing/running.py": "maximum minimum select",
    "tools/tracing/recording.py": "select",
    "tools/triaging/blaming.py": "tuple",
    "tools/triaging/running.py": "select",
}
"""Words that mean something else where they stand: commands, names of arrays' statistics, XLA's buffer assignment,
the program and the language of Graphviz."""
PROSE = {"and", "or", "parameter"}
"""Words that sentences are put together of."""


@frozen
class _Source:
    """What the tests look at in a file of hloexec."""

    place: Path
    docstring: str | None
    imports: list[ast.ImportFrom]
    functions: list[ast.FunctionDef]
    classes: list[ast.ClassDef]
    strings: list[str]
    trees: list[str]
    """Its functions that go through nested tuples."""
    calls: list[str]
    """Where it reads which computation an instruction runs."""
    vague: list[str]
    """Its variables and parameters whose names are those of `VAGUE`."""


@cache
def _sources() -> list[_Source]:
    with collection_paused():
        return [_source(path) for path in (ROOT / "hloexec").rglob("*.py")]


def _source(path: Path) -> _Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = _Source(path.relative_to(ROOT / "hloexec"), ast.get_docstring(tree), [], [], [], [], [], [], [])
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
            if _goes_through_tuples(node):
                found.trees.append(node.name)
        elif isinstance(node, ast.ClassDef):
            found.classes.append(node)
        elif isinstance(node, ast.Constant) and type(node.value) is str:
            found.strings.append(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in CALLS and ast.unparse(node.value).endswith("attributes"):
            found.calls.append(f"{node.lineno}: {node.attr}")
        elif isinstance(node, ast.Name) and node.id in VAGUE and isinstance(node.ctx, ast.Store):
            found.vague.append(node.id)
        elif isinstance(node, ast.arg) and node.arg in VAGUE:
            found.vague.append(node.arg)
    return found


def _goes_through_tuples(function: ast.FunctionDef) -> bool:
    """Whether it asks for tuples, and speaks of itself or takes what is next from a stack."""
    nodes = [*ast.walk(function)]
    asked = [node.args[1] for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"]
    if TUPLES.isdisjoint(name.id for kinds in asked for name in ast.walk(kinds) if isinstance(name, ast.Name)):
        return False
    names = {ast.unparse(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}
    names -= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stacks = [name for node in nodes if isinstance(node, ast.While) for name in ast.walk(node)]
    is_stack = any(isinstance(name, ast.Attribute) and name.attr == "pop" for name in stacks)
    return is_stack or not names.isdisjoint({function.name, f"self.{function.name}"})


def _imports_between(package: str) -> dict[str, set[str]]:
    """Of each part of a package, file or folder, which other parts it imports."""
    used: dict[str, set[str]] = {}
    depth = package.count(".") + 1
    for source in _sources():
        parts = ("hloexec", *source.place.with_suffix("").parts)
        if ".".join(parts[:depth]) == package:
            names = {f"{node.module}.{alias.name}" for node in source.imports for alias in node.names}
            others = {name.split(".")[depth] for name in names if name.startswith(f"{package}.")}
            used.setdefault(parts[depth], set()).update(others - {parts[depth]})
    return used


def test_imports_point_downwards() -> None:
    """The rooms stand in docs/architecture.md in their order: each imports from those below it alone."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    used = _imports_between("hloexec")
    assert {*rooms} == {name for name in used if not name.startswith("__")}
    upwards = {room: used[room].intersection(rooms[:number]) for number, room in enumerate(rooms)}
    assert {room: names for room, names in upwards.items() if names} == {}


@pytest.mark.parametrize("room", "core language engine analysis tools".split())
def test_packages_of_a_room_do_not_import_one_another_in_circles(room: str) -> None:
    assert [*TopologicalSorter(_imports_between(f"hloexec.{room}")).static_order()]


def test_attrs_classes_are_those_of_structs() -> None:
    """attrs' own decorators would compile a `__repr__` for each class when it is imported."""
    own = ROOT / "hloexec" / "core" / "structs.py"
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "hloexec").rglob("*.py") if path != own}
    assert [
        path for path, text in texts.items() if re.search(r"attrs\.(define|frozen|mutable)\b|from attrs", text)
    ] == []
    assert sum("@frozen" in text for text in texts.values()) > 100


def test_opcodes_are_named_by_their_entries_alone() -> None:
    found, opcodes = {}, {*OPCODES}
    for source in _sources():
        place = source.place
        if place.parts[0] == "ops":
            continue
        named = {word for words in map(str.split, source.strings) if opcodes.issuperset(words) for word in words}
        other = {word for table in (OPCODE_NAMES, NO_OPCODES) for word in table.get(place.as_posix(), "").split()}
        if named - other - PROSE:
            found[place.as_posix()] = sorted(named - other - PROSE)
    assert found == {}, "named there: of OPCODE_NAMES if they mean opcodes, of NO_OPCODES if they are other words"
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


def test_the_options_of_runs_are_listed_once() -> None:
    """All that takes place behind the public functions, which list theirs, is given one object."""
    options, long = {*hloexec.RunOptions.__annotations__}, set()
    for source in _sources():
        listed = [
            (each.name, [arg.arg for arg in (*each.args.args, *each.args.kwonlyargs)]) for each in source.functions
        ]
        for each in source.classes:
            listed.append(
                (each.name, [ast.unparse(part.target) for part in each.body if isinstance(part, ast.AnnAssign)])
            )
        long |= {name for name, names in listed if len(options.intersection(names)) > MOST_OPTIONS}
    assert {name for name in long if not inspect.isfunction(getattr(hloexec, name, None))} == OPTIONS


def test_the_first_run_of_one_instruction_enters_few_files() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", COLD_RUN], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    files = [path for path in printed if "hloexec" in path.split("/") and "site-packages" not in path]
    assert 10 < len(files) <= MOST_FILES, files


def test_only_analyses_and_engine_follow_control_flow_into_computations() -> None:
    """All others ask `hloexec.analysis.calls`: they read out of no attributes which computation a loop, a conditional
    or a call runs. (That edits do otherwise is another matter: they make attributes.)"""
    below = {"analysis", "engine", "ops", "language", "core"}
    reading = {str(source.place): source.calls for source in _sources() if source.place.parts[0] not in below}
    assert {place: calls for place, calls in reading.items() if calls} == {}


def test_modules_are_edited_by_core_alone() -> None:
    """What a header says of an entry, and the text of a module, go where those change: the editor sees to it."""
    editing = re.compile(r"attrs\.evolve\([^()]*\b(computations|entry_name)=")
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "hloexec").rglob("*.py")}
    assert [path.name for path, text in texts.items() if editing.search(text)] == ["editing.py"]


def test_places_are_those_of_core() -> None:
    """A class is one of places if it has an instruction and nothing but what says where that is."""
    found = {}
    for path in (ROOT / "hloexec").rglob("*.py"):
        for cls in re.split(r"^class ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            fields = {*re.findall(r"^    _?(\w+): [^=\n]+(?:=.*)?$", cls, re.MULTILINE)}
            if "instruction" in fields <= WHERE:
                found[path.relative_to(ROOT / "hloexec").as_posix()] = cls.partition("(")[0].partition(":")[0]
    assert found.pop("core/places.py") in ("Place", "RunPlace")
    assert found == OTHER_PLACES


def test_paths_of_calls_are_taken_apart_in_one_module() -> None:
    found = {}
    for path in (path for room in PLACED for path in (ROOT / "hloexec" / room).rglob("*.py")):
        count = len(TAKES_APART.findall(path.read_text(encoding="utf-8")))
        if count:
            found[path.relative_to(ROOT / "hloexec").as_posix()] = count
    assert found.pop("core/places.py") >= 2
    assert found == NO_CALLS


def test_one_module_goes_through_trees() -> None:
    """All others give `hloexec.core.tree` a function that says what a node holds."""
    trees = {source.place.as_posix(): " ".join(source.trees) for source in _sources() if source.trees}
    assert trees == NO_TREES


def test_a_second_iterator_of_trees_is_seen() -> None:
    recursive = "def leaves(value): return [*map(leaves, value)] if isinstance(value, tuple) else [value]"
    stack = """def leaves(value):
    while stack:
        if isinstance(part := stack.pop(), (tuple, list)): stack.extend(part)"""
    for text, is_one in (recursive, True), (stack, True), (recursive.replace("map(leaves", "map(flat"), False):
        (function,) = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef) and _goes_through_tuples(function) == is_one


def test_a_scatter_enters_few_files_of_the_entries() -> None:
    printed = subprocess.run([sys.executable, "-c", SCATTER_RUN], cwd=ROOT, capture_output=True, text=True, check=True)
    files = printed.stdout.split()
    assert 3 < len(files) <= MOST_FILES_OF_SCATTER, files


def test_variables_are_named_by_nouns() -> None:
    assert sum(len(source.vague) for source in _sources()) <= MOST_VAGUE
