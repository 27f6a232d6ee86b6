"""Continue text with a GGUF model, many requests and samples at once."""
