"""Commands that judge results and find the instructions that made them: compare, diff, nan."""
