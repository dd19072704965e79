"""How small `minify` makes modules with a planted fault or a crash, and whether what is left still fails."""
