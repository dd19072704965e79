"""The pytest plugin, in runs of pytest on small projects, within the one that tests it."""

import json
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.language import literals
from tests.docs import run_pytest
from tests.text.building import op

ROOT = Path(__file__).resolve().parents[2]
ADD = op("f32[3] add(x, y)", x="f32[3]", y="f32[3]")
TEST = f"""
import hloexec

def test_add(hlo_golden):
    hlo_golden.check(hloexec.parse({ADD!r}), numerics="exact")
"""


def _pytest(folder: Path, *arguments: str, code: int = 0) -> str:
    ran = run_pytest(arguments, folder, COLUMNS="200")
    assert ran.code == code, ran.out
    return ran.out


@pytest.fixture
def goldens(tmp_path: Path) -> Path:
    """A project with a golden that passes, one that does not, and one that is broken."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name in ("good", "other", "broken"):
        hloexec.record_golden(hloexec.parse(ADD), None, tmp_path / "data" / f"{name}.golden")
    literals.save(tmp_path / "data" / "other.golden" / "expected.npz", np.zeros(3, np.float32))
    (tmp_path / "data" / "broken.golden" / "inputs.npz").unlink()
    return tmp_path


def test_folders_are_collected_and_reported(goldens: Path) -> None:
    out = _pytest(goldens, "--hlo-goldens", "--junit-xml=report.xml", code=1)
    assert "1 passed" in out and "2 failed" in out
    assert "different: value: 3 of 3 elements beyond tolerance" in out
    assert "broken.golden is not a complete golden: inputs.npz is missing" in out
    assert "Traceback" not in out
    suite = ElementTree.parse(goldens / "report.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    _pytest(goldens, "--hlo-goldens", "data/good.golden")


def test_updating_keeps_the_new_result(goldens: Path) -> None:
    out = _pytest(goldens, "--hlo-goldens", "--hlo-update", "--deselect", "data/broken.golden")
    assert f"updated {goldens / 'data' / 'other.golden'}" in out
    assert hloexec.check_golden(goldens / "data" / "other.golden").message == "equal"


def test_nothing_is_collected_unless_asked_for(goldens: Path) -> None:
    assert "no tests ran" in _pytest(goldens, code=5)
    (goldens / "pytest.ini").write_text("[pytest]\nhlo_goldens = true\n")
    assert "1 passed" in _pytest(goldens, "data/good.golden")


def test_a_golden_that_was_recorded_otherwise_than_the_test_says_fails_it(tmp_path: Path) -> None:
    """The golden's own looser tolerance would pass what the test does not allow."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(TEST.replace('"exact"', '"reference", rtol=0.5'))
    _pytest(tmp_path, "--hlo-update")
    (tmp_path / "test_one.py").write_text(TEST.replace('"exact"', '"exact", rtol=1e-6'))
    out = _pytest(tmp_path, code=1)
    assert (
        "was recorded with numerics reference, not exact; rtol 0.5, not 1e-06; `pytest --hlo-update` records it" in out
    )
    assert "updated" in _pytest(tmp_path, "--hlo-update")
    record = json.loads((tmp_path / "goldens" / "test_one" / "test_add.golden" / "golden.json").read_text())
    assert (record["numerics"], record["rtol"]) == ("exact", 1e-6)


