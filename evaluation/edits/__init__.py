"""`diff` on pairs that differ by one small edit, as of somebody who changed a number or a layout."""
