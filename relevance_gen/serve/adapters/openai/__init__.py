"""OpenAI's interface, as far as its own client and those who copied it use it."""
