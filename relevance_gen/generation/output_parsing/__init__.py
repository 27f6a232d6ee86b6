"""Output parsing: text of a model to content parts, with its reasoning and its tool calls."""
