"""What pages and notebooks are made with."""

import pytest


def require_report_packages() -> None:
    """Skips a test, or a module at whose top it is called, unless Jinja2 and Matplotlib are installed."""
    for package in ("jinja2", "matplotlib"):
        pytest.importorskip(package, reason=f"{package} is not installed, which pages are made with")
