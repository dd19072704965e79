"""Commands that judge results: `compare`, `diff`, `triage`."""
