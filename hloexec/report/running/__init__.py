"""Reports of commands that run a module: golden checks and traces."""
