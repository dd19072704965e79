"""Start-up: what `import hloexec` and a first command cost in a fresh process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

_PROGRAMS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import hloexec": "import hloexec",
    "import hloexec, parser ready": "import hloexec; hloexec.parse",
}


def rows(turns: int = 9) -> Iterator[dict[str, object]]:
    """One row per program: median seconds of a fresh process, the interpreter's own start included."""
    seconds: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
    for _ in range(turns):
        for name, program in _PROGRAMS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True)
            seconds[name].append(time.perf_counter() - start)
    bare = statistics.median(seconds["python"])
    for name, taken in seconds.items():
        median = statistics.median(taken)
        yield {"program": name, "seconds": f"{median:.3f}", "beyond python": f"{median - bare:.3f}"}
