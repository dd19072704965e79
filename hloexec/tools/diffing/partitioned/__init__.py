"""Modules before and after SPMD partitioning: whole arrays on one side, shards of them on the other.

`before` runs on as many devices as `after`, with whole arrays on each. `layouts` says how arrays may be divided among
devices. `tiles` pairs whole parameters and results with shards, and adds tiles of whole values to the graph of
`before`, as if it computed them, so that `after`'s values are found among them. `pairing` pairs operands where `after`
has collectives or slices that `before` does not know of, and `collectives` changes what is exchanged.
"""
