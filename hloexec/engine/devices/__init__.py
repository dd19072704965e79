"""The devices of a run: their number, their groups, their tiles of sharded arrays, and values that vary between them.

`topology` numbers devices and groups them for collectives, `transfers` describes transfers between a device and its
host or another device, `varying` represents values that differ between devices. `tiles` interprets shardings;
`sharding` uses it to split arrays, and `manual_regions` to convert values at the boundaries of manual regions.
"""
