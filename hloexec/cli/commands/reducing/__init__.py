"""Commands that make modules smaller: `extract`, `shrink`, `minify`."""
