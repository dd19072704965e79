"""Dumps that XLA writes beside HLO: buffer assignments and memory usage reports, in and out."""
