"""Minifying: the smallest module that still shows a failure, as a folder that anybody can run.

`case` is what becomes smaller, `oracles` and `checking` tell whether it still shows the failure, and `searching` tries
candidates. `subsets`, `opening`, `called`, `dimensions` and `simplifying` make these, and `pairs` does so for two
modules that differ, with `blame` to say what is to blame. `running` does it all.
"""

from hloexec.tools.minifying.findings import Minified
from hloexec.tools.minifying.running import minify

__all__ = ["Minified", "minify"]
