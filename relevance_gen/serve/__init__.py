"""Both halves over HTTP. ``python -m relevance_gen.serve`` starts it; this package alone imports aiohttp."""
