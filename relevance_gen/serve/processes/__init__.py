"""The server as processes: the command, the supervisor, and the life of each process."""
