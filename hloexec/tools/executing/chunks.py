"""Chunks: items that share a process, where starting one takes longer than an item does.

An item that the process ends with costs only itself: another process goes on with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hloexec.errors import HloError
from hloexec.tools.executing.engines import Engine
from hloexec.tools.executing.running import run_tasks
from hloexec.tools.executing.tasks import Json, Reply, Task, Tell

_Item = TypeVar("_Item")
_ANSWERS = "answers"


def answer_each(function: Callable[[_Item], Json], items: Sequence[_Item], tell: Tell) -> Json:
    """What the function of a chunk's task returns, with what a function answers for each of its items."""
    answers = []
    for item in items:
        answers.append(function(item))
        tell({_ANSWERS: answers})
    return {_ANSWERS: answers}


def run_chunks(
    chunks: Sequence[Sequence[_Item]], task_of: Callable[[Sequence[_Item]], Task], engine: Engine
) -> Iterator[tuple[_Item, Json | Reply]]:
    """What is answered for each item, by chunks, as they come; the reply to its task where the process ended before."""
    while chunks:
        left = []
        for chunk, reply in run_tasks(chunks, task_of, engine):
            if isinstance(reply, HloError):
                raise reply
            answers = reply.answer[_ANSWERS] if reply.answer is not None else []
            yield from zip(chunk, answers, strict=False)
            if len(answers) < len(chunk):
                yield chunk[len(answers)], reply
                left.append(chunk[len(answers) + 1 :])
        chunks = [chunk for chunk in left if chunk]
