"""Reports of commands that judge results: comparisons, diffs and the origins of NaNs."""
