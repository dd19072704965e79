"""hloexec through its API in a process of its own, without JAX and without any settings: for its first output."""

from __future__ import annotations

import sys

from benchmarks.contestants.hloexec import first_output
from benchmarks.contestants.serving import Stages, serve


def main(module_path: str, inputs_path: str, devices: int) -> None:
    stages = Stages()
    grown, answers = first_output(stages, module_path, inputs_path, devices)
    serve({"stages": stages.seconds, "grown": grown}, answers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
