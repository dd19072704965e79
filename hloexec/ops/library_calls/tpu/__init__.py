"""Calls that occur only in TPU dumps."""
