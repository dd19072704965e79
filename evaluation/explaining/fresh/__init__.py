"""The fresh half: programs of fields that no half before it has, written without sight of the search, measured once."""
