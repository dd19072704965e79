"""Counterparts: what a module's results are compared with, named by one word, a SPEC, wherever a comparison is.

`specs` reads a SPEC, `forms` has the list of its forms. `own` has what hloexec runs or reads itself; `elsewhere` what
other processes run: XLA here or in another environment, and functions of users. `workers` keeps these processes,
`worker` is the script that they run, `answers` what comes of a run.
"""
