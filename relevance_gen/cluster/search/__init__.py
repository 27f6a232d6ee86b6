"""Search on the nodes of a Ray cluster, over the shards of an index in shared storage."""
