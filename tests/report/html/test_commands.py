"""`--html` on the command line: every command that has it writes a page, and wrong uses of it are told before a run."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hloexec.cli import main
from tests.report.html.samples import EXAMPLES, few_details
from tests.report.needs import require_report_packages

require_report_packages()

MODULE = """HloModule sample
ENTRY main {
  x = f32[8] parameter(0)
  two = f32[] constant(2)
  twos = f32[8] broadcast(two), dimensions={}
  doubled = f32[8] multiply(x, twos)
  ROOT y = f32[8] subtract(doubled, x)
}
"""


@pytest.fixture
def _few_details() -> Iterator[None]:
    with few_details():
        yield


@pytest.fixture
def folder(empty_folder: Path) -> Path:
    Path("m.hlo").write_text(MODULE)
    Path("log.hlo").write_text(MODULE.replace("subtract(doubled, x)", "log(x)"))
    Path("other.hlo").write_text(MODULE.replace("constant(2)", "constant(3)"))
    np.savez("a.npz", value=np.arange(8, dtype=np.float32))
    np.savez("b.npz", value=np.arange(8, dtype=np.float32) + 1)
    Path("dumps").mkdir()
    for stage in ("before_optimizations", "cpu_after_optimizations"):
        Path(f"dumps/module_0001.m.{stage}.txt").write_text(MODULE)
    return empty_folder


@pytest.mark.usefixtures("_few_details")
@pytest.mark.slow_cases("memory m.hlo-0-are alive at once", "compare a.npz b.npz-1-different")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("run m.hlo", 0, "5 instructions in 1 computation"),
        ("run m.hlo --against other.hlo", 1, "different"),
        ("diff m.hlo other.hlo", 1, "%doubled is to blame"),
        ("diff dumps", 0, "agree"),
        ("nan log.hlo --range 0=-2:-1", 1, "logarithm of a negative number"),
        ("shadow m.hlo", 0, "no rounding error"),
        ("explain m.hlo --expected b.npz", 1, "none of them explains it"),
        ("memory m.hlo", 0, "are alive at once"),
        ("compare a.npz b.npz", 1, "different"),
        ("compare a.npz b.npz --json", 1, "different"),
    ],
)
def test_every_command_writes_its_page(
    folder: Path, words: str, code: int, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = main(words.split())
    without = capfd.readouterr().out
    assert main([*words.split(), "--html", "page.html"]) == plain == code
    text = (folder / "page.html").read_text(encoding="utf-8")
    assert told in text.replace("</span>", "").replace('<span class="bad">', "").replace("</a>", "")
    assert f"hloexec {words} --html page.html" in text
    if "--json" not in words and not words.startswith("run"):
        assert capfd.readouterr().out == without


WRONG = {
    "run m.hlo --html missing/page.html": "there is no folder",
    "run m.hlo --html dumps": "is a folder",
    "run m.hlo --html m.hlo": "--html would overwrite 'm.hlo'",
    "run m.hlo --html ./m.hlo": "--html would overwrite 'm.hlo'",
    "run m.hlo --html link.hlo": "--html would overwrite 'm.hlo'",
    "run m.hlo --save out.npz --html out.npz": "--html would overwrite 'out.npz'",
    "run m.hlo --inputs a.npz --html a.npz": "--html would overwrite 'a.npz'",
    "run m.hlo --input 0=a.npz --html a.npz": "--html would overwrite 'a.npz'",
    "run m.hlo --html -": "takes the name of a file",
    "run m.hlo --html": "requires an argument",
    "run m.hlo --html=": "is empty",
    "diff m.hlo other.hlo --html other.hlo": "--html would overwrite 'other.hlo'",
    "diff m.hlo other.hlo --extract part --html part": "--html would overwrite 'part'",
    "compare a.npz b.npz --html b.npz": "--html would overwrite 'b.npz'",
    "memory m.hlo --assignment x.txt --html x.txt": "--html would overwrite 'x.txt'",
    "explain m.hlo --expected b.npz --html b.npz": "--html would overwrite 'b.npz'",
    "info m.hlo --html page.html": "No such option",
    "nan m.hlo --html page.html/": "is a folder",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_uses_are_told_before_anything_runs(
    words: str, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.symlink("m.hlo", "link.hlo")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    monkeypatch.setattr("hloexec.engine.exec.running.run_with", None)
    assert main(words.split()) == 2
    assert WRONG[words] in capfd.readouterr().err.replace("\n", " ")
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_missing_extra_is_named_before_the_run(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main("shadow m.hlo --html page.html".split()) == 1
    assert "needs Matplotlib, which is not installed: pip install 'hloexec[report]'" in capfd.readouterr().err
    assert not (folder / "page.html").exists()


def test_a_folder_that_cannot_be_written_to(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("locked").mkdir(mode=0o500)
    if os.access("locked", os.W_OK):
        pytest.skip("this user may write everywhere")
    assert main("memory m.hlo --html locked/page.html".split()) == 2
    assert "cannot be written to" in capfd.readouterr().err


def test_the_name_of_a_file_is_text(folder: Path) -> None:
    name = "<img src=x onerror=hacked=1>&amp;.hlo"
    shutil.copy("m.hlo", name)
    assert main(["memory", name, "--html", "page.html"]) == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert "<img" not in text and "&lt;img src=x onerror=hacked=1&gt;&amp;amp;.hlo" in text


def test_values_that_the_host_gives_and_takes_are_moved_once(folder: Path) -> None:
    Path("feed.hlo").write_text("""HloModule feed
ENTRY e {
  t = token[] after-all()
  i = (f32[8], token[]) infeed(t)
  x = f32[8] get-tuple-element(i), index=0
  y = f32[8] add(x, x)
  o = token[] outfeed(y, t), outfeed_shape=f32[8]
  ROOT z = f32[8] negate(y)
}
""")
    np.savez("feed.npz", **{"0": np.arange(8, dtype=np.float32)})
    assert main("run feed.hlo --infeed feed.npz --outfeed out.npz --html page.html".split()) == 0
    with np.load("out.npz") as taken:
        assert {key: taken[key].tolist() for key in taken} == {"0": [2.0 * each for each in range(8)]}
    assert "There are no plots of values: the run for them failed" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("_few_details")
def test_a_page_of_devices_that_hold_different_values(folder: Path) -> None:
    shutil.copy(EXAMPLES / "data_parallel_step.hlo", "step.hlo")
    assert main("run step.hlo --different-inputs --html page.html".split()) == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert "for 4 devices" in text and "Sizes of values along the data flow" in text
