"""Index chunks: segments with postings and lexicons; how to build, merge, save and load them."""
