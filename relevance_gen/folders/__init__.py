"""An index of a folder that is updated before each search, and its cache."""
