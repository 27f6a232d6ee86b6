"""Encoder and reranker: models that compute vectors and scores of texts in a separate thread."""
