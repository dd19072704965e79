"""Commands that judge results."""
