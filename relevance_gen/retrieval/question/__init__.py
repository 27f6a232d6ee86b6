"""What is asked: a query, weighed against all chunks, and the ranking that answers it."""
