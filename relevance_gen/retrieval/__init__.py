"""Rank chunks against a query by terms, postings and weights; and the classes of indexes."""
