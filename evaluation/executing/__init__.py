"""Whether a farm of modules has the same report on each engine, whatever is killed on the way."""
