"""Folders of files: which of them to search, what they say, and an index of them that is never stale."""
