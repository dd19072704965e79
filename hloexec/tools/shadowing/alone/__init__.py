"""What the rounding of one instruction alone does to the outputs: runs in f64 in which only that one rounds."""
