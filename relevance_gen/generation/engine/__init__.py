"""The batching engine: scheduling, slots, samples and the prefix cache."""
