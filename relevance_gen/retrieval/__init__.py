"""Rank chunks against a query: terms → postings → weighting → ranking; and the index."""
