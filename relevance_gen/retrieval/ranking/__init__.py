"""What scoring stages work with: features of chunks and a table of candidates."""
