"""Localizing a difference: from results that differ, back to the instruction that makes them differ.

`relations` says whether a value of `after` is the one of `before` that it should be. `causes` goes back through pairs
of such values and names suspects; `regions` helps where the two modules compute a value in different steps. `patches`
tries whether the results come right once a suspect's value is replaced, `edits` whether they do once a step is changed,
and `trials` whether that proves it. `blaming` runs the search.
"""
