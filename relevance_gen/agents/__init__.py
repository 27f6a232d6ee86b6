"""Tools for agents: folders to search, list and read, by the Model Context Protocol."""
