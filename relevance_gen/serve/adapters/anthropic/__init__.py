"""Anthropic's messages API, as far as its own client and agents use it."""
