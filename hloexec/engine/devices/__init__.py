"""The devices of a run: their number, their groups, their tiles of sharded arrays, and values that vary between them.

`topology` numbers devices, groups them for collectives, and describes their transfers, `varying` represents values that
differ between devices. `manual_regions` interprets shardings, and converts values at the boundaries of manual regions.
"""
