"""The text and HTML forms of responses, for terminals and notebooks."""
