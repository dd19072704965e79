"""The pytest plugin: goldens as tests, and goldens in tests.

- `--hlo-goldens`, or `hlo_goldens = true` in pytest's configuration, collects `*.golden` folders; each is a test.
- The fixture `hlo_golden` compares a module in a test with a golden stored next to the test file.
- `--hlo-update` records missing goldens, and updates results that have changed.

pytest loads this plugin whenever hloexec is installed. It therefore imports nothing before it is needed, and collects
nothing unless asked to.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hloexec.core.ir import Module
    from hloexec.core.values import Inputs
    from hloexec.tools.golden import Golden, GoldenCheck

__all__ = ["GoldenFixture", "hlo_golden"]

_LONGEST_STEM = 180
"""File names have at most 255 bytes."""
_changed = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the setting."""
    group = parser.getgroup("hloexec")
    group.addoption("--hlo-goldens", action="store_true", help="collect *.golden folders as tests")
    group.addoption(
        "--hlo-update", action="store_true", help="record goldens that are missing, and update those that differ"
    )
    parser.addini("hlo_goldens", "collect *.golden folders as tests", type="bool", default=False)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A golden is one test; folders of other kinds are left to others."""
    config = parent.config
    if path.suffix != ".golden" or not (config.getoption("--hlo-goldens") or config.getini("hlo_goldens")):
        return None
    folder: pytest.Collector = GoldenFolder.from_parent(parent, path=path)
    return folder


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name what has been written."""
    changed = config.stash.get(_changed, [])
    if changed:
        terminalreporter.section("goldens")
        for line in changed:
            terminalreporter.line(line)


class GoldenFolder(pytest.Directory):
    """A `*.golden` folder."""

    def collect(self) -> Iterator[pytest.Item]:
        """Its only test."""
        yield GoldenItem.from_parent(self, name="golden")


