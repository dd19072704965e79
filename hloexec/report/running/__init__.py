"""Reports of commands that run a module."""
