"""Commands that explain results."""
