"""The OpenAI API, as far as OpenAI's client and compatible clients use it."""
