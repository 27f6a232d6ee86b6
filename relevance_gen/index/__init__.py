"""Index chunks: segments, their postings and lexicons, how they are built, merged, saved and loaded."""
