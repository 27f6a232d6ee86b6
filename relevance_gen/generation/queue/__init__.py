"""The queue between callers and workers: requests, fairness, prefix-aware routing."""
