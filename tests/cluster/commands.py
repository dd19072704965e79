"""Commands that ranks carry out one after the other, as under mpiexec: of each, what rank 0 prints, and its exit code.

`python commands.py FILE` reads them from a file of JSON, and writes `FILE.N` for N ranks, `ranksN` being the same in all
of them. All steps count as long, and the third entry says how many of them others have carried out for rank 0.
"""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hloexec.cli import main, ranks
from hloexec.engine.exec import handing
from hloexec.engine.exec.lockstep import serving

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


@contextmanager
def _counted() -> Iterator[list[int]]:
    """How often ranks hand rank 0 what a step gives."""
    counts = [0]
    take = serving._Feed.take

    def counting(self: Any, *arguments: Any) -> Any:
        leaves = take(self, *arguments)
        counts[0] += leaves is not None
        return leaves

    serving._Feed.take = counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        serving._Feed.take = take  # type: ignore[method-assign]


def _outcome(words: list[str], together: ranks.Ranks | None) -> list[Any]:
    printed = io.StringIO()
    words = [word.replace("ranksN", f"ranks{SIZE}") for word in words]
    with redirect_stdout(printed), redirect_stderr(printed), _counted() as counts:
        command = partial(main, words)
        code = command() if together is None else together.carry_out(command, is_alike=words[0] == "run")
    return [code, printed.getvalue().replace(f"ranks{SIZE}", "ranksN"), counts[0]]


def _carry_out(path: str) -> None:
    handing._LONG_BYTES = 1
    together = ranks.Ranks() if SIZE > 1 else None
    if together is not None:
        ranks._here.append(together)
    outcomes = [_outcome(words, together) for words in json.loads(Path(path).read_text())]
    if not RANK:
        Path(f"{path}.{SIZE}").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    _carry_out(sys.argv[1])
