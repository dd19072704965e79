"""Reports of commands that make a module out of another one: extractions, smaller and minified modules."""
