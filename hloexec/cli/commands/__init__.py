"""One module per command, in packages by what a command is for; `cli` says which is where."""
