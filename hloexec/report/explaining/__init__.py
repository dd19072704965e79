"""Reports of commands that explain results."""
