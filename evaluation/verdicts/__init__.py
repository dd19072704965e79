"""Verdicts about training steps: `python -m evaluation verdicts`."""
