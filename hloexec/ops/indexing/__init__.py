"""Reading and writing at computed positions: dynamic slices, gather, scatter."""
