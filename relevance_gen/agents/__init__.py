"""What agents are offered: folders to search, to list and to read, by the Model Context Protocol."""
