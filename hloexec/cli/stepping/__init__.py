"""The commands of `hloexec step`, from a terminal, a script or the command line."""