def test_a_golden_of_other_inputs_than_the_test_gives_fails_it(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    given = "import numpy as np\n" + TEST.replace('numerics="exact"', "inputs=[np.ones(3, np.float32)] * 2")
    (tmp_path / "test_one.py").write_text(given)
    _pytest(tmp_path, "--hlo-update")
    assert "1 passed" in _pytest(tmp_path)
    named = "inputs={'y': np.ones(3, np.float32), 'x': np.ones(3, np.float32)}"
    (tmp_path / "test_one.py").write_text(given.replace("inputs=[np.ones(3, np.float32)] * 2", named))
    assert "1 passed" in _pytest(tmp_path)
    for other, said in (("np.zeros(3, np.float32)", "other inputs"), ("np.ones(4, np.float32)", "parameter")):
        (tmp_path / "test_one.py").write_text(given.replace("np.ones(3, np.float32)", other))
        out = _pytest(tmp_path, code=1)
        assert said in out and "Traceback" not in out
    (tmp_path / "test_one.py").write_text(given.replace("np.ones", "np.zeros"))
    assert "updated" in _pytest(tmp_path, "--hlo-update")
    assert "1 passed" in _pytest(tmp_path)


def test_a_result_from_elsewhere_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(TEST)
    folder = tmp_path / "goldens" / "test_one" / "test_add.golden"
    result = np.full(3, 7, np.float32)
    hloexec.record_golden(
        hloexec.parse(ADD), None, folder, expected=result, expected_source="tpu.npz", numerics="exact"
    )
    assert "if the change is intended" not in _pytest(tmp_path, code=1)
    assert f"{folder} has its result from elsewhere, and is not replaced" in _pytest(tmp_path, "--hlo-update", code=1)
    assert np.array_equal(literals.load(folder / "expected.npz"), result)


def test_what_cannot_be_recorded_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(TEST.replace('"exact"', '"exact", inputs=[1, 2]'))
    out = _pytest(tmp_path, "--hlo-update", code=1)
    assert "test_add.golden: parameter 0 (x) must be f32[3]" in out and "arguments.py" not in out


@pytest.mark.slow
def test_the_fixture_records_checks_and_fails(tmp_path: Path) -> None:
    """Six runs of pytest; docs/golden.md has four, which run every time."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(TEST)
    folder = tmp_path / "goldens" / "test_one" / "test_add.golden"
    assert f"there is no golden {folder}; `pytest --hlo-update` records it" in _pytest(tmp_path, code=1)
    assert f"recorded {folder}" in _pytest(tmp_path, "--hlo-update")
    assert "1 passed" in _pytest(tmp_path)
    (tmp_path / "test_one.py").write_text(TEST.replace("add(x, y)", "subtract(x, y)"))
    out = _pytest(tmp_path, code=1)
    assert "different: value: 3 of 3 elements beyond tolerance" in out and "pytest --hlo-update" in out
    assert "pytest_plugin.py" not in out
    kept, *_ = re.findall(r"^the new module is kept: (.+)$", out, re.MULTILINE)
    assert "subtract(x, y)" in Path(kept).read_text()
    assert re.search(
        rf"where to look:\n  %\w+ is to blame: .*\n  hloexec diff {folder}/module.hlo {kept} --inputs", out
    )
    assert f"updated {folder}" in _pytest(tmp_path, "--hlo-update")
    assert "1 passed" in _pytest(tmp_path)


@pytest.mark.slow
def test_one_test_may_have_several_goldens_and_parameters(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_many.py").write_text(
        TEST.replace(
            "def test_add(hlo_golden):",
            "import pytest\n@pytest.mark.parametrize('k', ['a/b', 'c'])\ndef test_add(hlo_golden, k):",
        )
        + "    hlo_golden.check(hloexec.parse("
        + repr(ADD)
        + "), name='again', seed=7)\n"
    )
    _pytest(tmp_path, "--hlo-update")
    assert "2 passed" in _pytest(tmp_path)
    names = {path.name for path in (tmp_path / "goldens" / "test_many").iterdir()}
    assert names == {f"test_add[{end}.golden" for end in "a%2Fb] a%2Fb]+again c] c]+again".split()}


CLASHES = f"""
import pytest
import hloexec

def module(operation):
    return hloexec.parse({ADD!r}.replace("add(", operation + "("))

class TestA:
    def test_it(self, hlo_golden):
        hlo_golden.check(module("add"))

class TestB:
    def test_it(self, hlo_golden):
        hlo_golden.check(module("subtract"))

@pytest.mark.parametrize("operation", [pytest.param("add", id="a/b"), pytest.param("multiply", id="a-b"),
    pytest.param("subtract", id="a.b"), pytest.param("maximum", id="a+b"), pytest.param("minimum", id="A b" * 100)])
def test_parameters(hlo_golden, operation):
    hlo_golden.check(module(operation))
    hlo_golden.check(module("divide"), name="x")
    hlo_golden.check(module("power"), name="x/y")
    hlo_golden.check(module("atan2"), name="x-y")
"""


@pytest.mark.slow
def test_no_two_checks_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_clash.py").write_text(CLASHES)
    assert _pytest(tmp_path, "--hlo-update").count("\nrecorded ") == 2 + 5 * 4
    out = _pytest(tmp_path, "--hlo-update")
    assert "7 passed" in out and "updated" not in out
    assert len(list((tmp_path / "goldens" / "test_clash").iterdir())) == 2 + 5 * 4


@pytest.mark.slow
def test_the_second_check_of_a_golden_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    twice = TEST + f"    hlo_golden.check(hloexec.parse({ADD!r}.replace('add(', 'subtract(')))\n"
    (tmp_path / "test_twice.py").write_text(twice)
    for options in (["--hlo-update"], []):
        assert "has checked" in _pytest(tmp_path, *options, code=1)


def test_loading_it_imports_nothing_large() -> None:
    program = (
        "import sys, pytest\nbefore = set(sys.modules)\nimport hloexec.pytest_plugin\n"
        "new = set(sys.modules) - before\n"
        "new -= {name for name in new if name.partition('.')[0] in sys.stdlib_module_names}\n"
        "assert 'numpy' not in sys.modules and new <= {*'hloexec hloexec.core hloexec.core.version hloexec.errors hloexec.pytest_plugin'.split()}, new\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=ROOT)


def test_pytest_finds_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"hloexec": "hloexec.pytest_plugin"}
