"""Access control: host names, API keys and rate limits."""
