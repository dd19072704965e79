"""The operations of MLIR that kernels have, by what they do: each is an entry of `mosaic.operations`."""
