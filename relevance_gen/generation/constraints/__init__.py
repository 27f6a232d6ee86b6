"""Constrained decoding: grammar masks from JSON schemas, regular expressions and grammars."""
