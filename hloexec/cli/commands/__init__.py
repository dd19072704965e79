"""One module per command, in packages by what a command is for; `hloexec.cli` says which is where."""
