"""Measurements of the tools on programs and planted faults: how often each is right. README.md says how to run them."""
