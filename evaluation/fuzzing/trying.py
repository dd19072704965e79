"""Mutants of a range of seeds, one after the other, in this process: faults as JSON lines, then the counts."""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from evaluation.fuzzing.corpus import corpus
from evaluation.fuzzing.mutants import mutant
from evaluation.fuzzing.stages import outcome

__all__ = ["mutant_of"]

_SECONDS = 20
"""Of the processor."""
_WAITING_SECONDS = 300
"""By the clock, of which others who use the machine take their part."""
_BYTES = 4 << 30


def mutant_of(seed: int, texts: Sequence[str]) -> str:
    rng = random.Random(seed)
    return mutant(rng.choice(texts), rng)


def _over(*_: object) -> None:
    raise TimeoutError(f"more than {_SECONDS} s, or {_WAITING_SECONDS} s by the clock")


def _place(error: BaseException) -> str:
    """The innermost frames of ours."""
    ours = ("/hloexec/", "/evaluation/fuzzing/stages.py")
    found = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in found if any(part in frame.filename for part in ours)]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-5:-1])


def _main(first: int, last: int, folders: Sequence[str]) -> None:
    texts = corpus([Path(folder) for folder in folders])
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _over)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last):
            print(json.dumps({"begin": seed}), flush=True)
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)
            signal.alarm(_WAITING_SECONDS)
            try:
                counts[outcome(mutant_of(seed, texts), Path(folder))] += 1
            except Exception as error:
                what = f"{type(error).__name__}: {error}"[:300]
                print(json.dumps({"seed": seed, "where": _place(error), "what": what}), flush=True)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.alarm(0)
    print(json.dumps({"counts": counts}), flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
