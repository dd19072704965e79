"""Reports of commands that make modules smaller."""
