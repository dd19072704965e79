"""The tools: one package each."""
