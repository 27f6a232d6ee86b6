"""Texts become vectors of what they mean: an encoder, its work, and the prefixes that models want."""
