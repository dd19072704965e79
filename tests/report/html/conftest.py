"""A browser without a window, and pages to open in it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.html.samples import write_samples
from tests.report.needs import require_report_packages

FLAGS = (
    "headless no-sandbox disable-gpu disable-dev-shm-usage disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync"
).split()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind of result, by the name of the command."""
    require_report_packages()
    return write_samples(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, with its log of what pages ask the network for."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="Selenium is not installed")
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    exceptions = pytest.importorskip("selenium.common.exceptions")
    try:
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    except exceptions.WebDriverException as error:
        pytest.skip(f"chromium does not start here: {str(error).strip().splitlines()[0]}")
    yield driver
    driver.quit()
