"""XLA's parser as the authority on HLO text.

Some texts make XLA abort the process, so verdicts are taken in processes of their own: one process goes through a list,
and where it dies, another fork of its parent, which has imported jaxlib, goes on behind the text that killed it.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

_MINUS_ZERO = re.compile(r"(?<=[{( ])-0(?=[,)} ])")

_PROGRAM = """
import json, os, sys
from jaxlib import _hlo

def answer(text):
    try:
        _hlo.hlo_module_from_text(text)
        return None
    except Exception as error:
        return str(error)

texts, answers = json.load(sys.stdin), []
while len(answers) < len(texts):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(write, "w") as lines:
            for text in texts[len(answers):]:
                print(json.dumps(answer(text)), file=lines, flush=True)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        answers += map(json.loads, lines)
    if status := os.waitpid(child, 0)[1]:
        answers.append(f"aborted: status {status}")
print(json.dumps(answers))
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
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=json.dumps(texts), stdout=subprocess.PIPE, text=True, check=True
    )
    answers: list[str | None] = json.loads(done.stdout)
    return answers
