"""hloexec beside its peers: XLA's own parser and XLA:CPU, interleaved in one process."""
