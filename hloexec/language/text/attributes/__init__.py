"""Parsing and printing attributes: a module for each kind of grammar."""
