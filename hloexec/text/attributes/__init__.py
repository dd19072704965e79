"""Attributes in text, in and out: a module for each kind of grammar."""
