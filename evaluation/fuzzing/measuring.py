"""What becomes of the mutant of a seed, in a process of 4 GB in which each may take 20 s of the processor."""

from __future__ import annotations

import random
import resource
import signal
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from evaluation.fuzzing.corpus import corpus
from evaluation.fuzzing.mutants import mutant
from evaluation.fuzzing.stages import outcome
from evaluation.processes import Record

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


def measured(seed: str, *folders: str) -> Record:
    """How far the mutant of a seed goes, of the corpus and folders of further texts; or where it raised what it should
    not have, and what."""
    texts, place = _begun(folders)
    text = mutant_of(int(seed), texts)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    signal.alarm(_WAITING_SECONDS)
    try:
        return {"outcome": outcome(text, place)}
    except Exception as error:
        return {"where": _place(error), "failure": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


@cache
def _begun(folders: tuple[str, ...]) -> tuple[Sequence[str], Path]:
    """The texts, and a folder for files, once the process has its limits."""
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _over)
    return corpus([*map(Path, folders)]), Path(tempfile.mkdtemp())
