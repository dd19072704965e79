"""What compilers put into modules that computes nothing: annotations, hints, rewrites; and calls that are refused."""
