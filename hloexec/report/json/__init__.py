"""What `--json` prints: its keys, its records and their schemas."""
