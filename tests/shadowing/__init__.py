"""Tests of `hloexec.shadow`."""
