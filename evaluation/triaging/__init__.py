"""How many faulty modules of a folder `triage` finds, and how it groups them."""
