"""One process per peer: `python -m benchmarks.contestants.NAME MODULE INPUTS DEVICES`.

It gets a first result at once and says on stdout, in a line of JSON, what that took; after that each line on stdin is a
request in JSON, and each line on stdout its answer. Nothing here imports more than the contestant needs: its start is
part of what is measured. `machine` takes no arguments, and measures what the machine can do.
"""
