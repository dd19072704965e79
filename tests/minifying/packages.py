"""The packages that tests of `minify` need."""

from importlib.util import find_spec

import pytest

needs_scipy = pytest.mark.skipif(
    not find_spec("scipy"), reason="scipy is not installed, which finds smaller dimensions"
)
