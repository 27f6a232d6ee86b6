"""Chat: conversations to prompts, and model output back to messages with tool calls."""
