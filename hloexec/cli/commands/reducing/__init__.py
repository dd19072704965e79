"""Commands that make modules smaller."""
