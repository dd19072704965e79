"""XLA's parser as the authority on HLO text.

Some texts make XLA abort the process, so verdicts are taken in processes of their own: one process goes through a list,
and where it dies, the next one goes on behind the text that killed it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

__all__ = ["canonical_text", "parse", "verdicts", "with_signed_zeros"]

_MINUS_ZERO = re.compile(r"(?<=[{( ])-0(?=[,)} ])")

_LOOP = """
import json, sys
from jaxlib import _hlo
for text in json.load(sys.stdin):
    try:
        _hlo.hlo_module_from_text(text)
        answer = None
    except Exception as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""


def parse(text: str) -> Any:
    """XLA's module of a text; raises what jaxlib raises."""
    from jaxlib import _hlo

    return _hlo.hlo_module_from_text(text)


def canonical_text(text: str) -> str:
    """XLA's own printing of a text, with nothing left out: equal strings mean equal modules.

    Where the text elides constants, so does the printed one: XLA fills them from a counter that goes on from one text to
    the next.
    """
    from jaxlib import _hlo

    options = _hlo.HloPrintOptions()
    options.print_large_constants = "{...}" not in text
    options.print_control_dependencies = True
    options.print_metadata = True
    options.print_backend_config = True
    options.print_extra_attributes = True
    options.include_layout_in_shapes = True
    return str(parse(text).to_string(options))


def with_signed_zeros(text: str) -> str:
    """A text printed by XLA as it was meant: XLA writes -0.0 as `-0`, which its parser reads as the integer 0."""
    return _MINUS_ZERO.sub("-0.0", text)


def verdicts(texts: Sequence[str]) -> list[str | None]:
    """For each text None where XLA accepts it, else its error; "aborted: …" where XLA's process dies of it."""
    import_module("jaxlib")  # says at once where it is not installed
    answers: list[str | None] = []
    while len(answers) < len(texts):
        done = subprocess.run(
            [sys.executable, "-c", _LOOP],
            input=json.dumps(texts[len(answers) :]),
            capture_output=True,
            text=True,
            check=False,
        )
        answers += [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode:
            answers.append("aborted: " + done.stderr[-500:])
    return answers
