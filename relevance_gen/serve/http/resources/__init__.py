"""Resources of requests: memory, threads and their limits."""
