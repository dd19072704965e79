"""Making a module smaller: the same instructions on smaller arrays."""
