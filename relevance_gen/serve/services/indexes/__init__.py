"""Indexes that clients select by name, and the cache of indexes of recent chunks."""
