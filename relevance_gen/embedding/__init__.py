"""Texts become vectors of what they mean: an encoder, a reranker, and their work."""
