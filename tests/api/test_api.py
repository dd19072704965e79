"""The public API: what `import hloexec` gives, and what it costs; each of its names has a docstring."""

import gzip
import importlib
import io
import subprocess
import sys
import tomllib
import typing
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from tests.api.reachable import reachable_types

TEXT = """HloModule tiny
ENTRY main { x = f32[2] parameter(0)
  ROOT y = f32[2] add(x, x) }
"""


def test_the_five_lines_of_the_readme_work(tmp_path):
    path = tmp_path / "module.txt"
    path.write_text(TEXT)
    module = hloexec.load(path)
    hloexec.verify(module)
    (x,) = hloexec.random_inputs(module, seed=0)
    np.testing.assert_array_equal(hloexec.run(module, x), x + x)
    assert hloexec.parse(hloexec.format(module)) == module


def test_importing_brings_in_neither_numpy_nor_the_operations():
    program = (
        "import sys, hloexec\n"
        "assert 'numpy' not in sys.modules and 'hloexec.ops' not in sys.modules\n"
        "import hloexec.language.verifier, hloexec.engine.exec\n"
        "assert callable(hloexec.verify) and callable(hloexec.run)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_public_name_is_there():
    for name in hloexec.__all__:
        assert getattr(hloexec, name) is not None
    assert set(hloexec.__all__) <= set(dir(hloexec))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hloexec.nonsense  # noqa: B018


def test_gzipped_text_is_found_by_its_content(tmp_path):
    path = tmp_path / "module.anything"
    path.write_bytes(gzip.compress(TEXT.encode(), mtime=0))
    assert hloexec.load(path).name == "tiny"


def test_a_dash_reads_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    module = hloexec.load("-")
    assert (module.name, module.filename) == ("tiny", "<stdin>")


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("m.txt", b"", hloexec.InputError, "is empty"),
        ("m.txt", b"  \n\n", hloexec.InputError, "is empty"),
        ("m.gz", b"\x1f\x8b\x08broken", hloexec.InputError, "m.gz"),
        ("m.gz", gzip.compress(TEXT.encode(), mtime=0)[:-9], hloexec.InputError, "m.gz"),
        ("m.txt", b"this is no HLO", hloexec.ParseError, "m.txt:1:"),
    ],
)
def test_what_is_not_a_module_is_refused(tmp_path, name, content, error, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        hloexec.load(path)


def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path):
    with pytest.raises(hloexec.InputError, match=r"cannot read .*nothing: No such file"):
        hloexec.load(tmp_path / "nothing")
    with pytest.raises(hloexec.InputError, match=r"is a folder; name a file in it"):
        hloexec.load(tmp_path)


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


def test_type_checkers_and_the_interpreter_find_the_same_names(monkeypatch):
    namespace: dict[str, object] = {}
    monkeypatch.setattr(typing, "TYPE_CHECKING", True)
    for file in ("__init__.pyi", "tools/rows.py"):
        exec((ROOT / "hloexec" / file).read_text(encoding="utf-8"), namespace)
    names = {name for name in namespace if not name.startswith("_")} | {"__version__"}
    assert names == {*hloexec.__all__}
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
