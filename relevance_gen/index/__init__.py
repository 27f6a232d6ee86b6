"""What is kept of chunks: a segment, its parts, and how it is built, merged and stored."""
