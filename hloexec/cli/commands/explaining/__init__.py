"""Commands that explain results: `nan`, `explain`, `shadow`, `precision`."""
