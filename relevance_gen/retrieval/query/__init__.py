"""Read a query: parse it, match its terms, and weight them."""
