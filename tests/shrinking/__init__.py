"""Tests of hloexec.shrinking."""
