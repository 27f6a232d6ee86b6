"""Request handlers: one async function for each operation."""
