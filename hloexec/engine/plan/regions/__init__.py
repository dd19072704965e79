"""Regions: several instructions that run on one block of rows after the other, on all cores, as one kernel.

`row_forms` decides which instructions can be computed by rows, and how; `block_program` compiles those of a region to
calls on the numbered places of a block, in an order that keeps few of them live; `region` decides how many rows a block
has, and runs them. The pass `plan.passes.fuse` decides which steps form a region.
"""

__all__ = ["LEAST_BYTES"]

LEAST_BYTES = 1 << 16
"""Smaller values are in the cache anyway."""
