"""Commands that make a module out of another one: extract, shrink, minify."""
