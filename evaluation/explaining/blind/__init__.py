"""The blind half: programs of fields that no other half has, written without sight of the search and of its results."""
