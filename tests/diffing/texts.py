"""Two texts, compared."""

from typing import Any

import hloexec


def diff_texts(before: str, after: str, inputs: Any = None, **options: Any) -> hloexec.Diff:
    return hloexec.diff(hloexec.parse(before), hloexec.parse(after), inputs, **options)
