"""sort and topk."""
