"""Reports of commands that make a module out of another one: extractions and smaller modules."""