class GoldenItem(pytest.Item):
    """The check of one golden."""

    def runtest(self) -> None:
        """Run it again, and compare."""
        from hloexec.errors import HloError
        from hloexec.tools.golden import check_golden, update_golden

        folder = self.path
        try:
            check = update_golden(folder) if self.config.getoption("--hlo-update") else check_golden(folder)
        except HloError as error:
            raise _GoldenError(str(error)) from None
        if not check.passed:
            raise _GoldenError(_failure_text(check))
        if check.message.startswith("updated"):
            self.config.stash.setdefault(_changed, []).append(f"updated {folder}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What differs, without the stack of the plugin."""
        if isinstance(excinfo.value, _GoldenError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is."""
        return self.path, None, f"golden {self.path.name}"


class _GoldenError(Exception):
    """A golden that does not pass; the message is all there is to show."""


class GoldenFixture:
    """Goldens of one test: `goldens/TEST_FILE/TEST.golden` next to the test's file."""

    def __init__(self, path: Path, test: str, config: pytest.Config, new_folder: Callable[[], Path]) -> None:
        self._path = path
        self._new_folder = new_folder
        """Where modules are kept that fail."""
        self._test = test
        """What tells it from others in the file, as in `TestA::test_it[a/b]`."""
        self._config = config
        self._checked: set[Path] = set()

    def folder(self, name: str | None = None) -> Path:
        """Where the golden lies; `name` tells several of one test apart.

        No two tests or names share a folder: whatever file names may not hold, or what separates parts of this one, is
        written %XX, as in URLs.
        """
        # Python 3.12 and later load more for it than a run without goldens should wait for.
        from urllib.parse import quote

        parts = [quote(part, safe="[]-,=@") for part in self._test.split("::")]
        stem = ".".join(parts) + ("" if name is None else "+" + quote(name, safe="[]-,=@"))
        if len(stem) > _LONGEST_STEM:
            stem = f"{stem[:_LONGEST_STEM]}%{hashlib.sha256(stem.encode()).hexdigest()[:16]}"
        return self._path.parent / "goldens" / self._path.stem / f"{stem}.golden"

    def check(
        self,
        module: Module,
        *,
        inputs: Inputs | None = None,
        seed: int = 0,
        numerics: str = "reference",
        atol: float | None = None,
        rtol: float | None = None,
        ulp: float | None = None,
        name: str | None = None,
    ) -> None:
        """Fail the test unless `module` gives what its golden says, on the inputs that the golden holds.

        Under `numerics="exact"` a module whose text is that of the golden must give the same bits; otherwise rounding
        is allowed for, or what the tolerances say. A golden that was recorded with another seed, policy or tolerance,
        or with other inputs, fails the test, too. `--hlo-update` records the golden where it is missing or another one:
        on `inputs` (see `hloexec.Inputs`), or on random ones by `seed`.
        """
        __tracebackhide__ = True
        from hloexec.errors import HloError
        from hloexec.tools.golden import check_golden, record_golden

        folder = self.folder(name)
        if folder in self._checked:
            pytest.fail(f"this test has checked {folder} before; give each check a name of its own", pytrace=False)
        self._checked.add(folder)
        is_updating = self._config.getoption("--hlo-update")
        if not folder.exists() and not is_updating:
            pytest.fail(f"there is no golden {folder}; `pytest --hlo-update` records it", pytrace=False)
        options: dict[str, Any] = {"seed": seed, "numerics": numerics, "atol": atol, "rtol": rtol, "ulp": ulp}
        check = None
        if folder.exists():
            check = check_golden(folder, module=None if _is_of(folder, module) else module)
            others = "" if check.golden is None else _other_options(check.golden, options)
            if check.golden is not None and not others and inputs is not None:
                others = _other_inputs(check.golden, module, inputs)
            if check.passed and not others:
                return
            if not is_updating:
                pytest.fail(others if check.passed else self._failure_text(check, module), pytrace=False)
            if not _is_own(folder):
                kept = f"{folder} has its result from elsewhere, and is not replaced by hloexec's own"
                pytest.fail(f"{kept}; {others or check.message}", pytrace=False)
        try:
            record_golden(module, inputs, folder, replace=check is not None, **options)
        except HloError as error:
            pytest.fail(f"cannot record {folder}: {error}", pytrace=False)
        verb = "recorded" if check is None else "updated"
        self._config.stash.setdefault(_changed, []).append(f"{verb} {folder}")

    def _failure_text(self, check: GoldenCheck, module: Module) -> str:
        """What a check says at length; if the module is another one than the golden's, it is kept, and compared."""
        from hloexec.report.running.golden import change_lines
        from hloexec.tools.golden.checking import diff_with_recorded
        from hloexec.tools.golden.recording import module_text

        text, golden = _failure_text(check), check.golden
        if golden is None or check.comparison is None or _is_of(check.folder, module):
            return text
        kept = self._new_folder() / f"{check.folder.stem}.hlo"
        kept.write_bytes(module_text(module))
        lines = change_lines(golden, str(kept), diff_with_recorded(golden, module))
        return "\n".join(
            [text, "", f"the new module is kept: {kept}", "where to look:", *(f"  {line}" for line in lines)]
        )


@pytest.fixture
def hlo_golden(request: pytest.FixtureRequest) -> GoldenFixture:
    """Goldens of this test: `hlo_golden.check(module)`."""

    def new_folder() -> Path:
        folder: Path = request.getfixturevalue("tmp_path")
        return folder

    return GoldenFixture(request.path, request.node.nodeid.partition("::")[2], request.config, new_folder)


def _is_of(folder: Path, module: Module) -> bool:
    """Whether a golden holds the text of this module; not where it cannot be read."""
    from hloexec.errors import HloError
    from hloexec.tools.golden.recording import module_text, read_golden, text_hash

    try:
        return text_hash(module_text(module)) == read_golden(folder).module_hash
    except HloError:
        return False


def _is_own(folder: Path) -> bool:
    """Whether hloexec computed a golden's result, or cannot read whose it is."""
    from hloexec.errors import HloError
    from hloexec.tools.golden.recording import OURS, read_golden

    try:
        return read_golden(folder).expected_source == OURS
    except HloError:
        return True


def _other_options(golden: Golden, options: dict[str, Any]) -> str:
    """What a golden was recorded with that a test gives otherwise, as a sentence; empty where there is nothing."""
    from hloexec.ops.policies.policy import numerics_policy

    options = {**options, "numerics": numerics_policy(options["numerics"]).name}
    recorded = {name: getattr(golden, name) for name in options}
    others = [f"{name} {recorded[name]}, not {options[name]}" for name in options if recorded[name] != options[name]]
    return f"{golden.folder} was recorded with {'; '.join(others)}; `pytest --hlo-update` records it" if others else ""


def _other_inputs(golden: Golden, module: Module, inputs: Inputs) -> str:
    """That a golden holds other inputs than a test gives, as a sentence; empty where it holds these."""
    from hloexec.errors import HloError
    from hloexec.tools.golden.checking import holds_inputs

    try:
        if holds_inputs(golden, module, inputs):
            return ""
    except HloError as error:
        return f"{golden.folder}: {error}"
    return f"{golden.folder} was recorded with other inputs; `pytest --hlo-update` records it"


def _failure_text(check: GoldenCheck) -> str:
    """What a golden's check says at length."""
    from hloexec.report.judging.comparison import comparison_text

    parts = [f"{check.folder}: {check.message}"]
    if check.comparison is not None:
        parts += ["", comparison_text(check.comparison)]
        if _is_own(check.folder):
            parts += ["", "if the change is intended: pytest --hlo-update"]
    return "\n".join(parts)
