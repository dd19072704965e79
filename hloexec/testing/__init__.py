"""Strategies for Hypothesis: shapes, arrays of every element type, inputs that suit a module, and modules.

    @given(st.data())
    def test_my_pass_keeps_results(data):
        module = data.draw(testing.modules(opcodes=["add", "transpose"]))
        inputs = data.draw(testing.inputs(module))
        ...

This is the only part of hloexec that needs Hypothesis, and `import hloexec` does not import it.
"""

from __future__ import annotations

try:
    import hypothesis as _hypothesis  # noqa: F401 - so that what is missing is said in a sentence
except ImportError as error:
    raise ImportError(
        "hloexec.testing needs Hypothesis, which is not installed: pip install 'hloexec[testing]'"
    ) from error

from hloexec.testing.arrays import arrays, shapes
from hloexec.testing.inputs import inputs
from hloexec.testing.modules import modules

__all__ = ["arrays", "inputs", "modules", "shapes"]
