"""Programs whose results are integers and preds alone, in a set of their own: `python -m evaluation explain --set integers`."""
