"""Regions: several instructions that run on one block of rows after the other, on all cores, as one kernel.

`row_forms` says which instructions can be taken by rows, and how; `block_program` turns those of a region into calls on
the numbered places of a block (`places`), in an order that keeps few of them alive (`part_order`); `region` runs that.
Which steps make up a region is decided by the pass `hloexec.plan.passes.fuse`.
"""

__all__ = ["LEAST_BYTES"]

LEAST_BYTES = 1 << 16
"""Smaller values are in the cache anyway."""
