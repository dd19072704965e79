"""Other dumps that XLA writes: parsing and printing buffer assignments and memory usage reports."""
