"""How Hypothesis draws (the same examples in every run, unless HYPOTHESIS_PROFILE=explore asks for others, and the first
fifth of them where slow tests are left out), and that it begins before there are tests; that each pass over a plan is
checked, which cases of long tables are slow, that tests which may take long come first, that those are skipped for which
there is no XLA here, or none that can do what they ask of it, and that Python does not search for garbage among all
objects where slow tests are left out.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from hloexec.engine.plan.planner import CHECKS
from tests.plan.invariants import verify_plan

CHECKS.append(verify_plan)

if TYPE_CHECKING:
    from tests.command_line import CommandLine

_ANY_MACHINE: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
"""How long an example takes, or is drawn, on a busy machine says nothing of hloexec."""
hypothesis.settings.register_profile("repeatable", derandomize=True, **_ANY_MACHINE)
hypothesis.settings.register_profile("first fifth", derandomize=True, max_examples=20, **_ANY_MACHINE)
hypothesis.settings.register_profile("explore", print_blob=True)

_LONG = 300
"""Seconds that a test may take unless it asks for more."""


def pytest_configure(config: pytest.Config) -> None:
    # hloexec is installed with a plugin, so pytest would compile the asserts of all its files as it does those of tests.
    getattr(config.pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("hloexec")
    profile = "first fifth" if config.option.markexpr == "not slow" else "repeatable"
    profile = os.environ.get("HYPOTHESIS_PROFILE", profile)
    hypothesis.settings.load_profile(profile)
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if profile != "explore" and hasattr(providers, "_local_constants"):
        # Hypothesis would read all modules that are imported, here 700, and draw numbers that stand in them, so that
        # examples would depend on which files are tested together.
        providers._get_local_constants = lambda: providers._local_constants


@hypothesis.given(hypothesis.strategies.none())
def _draw_once(_: None) -> None:
    """When Hypothesis first draws, it looks through all objects that there are: for seconds, once there are tests."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Tests and what they import stay to the end: they are never garbage, and there are a lot of them.

    Later, a search among all objects takes seconds. Where slow tests are left out, it would come once or twice, and what
    they leave fits into memory.
    """
    # Imported here, as the variables above are set first.
    from hloexec.core.process import collection_paused

    _draw_once()
    if session.config.option.markexpr == "not slow":
        gc.set_threshold(*gc.get_threshold()[:2], 1000)
    with collection_paused():
        return (yield)


def pytest_sessionfinish() -> None:
    """pytest searches for garbage three times before it ends, and all that there is are modules and tests."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`sampled(n)`: each nth case of a test's table runs every time, the others are slow; `slow_cases(...)` names them.

    Files with tests that may take longest come first: what is started last, the other workers wait for.
    """
    counts: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is not None:
            test = item.nodeid.partition("[")[0]
            if counts[test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            counts[test] += 1
        marker = item.get_closest_marker("slow_cases")
        if marker is not None and isinstance(item, pytest.Function) and item.callspec.id in marker.args:
            item.add_marker(pytest.mark.slow)
    long = {item.path for item in items if any(m.args[0] > _LONG for m in item.iter_markers("timeout"))}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    with _skipped_without_packages():
        if item.get_closest_marker("fused_multiply_add") is not None:
            from conformance.xla import fuses_multiply_add

            if not fuses_multiply_add():
                pytest.skip("XLA:CPU rounds sums of products twice on this processor, which has no fused multiply-add")
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with _skipped_without_packages():
        yield


_NEEDED_FOR = {
    "jax": "XLA is what the test compares with",
    "jaxlib": "XLA is what the test compares with",
    "scipy": "LAPACK and shrinking run through it",
    "jinja2": "pages are made with it",
    "matplotlib": "pages are made with it",
}


@contextmanager
def _skipped_without_packages() -> Iterator[None]:
    """Skips what ends because a package is not installed, unless hloexec itself imports it without saying so."""
    from hloexec.errors import UnsupportedError

    try:
        yield
    except UnsupportedError as error:
        lacking = [name for name in _NEEDED_FOR if name in str(error).lower() and not find_spec(name)]
        if not lacking:
            raise
        pytest.skip(f"{lacking[0]} is not installed: {_NEEDED_FOR[lacking[0]]}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED_FOR or find_spec(package) or _is_imported_by_hloexec(error):
            raise
        pytest.skip(f"{package} is not installed: {_NEEDED_FOR[package]}")
    except RuntimeError as error:
        from conformance.xla import LACKS_SYMBOLS, compiles_f16

        if LACKS_SYMBOLS not in str(error) or compiles_f16():
            raise
        pytest.skip("XLA:CPU compiles no conversions of f16 for this processor, which has no instructions for them")


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    from tests.command_line import CommandLine

    return CommandLine(capsys)


def _is_imported_by_hloexec(error: ModuleNotFoundError) -> bool:
    import hloexec

    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return Path(files[-1]).is_relative_to(Path(hloexec.__file__).parent)
