"""All that HTTP needs: connections, bodies, keys, rates, and errors as statuses."""
