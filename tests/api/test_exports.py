"""What `import hloexec` exports: everything that its functions take and return, with a docstring."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import hloexec
from hloexec.cli import main
from tests.api.reachable import reachable_types

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {name: getattr(hloexec, name) for name in hloexec.__all__}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if isinstance(value, FunctionType)}
TYPES = {name: value for name, value in PUBLIC.items() if isinstance(value, type)}
PACKAGES = {name: value for name, value in PUBLIC.items() if isinstance(value, ModuleType)}


def test_every_type_that_functions_take_or_return_is_exported():
    parts = [getattr(package, name) for package in PACKAGES.values() for name in package.__all__]
    exported = {entry for entry in (*PUBLIC.values(), *parts) if isinstance(entry, type)}
    missing = {
        f"{kind.__module__}.{kind.__name__}": way
        for kind, way in reachable_types(FUNCTIONS, TYPES).items()
        if kind not in exported
    }
    assert missing == {}


def test_the_walk_goes_through_fields_properties_and_methods():
    names = {kind.__name__: way for kind, way in reachable_types({"trace": hloexec.trace}, {}).items()}
    assert names["Module"] == "trace(module)"
    assert names["Trace"] == "trace(return)"
    assert names["TraceEvent"].startswith("trace(return).")
    assert {"Instruction", "Layout", "ArrayRecord"} <= names.keys()


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *TYPES}))
def test_what_is_exported_has_a_docstring(name):
    assert PUBLIC[name].__doc__


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_packages_that_are_exported_have_a_docstring_and_their_names(name):
    assert PACKAGES[name].__doc__
    for part in PACKAGES[name].__all__:
        assert getattr(PACKAGES[name], part) is not None


def test_type_checkers_and_the_interpreter_find_the_same_names():
    namespace: dict[str, object] = {}
    exec((ROOT / "hloexec" / "__init__.pyi").read_text(encoding="utf-8"), namespace)
    assert {name for name in namespace if name != "__builtins__"} - {"__doc__", "__annotations__"} == {*hloexec.__all__}
    for name in hloexec.__all__:
        assert namespace[name] is getattr(hloexec, name)


def test_the_version_has_one_place(capsys):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["version"]["path"] == "hloexec/core/version.py"
    assert "version" in project["project"]["dynamic"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hloexec {hloexec.__version__}\n"


def test_the_version_and_the_errors_need_no_other_module():
    program = (
        "import sys, hloexec\n"
        "hloexec.__version__, hloexec.HloError\n"
        "names = {name.removeprefix('hloexec') for name in sys.modules if name.startswith('hloexec')}\n"
        "assert names == {'', '.core', '.core.version', '.errors'}\n"
        "assert 'importlib.metadata' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_packages_come_with_their_first_use():
    program = "import sys, hloexec\nhloexec.ir.Window\nassert 'hloexec.engine.exec' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert importlib.import_module("hloexec.core.ir") is hloexec.ir
