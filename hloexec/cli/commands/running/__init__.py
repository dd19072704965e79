"""Commands that run a module and show or keep what it computes."""
