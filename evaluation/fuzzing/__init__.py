"""Mutants of modules through all of hloexec: whatever the text, there is a result or an HloError, and nothing else."""
