"""Extracting what is to blame from both modules of a diff.

`part` chooses the instructions of one side: what is to blame, or its region, and on the other side what its counterpart
is computed from, back to values that both have. `flattening` makes a module of them, whichever calls they stand in.
`building` does both, and lets the two modules have the same parameters. `pair` is the result.
"""

from hloexec.tools.diffing.extracting.pair import ExtractedPair

__all__ = ["ExtractedPair"]
