"""The devices of a run: how many there are, which meet, who holds which part of an array, and values that differ.

`topology` numbers devices and groups them for collectives, `transfers` says what moves between a device and its host or
another device, `varying` holds values of which devices have several. `tiles` reads shardings, by which `sharding` cuts
arrays and `manual_regions` crosses the boundaries of regions that speak of one device's part.
"""
