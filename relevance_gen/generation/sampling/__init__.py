"""Sampling: choose the next token of each sample from its logits."""
