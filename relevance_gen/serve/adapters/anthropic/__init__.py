"""Anthropic's interface, as far as its own client and the agents that use it need it."""
