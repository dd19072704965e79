"""Where a difference begins: values of `after` are put right, one by one, until its results are those of `before`.

`blaming` leads the search. `frontier` and `counterparts` say what could stand in a value's place, `patch_search` tries
it, and `backward` goes from a replacement that helps back to the earliest one.
"""
