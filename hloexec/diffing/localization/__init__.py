"""Localizing a difference: values of `after` are replaced one at a time until its results are those of `before`.

`blaming` runs the search. `frontier` and `counterparts` propose replacements for a value, `patch_search` tries them,
and `backward` goes from a replacement that corrects the results to the earliest one that does.
"""
