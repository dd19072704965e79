"""`python -m tests.golden.surroundings FOLDER` checks the goldens in a folder, and says in JSON what came of it.

The test runs it where NumPy and BLAS are made to choose other code; what they chose is said, too.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import hloexec
from hloexec.core.process import openblas_kernels
from hloexec.tools.golden import find_goldens
from tests.golden.sums import SUMS


def main(folder: str) -> None:
    """Check all goldens in a folder."""
    module = hloexec.parse(SUMS.replace("T[", "f32["))
    plain = hloexec.run(module, *hloexec.random_inputs(module))
    found = {path.name: hloexec.check_golden(path) for path in find_goldens(Path(folder))}
    record = {
        "kernels": openblas_kernels(),
        "plain": hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in plain)).hexdigest(),
        "messages": {name: check.message for name, check in found.items()},
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1])
