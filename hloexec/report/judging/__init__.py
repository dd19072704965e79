"""Reports of commands that judge results."""
