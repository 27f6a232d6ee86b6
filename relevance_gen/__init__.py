"""Search text you have in hand, and generate from what you found. See `search` and `generate`."""
